//! Modelled disks on this machine: fio sees the model's figures, troubles come on command, and a disk that is killed
//! under load fails without leaving anything.
//!
//! The figures are fio's; what they should be is computed by the model in its own time.

mod ends;
mod fio;
mod troubles;

use nestrace_modelled_disk::lateness::GOAL_NS;
use nestrace_modelled_disk::parameters::BUILT_IN;
use nestrace_modelled_disk::predict::{Workload, predict};
use nestrace_rig::modelled_disk::{self, ModelledDisk, ModelledDiskSpec};
use xtask::case::{Case, Report};

use self::fio::Fio;
use super::Scenario;
use super::context::LiveContext;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "modelled-disk",
    about: "modelled disks: fio's figures against the model's, troubles on command, a disk that is killed",
    run,
    // Its times are measured.
    alone: true,
};

const MODEL: &str = "hdd-7200";
const SIZE: u64 = 4 << 30;
/// How far fio's figure may be from the model's.
const TOLERANCE: f64 = 0.1;
/// How often a workload is measured at most.
const MAX_TRIES: u32 = 3;
/// Seeds that a prediction is the mean of.
const SEEDS: u64 = 4;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    // The others take four minutes, and this machine may be too slow for the fast ones.
    for model in BUILT_IN {
        let name = format!("modelled-disk/figures/{model}");
        if ctx.wants(&name) && (ctx.full || model == MODEL) {
            report.case(&name, |case| figures(ctx, model, case))?;
        }
    }
    if ctx.wants("modelled-disk/troubles") {
        report.case("modelled-disk/troubles", |case| troubles::check(ctx, case))?;
    }
    if ctx.wants("modelled-disk/killed") {
        report.case("modelled-disk/killed", |case| ends::killed(ctx, case))?;
    }
    if ctx.wants("modelled-disk/file-system") {
        let body = |case: &mut Case| ends::file_system(ctx, case);
        report.case("modelled-disk/file-system", body)?;
    }
    Ok(())
}

/// A disk with its data in memory.
fn disk(ctx: &LiveContext, model: &str, size: u64) -> anyhow::Result<ModelledDisk> {
    let spec = ModelledDiskSpec::new(ctx.disk_program(), model);
    Ok(ModelledDisk::start(&spec, size, &std::env::temp_dir())?)
}

fn figures(ctx: &LiveContext, model: &str, case: &mut Case) -> anyhow::Result<()> {
    let reads = Workload::random_reads();
    let mixed = Workload {
        read_percent: 70,
        depth: 8,
        ..reads
    };
    let deep = Workload {
        depth: 32,
        seconds: 6.0,
        ..reads
    };
    let sequential = Workload {
        to: 0.1,
        seconds: 3.0,
        ..Workload::sequential_reads()
    };
    let workloads = [
        ("random reads, depth 1", reads),
        ("random reads, depth 32", deep),
        ("sequential reads", sequential),
        ("synced writes", Workload::synced_writes()),
        ("mixed", mixed),
    ];
    let disk = disk(ctx, model, SIZE)?;
    let parameters = modelled_disk::parameters(model)?;
    for (name, workload) in workloads {
        let mut expected = 0.0;
        for seed in 1..=SEEDS {
            let prediction = predict(&parameters, SIZE, seed, &workload)?;
            expected += prediction.per_second / SEEDS as f64;
        }
        // A machine that pauses says nothing of the disk.
        let mut tries = 0;
        let (found, late, off) = loop {
            tries += 1;
            disk.report(true)?;
            let found = Fio::run(&disk.path(), &workload, SIZE)?;
            let late = disk.report(true)?;
            let off = found.per_second / expected - 1.0;
            let is_paced = off.abs() <= TOLERANCE && late.p50_ns <= GOAL_NS;
            if is_paced || tries == MAX_TRIES {
                break (found, late, off);
            }
        };
        let figures = format!(
            "{:.1} a second, the model {expected:.1} ({:+.1} %)",
            found.per_second,
            off * 100.0
        );
        // Where the machine does not keep up, the disk says so, and its figures say nothing.
        let has_to = model == MODEL || late.kept_up();
        case.holds(name, off.abs() <= TOLERANCE || !has_to, &figures);
        case.figure(format!("{name}: {figures}"));
        let lateness = format!(
            "{} of {} later than {} µs, p50 {} µs, p99 {} µs, most {} µs",
            late.late,
            late.n,
            GOAL_NS / 1000,
            late.p50_ns / 1000,
            late.p99_ns / 1000,
            late.max_ns / 1000
        );
        // fio's own count includes what it had in flight at its end; a flush is a request too.
        let n = found.n_requests;
        case.holds(
            &format!("{name}: completions counted"),
            late.n >= n && late.n <= 2 * n + 64,
            &format!("{} for {n} requests of fio's", late.n),
        );
        case.holds(
            &format!("{name}: lateness"),
            late.p50_ns <= GOAL_NS || !has_to,
            &lateness,
        );
        case.figure(lateness);
    }
    Ok(())
}
