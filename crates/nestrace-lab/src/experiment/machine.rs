//! What a run takes place on, and whether it will do.

use std::path::Path;

use nestrace_report::lab::Machine;
use nix::sys::statvfs::statvfs;

use super::LabError;
use crate::external_tool::Tool;
use crate::kernel_image::KernelImage;
use crate::plan::Plan;

/// Describes the machine; the accelerator is known once a guest runs.
pub(super) fn describe(kernel: &KernelImage) -> Machine {
    let first_line = |program: &str| {
        let text = Tool::new(program)
            .arg("--version")
            .run()
            .unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        host_kernel: release.trim().to_owned(),
        guest_kernel: kernel.release.clone(),
        qemu: first_line("qemu-system-x86_64"),
        fio: first_line("fio"),
        nestrace: env!("CARGO_PKG_VERSION").to_owned(),
        accelerator: String::new(),
        processors: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: memory("MemTotal:"),
    }
}

/// Refuses where disk or memory will not do.
pub(super) fn check_room(plan: &Plan, folder: &Path) -> Result<(), LabError> {
    let estimate = plan.estimate();
    let available = memory("MemAvailable:");
    if available < estimate.memory_bytes {
        return Err(LabError::NoMemory {
            needed_mib: estimate.memory_bytes >> 20,
            available_mib: available >> 20,
        });
    }
    let needed = estimate.work_bytes + estimate.result_bytes;
    let space = statvfs(folder).map_or(u64::MAX, |about| {
        about.blocks_available() * about.fragment_size()
    });
    if space < needed {
        return Err(LabError::NoSpace {
            folder: folder.to_owned(),
            needed_mib: needed >> 20,
            available_mib: space >> 20,
        });
    }
    Ok(())
}

/// A row of `/proc/meminfo`, bytes.
fn memory(row: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(row));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
