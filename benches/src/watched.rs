//! A program that runs to its end under our eyes: its time and its memory.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::interrupt;

use super::machine;

/// What a program took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// From start to end.
    pub seconds: f64,
    /// Processor time of all its threads.
    pub busy_s: f64,
    /// Most memory that was resident (`VmHWM`), bytes.
    pub peak_bytes: u64,
}

impl Took {
    /// One program after another.
    pub fn then(self, next: Self) -> Self {
        Self {
            seconds: self.seconds + next.seconds,
            busy_s: self.busy_s + next.busy_s,
            peak_bytes: self.peak_bytes.max(next.peak_bytes),
        }
    }
}

/// Runs a program that has to succeed; Ctrl-C ends it.
pub fn run(command: &mut Command) -> anyhow::Result<Took> {
    let name = command.get_program().display().to_string();
    let busy_before_s = machine::ended_children_s()?;
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    let mut peak_bytes = 0;
    let status = loop {
        // The high-water mark, so that only what grows in the last moment is missed.
        if let Ok(peak) = machine::peak_resident_bytes(child.id()) {
            peak_bytes = peak;
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(interrupted) = interrupt::check() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(interrupted.into());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "run {name}: {status}");
    Ok(Took {
        seconds,
        busy_s: machine::ended_children_s()? - busy_before_s,
        peak_bytes,
    })
}
