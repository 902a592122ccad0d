//! What runs the bench, and how busy it is.

use anyhow::Context;

/// Ticks of `/proc/stat` and `/proc/PID/stat` in a second (USER_HZ, the same on every x86 and arm).
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time that this machine has spent working, over all processors.
///
/// Interrupts count, waiting for I/O and time stolen by a hypervisor do not.
pub fn busy_s() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    parse_busy(&text).context("understand /proc/stat")
}

fn parse_busy(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq
    let busy = [0, 1, 2, 5, 6].map(|index| ticks.get(index).copied());
    let busy = busy.into_iter().sum::<Option<u64>>()?;
    Some(busy as f64 / TICKS_PER_SECOND)
}

/// Seconds of processor time that a process has used, all its threads together.
pub fn process_s(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse_process(&text).with_context(|| format!("understand {path}"))
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
    fn waiting_and_stolen_time_is_not_work() {
        let stat = "cpu  100 20 3 4000 500 60 7 80000 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_busy(stat), Some(1.9));
        assert_eq!(parse_busy("cpu0 1 2 3"), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_move_the_fields() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_process(stat), Some(2.0));
    }
}
