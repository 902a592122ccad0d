//! Names of a guest's files: of open ones, of removed ones, and of those that only a look into handles or folders finds.
//! With `--no-paths` and in a redacted copy there are none.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::Guest;
use nestrace_rig::recorder::{self, Recorder};
use nestrace_rig::stack::{DiskStack, GuestFsKind, HostFsKind};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::case::{Case, Report};

use crate::context::LiveContext;
use crate::stage::manifest;
use crate::with_agents::recording::{boot, wait_live};

const DISKS: [(&str, GuestFsKind, &str); 2] = [
    ("disk-a", GuestFsKind::Ext4, "/mnt/e"),
    ("disk-b", GuestFsKind::Btrfs, "/mnt/b"),
];
const SIZE: u64 = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
/// Part of each name, which stands nowhere else.
const SECRET: &str = "sekret";
/// A look at open descriptors comes once a second.
const LOOKS: Duration = Duration::from_secs(3);
/// What the search at the end may take, of a recording that ends within a few tenths of a second otherwise.
const LONGEST_END: Duration = Duration::from_secs(5);

/// The only case.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("guest-side/names", |case| names(ctx, case))?;
    Ok(())
}

fn names(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let disks = DISKS.map(|(id, _, _)| ctx.disk(&host, id, DiskStack::RAW, SIZE, "off"));
    let disks = disks.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let guest = boot(ctx, "names", disks)?;
    for (id, kind, place) in DISKS {
        guest.make_fs(id, kind)?;
        guest.mount(id, kind, place, "")?;
    }
    guest.start_agent("--backend ebpf")?;
    let (bundle, analysis) = record(ctx, case, &guest, &[])?;
    for (_, _, place) in DISKS {
        for name in ["held", "removed", "short", "walked"] {
            let path = format!("{place}/{SECRET}-folder/{SECRET} {name}");
            let found = calls(&analysis).find(|call| call["file"]["path"] == path.as_str());
            let row = found.map(|call| (&call["file"]["mount"], &call["op"]));
            let is_named = row.is_some_and(|(mount, _)| mount == place);
            case.holds(&format!("{path} is named"), is_named, &told(&analysis));
        }
    }
    let n_named = manifest(&bundle)?
        .guest_sides
        .iter()
        .map(|side| side.files.len())
        .sum::<usize>();
    case.figure(format!("{n_named} files have names"));
    let redacted = ctx.bundle("names-redacted");
    repair(ctx, &bundle, &redacted)?;
    case.equal("names in the recording", holds_secret(&bundle)?, true);
    case.equal("names in the redacted one", holds_secret(&redacted)?, false);
    ctx.discard(&bundle);
    ctx.discard(&redacted);
    let (bundle, analysis) = record(ctx, case, &guest, &["--no-paths"])?;
    let named = calls(&analysis).filter(|call| !call["file"]["path"].is_null());
    case.equal("names with --no-paths", named.count(), 0);
    case.holds(
        "calls with --no-paths",
        calls(&analysis).count() > 4,
        &told(&analysis),
    );
    case.equal("names in that recording", holds_secret(&bundle)?, false);
    ctx.discard(&bundle);
    Ok(())
}

fn record(
    ctx: &LiveContext,
    case: &mut Case,
    guest: &Guest,
    more: &[&str],
) -> anyhow::Result<(std::path::PathBuf, Value)> {
    let bundle = ctx.bundle("names");
    let to = bundle.to_str().context("name the recording")?;
    let args = [&["--guest", guest.name(), "-o", to], more].concat();
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    wait_live(&mut recorder, &[guest.name()])?;
    for (_, _, place) in DISKS {
        guest.run_ok(&work(place), PATIENCE)?;
    }
    thread::sleep(LOOKS / 2);
    let end = recorder.stop(Signal::SIGINT, LONGEST_END * 4)?;
    let took = format!("{:.2} s", end.took.as_secs_f64());
    case.holds("exit code 0", end.status.success(), &end.stderr);
    case.holds("it ends soon", end.took < LONGEST_END, &took);
    case.figure(format!("closed in {took}"));
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    Ok((bundle, analysis))
}

/// Of each file some pages are written and synced.
fn work(place: &str) -> String {
    let folder = format!("{place}/{SECRET}-folder");
    let write = "dd if=/dev/zero bs=4k count=8 conv=fsync 2> /dev/null";
    format!(
        "set -e; mkdir -p {folder}; cd {folder}; rm -f *\n\
         {write} > '{SECRET} walked'\n\
         sync; echo 2 > /proc/sys/vm/drop_caches\n\
         exec 3> '{SECRET} held' 4> '{SECRET} removed'; rm '{SECRET} removed'\n\
         {write} >&3; {write} >&4\n\
         sleep {}\n\
         {write} > '{SECRET} short'\n\
         exec 3>&- 4>&-\n",
        LOOKS.as_secs()
    )
}

fn calls(analysis: &Value) -> impl Iterator<Item = &Value> {
    analysis["calls"].as_array().into_iter().flatten()
}

/// Files and operations of all calls, for an error.
fn told(analysis: &Value) -> String {
    let rows =
        calls(analysis).map(|call| format!("{} {} {}", call["process"], call["op"], call["file"]));
    rows.collect::<Vec<_>>().join("; ")
}

fn repair(ctx: &LiveContext, bundle: &Path, to: &Path) -> anyhow::Result<()> {
    let [from, to] = [bundle, to].map(|path| path.to_str().context("name a recording"));
    let end = recorder::nestrace(&ctx.nestrace, &["repair", from?, "-o", to?, "--redact"])?;
    anyhow::ensure!(end.code == Some(0), "repair: {}", end.stderr);
    Ok(())
}

/// Whether the manifest or what `analyze` says has a name of a file. (Streams are compressed and have none.)
fn holds_secret(bundle: &Path) -> anyhow::Result<bool> {
    let mut found = false;
    for entry in fs::read_dir(bundle)? {
        let bytes = fs::read(entry?.path())?;
        found |= bytes
            .windows(SECRET.len())
            .any(|part| part == SECRET.as_bytes());
    }
    Ok(found)
}
