//! The kernel's part of blktrace alone: it records a disk, and nothing reads what it recorded. So its cost can be
//! measured where lockdown forbids opening the relay files (`cargo xtask bench record`).
//!
//! ```text
//! unread-blktrace DEVICE
//! ```
//!
//! Needs debugfs. Prints `live`, records until SIGINT, and prints `lost N`: records that found its buffers full.

#[path = "../src/backend/blktrace/ioctl.rs"]
mod ioctl;

use std::fs::{self, File};

use anyhow::{Context, ensure};
use nix::sys::signal::{SigSet, Signal};

/// Room for 11 million records of each processor, so that recording never stops for want of it.
const BUFFER_BYTES: u32 = 16 << 20;
const N_BUFFERS: u32 = 32;

fn main() -> anyhow::Result<()> {
    let device = std::env::args().nth(1).context("name a device")?;
    let mut end = SigSet::empty();
    end.add(Signal::SIGINT);
    end.thread_block().context("block SIGINT")?;
    let disk = File::open(&device).with_context(|| format!("open {device}"))?;
    let name = ioctl::setup(&disk, u16::MAX, BUFFER_BYTES, N_BUFFERS)
        .with_context(|| format!("set up blktrace on {device}"))?;
    let lost = record(&disk, &name, &end);
    ioctl::teardown(&disk).context("remove the trace")?;
    println!("lost {}", lost?);
    Ok(())
}

fn record(disk: &File, name: &str, end: &SigSet) -> anyhow::Result<u64> {
    let dropped = format!("/sys/kernel/debug/block/{name}/dropped");
    let lost = || -> anyhow::Result<u64> {
        let text = fs::read_to_string(&dropped).with_context(|| format!("read {dropped}"))?;
        Ok(text.trim().parse()?)
    };
    ensure!(lost()? == 0, "begin without a loss");
    ioctl::start(disk).context("begin to record")?;
    println!("live");
    end.wait().context("wait for SIGINT")?;
    ioctl::stop(disk).context("stop recording")?;
    lost()
}
