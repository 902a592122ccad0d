//! Every contestant for a second, checked against the kernel's count of I/Os: what CI runs of the bench.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder;
use xtask::case::{Case, Report};

use super::contestant::{self, Contestant};
use super::load::{Load, LoadedDevice};
use super::phase::{self, Length, Phase};

const LENGTH: Length = Length {
    seconds: 1,
    ramp_ms: 0,
};

/// One case for each contestant.
pub fn run(nestrace: &Path, report: &mut Report) -> anyhow::Result<()> {
    contestant::install_peers(|line| println!("{line}"))?;
    let device = LoadedDevice::create(Load::Paced)?;
    for contestant in Contestant::ALL {
        let name = format!("bench/{}", contestant.name());
        report.case(&name, |case| check(case, contestant, nestrace, &device))?;
    }
    Ok(())
}

fn check(
    case: &mut Case,
    contestant: Contestant,
    nestrace: &Path,
    device: &LoadedDevice,
) -> anyhow::Result<()> {
    let is_nestrace = matches!(
        contestant,
        Contestant::Full | Contestant::FullWithoutCpu | Contestant::Light
    );
    let look = |bundle: &Path, ios: u64| match is_nestrace {
        true => check_bundle(case, nestrace, bundle, ios),
        false => Ok(()),
    };
    let phase = phase::run(contestant, nestrace, device, LENGTH, look)?;
    check_phase(case, &phase)
}

/// The analysis of a bundle has the kernel's own count of I/Os.
///
/// One in a thousand may be missing: a kernel can exempt tasks from tracing (a sandbox its supervisor),
/// and what an interrupt completes on their time is shown to no BPF program, nor to perf.
fn check_bundle(case: &mut Case, nestrace: &Path, bundle: &Path, ios: u64) -> anyhow::Result<()> {
    let analysis = recorder::analyze(nestrace, bundle)?;
    let lost = analysis["trace"]["lost"].as_u64();
    case.equal("events lost", lost.context("find the losses")?, 0);
    let completed = analysis["devices"][0]["counts"]["completed"].as_u64();
    let completed = completed.context("find the device in the analysis")?;
    case.holds(
        "I/Os completed",
        completed <= ios && completed >= ios - ios / 1000,
        &format!("{completed} of {ios}"),
    );
    Ok(())
}

/// Every recorder has at least one event for an I/O, those of all stamps at least one for each of
/// Q, G, D and C. bpftrace drops what it has not read when it is stopped, on a busy machine one in
/// thirty, of the others one in a hundred may be missing; nestrace's own count is held against the kernel's by [`check_bundle`].
fn check_phase(case: &mut Case, phase: &Phase) -> anyhow::Result<()> {
    case.figure(format!("{} I/Os", phase.ios));
    case.holds("IOPS", phase.ios > 0 && phase.iops > 0.0, "none");
    let events_per_io = match phase.contestant {
        // Of blktrace's records the contestant itself holds that none was lost.
        Contestant::Untraced | Contestant::UnreadBlktrace => return Ok(()),
        Contestant::Light | Contestant::Sums | Contestant::Biolatency => 1,
        Contestant::Full | Contestant::FullWithoutCpu | Contestant::Perf | Contestant::Bpftrace => {
            4
        }
    };
    let recorded = phase.recorded.context("keep what was recorded")?;
    let trace = recorded.trace.context("keep a trace")?;
    let seen = trace.events + trace.lost;
    let expected = events_per_io * phase.ios;
    let may_miss = match phase.contestant {
        Contestant::Bpftrace => expected / 10,
        _ => expected / 100,
    };
    case.figure(format!("{} events", trace.events));
    case.holds(
        "events",
        seen >= expected - may_miss,
        &format!("{seen} of {expected}"),
    );
    case.holds("bytes of the trace", trace.bytes > 0, "none");
    case.holds("resident memory", recorded.peak_resident_bytes > 0, "none");
    Ok(())
}
