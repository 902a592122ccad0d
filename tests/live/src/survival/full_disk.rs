//! The file system with the bundle fills up.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::stack::HostFsKind;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;
use xtask::case::Case;

use super::refusals::nothing_left;
use crate::analysis::number;
use crate::stage::{Stage, events_so_far, has_notice, manifest};

/// What is left for the bundle: the two copies of its manifest have room of their own in it, 1 MiB; the first batches of a
/// fast guest, half a megabyte each, have to fit into the rest.
const FREE_BYTES: u64 = 3 << 20;
/// The recorder has to notice by itself.
const FILLED: Duration = Duration::from_secs(60);

/// A small ext4.
pub fn ext4(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let small = HostFs::create(&HostFsSpec {
        size_bytes: 16 << 20,
        backing_folder: PathBuf::from("/dev/shm"),
        ..HostFsSpec::new(HostFsKind::Ext4)
    })?;
    fill(small.path())?;
    fills_up(stage, case, small.path())?;
    is_full(stage, case, small.path())
}

/// A tiny tmpfs.
pub fn tmpfs(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let small = Tmpfs::mount()?;
    fills_up(stage, case, small.0.path())?;
    is_full(stage, case, small.0.path())
}

/// There is no room from the start: the recording does not begin, and leaves nothing.
fn is_full(stage: &Stage<'_>, case: &mut Case, folder: &Path) -> anyhow::Result<()> {
    let mut filler = File::create(folder.join("rest"))?;
    while filler.write_all(&[1; 4096]).is_ok() {}
    drop(filler);
    let bundle = folder.join("late.nest");
    let ended = stage.start(&[], &bundle, &[])?.wait(FILLED)?;
    let stderr = &ended.end.stderr;
    let first = stderr.lines().next().unwrap_or_default();
    case.holds(
        "on a full file system: exit code 1 and why",
        ended.end.status.code() == Some(1)
            && first.starts_with("nestrace: ")
            && first.contains("No space left"),
        &format!("{}: {stderr}", ended.end.status),
    );
    nothing_left(case, &ended);
    Ok(())
}

/// Leaves [`FREE_BYTES`].
fn fill(folder: &Path) -> anyhow::Result<()> {
    let free = nix::sys::statvfs::statvfs(folder)?;
    let bytes = (free.blocks_free() * free.fragment_size()).saturating_sub(FREE_BYTES);
    let mut file = File::create(folder.join("filler"))?;
    file.write_all(&vec![1; usize::try_from(bytes)?])?;
    file.sync_all().context("fill the file system")
}

fn fills_up(stage: &Stage<'_>, case: &mut Case, folder: &Path) -> anyhow::Result<()> {
    stage.load()?;
    let bundle = folder.join("small.nest");
    let ended = stage.start(&[], &bundle, &[])?.wait(FILLED)?;
    let analysis = stage.ended_well(case, &ended, "disk_full")?;
    let manifest = manifest(&bundle)?;
    case.holds(
        "a notice says that the disk was full",
        has_notice(&manifest, "disk_full"),
        &ended.end.stderr,
    );
    let lost = number(&analysis, "/trace/lost")?;
    case.holds(
        "what could not be written is counted",
        lost > 0,
        "0 events lost",
    );
    let stderr = &ended.end.stderr;
    case.holds("stderr says so", stderr.contains("No space left"), stderr);
    case.figure(format!("{lost} lost"));
    let losses = manifest.losses.iter();
    let unwritten: u64 = losses
        .filter(|loss| loss.source == "disk_full")
        .map(|loss| loss.events)
        .sum();
    let readable = events_so_far(&bundle)?.len() as u64;
    let said = events_said(stderr).context("find the number of events on stderr")?;
    case.equal(
        "events read + events not written",
        readable + unwritten,
        said,
    );
    let path = bundle.to_str().context("name the recording")?;
    let strict = stage.nestrace(&["analyze", "--strict", path])?;
    case.equal("analyze --strict", strict.code.unwrap_or(-1), 5);
    Ok(())
}

/// `recorded 3.8 s: 15,666 events, …`.
fn events_said(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find(|line| line.starts_with("recorded "))?;
    let (_, counts) = line.split_once(": ")?;
    let (events, _) = counts.split_once(" events")?;
    events.replace(',', "").parse().ok()
}

/// A tmpfs of [`FREE_BYTES`]; unmounted when dropped.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn mount() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        Tool::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={FREE_BYTES}"), "none"])
            .arg(folder.path())
            .run()?;
        Ok(Self(folder))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if let Err(error) = umount2(self.0.path(), MntFlags::MNT_DETACH) {
            eprintln!("failed to unmount {}: {error}", self.0.path().display());
        }
    }
}
