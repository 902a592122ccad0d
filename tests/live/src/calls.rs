//! Links from programs' calls to bios, against a script that says what each call needs.
//!
//! In the guest, `call-writer` runs a script of calls of every kind on several file systems, logs each with its own
//! clock, and stamps what it writes. So the image shows which write each bio of data carries. The script decides what a
//! call needs: a disk on which a single call runs does nothing that this call does not wait for.

mod bios;
pub mod counts;
mod fio;
mod journal;
mod links;
mod log_space;
mod scene;
mod script;
pub mod trees;

use xtask::case::Report;

use super::Scenario;
use super::context::LiveContext;
use crate::with_agents::chains;
use bios::Bios;
use scene::{GUESTS, Guests, Scene};
use trees::CallTree;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "calls",
    about: "which bios each call of a program waited for, against a script of calls and their data",
    run,
    alone: false,
};

/// The program that runs the scripts.
const WRITER: &str = "call-writer";

/// Cases that look at the scripts of calls, beside one for each disk.
const SCRIPTED: [&str; 5] = ["recording", "segments", "sums", "commits", "fio"];
/// Those that have a file system of their own.
const SMALL_LOGS: [&str; 2] = ["log-space", "journal-space"];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    for guests in &GUESTS {
        let wants = |case: &str| ctx.wants(&format!("{}/{case}", guests.prefix));
        let mut scripted = guests.disks.iter().map(|disk| disk.id).chain(SCRIPTED);
        if scripted.any(wants) {
            run_in(ctx, report, guests)?;
        } else if SMALL_LOGS.into_iter().any(wants) {
            small_logs(ctx, report, &Scene::boot(ctx, guests)?, guests.prefix)?;
        }
    }
    Ok(())
}

fn run_in(ctx: &LiveContext, report: &mut Report, guests: &Guests) -> anyhow::Result<()> {
    let prefix = guests.prefix;
    let scene = Scene::boot(ctx, guests)?;
    let mut recorded = None;
    report.case(&format!("{prefix}/recording"), |case| {
        let seen = scene.record()?;
        seen.measured.is_whole(case)?;
        chains::clock(case, &seen.measured.analysis, scene.guest.name())?;
        let bundle = &seen.measured.bundle;
        let (calls, bios) = (trees::calls(ctx, bundle)?, trees::bios(ctx, bundle)?);
        case.figure(format!("{} calls, {} bios", calls.len(), bios.len()));
        recorded = Some((seen, calls, bios));
        Ok(())
    })?;
    let Some((seen, calls, stories)) = recorded else {
        return small_logs(ctx, report, &scene, prefix);
    };
    for disk in &seen.disks {
        let mount = format!("/mnt/{}", disk.disk.id);
        let trees: Vec<&CallTree> = calls
            .iter()
            .filter(|call| call.process == WRITER && call.file.mount == mount)
            .collect();
        let log = counts::countable(disk);
        let matched = links::matched(&log, &trees);
        report.case(&format!("{prefix}/{}/counts", disk.disk.id), |case| {
            counts::calls(case, &seen, disk, &trees, WRITER, &log);
            counts::latencies(case, &log, &matched);
            Ok(())
        })?;
        report.case(&format!("{prefix}/{}/links", disk.disk.id), |case| {
            if disk.disk.streams {
                journal::others_data(case, &seen, disk)?;
                return journal::finding(case, &seen, disk);
            }
            let bios = Bios::of(disk, &seen.events, &stories)?;
            case.equal("bios without an end", bios.without_end, 0);
            links::check(case, disk, &bios, &matched);
            Ok(())
        })?;
    }
    report.case(&format!("{prefix}/segments"), |case| {
        counts::segments(case, &seen.measured.analysis, &calls)
    })?;
    report.case(&format!("{prefix}/sums"), |case| {
        counts::sums(case, &seen.measured, scene.guest.name())
    })?;
    report.case(&format!("{prefix}/commits"), |case| {
        journal::commits(case, &seen)?;
        journal::phases(case, &seen)
    })?;
    report.case(&format!("{prefix}/fio"), |case| fio::check(case, &seen))?;
    ctx.discard(&seen.measured.bundle);
    small_logs(ctx, report, &scene, prefix)
}

/// File systems with small logs, on the disks of others.
fn small_logs(
    ctx: &LiveContext,
    report: &mut Report,
    scene: &Scene,
    prefix: &str,
) -> anyhow::Result<()> {
    if scene.has_streams() {
        report.case(&format!("{prefix}/log-space"), |case| {
            log_space::check(ctx, case, &scene.guest, &log_space::XFS)
        })?;
    }
    report.case(&format!("{prefix}/journal-space"), |case| {
        log_space::check(ctx, case, &scene.guest, &log_space::EXT4)
    })?;
    Ok(())
}
