//! Both backends of the agent side by side in one guest: the same events. One sends over the port,
//! the other writes a bundle in the guest that is copied out.

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_blktrace::Action;
use nestrace_rig::guest::GuestSpec;
use nestrace_rig::stack::{Bus, DiskStack, HostFsKind};
use nestrace_trace::Event;
use nestrace_trace::manifest::GuestSide;
use xtask::case::{Case, Report};

use super::sides;
use crate::context::LiveContext;
use crate::direct_io_link::stream_events;
use crate::kernels::compare::Comparison;
use crate::kernels::vocabulary::{self, Seen};
use crate::measure::Watched;
use crate::with_agents::chains;
use crate::with_agents::recording::{boot_with, device_in_guest, measure};

const DISK: &str = "disk-a";
/// What the load has to bring about for the comparison to mean something.
const EXPECTED: [Action; 7] = [
    Action::Queue,
    Action::GetRequest,
    Action::BackMerge,
    Action::Insert,
    Action::Split,
    Action::Issue,
    Action::Complete,
];
const LOAD: &str = "\
fio --directory=/mnt/t --size=4m --fallocate=none --output=/tmp/fio.out \
--name=sync --rw=randrw --bs=4k --io_size=2m --fsync=8 \
--name=deep --stonewall --rw=randwrite --bs=8k --direct=1 --ioengine=libaio --iodepth=8 \
--name=sequential --stonewall --rw=write --bs=512k --end_fsync=1 || exit 1
rm /mnt/t/sync*; sync; fstrim /mnt/t
";

/// Which backends a guest's kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backends {
    /// One sends over the port, the other writes a bundle in the guest.
    Both,
    /// The agent has to find by itself that the probes do not load.
    BlktraceAlone,
}

/// The only case.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("guest-side/backends", |case| {
        record(ctx, case, Backends::Both, |spec| spec)
    })?;
    Ok(())
}

/// Records a guest that `change` has the last word on: its bios are followed, its counts are the kernel's, and its backends
/// have the same events.
pub fn record(
    ctx: &LiveContext,
    case: &mut Case,
    backends: Backends,
    change: impl FnOnce(GuestSpec) -> GuestSpec,
) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let stack = match backends {
        Backends::Both => DiskStack::RAW,
        // Kernels this old count an agent's question for a virtio disk's serial number as a read of the disk.
        Backends::BlktraceAlone => DiskStack {
            bus: Bus::VirtioScsi,
            ..DiskStack::RAW
        },
    };
    let disk = ctx.disk(&host, DISK, stack, 64 << 20, "full")?;
    let disks = vec![disk];
    let guest = boot_with(ctx, "backends", |spec| change(GuestSpec { disks, ..spec }))?;
    let device = device_in_guest(&guest, DISK)?;
    guest.make_fs(DISK, nestrace_rig::stack::GuestFsKind::Ext4)?;
    let limits = format!(
        "echo mq-deadline > /sys/block/{device}/queue/scheduler; load mq_deadline; \
         echo mq-deadline > /sys/block/{device}/queue/scheduler; \
         echo 128 > /sys/block/{device}/queue/max_sectors_kb"
    );
    guest.run_ok(&limits, Duration::from_secs(30))?;
    guest.start_agent(match backends {
        Backends::Both => "--backend ebpf",
        Backends::BlktraceAlone => "",
    })?;
    let watched = [Watched {
        guest: &guest,
        disk: DISK,
        host: &host,
    }];
    let begin = format!(
        "rm -rf /tmp/b.nest; setsid /usr/bin/nestrace-agent --backend blktrace --device {device} \
         --output /tmp/b.nest > /run/second.log 2>&1 < /dev/null & echo $! > /run/second.pid; \
         for n in $(seq 200); do [ -s /tmp/b.nest/manifest.json ] && exit 0; sleep 0.1; done; \
         cat /run/second.log >&2; exit 1"
    );
    let end = "kill -INT $(cat /run/second.pid); for n in $(seq 200); do \
               kill -0 $(cat /run/second.pid) 2> /dev/null || break; sleep 0.1; done; \
               cat /run/second.log; tar -cf /tmp/b.tar -C /tmp b.nest";
    let patience = Duration::from_secs(120);
    let both = backends == Backends::Both;
    let measured = measure(ctx, &watched, || {
        if both {
            guest.run_ok(&begin, patience)?;
            thread::sleep(Duration::from_secs(2));
        }
        guest.mount(DISK, nestrace_rig::stack::GuestFsKind::Ext4, "/mnt/t", "")?;
        guest.run_ok(LOAD, patience)?;
        guest.unmount("/mnt/t")?;
        if both {
            thread::sleep(Duration::from_secs(1));
            guest.run_ok(end, patience)?;
        }
        Ok(())
    })?;
    measured.is_whole(case)?;
    chains::clock(case, &measured.analysis, guest.name())?;
    let subject = chains::Subject {
        guest: &guest,
        disk: DISK,
        device: &device,
        linked: chains::LINKED,
    };
    let counts = measured.truth.first().context("find the counts")?;
    chains::disk(case, &measured.analysis, &subject, counts)?;
    if !both {
        let first = sides::sides(&measured.bundle)?;
        let (side, _) = first.first().context("find the agent's side")?;
        case.equal("backend", side.backend.as_str(), "blktrace");
        ctx.discard(&measured.bundle);
        return Ok(());
    }
    let copied = ctx.fetch_archive(&guest, "backends", "/tmp/b.tar")?;
    let first = sides::sides(&measured.bundle)?;
    let second = sides::sides(&copied.join("b.nest"))?;
    let (ours, _) = first.first().context("find the first agent's side")?;
    let (theirs, _) = second.first().context("find the second agent's side")?;
    case.equal("backend of the one", ours.backend.as_str(), "ebpf");
    case.equal("backend of the other", theirs.backend.as_str(), "blktrace");
    // The second agent asks the disk for its serial number before it records.
    let both = theirs.live_mono_ns..=theirs.end_mono_ns;
    let our_events = stream_events(&measured.bundle, &ours.file)?;
    let their_events = stream_events(&copied.join("b.nest"), &theirs.file)?;
    let ours = seen(our_events, ours, &device, &both)?;
    let theirs = seen(their_events, theirs, &device, &both)?;
    compare(case, &ours, &theirs);
    ctx.discard(&measured.bundle);
    ctx.discard(&copied);
    Ok(())
}

/// The block layer's events of one disk while both recorded, in the terms that both backends have.
fn seen(
    mut events: Vec<Event>,
    side: &GuestSide,
    device: &str,
    both: &RangeInclusive<u64>,
) -> anyhow::Result<Vec<Seen>> {
    let disk = side.disks.iter().find(|disk| disk.name == device);
    let dev = disk
        .with_context(|| format!("find {device} in the manifest"))?
        .dev;
    events.retain(|event| event.dev == dev && both.contains(&event.ts_ns));
    ensure!(!events.is_empty(), "find events of {device}");
    let mut seen = vocabulary::of_recording(&events);
    // Where a bio was split is known by its front half's length, which both have; what it was split
    // from, only by pointers.
    for split in seen.iter_mut().filter(|s| s.facts.action == Action::Split) {
        split.facts.detail = 0;
    }
    Ok(seen)
}

fn compare(case: &mut Case, ours: &[Seen], theirs: &[Seen]) {
    let comparison = Comparison::new(ours, theirs);
    case.figure(format!("{} events alike", comparison.n_matched()));
    case.figure(comparison.by_action());
    for difference in comparison.differences() {
        case.holds("an event that only one backend has", false, &difference);
    }
    for action in EXPECTED {
        let n = comparison.n_of(action);
        case.holds(&format!("events {}", action.letter()), n > 0, "none");
    }
    let apart = comparison.time_apart();
    case.figure(format!(
        "stamps {} µs apart (median)",
        apart.median_ns / 1000
    ));
}
