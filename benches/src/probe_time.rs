//! How long BPF programs run, by the kernel's own clock (`kernel.bpf_stats_enabled`).

use std::path::Path;

use anyhow::Context;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The kernel measures every run of every BPF program while this lives. It costs a run two
/// readings of a clock.
#[derive(Debug)]
pub struct Measuring {
    before: String,
}

impl Measuring {
    /// Switches it on.
    pub fn start() -> anyhow::Result<Self> {
        let before = std::fs::read_to_string(SWITCH).with_context(|| format!("read {SWITCH}"))?;
        std::fs::write(SWITCH, "1").with_context(|| format!("write {SWITCH}"))?;
        Ok(Self { before })
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(SWITCH, &self.before) {
            eprintln!("xtask: failed to restore {SWITCH}: {error}");
        }
    }
}

/// Nanoseconds and runs of all BPF programs that a process holds open, since they were loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeTime {
    /// Nanoseconds.
    pub run_time_ns: u64,
    /// Runs.
    pub n_runs: u64,
}

impl ProbeTime {
    /// Adds up a process' programs.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/fdinfo");
        let entries = Path::new(&path)
            .read_dir()
            .with_context(|| format!("list {path}"))?;
        let mut sum = Self::default();
        for entry in entries.flatten() {
            // One that was closed just now holds no program.
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|value| value.trim().parse::<u64>().ok())
            };
            sum.run_time_ns += field("run_time_ns:").unwrap_or(0);
            sum.n_runs += field("run_cnt:").unwrap_or(0);
        }
        Ok(sum)
    }

    /// What was added since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            run_time_ns: self.run_time_ns.saturating_sub(before.run_time_ns),
            n_runs: self.n_runs.saturating_sub(before.n_runs),
        }
    }
}
