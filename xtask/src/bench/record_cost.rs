//! `cargo xtask bench record`: rounds of phases, and the smoke run that CI makes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use nestrace_lab::interrupt;

use super::RecordCostArgs;
use super::contestant::{self, Contestant};
use super::figures::Figures;
use super::guest_cost;
use super::load::{Load, LoadedDevice};
use super::phase::{self, Length, Phase};
use super::{machine, table};
use crate::cargo_build::{self, Profile};
use crate::live;
use crate::progress::Progress;
use crate::recorder;

/// Before each measured phase fio runs this long, so that nothing is measured cold.
const RAMP_MS: u32 = 500;

/// Measures and prints Markdown.
pub fn run(args: &RecordCostArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let nestrace = prepare(args, Profile::Release, &progress)?;
    let length = Length {
        seconds: args.seconds,
        ramp_ms: RAMP_MS,
    };
    println!("Machine: {}.", machine::describe());
    println!(
        "{} rounds of {} s for each contestant; load average at the start {:.1}.",
        args.rounds,
        args.seconds,
        machine::load_average()
    );
    for load in &args.loads {
        let device = LoadedDevice::create(*load)?;
        let phases = rounds(args, &nestrace, &device, length, &progress)?;
        print_load(*load, &phases);
        for contestant in Contestant::WITH_BPF {
            let cost = phase::measure_probes(contestant, &nestrace, &device, length)?;
            println!("{}", table::probe_line(&cost));
        }
        if let Some(file) = &args.phases {
            append(file, &phases)?;
        }
    }
    if args.guest {
        print!("{}", guest_cost::run(args, &nestrace, &progress)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(
    args: &RecordCostArgs,
    profile: Profile,
    progress: &Progress,
) -> anyhow::Result<PathBuf> {
    live::require_root()?;
    contestant::install_peers(|line| progress.say(line))?;
    match &args.nestrace {
        Some(program) => Ok(program.clone()),
        None => cargo_build::build("nestrace", profile),
    }
}

/// Round after round, each with a phase of every contestant.
fn rounds(
    args: &RecordCostArgs,
    nestrace: &Path,
    device: &LoadedDevice,
    length: Length,
    progress: &Progress,
) -> anyhow::Result<Vec<Phase>> {
    let load = device.load();
    let mut phases = Vec::new();
    for round in 0..args.rounds {
        for contestant in Contestant::ALL {
            interrupt::check()?;
            let phase = phase::run(contestant, nestrace, device, length, |_, _| Ok(()))?;
            progress.say(&format!(
                "{load}, round {}: {:.1} k IOPS, {:.2} µs per I/O, {}",
                round + 1,
                phase.iops / 1e3,
                phase.cpu_us(),
                contestant.name()
            ));
            phases.push(Phase { round, ..phase });
        }
    }
    Ok(phases)
}

fn print_load(load: Load, phases: &[Phase]) {
    let figures: Vec<Figures> = Contestant::ALL
        .into_iter()
        .filter_map(|contestant| Figures::of(contestant, phases))
        .collect();
    println!(
        "\n### {load}: {}\n\n{}",
        load.about(),
        table::markdown(&figures)
    );
    let busiest = figures
        .iter()
        .filter_map(|figures| figures.trace.as_ref()?.busiest_cpu_per_s)
        .max_by(f64::total_cmp);
    if let Some(rate) = busiest {
        println!(
            "Most events that one processor delivered: {:.0} k/s.",
            rate / 1e3
        );
    }
}

fn append(path: &Path, phases: &[Phase]) -> anyhow::Result<()> {
    let context = || format!("write {}", path.display());
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(context)?;
    for phase in phases {
        writeln!(file, "{}", serde_json::to_string(phase)?).with_context(context)?;
    }
    Ok(())
}

/// Runs every contestant for a second and checks what it left against the kernel's count of I/Os.
pub fn smoke(args: &RecordCostArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let nestrace = prepare(args, Profile::Dev, &progress)?;
    let device = LoadedDevice::create(Load::Paced)?;
    let length = Length {
        seconds: 1,
        ramp_ms: 0,
    };
    for contestant in Contestant::ALL {
        let look = |bundle: &Path, ios: u64| check_bundle(contestant, &nestrace, bundle, ios);
        let phase = phase::run(contestant, &nestrace, &device, length, look)?;
        check_phase(&phase)?;
        println!("pass  {}: {} I/Os", contestant.name(), phase.ios);
    }
    Ok(ExitCode::SUCCESS)
}

/// The analysis of a bundle has the kernel's own count of I/Os.
///
/// One in a thousand may be missing: a kernel can exempt tasks from tracing (a sandbox its supervisor),
/// and what an interrupt completes on their time is shown to no BPF program, nor to perf.
fn check_bundle(
    contestant: Contestant,
    nestrace: &Path,
    bundle: &Path,
    ios: u64,
) -> anyhow::Result<()> {
    if !matches!(contestant, Contestant::Full | Contestant::Light) {
        return Ok(());
    }
    let name = contestant.name();
    let analysis = recorder::analyze(nestrace, bundle)?;
    let lost = analysis["trace"]["lost"].as_u64();
    let lost = lost.context("find the losses in the analysis")?;
    let completed = analysis["devices"][0]["counts"]["completed"].as_u64();
    let completed = completed.context("find the device in the analysis")?;
    ensure!(
        lost == 0,
        "record with {name} without a loss: {lost} events lost"
    );
    ensure!(
        completed <= ios && completed >= ios - ios / 1000,
        "record every I/O with {name}: {completed} of {ios}"
    );
    Ok(())
}

/// Every recorder has at least one event for an I/O, those of all stamps at least one for each of
/// Q, G, D and C. bpftrace drops what it has not read when it is stopped, so one in a hundred may be
/// missing; nestrace's own count is held against the kernel's by [`check_bundle`].
fn check_phase(phase: &Phase) -> anyhow::Result<()> {
    ensure!(phase.ios > 0 && phase.iops > 0.0, "run fio");
    let events_per_io = match phase.contestant {
        Contestant::Untraced => return Ok(()),
        Contestant::Light => 1,
        Contestant::Full | Contestant::Perf | Contestant::Bpftrace => 4,
    };
    let recorded = phase.recorded.context("keep what was recorded")?;
    let seen = recorded.trace.events + recorded.trace.lost;
    let expected = events_per_io * phase.ios;
    ensure!(
        seen >= expected - expected / 100 && recorded.trace.bytes > 0,
        "record every I/O with {}: {seen} events of {expected}",
        phase.contestant.name()
    );
    ensure!(recorded.peak_resident_bytes > 0, "measure its memory");
    Ok(())
}
