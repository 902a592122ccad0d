//! `nestrace doctor`: what this machine and this user allow, what each lack costs, how to get it.
//!
//! Looking is safe and changes nothing: files are read, and tiny programs and maps are offered to the
//! kernel and dropped at once, never attached. As an ordinary user much stays unknown; the report says
//! so. [`DoctorReport::new`] is pure, so other machines are tested from their facts.

mod checks;
mod qemu;
mod text;

use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::layout::Layout;
use nestrace_kernel::plan::{Detail, ProbePlan, Wanted, plan};
use nestrace_probes::kernel_facts::gather;
use serde::Serialize;

use crate::qemu_binary::QemuBinary;
use crate::roles::finder::find_qemu_apart;

pub use checks::{Check, State};
pub use qemu::QemuReport;

/// Everything that `nestrace doctor` says; serializes to the JSON of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// Whether `nestrace record` can work for this user on this machine.
    pub can_record: bool,
    /// Why not.
    pub obstacle: Option<String>,
    /// One entry for each thing that was looked at.
    pub checks: Vec<Check>,
    /// The kernel's probes at `--detail full`.
    pub probes: ProbePlan,
    /// Each running QEMU; the installed one where none runs.
    pub qemu: Vec<QemuReport>,
    /// What all this follows from.
    pub facts: KernelFacts,
}

impl DoctorReport {
    /// Looks at this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let (facts, layout) = gather();
        // Where they cannot be looked at apart there are none, as where nothing runs.
        let binaries = find_qemu_apart().unwrap_or_default();
        Self::new(facts, &layout, &binaries)
    }

    /// Judges facts; looks at nothing.
    #[must_use]
    pub fn new(facts: KernelFacts, layout: &Layout, binaries: &[QemuBinary]) -> Self {
        let probes = plan(
            &facts,
            layout,
            Wanted {
                detail: Detail::Full,
                processes: true,
                mounts: false,
                cpu: true,
            },
        );
        let obstacle = probes.obstacle().map(str::to_owned);
        Self {
            can_record: obstacle.is_none(),
            obstacle,
            checks: checks::all(&facts),
            probes,
            qemu: binaries
                .iter()
                .map(|binary| QemuReport::new(&facts, binary))
                .collect(),
            facts,
        }
    }

    /// The exit code of the contract: 0 if recording can work, 4 (a missing privilege, kernel feature
    /// or package) if not.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        if self.can_record { 0 } else { 4 }
    }

    /// For a person, with a line break at the end.
    #[must_use]
    pub fn to_text(&self) -> String {
        text::write(self)
    }
}

#[cfg(test)]
mod tests;
