//! The clock from the I/O against an estimate that does not rest on I/O, and the guest's kernel's own
//! sum of time.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nestrace_trace::manifest::ClockSample;
use serde::Deserialize;
use serde_json::{Value, json};
use xtask::case::{Case, Report};

use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::measure::Watched;
use crate::stage::manifest;
use crate::with_agents::chains;
use crate::with_agents::recording::{boot, device_in_guest, measure};

const DISK: &str = "disk-a";
/// G→C and the kernel's ticks agree to this part.
const TICKS_APART: f64 = 0.02;
const REQUESTS: u64 = 5000;
/// The disk serves no more in a second. The kernel's time of a request also has what the probes take in a
/// translated guest, some 30 µs however long the request is, and on a fast image in one thread of QEMU's a
/// request takes no more than 1 ms: requests that wait at the disk make the sums comparable.
const SERVED_IN_A_SECOND: u64 = 800;

/// With and without an iothread.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    for (name, iothread) in [("main-loop", false), ("iothread", true)] {
        report.case(&format!("guest-side/clock/{name}"), |case| {
            clock(ctx, case, iothread)
        })?;
    }
    Ok(())
}

fn clock(ctx: &LiveContext, case: &mut Case, iothread: bool) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let stack = DiskStack {
        iothread,
        ..DiskStack::RAW
    };
    let disk = ctx.disk(&host, DISK, stack, 64 << 20, "full")?;
    let guest = boot(ctx, "clock", vec![disk])?;
    guest.start_agent("--backend ebpf")?;
    let device = device_in_guest(&guest, DISK)?;
    let watched = [Watched {
        guest: &guest,
        disk: DISK,
        host: &host,
    }];
    let busy_before = std::cell::Cell::new(0);
    let busy_after = std::cell::Cell::new(0);
    limit_disk(&guest)?;
    // No flushes: the kernel's time has those in it in its own way. A slow end: only one round trip is kept of
    // each few seconds.
    let script = format!(
        "fio --filename=/dev/{device} --direct=1 --ioengine=libaio --bs=4k --rw=randrw --size=64m \
         --norandommap --output=/tmp/fio.out --name=load --iodepth=32 --io_size=24m \
         --name=slow --stonewall --iodepth=1 --rate_iops=50 --time_based --runtime=8"
    );
    let measured = measure(ctx, &watched, || {
        busy_before.set(busy_ms(&guest, &device)?);
        guest.run_ok(&script, Duration::from_secs(180))?;
        busy_after.set(busy_ms(&guest, &device)?);
        Ok(())
    })?;
    measured.is_whole(case)?;
    chains::clock(case, &measured.analysis, guest.name())?;
    let keys = [
        ("side", "guest"),
        ("guest", guest.name()),
        ("name", &device),
    ];
    let entry_of_disk = entry(&measured.analysis, "devices", &keys)?;
    ticks(case, entry_of_disk, busy_after.get() - busy_before.get())?;
    round_trips(case, &measured.analysis, &measured.bundle, guest.name())?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// The disk waits with what is over [`SERVED_IN_A_SECOND`].
fn limit_disk(guest: &nestrace_rig::guest::Guest) -> anyhow::Result<()> {
    let limits = json!({
        "id": format!("/machine/peripheral/{DISK}/virtio-backend"),
        "iops": SERVED_IN_A_SECOND, "iops_rd": 0, "iops_wr": 0, "bps": 0, "bps_rd": 0, "bps_wr": 0,
    });
    guest.qmp("block_set_io_throttle", limits)?;
    Ok(())
}

/// Time of reads and writes in the guest's kernel, ms.
fn busy_ms(guest: &nestrace_rig::guest::Guest, device: &str) -> anyhow::Result<u64> {
    let script = format!("cat /sys/block/{device}/stat");
    let text = guest.run_ok(&script, Duration::from_secs(20))?.stdout;
    let fields: Vec<u64> = text
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let at = |index: usize| {
        fields
            .get(index)
            .copied()
            .context("read the guest's counts")
    };
    Ok(at(3)? + at(7)?)
}

/// Summed G→C of the guest against its kernel's ticks: every bio is a request of its own here.
fn ticks(case: &mut Case, device: &Value, kernel_ms: u64) -> anyhow::Result<()> {
    let sum = |part: &str| -> anyhow::Result<(u64, f64)> {
        let dist = &device["latency_ns"][part];
        let n = number(dist, "/n")?;
        let mean = dist["mean"]
            .as_f64()
            .with_context(|| format!("read {part}"))?;
        Ok((n, n as f64 * mean))
    };
    let ((n, q2c), (_, q2g)) = (sum("q2c")?, sum("q2g")?);
    let ours_ms = (q2c - q2g) / 1e6;
    let apart = (ours_ms - kernel_ms as f64).abs() / kernel_ms.max(1) as f64;
    case.holds("requests", n >= REQUESTS, &n.to_string());
    case.holds(
        "summed G→C against the kernel's ticks",
        apart <= TICKS_APART,
        &format!("{ours_ms:.0} ms against {kernel_ms} ms"),
    );
    case.figure(format!(
        "{n} requests, G→C {ours_ms:.0} ms, ticks {kernel_ms} ms ({:.2} % apart)",
        apart * 100.0
    ));
    Ok(())
}

#[derive(Deserialize)]
struct Stretch {
    from_ns: u64,
    to_ns: u64,
    offset_ns: i64,
    drift_ppm: Option<f64>,
}

/// Every round trip over the port bounds the offset by itself; the fastest say most.
fn round_trips(
    case: &mut Case,
    analysis: &Value,
    bundle: &std::path::Path,
    guest: &str,
) -> anyhow::Result<()> {
    let manifest = manifest(bundle)?;
    let side = manifest
        .guest_sides
        .first()
        .context("find the guest's side")?;
    let clock = entry(analysis, "clocks", &[("guest", guest)])?;
    let stretches: Vec<Stretch> =
        serde_json::from_value(clock["stretches"].clone()).context("read the clock's stretches")?;
    let bound = number(clock, "/error_bound_ns/max")? as i64;
    let mut within = 0_u64;
    let mut fastest = u64::MAX;
    for sample in &side.clock_samples {
        let middle = u64::midpoint(sample.host_sent_ns, sample.host_received_ns);
        let at_ns = middle.saturating_sub(manifest.start_mono_ns);
        let Some(stretch) = stretches
            .iter()
            .find(|s| (s.from_ns..=s.to_ns).contains(&at_ns))
        else {
            continue;
        };
        let elapsed = (at_ns - stretch.from_ns) as f64;
        let drift = stretch.drift_ppm.unwrap_or(0.0) * elapsed / 1e6;
        let offset = stretch.offset_ns + drift as i64;
        let (low, high) = bounds(sample);
        let good = offset + bound >= low && offset - bound <= high;
        if !good {
            let figures = format!("{offset} ± {bound} against {low} to {high}");
            case.holds("offset against a round trip", false, &figures);
        }
        within += u64::from(good);
        fastest = fastest.min(sample.host_received_ns - sample.host_sent_ns);
    }
    case.holds(
        "round trips within the band",
        within >= 3,
        &within.to_string(),
    );
    case.figure(format!(
        "{within} round trips agree, the fastest {} µs",
        fastest / 1000
    ));
    Ok(())
}

/// The guest−host offset as a round trip bounds it: it was asked before, and had answered after.
fn bounds(sample: &ClockSample) -> (i64, i64) {
    let guest = sample.guest_ns as i64;
    (
        guest - sample.host_received_ns as i64,
        guest - sample.host_sent_ns as i64,
    )
}
