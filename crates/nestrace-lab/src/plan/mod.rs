//! A plan of experiments: from a text to cells, and what they will take.
//!
//! Pure: it takes the text of a plan and returns values. It reports every error that can be found before
//! anything is built, with line and column. `docs/lab.md` describes the format.
//!
//! ```
//! use nestrace_lab::plan::Plan;
//! let plan = Plan::read(
//!     "name = 'mine'\n\
//!      [axes]\n\
//!      guest_fs = ['ext4', 'xfs']\n\
//!      host_fs = ['btrfs']\n\
//!      [[workload]]\n\
//!      name = 'randwrite'\n",
//! )
//! .unwrap();
//! // Two cells, and what each is compared with: its guest file system on the bare device.
//! assert_eq!(plan.cells.len(), 4);
//! let error = Plan::read("name = 'a'\n[axes]\nhost_fs = ['xsf']\n").unwrap_err();
//! assert!(error.to_string().starts_with("line 3, column 12: "));
//! ```

mod axes;
mod cells;
mod combination;
mod devices;
mod error;
mod estimate;
pub mod file_io;
mod guest_section;
mod host_section;
pub mod library;
pub mod oltp;
mod programs;
mod reader;
pub mod real_tool;
mod schedule;
mod section;
pub mod shipped;
pub mod sysbench;
pub mod workload;
mod workload_section;

pub use axes::{
    Axis, BARE, GuestFs, Host, HostDisk, PASS_THROUGH, Placement, Preallocation, Scheduler,
};
pub use combination::Combination;
pub use error::{Place, PlanError};
pub use estimate::Estimate;
pub use guest_section::{Monitor, OwnGuest, Shell};
pub use programs::{Program, place_in_guest};
pub(crate) use schedule::shuffled;
pub use schedule::{BaseNeed, Batch, GuestDisk, Kind, Schedule, Step};
pub use workload::{Upgrade, Workload};

use std::collections::BTreeSet;
use std::path::PathBuf;

use nestrace_report::lab::Excluded;

/// A plan that was read and makes sense.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What it is for, in a sentence.
    pub about: String,
    /// The experiment of the literature that it repeats: `E1` to `E5`.
    pub experiment: Option<String>,
    /// Timed runs of each cell.
    pub repetitions: u32,
    /// Of the randomised order.
    pub seed: u64,
    /// Seconds of the run that is recorded; 0 records nothing.
    pub record_seconds: u32,
    /// Bytes of a guest's disk.
    pub image_bytes: u64,
    /// The guests that are booted.
    pub guest: GuestSize,
    /// Programs that they get besides what all have.
    pub programs: Vec<Program>,
    /// A running guest of the user's, in place of them.
    pub own_guest: Option<OwnGuest>,
    /// Devices that the user named for host file systems and bare disks; none where the lab makes its own.
    pub devices: Vec<PathBuf>,
    /// Whether the host's role runs inside a guest, whose kernel has file systems that this machine's lacks.
    pub host_in_guest: bool,
    /// The cells, each baseline before those that are compared with it.
    pub cells: Vec<PlannedCell>,
    /// Numbers of the cells that are run; empty for all.
    pub only: BTreeSet<usize>,
    /// Combinations that were left out, with the reason.
    pub excluded: Vec<Excluded>,
}

/// A plan has no such cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this plan has no cell \"{id}\"{hint}")]
pub struct UnknownCell {
    /// What was asked for.
    pub id: String,
    /// What may have been meant.
    hint: String,
}

/// What the guests are like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSize {
    /// MiB.
    pub memory_mib: u32,
    /// Virtual processors.
    pub vcpus: u32,
    /// Debian's series of the kernel.
    pub kernel: String,
    /// Whether recordings are made inside guests too.
    pub has_agent: bool,
}

/// A combination under a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCell {
    /// Unique in the plan, and the name of its files.
    pub id: String,
    /// The stack.
    pub combination: Combination,
    /// What the guest does.
    pub workload: Workload,
    /// Index of the cell that it is compared with; `None` for a baseline.
    pub baseline: Option<usize>,
}

impl PlannedCell {
    /// Whether a recording can explain it: a recorder follows the disks of a guest.
    #[must_use]
    pub fn can_be_recorded(&self) -> bool {
        !self.combination.is_passed_through()
    }
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// It is no TOML, has unknown keys or values, or no combination is left.
    pub fn read(text: &str) -> Result<Self, PlanError> {
        reader::read(text)
    }

    /// Runs no other cells than these, and what they are compared with.
    ///
    /// # Errors
    /// The plan has no cell of this name.
    pub fn run_only(&mut self, ids: &[String]) -> Result<(), UnknownCell> {
        for id in ids {
            let number = self.cells.iter().position(|cell| cell.id == *id);
            let number = number.ok_or_else(|| {
                let known: Vec<&str> = self.cells.iter().map(|cell| cell.id.as_str()).collect();
                UnknownCell {
                    id: id.clone(),
                    hint: error::suggestion(id, &known),
                }
            })?;
            self.only.insert(number);
            self.only.extend(self.cells[number].baseline);
        }
        Ok(())
    }

    /// The order in which everything runs.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule::new(self)
    }

    /// What it takes.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        Estimate::new(self)
    }

    /// What it takes of the machine that has the host's role: the guest, where [`host_in_guest`](Self::host_in_guest).
    #[must_use]
    pub fn estimate_inside(&self) -> Estimate {
        Estimate::inside(self)
    }

    /// The same with the programs that workloads come from (Filebench, iozone), as far as they are found: without them
    /// these are jobs of fio. A running guest of the user's is not looked at.
    #[must_use]
    pub fn with_models(mut self, is_found: impl Fn(&str) -> bool) -> Self {
        let boots = self.own_guest.is_none();
        for cell in &mut self.cells {
            cell.workload
                .use_model(|program| boots && is_found(program));
        }
        self
    }

    /// Programs that its workloads need in a guest and that are not in every guest, and those that it names itself.
    #[must_use]
    pub fn guest_programs(&self) -> BTreeSet<&str> {
        let workloads = self.cells.iter().map(|cell| &cell.workload);
        let own = workloads.filter(|workload| {
            use workload::Action;
            matches!(workload.action, Action::FileIo(_) | Action::RealTool(_))
        });
        let mut programs: BTreeSet<&str> = own.map(Workload::program).collect();
        programs.extend(self.programs.iter().map(|program| program.word.as_str()));
        programs
    }

    /// The modelled disks that host file systems and bare devices lie on: built-in models' names, and TOML files.
    #[must_use]
    pub fn modelled_disks(&self) -> BTreeSet<&str> {
        let disks = self.cells.iter().map(|cell| &cell.combination.host_disk);
        disks.filter_map(HostDisk::model).collect()
    }

    /// Entries of the trees of small files that its workloads unpack.
    #[must_use]
    pub fn trees(&self) -> BTreeSet<u32> {
        let entries = self.cells.iter().map(|cell| cell.workload.tree_entries());
        entries.filter(|entries| *entries > 0).collect()
    }

    /// How many cells are no baselines.
    #[must_use]
    pub fn n_compared(&self) -> usize {
        let compared = self.cells.iter().filter(|cell| cell.baseline.is_some());
        compared.count()
    }

    /// Refuses one of its programs that is not found.
    ///
    /// # Errors
    /// The first of them, with its place.
    pub fn check_programs(&self, is_found: impl Fn(&str) -> bool) -> Result<(), PlanError> {
        let mut programs = self.programs.iter();
        let Some(missing) = programs.find(|program| !is_found(&program.word)) else {
            return Ok(());
        };
        Err(PlanError {
            place: missing.place,
            message: format!("find the program {} for the guests", missing.word),
        })
    }
}
