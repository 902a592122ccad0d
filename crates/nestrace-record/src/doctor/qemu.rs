//! Which of QEMU's functions can be probed, for each QEMU that runs (or is installed).

use std::collections::BTreeSet;

use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::plan::{ProbePlan, plan_qemu};
use serde::Serialize;

use crate::qemu_binary::QemuBinary;

/// What can be probed in one QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QemuReport {
    /// Process id; `null` for one that is only installed.
    pub pid: Option<u32>,
    /// The guest's name.
    pub guest: Option<String>,
    /// The program.
    pub path: String,
    /// Why it could not be looked into.
    pub problem: Option<String>,
    /// How many USDT probes of provider `qemu` it has.
    pub n_usdt: usize,
    /// Its probes.
    pub probes: ProbePlan,
}

impl QemuReport {
    pub(super) fn new(facts: &KernelFacts, binary: &QemuBinary) -> Self {
        let located = binary.located.clone().unwrap_or_default();
        let unreadable = located
            .problem
            .map(|problem| format!("read {}: {problem}", binary.path));
        let functions = located.symbols.keys().cloned().collect();
        let of_qemu = located.usdt.iter().filter(|probe| probe.provider == "qemu");
        let usdt: BTreeSet<String> = of_qemu.map(|probe| probe.name.clone()).collect();
        Self {
            pid: binary.pid,
            guest: binary.guest.clone(),
            path: binary.path.clone(),
            problem: binary.located.as_ref().err().cloned().or(unreadable),
            n_usdt: usdt.len(),
            probes: plan_qemu(facts, &functions, &usdt),
        }
    }
}
