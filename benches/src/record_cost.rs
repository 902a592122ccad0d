//! `cargo xtask bench record`: rounds of phases.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use nestrace_rig::{interrupt, packages, root};
use xtask::cargo_build::{self, Profile};
use xtask::case::Report;
use xtask::progress::Progress;

use super::contestant::{self, Contestant, FIO};
use super::figures::Figures;
use super::guest_cost;
use super::load::{Load, LoadedDevice};
use super::phase::{self, Length, Phase};
use super::{GuestPart, RecordCostArgs};
use super::{machine, table};

/// Before each measured phase fio runs this long, so that nothing is measured cold.
const RAMP_MS: u32 = 500;

/// Runs every contestant once, checked instead of measured.
pub fn smoke(args: &RecordCostArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::start();
    let nestrace = prepare(args, Profile::Dev, &progress)?;
    let mut report = Report::default();
    crate::smoke(&nestrace, &mut report)?;
    Ok(if report.failed().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Has a nestrace record reads in each level of detail, as fast as they come.
///
/// # Errors
/// It does not run.
pub fn record_reads(nestrace: &Path) -> anyhow::Result<()> {
    packages::install_programs(&[FIO], |line| eprintln!("xtask: {line}"))?;
    let length = Length {
        seconds: 3,
        ramp_ms: RAMP_MS,
    };
    let device = LoadedDevice::create(Load::Memory)?;
    for detail in [Contestant::Full, Contestant::Light] {
        phase::run(detail, nestrace, &device, length, |_, _| Ok(()))?;
    }
    Ok(())
}

/// Measures and prints Markdown.
pub fn run(args: &RecordCostArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::start();
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
    let loads = match args.guest {
        GuestPart::Only => &[],
        GuestPart::Also | GuestPart::Off => args.loads.as_slice(),
    };
    for load in loads {
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
    if args.guest != GuestPart::Off {
        print!("{}", guest_cost::run(args, &nestrace, &progress)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(
    args: &RecordCostArgs,
    profile: Profile,
    progress: &Progress,
) -> anyhow::Result<PathBuf> {
    root::require()?;
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
