//! The QEMU programs of this machine, and what each exports.

use std::fs::{self, File};
use std::path::Path;

use nestrace_kernel::probes::QEMU;
use serde::{Deserialize, Serialize};

use crate::guest::process::{self, Process};
use crate::guest::{command_line, program::Program};
use crate::qemu_symbols::{Located, locate_program};

/// Where distributions put QEMU, for when none runs.
const INSTALLED: &[&str] = &[
    "/usr/bin/qemu-system-x86_64",
    "/usr/bin/qemu-kvm",
    "/usr/libexec/qemu-kvm",
    "/usr/bin/qemu-system-aarch64",
    "/usr/local/bin/qemu-system-x86_64",
];

/// A QEMU program, running or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Every QEMU that runs; where none does, the first that is installed.
#[must_use]
pub fn find_qemu() -> Vec<QemuBinary> {
    let running = running();
    if !running.is_empty() {
        return running;
    }
    let installed = INSTALLED.iter().find(|path| Path::new(path).exists());
    let binary = |path: &&str| QemuBinary {
        pid: None,
        guest: None,
        path: (*path).to_owned(),
        located: installed_program(Path::new(path)),
    };
    installed.map(binary).into_iter().collect()
}

fn running() -> Vec<QemuBinary> {
    let census = process::census().unwrap_or_default();
    census.processes.into_iter().map(running_qemu).collect()
}

fn running_qemu(process: Process) -> QemuBinary {
    QemuBinary {
        pid: Some(process.pid),
        guest: command_line::parse(&process.argv).name,
        // Through the process: its mount namespace may be another, its package upgraded.
        located: Program::open(process.pid, process.start_ticks)
            .map(|program| look_into(process.pid, program.file()))
            .map_err(|error| format!("read {}: {error}", process.executable)),
        path: fs::read_link(process.proc_path("exe")).map_or(process.executable, |path| {
            path.to_string_lossy().into_owned()
        }),
    }
}

fn installed_program(path: &Path) -> Result<Located, String> {
    let program = File::open(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    Ok(look_into(std::process::id(), &program))
}

fn look_into(pid: u32, program: &File) -> Located {
    let names: Vec<_> = QEMU.iter().map(|row| row.target).collect();
    locate_program(pid, program, &names)
}
