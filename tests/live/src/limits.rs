//! Limits of the host, each named to the digit with the cgroup and the device that it is set for: of bytes and of requests, of
//! reads and of writes, in QEMU's own cgroup and in one above; and limits that nothing reaches.

use std::time::Duration;

use nestrace_rig::guest::{DiskSpec, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{Aio, CacheMode, DiskStack, HostFsKind};
use xtask::case::{Case, Report};

use crate::Scenario;
use crate::analysis::entry;
use crate::context::LiveContext;
use crate::fixtures::limits::{BYTES_READ, BYTES_WRITTEN, Bounds, Limits, READS, WRITES};
use crate::measure::{Measured, Watched};
use crate::with_agents::counts::DiskCounts;
use crate::with_agents::recording::{boot_with, measure};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "limits",
    about: "limits of cgroups, by bytes and requests, of reads and writes, also of a cgroup above QEMU's",
    run,
    alone: false,
};

const DISK_BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk on a file system of its own, with what its device's limits are and what the guest does on it.
struct Limited {
    disk: &'static str,
    bounds: Bounds,
    words: &'static str,
    /// In QEMU's own cgroup, which is called `inner`.
    inner: Option<u64>,
    /// In the one above.
    outer: Option<u64>,
    load: &'static str,
}

/// More than a guest does here.
const UNREACHED: u64 = 1_000_000;

/// Values that nothing has by chance.
const DISKS: [Limited; 6] = [
    Limited {
        disk: "read-bytes",
        bounds: BYTES_READ,
        words: "bytes read a second",
        inner: Some(1_048_583),
        outer: None,
        load: "--rw=randread --bs=16k",
    },
    Limited {
        disk: "write-bytes",
        bounds: BYTES_WRITTEN,
        words: "bytes written a second",
        inner: Some(1_179_653),
        outer: Some(1_048_589),
        load: "--rw=randwrite --bs=16k",
    },
    Limited {
        disk: "reads",
        bounds: READS,
        words: "reads a second",
        inner: Some(83),
        outer: Some(5_000_011),
        load: "--rw=randread --bs=4k",
    },
    Limited {
        disk: "mixed",
        bounds: WRITES,
        words: "writes a second",
        inner: Some(61),
        outer: None,
        load: "--rw=randrw --rwmixread=20 --bs=4k",
    },
    // Version 1 has no limit here.
    Limited {
        disk: "above-alone",
        bounds: READS,
        words: "reads a second",
        inner: None,
        outer: Some(71),
        load: "--rw=randread --bs=4k --rate_iops=100",
    },
    Limited {
        disk: "far-above",
        bounds: READS,
        words: "reads a second",
        inner: Some(4_000_037),
        outer: Some(8_000_009),
        load: "--rw=randread --bs=4k --rate_iops=100",
    },
];

impl Limited {
    /// The limit that the disk comes to, and whether it is the one of QEMU's own cgroup.
    fn reached(&self, is_v1: bool) -> Option<(u64, bool)> {
        let own = self.inner.map(|value| (value, true));
        let above = self.outer.map(|value| (value, false));
        let lowest = [own, above.filter(|_| !is_v1)].into_iter().flatten().min();
        lowest.filter(|(value, _)| !matches!(self.bounds, READS | WRITES) || *value < UNREACHED)
    }
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    if ctx.wants("limits/cgroups") {
        report.case("limits/cgroups", |case| cgroups(ctx, case))?;
    }
    Ok(())
}

fn cgroups(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    // Their processes are gone when they are dropped: they were made before these.
    let outer = Limits::create()?;
    let inner = outer.child("inner")?;
    let stack = DiskStack {
        cache: CacheMode::None,
        aio: Aio::IoUring,
        ..DiskStack::RAW
    };
    let hosts = DISKS.map(|_| ctx.host_fs(HostFsKind::Xfs, true, ""));
    let hosts: Vec<HostFs> = hosts.into_iter().collect::<anyhow::Result<_>>()?;
    let disks = DISKS.iter().zip(&hosts);
    let disks = disks.map(|(about, host)| ctx.disk(host, about.disk, stack, DISK_BYTES, "full"));
    let disks: Vec<DiskSpec> = disks.collect::<anyhow::Result<_>>()?;
    let guest = boot_with(ctx, "limits", |spec| GuestSpec { disks, ..spec })?;
    inner.hold(guest.pid())?;
    for (about, host) in DISKS.iter().zip(&hosts) {
        inner.set(host.device(), about.bounds, about.inner)?;
        outer.set(host.device(), about.bounds, about.outer)?;
    }
    guest.start_agent("")?;
    let watched = DISKS.iter().zip(&hosts).map(|(about, host)| Watched {
        guest: &guest,
        disk: about.disk,
        host,
    });
    let watched: Vec<Watched<'_>> = watched.collect();
    let measured = measure(ctx, &watched, || {
        let mut loads = String::new();
        for Limited { disk, load, .. } in &DISKS {
            let device = guest.device_of(disk)?;
            loads += &format!(
                "fio --name={disk} --filename={device} --direct=1 --output=/dev/null --ioengine=libaio --iodepth=16 \
                 --time_based --runtime=4 {load} & "
            );
        }
        guest.run_ok(&format!("{loads} wait"), PATIENCE)?;
        Ok(())
    })?;
    measured.is_whole(case)?;
    for ((about, host), truth) in DISKS.iter().zip(&hosts).zip(&measured.truth) {
        let disk = &truth.host.disk;
        case.figure(format!(
            "{}: {} reads and {} writes in 4 s",
            about.disk, disk.reads, disk.writes
        ));
        let reached = about.reached(inner.is_v1).map(|(value, is_own)| {
            let cgroup = if is_own { inner.name() } else { outer.name() };
            let file = if inner.is_v1 {
                "blkio.throttle"
            } else {
                "io.max"
            };
            let place = format!("{file} of the cgroup {cgroup} for {}", host.device());
            (value, place)
        });
        look(case, &measured, about, reached)?;
    }
    ctx.discard(&measured.bundle);
    Ok(())
}

/// What the verdict and the finding say of the disk.
fn look(
    case: &mut Case,
    measured: &Measured<DiskCounts>,
    about: &Limited,
    reached: Option<(u64, String)>,
) -> anyhow::Result<()> {
    let (analysis, name) = (&measured.analysis, about.disk);
    let verdict = entry(&analysis["verdict"], "disks", &[("disk", name)])?;
    let found = &verdict["limit_is_the_bottleneck"];
    let keys = [("id", "host-throttled"), ("disk", name)];
    let finding = entry(analysis, "findings", &keys).ok();
    let shown = format!("{found}, {finding:?}");
    let Some((value, place)) = reached else {
        let is_silent = found.is_null() && finding.is_none();
        case.holds(&format!("{name}: no limit is reached"), is_silent, &shown);
        return Ok(());
    };
    let words = format!("{value} {}", about.words);
    let is_named = found["value"] == value && found["limit"] == words.as_str();
    case.holds(&format!("{name}: the value"), is_named, &shown);
    let is_there = found["set_in"] == place.as_str() && found["held_by"] == "kernel";
    case.holds(
        &format!("{name}: where it is set ({place})"),
        is_there,
        &shown,
    );
    let title = finding.and_then(|it| it["title"].as_str());
    let says_it = title.is_some_and(|title| title.contains(&words));
    case.holds(&format!("{name}: the finding says it"), says_it, &shown);
    Ok(())
}
