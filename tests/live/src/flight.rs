//! The flight recorder: it writes when it must and never else, holds what came before, keeps within its bound, and
//! leaves nothing half.
//!
//! Stalls are made by a signal that stops the server of a device. What a bundle must hold is counted by the kernel
//! (`/sys/block/*/stat`), in stretches between two times at which the device is at rest.

mod limits;
mod load;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::recorder::{self, Recorder};
use nestrace_rig::stack::{Aio, CacheMode, DiskStack};
use nestrace_trace::Kind;
use nestrace_trace::manifest::FlightCause;
use nix::sys::signal::Signal;
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::stage::{CLOSED, LIVE, events_so_far, manifest, monotonic_ns};
use super::stuck::stalls::{Stopped, Withheld};
use super::with_agents::recording::wait_live;
use limits::{bound, killed};
use load::{Burst, quiet};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "flight",
    about: "the flight recorder: stalls made for real, signals, kill -9",
    run,
    alone: false,
};

/// Its bounds under 100,000 events a second, which leave no processor for others.
pub const UNDER_LOAD: Scenario = Scenario {
    name: "flight-load",
    about: "the flight recorder under 100,000 events a second: nothing is lost, memory and bundle within their bounds",
    run: |ctx, report| {
        report.case("flight-load/bound", |case| bound(ctx, case))?;
        Ok(())
    },
    alone: true,
};

/// How long a bundle may take to be there after its moment, on a busy machine.
const WRITTEN: Duration = Duration::from_secs(20);

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    type Body = fn(&LiveContext, &mut Case) -> anyhow::Result<()>;
    let cases: [(&str, Body); 5] = [
        ("stalls", stalls),
        ("guest", guest),
        ("asked", asked),
        ("nothing", nothing),
        ("killed", killed),
    ];
    for (name, body) in cases {
        let name = format!("flight/{name}");
        if ctx.wants(&name) {
            report.case(&name, |case| body(ctx, case))?;
        }
    }
    Ok(())
}

/// A recorder of a device.
fn start(
    ctx: &LiveContext,
    device: &str,
    bundle: &Path,
    more: &[&str],
) -> anyhow::Result<Recorder> {
    let output = bundle.to_str().context("name the bundle")?;
    let mut args = vec!["--device", device, "-o", output];
    args.extend(more);
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    recorder.wait_live(LIVE)?;
    Ok(recorder)
}

/// Waits until a bundle is there.
fn appears(bundle: &Path, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while !bundle.exists() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// What is in the bundle's folder beside it, hidden names too.
fn names_like(bundle: &Path) -> anyhow::Result<Vec<String>> {
    let stem = bundle.file_stem().context("name the bundle")?;
    let stem = stem.to_string_lossy().into_owned();
    let folder = bundle.parent().context("find the bundle's folder")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.trim_start_matches('.').starts_with(&stem) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Requests that ended between two times, by a bundle's events.
fn completed(bundle: &Path, from_ns: u64, to_ns: u64) -> anyhow::Result<u64> {
    let events = events_so_far(bundle)?;
    let ends = events.iter().filter(|event| {
        event.kind() == Some(Kind::Complete)
            && event.remaining_bytes() == 0
            && (from_ns..to_ns).contains(&event.ts_ns)
    });
    Ok(ends.count() as u64)
}

fn stop_for(server: u32, stall: Duration) -> anyhow::Result<()> {
    let stopped = Stopped::stop(server)?;
    thread::sleep(stall);
    drop(stopped);
    Ok(())
}

/// A quiet load with stalls: the shorter ones write nothing, the first long one writes, once, and all that came before it.
fn stalls(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let device = Withheld::create()?;
    let bundle = ctx.bundle("flight-stalls");
    let condition = "max(any, device) > 250ms for 1s";
    let more = ["--flight", "8", "--after", "1", "--until", condition];
    let mut recorder = start(ctx, device.name(), &bundle, &more)?;
    let load = quiet(&device.device())?;
    for stall_ms in [50, 100] {
        thread::sleep(Duration::from_millis(400));
        stop_for(device.pid(), Duration::from_millis(stall_ms))?;
    }
    thread::sleep(Duration::from_millis(1300));
    case.holds("short stalls write nothing", !bundle.exists(), "it wrote");
    load.end()?;
    // What it must hold: a burst between two times of rest.
    let before = BlockStat::read(device.name())?;
    let from_ns = monotonic_ns()?;
    let burst = Burst::run(&device.device(), 1500)?;
    let to_ns = monotonic_ns()?;
    let counted = BlockStat::read(device.name())?;
    let load = quiet(&device.device())?;
    thread::sleep(Duration::from_millis(500));
    let stalled_ns = monotonic_ns()?;
    stop_for(device.pid(), Duration::from_millis(500))?;
    case.holds(
        "a stall of 500 ms writes",
        appears(&bundle, WRITTEN),
        &recorder.stderr(),
    );
    // A second one does not, with --repeat 1.
    let end = recorder.wait(CLOSED + WRITTEN)?;
    load.end()?;
    case.holds("exit code 0", end.status.code() == Some(0), &end.stderr);
    let written = manifest(&bundle)?;
    let flight = written.flight.clone().context("find why it was written")?;
    let cause = flight.cause;
    case.holds(
        "its cause",
        cause == FlightCause::Condition,
        &format!("{cause:?}"),
    );
    case.equal(
        "its condition",
        flight.expression.as_deref().unwrap_or("none"),
        condition,
    );
    let value_ms = flight
        .readings
        .first()
        .and_then(|it| it.value)
        .unwrap_or(0.0)
        / 1e6;
    case.holds(
        "its value is the stall's length",
        (400.0..2000.0).contains(&value_ms),
        &format!("{value_ms} ms"),
    );
    let late_ms = flight.mono_ns.saturating_sub(stalled_ns) / 1_000_000;
    case.holds(
        "its moment is that of the stall's end",
        (400..2500).contains(&late_ms),
        &format!("{late_ms} ms after it began"),
    );
    let kernels = (counted.reads + counted.writes) - (before.reads + before.writes);
    case.equal("the burst by fio and the kernel", burst, kernels);
    case.equal(
        "the burst in the bundle",
        completed(&bundle, from_ns, to_ns)?,
        kernels,
    );
    let before_s = flight.mono_ns.saturating_sub(written.start_mono_ns) as f64 / 1e9;
    let kept = flight.mono_ns.saturating_sub(from_ns) as f64 / 1e9;
    case.holds(
        "it begins before the burst",
        written.start_mono_ns <= from_ns && before_s < 10.0,
        &format!("{before_s:.1} s before the moment, the burst {kept:.1} s"),
    );
    let after_s = written.end_mono_ns.saturating_sub(flight.mono_ns) as f64 / 1e9;
    case.holds(
        "it goes on after it",
        after_s >= 1.0,
        &format!("{after_s:.1} s"),
    );
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    nothing_lost(case, &analysis);
    case.holds(
        "it was closed",
        analysis["trace"]["truncated"] == false,
        "it was not",
    );
    case.holds(
        "the moment is compared with the time before",
        analysis["flight"]["compared"]
            .as_array()
            .is_some_and(|rows| {
                rows.iter().any(|row| {
                    row["then"]["max"].as_f64() > Some(400e6)
                        && row["before"]["n"].as_u64() > Some(100)
                })
            }),
        &analysis["flight"]["compared"].to_string(),
    );
    let text = text(ctx, &bundle)?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    case.holds(
        "the text says the moment first",
        text.contains("max of all requests at the host's device was")
            && text.contains("the condition was > 250 ms"),
        &text,
    );
    case.equal("nothing else is left", names_like(&bundle)?.len(), 1);
    case.figure(format!(
        "fired {late_ms} ms after the stall began with {value_ms:.0} ms; {before_s:.1} s before it, {kernels} of the burst"
    ));
    ctx.discard(&bundle);
    Ok(())
}

fn nothing_lost(case: &mut Case, analysis: &serde_json::Value) {
    let lost = &analysis["trace"]["lost"];
    case.holds(
        "nothing is lost",
        lost.as_u64() == Some(0),
        &lost.to_string(),
    );
}

fn text(ctx: &LiveContext, bundle: &Path) -> anyhow::Result<String> {
    let path = bundle.to_str().context("name the bundle")?;
    let end = recorder::nestrace(&ctx.nestrace, &["analyze", path])?;
    anyhow::ensure!(end.code == Some(0), "analyze {path}: {}", end.stderr);
    Ok(end.stdout)
}

/// A guest with an agent: its own layer makes the recorder write, and its stream is in the bundle, linked down to the host.
fn guest(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let device = Withheld::create()?;
    let stack = DiskStack {
        cache: CacheMode::None,
        aio: Aio::IoUring,
        ..DiskStack::RAW
    };
    let guest = Guest::boot(GuestSpec {
        disks: vec![DiskSpec::new("disk", device.device(), stack)],
        ..ctx.agent_guest_spec(&ctx.guest_name("flight"))?
    })?;
    guest.start_agent("--backend ebpf")?;
    let bundle = ctx.bundle("flight-guest");
    let output = bundle.to_str().context("name the bundle")?;
    let args = [
        "--guest",
        guest.name(),
        "-o",
        output,
        "--flight",
        "6",
        "--after",
        "1",
        "--until",
        "max(write) > 300ms and count(write, qemu) > 0",
    ];
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    wait_live(&mut recorder, &[guest.name()])?;
    let disk = guest.device_of("disk")?;
    let line = format!(
        "fio --name=quiet --filename={disk} --direct=1 --ioengine=libaio --iodepth=2 --bs=4k --rw=randwrite --size=32m \
         --thinktime=2000 --time_based --runtime=8"
    );
    let running = guest.start(&line, Duration::from_secs(60))?;
    thread::sleep(Duration::from_secs(3));
    let is_there = bundle.exists();
    stop_for(device.pid(), Duration::from_millis(900))?;
    let end = recorder.wait(CLOSED + WRITTEN)?;
    drop(running);
    case.holds("exit code 0", end.status.code() == Some(0), &end.stderr);
    case.holds("it did not write before the stall", !is_there, &end.stderr);
    let written = manifest(&bundle)?;
    let flight = written.flight.context("find why it was written")?;
    case.equal(
        "a condition without a layer is about the outermost one",
        flight.expression.as_deref().unwrap_or("none"),
        "max(write, guest) > 300ms and count(write, qemu) > 0",
    );
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    nothing_lost(case, &analysis);
    let chains = &analysis["chains"][0];
    let (linked, bios) = (chains["linked"].as_u64(), chains["guest_bios"].as_u64());
    let share = linked.unwrap_or(0) as f64 / bios.unwrap_or(1).max(1) as f64;
    case.holds(
        "the guest's bios are linked",
        bios > Some(100) && share > 0.95,
        &chains["unlinked"].to_string(),
    );
    case.holds(
        "it does not reach further back than asked",
        analysis["trace"]["duration_ns"].as_u64() < Some(15_000_000_000),
        &analysis["trace"]["duration_ns"].to_string(),
    );
    case.figure(format!("{linked:?} of {bios:?} bios of the guest linked"));
    ctx.discard(&bundle);
    Ok(())
}

/// A signal, then a file: two bundles, and it ends by itself.
fn asked(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let device = Withheld::create()?;
    let first = ctx.bundle("flight-asked");
    let second = first.with_file_name(format!(
        "{}-2.nest",
        first
            .file_stem()
            .context("name the bundle")?
            .to_string_lossy()
    ));
    let until = tempfile::tempdir()?;
    let file = until.path().join("now");
    let file_name = file.to_str().context("name the file")?;
    let more = [
        "--flight",
        "3",
        "--after",
        "0.5",
        "--repeat",
        "2",
        "--pause",
        "0",
        "--until-file",
        file_name,
    ];
    let mut recorder = start(ctx, device.name(), &first, &more)?;
    let load = quiet(&device.device())?;
    thread::sleep(Duration::from_millis(1500));
    case.holds("it waits", !first.exists(), "it wrote");
    recorder.signal(Signal::SIGUSR1)?;
    case.holds(
        "SIGUSR1 writes",
        appears(&first, WRITTEN),
        &recorder.stderr(),
    );
    recorder.wait_for_word("wrote", WRITTEN)?;
    case.holds("it goes on", !second.exists(), "it wrote another one");
    fs::write(&file, "")?;
    let end = recorder.wait(CLOSED + WRITTEN)?;
    load.end()?;
    case.holds("exit code 0", end.status.code() == Some(0), &end.stderr);
    for (bundle, cause) in [(&first, FlightCause::Signal), (&second, FlightCause::File)] {
        let name = bundle.display();
        case.holds(&format!("{name} is there"), bundle.exists(), &end.stderr);
        let flight = manifest(bundle)?
            .flight
            .context("find why it was written")?;
        let found = flight.cause;
        case.holds(
            &format!("cause of {name}"),
            found == cause,
            &format!("{found:?}"),
        );
        let analysis = recorder::analyze(&ctx.nestrace, bundle)?;
        let is_whole = analysis["trace"]["truncated"] == false;
        case.holds(&format!("{name} was closed"), is_whole, "it was not");
        let events = analysis["trace"]["events"].as_u64();
        case.holds(&format!("{name} has events"), events > Some(100), "too few");
    }
    case.equal("nothing else is left", names_like(&first)?.len(), 2);
    let owner = fs::metadata(&first).map(|about| std::os::unix::fs::MetadataExt::uid(&about))?;
    case.equal("the first one is given back", owner, 0);
    ctx.discard(&first);
    ctx.discard(&second);
    Ok(())
}

/// Without a reason to write, nothing is there, during and after it.
fn nothing(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let device = Withheld::create()?;
    let bundle = ctx.bundle("flight-nothing");
    let more = [
        "--flight",
        "2",
        "--repeat",
        "3",
        "--until",
        "max(any) > 10s",
    ];
    let recorder = start(ctx, device.name(), &bundle, &more)?;
    let load = quiet(&device.device())?;
    thread::sleep(Duration::from_millis(800));
    let end = recorder.stop(Signal::SIGINT, 2 * CLOSED)?;
    load.end()?;
    case.holds("exit code 0", end.status.code() == Some(0), &end.stderr);
    case.holds("it ends within 10 s", end.took < CLOSED, "it did not");
    let said = end.stderr.contains("wrote nothing");
    case.holds("it says so", said, &end.stderr);
    case.equal(
        "what is left",
        names_like(&bundle)?.join(", "),
        String::new(),
    );
    Ok(())
}
