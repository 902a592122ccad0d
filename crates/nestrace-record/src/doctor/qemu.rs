//! Which of QEMU's functions can be probed, for each QEMU that runs (or is installed).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::plan::{ProbePlan, plan_qemu};
use nestrace_kernel::probes::QEMU;
use serde::Serialize;

use crate::guest::command_line;
use crate::qemu_symbols::{Located, locate_in};

/// Where distributions put QEMU, for when none runs.
const INSTALLED: &[&str] = &[
    "/usr/bin/qemu-system-x86_64",
    "/usr/bin/qemu-kvm",
    "/usr/libexec/qemu-kvm",
    "/usr/bin/qemu-system-aarch64",
    "/usr/local/bin/qemu-system-x86_64",
];

/// A QEMU program, running or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuBinary {
    /// Process id; `None` for one that is only installed.
    pub pid: Option<u32>,
    /// The guest's name, where its command line has one.
    pub guest: Option<String>,
    /// The program's path as its process sees it.
    pub path: String,
    /// What it exports, or why that cannot be read.
    pub located: Result<Located, String>,
}

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

/// Every QEMU that runs; where none does, the first that is installed.
#[must_use]
pub fn find() -> Vec<QemuBinary> {
    let running = running();
    if !running.is_empty() {
        return running;
    }
    let installed = INSTALLED.iter().find(|path| Path::new(path).exists());
    let binary = |path: &&str| QemuBinary {
        pid: None,
        guest: None,
        path: (*path).to_owned(),
        located: look_into(Path::new(path)),
    };
    installed.map(binary).into_iter().collect()
}

fn running() -> Vec<QemuBinary> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<_> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(running_qemu)
        .collect();
    found.sort_by_key(|binary| binary.pid);
    found
}

/// `None` if the process is no QEMU, or is gone by now.
fn running_qemu(pid: u32) -> Option<QemuBinary> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    // The link can be read only of this user's own processes, the name of all.
    let path = fs::read_link(process.join("exe")).ok();
    let name = match path.as_deref().and_then(Path::file_name) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => fs::read_to_string(process.join("comm"))
            .ok()?
            .trim()
            .to_owned(),
    };
    if !name.contains("qemu-system-") && name != "qemu-kvm" {
        return None;
    }
    let line = fs::read(process.join("cmdline")).ok()?;
    let words = line
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<_> = words.collect();
    Some(QemuBinary {
        pid: Some(pid),
        guest: command_line::parse(&words).name,
        path: path.map_or(name, |path| path.to_string_lossy().into_owned()),
        // Through the process: its mount namespace may be another, its package upgraded.
        located: look_into(&process.join("exe")),
    })
}

fn look_into(path: &Path) -> Result<Located, String> {
    let names: Vec<_> = QEMU.iter().map(|row| row.target).collect();
    locate_in(path, &names).map_err(|error| format!("read {}: {error}", path.display()))
}
