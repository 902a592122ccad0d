//! Processors that something else uses: loops that never sleep, and threads that may run on some processors alone.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

/// A loop that keeps a processor busy until it is dropped.
#[derive(Debug)]
pub struct BusyLoop(Child);

impl BusyLoop {
    /// Starts it.
    pub fn on(processor: u32) -> anyhow::Result<Self> {
        let child = Command::new("taskset")
            .args([
                "-c",
                &processor.to_string(),
                "sh",
                "-c",
                "while :; do :; done",
            ])
            .stdin(Stdio::null())
            .spawn()
            .context("start a busy loop")?;
        Ok(Self(child))
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pins all threads of a process to processors.
pub fn pin(pid: u32, processors: &str) -> anyhow::Result<()> {
    taskset(&["-a", "-p", "-c", processors, &pid.to_string()])
}

/// Pins one thread.
pub fn pin_thread(tid: u64, processors: &str) -> anyhow::Result<()> {
    taskset(&["-p", "-c", processors, &tid.to_string()])
}

/// All processors of this machine, as `taskset -c` takes them.
pub fn all_processors() -> anyhow::Result<String> {
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .context("read which processors there are")?;
    Ok(all.trim().to_owned())
}

fn taskset(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("taskset")
        .args(arguments)
        .stdout(Stdio::null())
        .status()
        .context("pin QEMU's threads")?;
    ensure!(status.success(), "pin QEMU's threads: {status}");
    Ok(())
}
