//! A database in a guest: MariaDB under sysbench's load, on ext4.
//!
//! What the database itself counts is held against the calls that were recorded of it: it knows how often it synced its
//! files, whatever the kernel did.

mod server;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use nestrace_lab::experiment::{DatabaseDisk, database_spec};
use nestrace_rig::cache_dir;
use nestrace_rig::guest::GuestSpec;
use nestrace_rig::recorder;
use nestrace_rig::stack::{DiskStack, GuestFsKind, HostFsKind};
use serde_json::Value;
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use crate::analysis::entry;
use crate::calls::{counts, trees};
use crate::measure::{Measured, Watched};
use crate::with_agents::chains;
use crate::with_agents::counts::DiskCounts;
use crate::with_agents::recording::{boot_with, measure};
use server::{FOLDER, Server};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "database",
    about: "MariaDB under load in a guest: its log, its data files, and the syncs that it counts itself",
    run,
    alone: false,
};

const DISK: &str = "disk-a";
/// The database, its redo log of 16 MiB and its temporary tables.
const IMAGE_BYTES: u64 = 320 << 20;
/// The server and its pages, the programs' disk in the page cache.
const MEMORY_MIB: u32 = 1024;
const VCPUS: u32 = 2;
/// Rows of each table: more pages than the server holds in memory.
const ROWS: u64 = 20_000;
/// The process that a call is of.
const PROCESS: &str = "mariadbd";
/// Calls that have all their bios, at least.
const LINKED: f64 = 0.999;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    ctx.progress.say("a disk with a database and its programs");
    let programs = DatabaseDisk::with(BTreeSet::from([ROWS]))?.obtain(&cache_dir::root()?)?;
    let host = ctx.host_fs(HostFsKind::Ext4, true, "")?;
    let disks = vec![
        ctx.disk(&host, DISK, DiskStack::RAW, IMAGE_BYTES, "full")?,
        database_spec(&programs),
    ];
    let guest = boot_with(ctx, "database", |spec| GuestSpec {
        disks,
        memory_mib: MEMORY_MIB,
        // The disk then has as many queues, and flushes of both are in flight at once.
        vcpus: VCPUS,
        ..spec
    })?;
    guest.make_fs(DISK, GuestFsKind::Ext4)?;
    guest.mount(DISK, GuestFsKind::Ext4, FOLDER, "rw")?;
    // Only this disk: reads of the programs' disk are of no interest.
    let device = guest.device_of(DISK)?;
    guest.start_agent(&format!("--backend ebpf --device {device}"))?;
    let server = Server::start(&guest, ROWS)?;
    let watched = [Watched {
        guest: &guest,
        disk: DISK,
        host: &host,
    }];
    let looks = RefCell::new(vec![server.syncs()?]);
    let measured = measure(ctx, &watched, || {
        let before = server.syncs()?;
        server.load()?;
        looks.borrow_mut().extend([before, server.syncs()?]);
        Ok(())
    })?;
    let mut looks = looks.into_inner();
    looks.push(server.syncs()?);
    let Some([first, .., last]) = looks.last_chunk::<4>() else {
        anyhow::bail!("look at the server's own counts four times");
    };
    let [_, before, after, _] = looks.last_chunk::<4>().context("find the looks")?;
    let rows = rows(&measured.analysis)?;
    report.case("database/recording", |case| {
        measured.is_whole(case)?;
        chains::clock(case, &measured.analysis, guest.name())
    })?;
    report.case("database/files", |case| files(case, &rows))?;
    report.case("database/syncs", |case| {
        let recorded: u64 = (rows.iter())
            .filter(|row| is_of_innodb(row) && is_sync(row))
            .filter_map(|row| row["n"].as_u64())
            .sum();
        case.figure(format!(
            "{recorded} syncs, the server counts {}",
            after - before
        ));
        // The recording began before the second look and ended after the third.
        case.holds(
            "syncs of InnoDB's files",
            (after - before..=last - first).contains(&recorded),
            &format!("{recorded}, the server's count went {looks:?}"),
        );
        Ok(())
    })?;
    report.case("database/links", |case| links(case, ctx, &measured, &rows))?;
    report.case("database/flushes", |case| {
        flushes(case, &measured.analysis, guest.name())
    })?;
    report.case("database/sums", |case| {
        counts::sums(case, &measured, guest.name())
    })?;
    report.case("database/text", |case| text(case, ctx, &measured.bundle))?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// Rows of `calls[]` of the server.
fn rows(analysis: &Value) -> anyhow::Result<Vec<&Value>> {
    let rows = analysis["calls"].as_array().context("find calls[]")?;
    let of_server = rows.iter().filter(|row| row["process"] == PROCESS);
    Ok(of_server.collect())
}

fn path(row: &Value) -> &str {
    row["file"]["path"].as_str().unwrap_or_default()
}

fn is_sync(row: &Value) -> bool {
    row["op"] == "fsync" || row["op"] == "fdatasync"
}

/// Its log, table spaces and undo logs; Aria's files are beside them.
fn is_of_innodb(row: &Value) -> bool {
    let name = path(row).rsplit('/').next().unwrap_or_default();
    name.ends_with(".ibd") || name.starts_with("ib") || name.starts_with("undo")
}

/// The log is written and synced, the tables are read and written, and each file has its name.
fn files(case: &mut Case, rows: &[&Value]) -> anyhow::Result<()> {
    let n = |op: &str, end: &str| -> u64 {
        let of_file = rows
            .iter()
            .filter(|row| row["op"] == op && path(row).ends_with(end));
        of_file.filter_map(|row| row["n"].as_u64()).sum()
    };
    let syncs = n("fsync", "ib_logfile0") + n("fdatasync", "ib_logfile0");
    let (logged, read) = (n("write", "ib_logfile0"), n("read", ".ibd"));
    let written = n("write", ".ibd");
    case.figure(format!(
        "{logged} writes and {syncs} syncs of the log, {read} reads and {written} writes of tables"
    ));
    for (what, n) in [
        ("writes of ib_logfile0", logged),
        ("syncs of ib_logfile0", syncs),
        ("reads of sbtest1.ibd", n("read", "/sbtest/sbtest1.ibd")),
    ] {
        case.holds(what, n > 0, "none");
    }
    let nameless = rows.iter().filter(|row| {
        let waited = row["waited"]["bios"].as_u64();
        !row["file"]["inode"].is_null() && row["file"]["path"].is_null() && waited > Some(0)
    });
    let nameless: Vec<&Value> = nameless.map(|row| &row["file"]).collect();
    case.holds(
        "files without a name",
        nameless.is_empty(),
        &format!("{nameless:?}"),
    );
    Ok(())
}

/// Calls have their bios, and the parts of each call sum to its latency.
fn links(
    case: &mut Case,
    ctx: &LiveContext,
    measured: &Measured<DiskCounts>,
    rows: &[&Value],
) -> anyhow::Result<()> {
    let sum = |key: &str| -> u64 { rows.iter().filter_map(|row| row[key].as_u64()).sum() };
    let (n, linked) = (sum("n"), sum("linked"));
    case.holds(
        "calls with all their bios",
        n > 0 && linked as f64 >= n as f64 * LINKED,
        &format!("{linked} of {n}"),
    );
    case.figure(format!("{linked} of {n} calls linked"));
    let trees = trees::calls(ctx, &measured.bundle)?;
    counts::segments(case, &measured.analysis, &trees)
}

/// No flush of one queue is taken for one of the other, or left open.
fn flushes(case: &mut Case, analysis: &Value, guest: &str) -> anyhow::Result<()> {
    let chains = entry(analysis, "chains", &[("guest", guest), ("disk", DISK)])?;
    let number = |pointer: &str| chains.pointer(pointer).and_then(Value::as_u64);
    let n = number("/latency_ns/flush/n").context("find the flushes")?;
    case.figure(format!("{n} flushes without data linked"));
    case.holds("flushes", n > 0, "none");
    for (what, pointer) in [
        ("bios that could be another's", "/unlinked/ambiguous"),
        ("bios with a flush that could be another's", "/ambiguous"),
        ("bios out of order", "/wrong_order"),
        (
            "contradictions of the guest's memory",
            "/memory_check/contradicted",
        ),
    ] {
        case.equal(what, number(pointer).unwrap_or(0), 0);
    }
    Ok(())
}

/// The answer names the server and its log.
fn text(case: &mut Case, ctx: &LiveContext, bundle: &Path) -> anyhow::Result<()> {
    let path = bundle.to_str().context("name the recording")?;
    let end = recorder::nestrace(&ctx.nestrace, &["analyze", path])?;
    anyhow::ensure!(end.code == Some(0), "analyze {path}: {}", end.stderr);
    for word in [PROCESS, "ib_logfile0", "sbtest1.ibd"] {
        case.holds(
            &format!("{word} in the text"),
            end.stdout.contains(word),
            &end.stdout,
        );
    }
    Ok(())
}
