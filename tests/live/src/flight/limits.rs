//! What a flight recorder keeps within its bounds, and what `kill -9` leaves of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::loop_device::LoopDevice;
use nestrace_rig::recorder;
use nestrace_trace::Manifest;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use xtask::case::Case;

use super::load::{Flood, quiet};
use super::{WRITTEN, completed, names_like, nothing_lost, start};
use crate::context::LiveContext;
use crate::stage::{CLOSED, manifest, monotonic_ns};
use crate::stuck::stalls::Withheld;

/// A pause of the whole machine; the kernel's rings hold the events of some two seconds.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// 100,000 events a second: nothing is lost, and neither the memory nor the bundle is larger than asked.
pub(super) fn bound(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    const MAX_SIZE: u64 = 6 << 20;
    let mut flood = Flooded::measure(ctx)?;
    // A machine that stood still shows nothing of the recorder.
    for _ in 0..2 {
        if flood.longest_pause() < STOOD_STILL {
            break;
        }
        case.figure(format!(
            "the machine stood still for {:.1?}",
            flood.longest_pause()
        ));
        flood = Flooded::measure(ctx)?;
    }
    let Flooded {
        written,
        analysis,
        samples,
        ..
    } = &flood;
    case.holds("exit code 0", flood.code == Some(0), &flood.stderr);
    nothing_lost(case, analysis);
    case.holds(
        "the bundle's streams are within their bound",
        flood.stream_bytes <= MAX_SIZE,
        &format!("{} bytes", flood.stream_bytes),
    );
    // The batch that is being gathered and its compression are a recorder's own, as in any recording.
    let own = 24 << 20;
    case.holds(
        "memory is within twice the bound",
        flood.grown_kib * 1024 <= 2 * MAX_SIZE + own,
        &format!("{} KiB more", flood.grown_kib),
    );
    // Of what it kept, all is there: requests in flight at either time are the only difference.
    let moment = written.flight.as_ref().context("find why it was written")?;
    let kept: Vec<_> = samples
        .iter()
        .filter(|(at_ns, _)| {
            *at_ns > written.start_mono_ns + 300_000_000 && *at_ns < moment.mono_ns
        })
        .collect();
    let (first, last) = (
        kept.first().context("sample what was kept")?,
        kept.last().context("sample what was kept")?,
    );
    let kernels = last.1 - first.1;
    let found = completed(&flood.bundle, first.0, last.0)?;
    // The count and the clock are read one after the other.
    let off = found.abs_diff(kernels);
    case.holds(
        "what was kept is whole",
        kernels > 1000 && off <= kernels / 50 + 64,
        &format!("{found} by the bundle, {kernels} by the kernel"),
    );
    let (begin, end) = (
        samples.first().context("sample the device")?,
        samples.last().context("sample the device")?,
    );
    let seconds = (end.0 - begin.0) as f64 / 1e9;
    let events = analysis["trace"]["events"].as_u64().unwrap_or(0);
    let kept_s = (written.end_mono_ns - written.start_mono_ns) as f64 / 1e9;
    case.figure(format!(
        "{:.0} I/Os a second, {:.0} events a second; {kept_s:.1} s in {} bytes; {} KiB of memory more; longest pause {:.1?}",
        (end.1 - begin.1) as f64 / seconds,
        events as f64 / kept_s,
        flood.stream_bytes,
        flood.grown_kib,
        flood.longest_pause(),
    ));
    Ok(())
}

/// A flight recorder in a flood, and the bundle that it wrote.
struct Flooded {
    bundle: PathBuf,
    written: Manifest,
    analysis: serde_json::Value,
    code: Option<i32>,
    stderr: String,
    stream_bytes: u64,
    grown_kib: u64,
    /// When, and how many requests the device had completed.
    samples: Vec<(u64, u64)>,
    /// The bundle is in it, and the device's file.
    _folder: TempDir,
}

impl Flooded {
    /// All of it in memory: how fast the machine's disk takes a bundle is no question here.
    fn measure(ctx: &LiveContext) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let backing = folder.path().join("backing");
        fs::File::create(&backing)?.set_len(64 << 20)?;
        let device = LoopDevice::attach(&backing, false)?;
        let requests = || -> anyhow::Result<u64> {
            let stat = BlockStat::read(device.name())?;
            Ok(stat.reads + stat.writes)
        };
        let bundle = folder.path().join("flight.nest");
        let more = ["--flight", "60", "--after", "1", "--max-size", "6M"];
        let mut recorder = start(ctx, device.name(), &bundle, &more)?;
        let before_kib = resident_kib(recorder.pid())?;
        let begun = Instant::now();
        let flood = Flood::start(&device.path())?;
        let (mut most_kib, mut samples) = (before_kib, Vec::new());
        while begun.elapsed() < Duration::from_secs(8) {
            thread::sleep(Duration::from_millis(50));
            most_kib = most_kib.max(resident_kib(recorder.pid())?);
            samples.push((monotonic_ns()?, requests()?));
        }
        recorder.signal(Signal::SIGUSR1)?;
        while begun.elapsed() < Duration::from_secs(11) && recorder_runs(recorder.pid()) {
            thread::sleep(Duration::from_millis(50));
            most_kib = most_kib.max(resident_kib(recorder.pid()).unwrap_or(0));
            samples.push((monotonic_ns()?, requests()?));
        }
        let end = recorder.wait(CLOSED + WRITTEN)?;
        flood.end()?;
        let streams = fs::read_dir(&bundle)?.flatten();
        let streams =
            streams.filter(|entry| entry.path().extension().is_some_and(|it| it == "arrows"));
        let bytes = streams
            .filter_map(|entry| entry.metadata().ok())
            .map(|about| about.len());
        Ok(Self {
            written: manifest(&bundle)?,
            analysis: recorder::analyze(&ctx.nestrace, &bundle)?,
            code: end.status.code(),
            stderr: end.stderr,
            stream_bytes: bytes.sum(),
            grown_kib: most_kib.saturating_sub(before_kib),
            samples,
            bundle,
            _folder: folder,
        })
    }

    /// Between two samples, which are 50 ms apart where the machine goes on.
    fn longest_pause(&self) -> Duration {
        let pauses = self.samples.windows(2).map(|pair| match pair {
            [earlier, later] => later.0 - earlier.0,
            _ => 0,
        });
        Duration::from_nanos(pauses.max().unwrap_or(0))
    }
}

fn recorder_runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/status")).exists()
}

fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next());
    Ok(kib.context("read the resident size")?.parse()?)
}

/// Killed at any moment, it leaves a bundle that can be read, or none, and nothing beside it.
pub(super) fn killed(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let device = Withheld::create()?;
    let load = quiet(&device.device())?;
    let mut left = Vec::new();
    // Before the signal (in milliseconds after it, negative), while it writes, and while it goes on.
    for after_ms in [-1i64, 0, 2, 5, 10, 20, 40, 80, 400] {
        let bundle = ctx.bundle("flight-killed");
        let more = ["--flight", "5", "--after", "2", "--repeat", "2"];
        let recorder = start(ctx, device.name(), &bundle, &more)?;
        thread::sleep(Duration::from_millis(300));
        if let Ok(after_ms) = u64::try_from(after_ms) {
            recorder.signal(Signal::SIGUSR1)?;
            thread::sleep(Duration::from_millis(50 + after_ms));
        }
        recorder.kill();
        // Its helpers clean up.
        let deadline = Instant::now() + Duration::from_secs(5);
        let is_seen = |name: &String| !name.starts_with('.');
        while !names_like(&bundle)?.iter().all(is_seen) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let names = names_like(&bundle)?;
        case.holds(
            &format!("nothing half is left, {after_ms} ms after the signal"),
            names.iter().all(is_seen),
            &names.join(", "),
        );
        if bundle.exists() {
            let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
            let events = analysis["trace"]["events"].as_u64();
            case.holds("it can be read", events > Some(10), "too few events");
            case.holds(
                "it says why",
                analysis["flight"]["cause"] == "signal",
                "it does not",
            );
        }
        left.push(bundle.exists());
        ctx.discard(&bundle);
    }
    load.end()?;
    case.holds(
        "some were killed before there was a bundle, some after",
        left.contains(&true) && left.contains(&false),
        &format!("{left:?}"),
    );
    case.figure(format!("bundles that were there: {left:?}"));
    Ok(())
}
