//! A QEMU whose functions cannot be found: its file I/O stands for it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_lab::external_tool::find_program;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::stage::{DISK, Stage, manifest};
use crate::live::analysis::{entry, number};
use crate::live::case::Case;
use crate::live::rig::LiveContext;

/// What nestrace looks for in QEMU.
const NAMES: [&str; 12] = [
    "block_acct_start",
    "block_acct_done",
    "block_acct_failed",
    "block_acct_invalid",
    "blk_aio_preadv",
    "blk_aio_pwritev",
    "blk_aio_pwrite_zeroes",
    "blk_aio_flush",
    "blk_aio_pdiscard",
    "virtqueue_push",
    "qemu_system_reset",
    "vm_state_notify",
];

/// Boots a guest on a copy of QEMU that exports these functions under other names.
pub fn boot(ctx: &LiveContext) -> anyhow::Result<Stage<'_>> {
    let folder = tempfile::tempdir().context("make a folder for QEMU")?;
    let qemu = copy_without_names(&folder)?;
    let mut stage = Stage::boot_as(ctx, "no-symbols", |mut spec| {
        spec.qemu = qemu;
        spec
    })?;
    stage._files = Some(folder);
    Ok(stage)
}

/// QEMU finds its modules and its firmware relative to where it lies itself.
fn copy_without_names(folder: &TempDir) -> anyhow::Result<PathBuf> {
    let qemu = find_program("qemu-system-x86_64").context("find QEMU")?;
    let mut bytes = fs::read(&qemu).context("read QEMU")?;
    for name in NAMES {
        // A whole string of the table of names. Its own calls are by address and go on working.
        let whole = [b"\0", name.as_bytes(), b"\0"].concat();
        let at = bytes
            .windows(whole.len())
            .position(|window| window == whole);
        let at = at.with_context(|| format!("find the name {name} in QEMU"))?;
        bytes[at + 1] = b'x';
    }
    let usr = folder.path().join("usr");
    fs::create_dir_all(usr.join("bin"))?;
    for name in ["lib", "share"] {
        symlink(Path::new("/usr").join(name), usr.join(name))?;
    }
    let copy = usr.join("bin/qemu-system-x86_64");
    write_program(&copy, &bytes)?;
    Ok(copy)
}

fn write_program(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).context("write a copy of QEMU")?;
    fs::set_permissions(path, Permissions::from_mode(0o755))?;
    ensure!(
        path.metadata()?.len() == bytes.len() as u64,
        "write a copy of QEMU"
    );
    Ok(())
}

/// The recording works, says what it had to do without and what that costs, and has QEMU's file I/O.
pub fn file_io_stands_in(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_millis(700));
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let manifest = manifest(&ended.bundle)?;
    let refused = |name: &str| {
        manifest
            .refused
            .iter()
            .any(|probe| probe.name == name && !probe.reason.is_empty() && !probe.cost.is_empty())
    };
    for name in [
        "block_acct_start",
        "block_acct_done",
        "blk_aio_pwritev",
        "virtqueue_push",
    ] {
        case.holds(
            &format!("{name} is refused with reason and cost"),
            refused(name),
            "no",
        );
    }
    let is_qemu = |probe: &&nestrace_trace::manifest::Probe| probe.source == "qemu";
    case.equal(
        "probes of QEMU",
        manifest.probes.iter().filter(is_qemu).count(),
        0,
    );
    let keys = [("guest", stage.guest.name()), ("disk", DISK)];
    let image = entry(&analysis, "images", &keys)?;
    let writes = number(image, "/file_io/writes")?;
    case.holds("file I/O of the image", writes > 100, &writes.to_string());
    let text = stage.text(&ended.bundle)?;
    let cost = manifest
        .refused
        .iter()
        .find(|probe| probe.name == "block_acct_start")
        .map(|probe| probe.cost.clone())
        .unwrap_or_default();
    let told = text.contains("block_acct_start") && flat(&text).contains(&flat(&cost));
    case.holds(
        "the text says what is missing and what it costs",
        told,
        &text,
    );
    case.figure(format!(
        "{writes} writes of file I/O, {} probes refused",
        manifest.refused.len()
    ));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Without the line breaks of a page.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
