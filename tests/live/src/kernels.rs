//! The recorder in the host's role on other kernels: a guest of Debian's kernel plays the host, with
//! block devices of its own and without a QEMU in it. blktrace records beside nestrace, and both have
//! to have seen the same events, one by one.

pub(super) mod compare;
mod file_io;
pub(super) mod machine;
mod probes;
pub(super) mod recording;
pub(super) mod vocabulary;

use std::time::Duration;

use nestrace_blktrace::{Action, category};
use xtask::case::{Case, Report};

use super::context::LiveContext;
use super::direct_io_link;
use super::{Scenario, ground_truth};
use compare::Comparison;
use machine::{Machine, Role};
use recording::Recording;

/// Debian 12's own kernel.
pub const SCENARIO_6_1: Scenario = Scenario {
    name: "kernel-6.1",
    about: "the recorder on Debian's kernel 6.1 in a guest, event by event against blktrace",
    run: |ctx, report| run(ctx, report, "6.1"),
    alone: false,
};

/// The kernel of Debian 12's backports.
pub const SCENARIO_6_12: Scenario = Scenario {
    name: "kernel-6.12",
    about: "the recorder on Debian's kernel 6.12 in a guest, event by event against blktrace",
    run: |ctx, report| run(ctx, report, "6.12"),
    alone: false,
};

/// The newest kernel that the tests know.
pub const SCENARIO_7_3: Scenario = Scenario {
    name: "kernel-7.3",
    about: "the recorder on Debian's kernel 7.3 in a guest, event by event against blktrace",
    run: |ctx, report| run(ctx, report, "7.3"),
    alone: false,
};

/// Names of `setup.sh` for the recorded devices that the kernel counts the I/O of. It does not for
/// the RAM disk, which takes bios without making requests of them.
const COUNTED: [&str; 6] = ["virtio", "second", "direct", "partition", "cached", "scsi"];
/// Two disks; mkfs.xfs wants 300 MB.
const DISKS: [(&str, u64); 2] = [("ext4-disk", 256 << 20), ("xfs-disk", 384 << 20)];
const SCRIPTS: [(&str, &str); 3] = [
    ("setup.sh", include_str!("kernels/setup.sh")),
    ("workload.sh", include_str!("kernels/workload.sh")),
    ("file_io.sh", include_str!("kernels/file_io.sh")),
];

/// How far the clock of one recorder may be from the other's at the same event. Both read
/// CLOCK_MONOTONIC, one after the other; in between, an interrupt may come, or the machine may take
/// the processor away from the guest.
const MEDIAN_APART: Duration = Duration::from_micros(200);
const MAX_APART: Duration = Duration::from_millis(200);

fn run(ctx: &LiveContext, report: &mut Report, series: &str) -> anyhow::Result<()> {
    let stage = format!("kernel-{series}");
    let role = Role {
        series,
        disks: &DISKS,
        scripts: &SCRIPTS,
        programs: &[],
        modules: &[],
        extra_arguments: &[],
    };
    let machine = Machine::boot(ctx, &role)?;
    report.case(&format!("{stage}/doctor"), |case| {
        probes::doctor(case, &machine)
    })?;
    let recording = Recording::make(ctx, &machine)?;
    report.case(&format!("{stage}/probes"), |case| {
        probes::attached(case, recording.manifest(), series);
        let live = recording.until_live.as_secs_f64();
        case.figure(format!("live after {live:.1} s"));
        Ok(())
    })?;
    report.case(&format!("{stage}/blktrace"), |case| {
        let told = if tells_fua(series) {
            Told::All
        } else {
            Told::AllButFua
        };
        same_events(case, &recording, vocabulary::EXPECTED, told)
    })?;
    report.case(&format!("{stage}/counts"), |case| {
        counts(case, &machine, &recording)
    })?;
    report.case(&format!("{stage}/loop-links"), |case| {
        loop_links(case, &machine, &recording)
    })?;
    ctx.discard(recording.bundle());
    report.case(&format!("{stage}/file-io"), |case| {
        file_io::full(case, ctx, &machine)
    })?;
    report.case(&format!("{stage}/light"), |case| {
        file_io::light(case, ctx, &machine)
    })?;
    Ok(())
}

/// Which events blktrace's program tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    All,
    /// Debian 12's blktrace asks for records of version 7. Since 6.19 the kernel leaves out those with FUA
    /// (`crates/nestrace-agent/src/backend/blktrace/ioctl.rs`).
    AllButFua,
}

fn tells_fua(series: &str) -> bool {
    !series.starts_with("7.")
}

/// Every event of blktrace is one of nestrace and the other way round; `expected` has to be among them.
pub(super) fn same_events(
    case: &mut Case,
    recording: &Recording,
    expected: &[Action],
    told: Told,
) -> anyhow::Result<()> {
    let mut ours = vocabulary::of_recording(recording.events());
    let theirs = vocabulary::of_blktrace(recording.traces());
    if told == Told::AllButFua {
        let n_all = ours.len();
        ours.retain(|seen| seen.facts.marks & category::FUA == 0);
        let n_fua = n_all - ours.len();
        case.figure(format!("{n_fua} with FUA that blktrace does not tell here"));
        case.holds("events with FUA", n_fua > 0, "none");
    }
    let comparison = Comparison::new(&ours, &theirs);
    case.figure(format!("{} events alike", comparison.n_matched()));
    case.figure(comparison.by_action());
    for difference in comparison.differences() {
        case.holds("an event that only one has", false, &difference);
    }
    for action in expected {
        let n = comparison.n_of(*action);
        case.holds(&format!("events {}", action.letter()), n > 0, "none");
    }
    for (mark, name) in vocabulary::EXPECTED_MARKS {
        if *mark == category::FUA && told == Told::AllButFua {
            continue;
        }
        let n = comparison.n_marked(*mark);
        case.holds(&format!("events marked {name}"), n > 0, "none");
        case.figure(format!("{n} {name}"));
    }
    case.equal(
        "bios and requests whose events come in another order",
        comparison.n_misordered(),
        0,
    );
    let apart = comparison.time_apart();
    case.figure(format!(
        "stamps {} µs apart (median), {} µs at most",
        apart.median_ns / 1000,
        apart.max_ns / 1000
    ));
    let within = |ns: u64, most: Duration| u128::from(ns) <= most.as_nanos();
    case.holds(
        "median of the time between the stamps",
        within(apart.median_ns, MEDIAN_APART),
        &format!("{} ns", apart.median_ns),
    );
    // Of a machine with more to do than processors, a guest may stand still for long right between the two.
    case.holds(
        "time between the stamps of all but a thousandth",
        within(apart.almost_all_ns, MAX_APART),
        &format!("{} ns", apart.almost_all_ns),
    );
    Ok(())
}

/// The analysis against `/sys/block/DEV/stat`, as on the host.
fn counts(case: &mut Case, machine: &Machine, recording: &Recording) -> anyhow::Result<()> {
    let analysis = recording.analysis();
    ground_truth::nothing_lost(case, analysis)?;
    for name in COUNTED {
        let device = machine.device(name)?;
        let stat = recording.stat(&device.kernel_name)?;
        ground_truth::device(case, analysis, &device.kernel_name, &stat)?;
    }
    Ok(())
}

/// Bios of a loop device's file name the request of the loop device that they are made for.
fn loop_links(case: &mut Case, machine: &Machine, recording: &Recording) -> anyhow::Result<()> {
    for name in ["direct", "partition"] {
        let device = machine.device(name)?;
        let file = machine.file(name)?;
        direct_io_link::loop_requests_of(
            case,
            recording.events(),
            file,
            device.dev,
            &device.kernel_name,
        );
    }
    Ok(())
}
