//! A disk with a limit of requests a second, which every layer above sees wait.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{Aio, CacheMode, DiskStack};
use serde_json::Value;

use super::{LiveContext, MIB, SLOW_IOPS};

/// A translated guest loads the agent's probes in some ten seconds.
pub const AGENT_LOADS: Duration = Duration::from_secs(120);

/// Requests that the guest's kernel may keep from the probes in a burst of soft interrupts (`docs/loss.md`).
pub const MAX_MISSED: u64 = 2;

/// Boots a guest with its agent, a disk without a limit and one with.
pub fn boot(
    ctx: &LiveContext,
    host: &HostFs,
    purpose: &str,
    (fast, slow): (&str, &str),
) -> anyhow::Result<Guest> {
    let stack = DiskStack {
        cache: CacheMode::None,
        aio: Aio::Threads,
        ..DiskStack::RAW
    };
    let fast = ctx.disk(host, fast, stack, 64 * MIB, "full")?;
    let mut slow = ctx.disk(host, slow, stack, 64 * MIB, "full")?;
    slow.drive_options = format!("throttling.iops-total={SLOW_IOPS}");
    let guest = Guest::boot(GuestSpec {
        disks: vec![fast, slow],
        ..ctx.agent_guest_spec(&ctx.guest_name(purpose))?
    })?;
    guest.start_agent("")?;
    guest.wait_for_agent(AGENT_LOADS)?;
    Ok(guest)
}

/// Has fio read a disk at depth 4, and print its results.
pub fn reads(device: &str, seconds: u32) -> String {
    format!(
        "fio --name=l --filename={device} --direct=1 --ioengine=libaio --iodepth=4 --bs=4k --rw=randread \
         --time_based --runtime={seconds} --output-format=json --output=/tmp/fio && cat /tmp/fio"
    )
}

/// The median of the reads' latencies in what fio printed, in nanoseconds.
pub fn median_ns(output: &str) -> anyhow::Result<f64> {
    let json = output.find('{').map(|at| &output[at..]).unwrap_or_default();
    let fio: Value = serde_json::Deserializer::from_str(json)
        .into_iter()
        .next()
        .context("see fio's answer")??;
    let clat = &fio["jobs"][0]["read"]["clat_ns"]["percentile"];
    clat["50.000000"].as_f64().context("see fio's median")
}
