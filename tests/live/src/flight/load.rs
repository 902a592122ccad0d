//! What a device has to do: a quiet load, a burst of a known number of requests, a flood.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::Tool;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// fio that runs until it is ended.
pub struct Running(Child);

/// A request every few milliseconds.
pub fn quiet(device: &Path) -> anyhow::Result<Running> {
    Running::start(
        device,
        &["--rw=randwrite", "--iodepth=1", "--thinktime=4000"],
    )
}

/// 14,000 requests a second, with seven events each.
pub struct Flood;

impl Flood {
    pub fn start(device: &Path) -> anyhow::Result<Running> {
        Running::start(
            device,
            &["--rw=randread", "--iodepth=32", "--rate_iops=14000"],
        )
    }
}

impl Running {
    fn start(device: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new("fio");
        command
            .args(["--name=load", "--direct=1", "--ioengine=libaio", "--bs=4k"])
            .args(["--time_based", "--runtime=120", "--size=32m"])
            .arg(format!("--filename={}", device.display()))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ends_with_us(&mut command, Signal::SIGKILL);
        Ok(Self(command.spawn().context("start fio")?))
    }

    /// Ends it and waits until all of its requests have ended.
    pub fn end(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGINT).context("end fio")?;
        self.0.wait().context("wait for fio")?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// So many requests, by fio's own count.
pub struct Burst;

impl Burst {
    pub fn run(device: &Path, n: u64) -> anyhow::Result<u64> {
        let output = Tool::new("fio")
            .args(["--name=burst", "--direct=1", "--ioengine=libaio", "--bs=4k"])
            .args([
                "--iodepth=4",
                "--rw=randwrite",
                "--size=32m",
                "--invalidate=0",
            ])
            .arg(format!("--number_ios={n}"))
            .arg(format!("--filename={}", device.display()))
            .arg("--output-format=json")
            .run()?;
        let report: serde_json::Value = serde_json::from_str(&output)?;
        let counted = report["jobs"][0]["write"]["total_ios"].as_u64();
        let counted = counted.context("read fio's count")?;
        ensure!(counted == n, "fio did {counted} of {n}");
        Ok(counted)
    }
}
