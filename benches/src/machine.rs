//! What runs the bench, and how busy it is.

use std::collections::HashMap;

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The parent of the kernel's threads.
const KTHREADD: u32 = 2;
/// Ticks of `/proc/PID/stat` in a second (USER_HZ, the same on every x86 and arm).
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of the kernel's own threads: block and loop workers, soft interrupts.
#[derive(Clone, Debug)]
pub struct KernelThreads {
    by_pid: HashMap<u32, f64>,
}

impl KernelThreads {
    /// Looks at all of them.
    pub fn look() -> anyhow::Result<Self> {
        let mut by_pid = HashMap::new();
        for entry in std::fs::read_dir("/proc").context("list /proc")?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that ends while we look is left out.
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            if parse_parent(&stat) == Some(KTHREADD) {
                by_pid.insert(pid, parse_process(&stat).unwrap_or(0.0));
            }
        }
        Ok(Self { by_pid })
    }

    /// Seconds that they have worked since `before`.
    pub fn seconds_since(&self, before: &Self) -> f64 {
        let worked = |(pid, now): (&u32, &f64)| now - before.by_pid.get(pid).unwrap_or(&0.0);
        self.by_pid.iter().map(worked).sum()
    }
}

/// Seconds of processor time of all programs that ended and were waited for.
pub fn ended_children_s() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("read the children's time")?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Seconds of processor time that a process has used, all its threads together.
pub fn process_s(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse_process(&text).with_context(|| format!("understand {path}"))
}

fn parse_parent(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok()
}

fn parse_process(stat: &str) -> Option<f64> {
    // The name may hold anything, so fields are counted from its last parenthesis.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some((next()? + next()?) as f64 / TICKS_PER_SECOND)
}

/// Most memory that a process has had resident, in bytes (`VmHWM`).
pub fn peak_resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
    Ok(kib.with_context(|| format!("find VmHWM in {path}"))? << 10)
}

/// Processes in the run queue, averaged over the last minute.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// The machine in one line: processors, memory, kernel.
pub fn describe() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let models = cpuinfo
        .lines()
        .filter(|line| line.starts_with("model name"));
    let model = models.clone().next().and_then(|line| line.split_once(": "));
    let virtual_machine = cpuinfo
        .lines()
        .any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let kind = if virtual_machine {
        ", a virtual machine"
    } else {
        ""
    };
    let meminfo = read("/proc/meminfo");
    let memory = meminfo
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok());
    format!(
        "{} × {}{kind}, {} GiB, Linux {}",
        models.count(),
        model.map_or("unknown processor", |(_, name)| name),
        memory.unwrap_or(0).div_ceil(1 << 20),
        read("/proc/sys/kernel/osrelease").trim(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_move_the_fields() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_process(stat), Some(2.0));
        assert_eq!(parse_parent(stat), Some(1));
    }
}
