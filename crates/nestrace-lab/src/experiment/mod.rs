//! Runs a plan: builds what each cell needs, measures it, records it, and writes down what came of it.
//!
//! Every run of a cell has a new file system in the guest, on a disk that is as it was at first, and finds
//! neither the guest's nor the host's page cache filled. Timed runs are not recorded, so that recording
//! costs no cell more than another; one more run of each cell is recorded to explain it. What fails is
//! written down with its cell, and the run goes on; what is finished stays, and a later run goes on there.

mod base;
mod bench;
mod boot;
mod counters;
mod database;
mod disks_outside;
mod error;
mod failure;
mod fio_result;
mod folder_error;
mod guest_data;
mod host_guest;
mod lab_guest;
mod ledger;
mod leftovers;
mod machine;
mod own_guest;
mod pace;
mod real_tool_result;
mod recorder;
mod results_folder;
mod scattered_image;
mod script_check;
mod scripts;
mod sequence;
mod stage;
mod standing;
mod sysbench_result;
mod tree;
mod work_folder;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nestrace_report::lab::{Machine, RUN_SCHEMA, RunHeader};

pub use base::BaseError;
pub use database::{DatabaseDisk, DatabaseError, database_spec};
pub use error::LabError;
pub use folder_error::FolderError;
pub use own_guest::OwnGuestError;
pub use recorder::RecorderError;
pub use results_folder::{MARK, read_results, replace_file};
pub use script_check::{ScriptError, check_scripts};
pub use standing::{CellStanding, Standing, standing};
pub use tree::TreeError;

use crate::host_scheduler::kernel_has_scheduler;
use crate::plan::{GuestFs, Host, Monitor, Plan, Scheduler, Shell, sysbench};
use bench::RealBench;
use boot::BootParts;
use guest_data::{GuestData, Wanted};
use ledger::Ledger;
use nestrace_rig::cache_dir;
use nestrace_rig::external_tool::find_program;
use nestrace_rig::guest::Accel;
use nestrace_rig::guest_folder;
use nestrace_rig::host_fs::kernel_has;
use nestrace_rig::initramfs;
use nestrace_rig::kernel_image::{self, KernelImage};
use nestrace_rig::modelled_disk::{self, ModelledDiskSpec};
use nestrace_rig::named_device::NamedDevice;
use nestrace_rig::packages;
use nestrace_rig::stack::Aio;
use results_folder::ResultsFolder;
use stage::{Guests, Parts};
use work_folder::Reader;

/// Where results go and which programs are used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of results.
    pub folder: PathBuf,
    /// The recorder.
    pub nestrace: PathBuf,
    /// The lab's own program, which takes the host's role inside a guest.
    pub lab: PathBuf,
    /// The agent that guests get, if the plan wants one.
    pub agent: PathBuf,
    /// What serves modelled disks, if the plan wants one.
    pub disk: PathBuf,
    /// Whether this is the program inside a guest to which another one gave the host's role.
    pub is_inside: bool,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Runs that are finished, of earlier starts too.
    pub n_done: usize,
    /// Runs in all; 0 until all that they need is there.
    pub n_all: usize,
    /// Seconds that are left, roughly.
    pub seconds_left: u64,
    /// What is done now, or what failed.
    pub what: String,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Cells in all.
    pub n_cells: usize,
    /// Cells with a failure.
    pub n_failed: usize,
}

impl Outcome {
    /// Whether no cell came out whole: then something is wrong with the machine or the plan, not with a cell.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.n_failed > 0 && self.n_failed == self.n_cells
    }
}

/// Runs a plan, or goes on with it. Needs root. `progress` hears of no run ([`Progress::n_all`] is 0) before it is
/// known that disk, memory and the parts of guests are there.
///
/// # Errors
/// The folder is another plan's, disk or memory will not do, no guest can be made at all, or Ctrl-C.
pub fn run(
    plan: &Plan,
    plan_text: &str,
    options: &Options,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, LabError> {
    let has_agent = plan.guest.has_agent && plan.record_seconds > 0;
    if has_agent && plan.own_guest.is_none() && !options.agent.is_file() {
        return Err(LabError::NoAgent(options.agent.clone()));
    }
    let modelled = modelled_disk(plan, options)?;
    let folder = ResultsFolder::open(&options.folder, plan_text)?;
    // What an earlier run lost goes from the top: a guest's disks before what lies under them.
    let _claimed = plan.own_guest.as_ref().map(own_guest::claim).transpose()?;
    folder.check_work()?;
    leftovers::remove(&folder.path().join(work_folder::WORK));
    guest_folder::remove_abandoned(&std::env::temp_dir());
    let work = folder.work(match plan.own_guest {
        Some(_) => Reader::OtherQemu,
        None => Reader::Lab,
    })?;
    let ledger = Ledger::open(plan, folder)?;
    let steps = plan.schedule().steps;
    if !steps.iter().any(|step| ledger.is_open(step)) {
        // Nothing is needed for what is finished.
        leftovers::remove(&work);
        return Ok(ledger.outcome());
    }
    let done = if plan.host_in_guest && !options.is_inside {
        host_guest::run(plan, options, ledger, (&work, &modelled), progress)
    } else {
        run_in(
            plan,
            options,
            ledger,
            &work,
            (has_agent, modelled),
            progress,
        )
    };
    // Everything in it was dropped before.
    leftovers::remove(&work);
    done
}

/// Refuses what this machine's kernel cannot do for a plan in its host's role; nothing has to be installed for the
/// answer.
///
/// # Errors
/// It lacks a host file system or a scheduler, or forbids io_uring.
pub fn check_kernel(plan: &Plan) -> Result<(), LabError> {
    let combinations = || plan.cells.iter().map(|cell| &cell.combination);
    let hosts = combinations().map(|combination| combination.host);
    for host in hosts.collect::<BTreeSet<Host>>() {
        if let Host::Fs(fs) = host
            && !kernel_has(fs)
        {
            return Err(LabError::NoHostFs { fs });
        }
    }
    let schedulers = combinations().map(|combination| combination.host_scheduler);
    for scheduler in schedulers.collect::<BTreeSet<Scheduler>>() {
        if !kernel_has_scheduler(scheduler) {
            return Err(LabError::NoHostScheduler { scheduler });
        }
    }
    // 1 leaves it to root, which the lab is. A guest of the user's has a QEMU of its own.
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let is_forbidden = sysctl.is_ok_and(|word| word.trim() == "2");
    let is_wanted = || combinations().any(|combination| combination.disk.aio == Aio::IoUring);
    if is_forbidden && plan.own_guest.is_none() && is_wanted() {
        return Err(LabError::NoIoUring);
    }
    Ok(())
}

fn run_in(
    plan: &Plan,
    options: &Options,
    mut ledger: Ledger,
    work: &Path,
    (has_agent, modelled): (bool, ModelledDiskSpec),
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, LabError> {
    check_kernel(plan)?;
    // Before anything else: what is refused here was not touched.
    let outside = plan.disks_outside().filter(|_| options.is_inside);
    let paths = match outside {
        Some((n, _)) => disks_outside::find(n).map_err(BaseError::from)?,
        None => plan.devices.clone(),
    };
    let devices = NamedDevice::claim_all(&paths, plan.device_bytes());
    let devices = devices.map_err(BaseError::from)?;
    let devices: Vec<Arc<NamedDevice>> = devices.into_iter().map(Arc::new).collect();
    let estimate = plan
        .estimate_inside()
        .without_recordings(plan, ledger.n_recorded());
    let schedule = plan.schedule();
    let wanted = match plan.own_guest {
        // It has what it has.
        Some(_) => None,
        None => {
            let open = ledger.open_cells(&schedule.steps);
            Some(Wanted::of(cache_dir::root()?, plan, &open))
        }
    };
    machine::check_rooms(&estimate, work, wanted.as_ref())?;
    if plan.own_guest.is_none() {
        let folder = std::env::temp_dir();
        machine::check_temporary_room(plan, &machine::room(&folder), &folder)?;
    }
    progress(&Progress {
        n_done: 0,
        n_all: 0,
        seconds_left: 0,
        what: String::from("the guests' kernel and programs"),
    });
    let mut guests = guests(plan, options, has_agent, Accel::like(ledger.accelerator()))?;
    let machine = machine::describe(&guests, options.is_inside)?;
    if !ledger.goes_on_with(&machine)? {
        progress(&Progress {
            n_done: 0,
            n_all: estimate.n_runs,
            seconds_left: estimate.seconds,
            what: String::from("the speed of the devices below"),
        });
        let header = first_header(plan, machine, (&devices, &modelled), work)?;
        ledger.write_header(header)?;
    }
    if let (Guests::Booted(parts), Some(wanted)) = (&mut guests, wanted) {
        parts.data = wanted.obtain(&mut |what| {
            progress(&Progress {
                n_done: 0,
                n_all: estimate.n_runs,
                seconds_left: estimate.seconds,
                what,
            });
        })?;
    }
    let parts = Parts {
        guests,
        has_agent,
        devices,
        modelled,
    };
    let mut bench = RealBench::new(plan, &schedule, &options.nestrace, parts, work);
    sequence::run(plan, &schedule.steps, &mut ledger, &mut bench, progress)
}

/// The modelled disks of a plan, as far as all have it in common; checked is what each needs.
fn modelled_disk(plan: &Plan, options: &Options) -> Result<ModelledDiskSpec, LabError> {
    // Inside a guest that plays the host they come from outside.
    let models = plan.modelled_disks().into_iter();
    for model in models.filter(|_| !options.is_inside) {
        // A file of parameters says now what is wrong with it.
        modelled_disk::parameters(model).map_err(BaseError::from)?;
        if !options.disk.is_file() {
            return Err(LabError::NoDisk(options.disk.clone()));
        }
    }
    Ok(ModelledDiskSpec {
        seed: plan.seed,
        ..ModelledDiskSpec::new(&options.disk, "")
    })
}

/// Where guests come from: what they are booted from, or the user's own one with all that it needs.
fn guests(
    plan: &Plan,
    options: &Options,
    has_agent: bool,
    accel: Accel,
) -> Result<Guests, LabError> {
    if let Some(own) = &plan.own_guest {
        own_guest::check_programs(own, plan)?;
        return Ok(Guests::Own(own.clone()));
    }
    let kernel = kernel_image::obtain(&plan.guest.kernel)?;
    let in_guests = plan.cells.iter().map(|cell| cell.combination.guest_fs);
    check_guest_kernel(&kernel, in_guests)?;
    let initramfs = initramfs::obtain(&kernel)?;
    Ok(Guests::Booted(Box::new(BootParts {
        kernel,
        initramfs,
        agent: has_agent.then(|| options.agent.clone()),
        accel,
        patience: if options.is_inside {
            host_guest::PATIENCE
        } else {
            1
        },
        data: GuestData::default(),
    })))
}

/// Refuses file systems that the guests' kernel lacks.
fn check_guest_kernel(
    kernel: &KernelImage,
    file_systems: impl Iterator<Item = GuestFs>,
) -> Result<(), LabError> {
    for fs in file_systems.collect::<BTreeSet<_>>() {
        if !kernel.has_module(fs.module())? {
            let release = kernel.release.clone();
            return Err(LabError::NoGuestFs { fs, release });
        }
    }
    Ok(())
}

fn first_header(
    plan: &Plan,
    machine: Machine,
    (devices, modelled): (&[Arc<NamedDevice>], &ModelledDiskSpec),
    work: &Path,
) -> Result<RunHeader, LabError> {
    let models: Vec<&str> = plan.modelled_disks().into_iter().collect();
    let bases = if devices.is_empty() {
        let combinations = plan.cells.iter().map(|cell| &cell.combination);
        let own = combinations.filter(|one| one.host_disk.model().is_none());
        let disks: Vec<ModelledDiskSpec> = models.iter().map(|model| modelled.of(model)).collect();
        base::probe(&own.map(|one| one.host.word()).collect(), &disks, work)?
    } else {
        base::probe_named(devices)?
    };
    Ok(RunHeader {
        schema: RUN_SCHEMA.to_owned(),
        plan: plan.name.clone(),
        about: plan.about.clone(),
        experiment: plan.experiment.clone(),
        seed: plan.seed,
        repetitions: plan.repetitions,
        record_seconds: Some(plan.record_seconds),
        started_unix_s: unix_seconds(),
        machine,
        modelled_disk: (!models.is_empty()).then(|| models.join(", ")),
        bases,
        cells: plan.cells.iter().map(|cell| cell.id.clone()).collect(),
        excluded: plan.excluded.clone(),
    })
}

fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Packages of the programs that a plan needs and that are not there.
#[must_use]
pub fn missing_packages(plan: &Plan) -> Vec<String> {
    let combinations = || plan.cells.iter().map(|cell| &cell.combination);
    let mut file_systems: Vec<&str> = combinations().map(|one| one.host.word()).collect();
    // A running guest makes its own.
    let boots = plan.own_guest.is_none();
    if boots {
        file_systems.extend(combinations().map(|one| one.guest_fs.word()));
    }
    let mut packages = packages::missing_for(&file_systems, boots);
    let mut own = vec![
        ("dd", "coreutils"),
        ("tar", "tar"),
        ("wipefs", "util-linux"),
    ];
    if let Some(guest) = &plan.own_guest {
        if let Monitor::Libvirt(_) = guest.monitor {
            own.push(("virsh", "libvirt-clients"));
        }
        if let Shell::Ssh(_) = guest.shell {
            own.push(("ssh", "openssh-client"));
        }
    }
    if plan.guest_programs().contains(sysbench::PROGRAM) && plan.own_guest.is_none() {
        own.push((sysbench::PROGRAM, "sysbench"));
    }
    if database::is_wanted(plan) {
        own.extend(database::PROGRAMS);
    }
    packages.extend(packages::missing_of(&own, |program| {
        find_program(program).is_some()
    }));
    packages
}
