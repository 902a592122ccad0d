//! A QEMU whose functions cannot be found: its file I/O stands for it.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::recorder;
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::nameless_qemu;
use crate::stage::{DISK, Stage, manifest};

/// Boots a guest on a copy of QEMU that exports these functions under other names.
pub fn boot(ctx: &LiveContext) -> anyhow::Result<Stage<'_>> {
    let folder = tempfile::tempdir().context("make a folder for QEMU")?;
    let qemu = nameless_qemu::copy(folder.path())?;
    let mut stage = Stage::boot_as(ctx, "no-symbols", |mut spec| {
        spec.qemu = qemu;
        spec
    })?;
    stage._files = Some(folder);
    Ok(stage)
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

/// A file of debug symbols brings QEMU's functions back; one of another build is refused by name.
pub fn debug_file(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for debug symbols")?;
    let symbols = nameless_qemu::debug_file(folder.path())?;
    stage.load()?;
    let named = symbols.display().to_string();
    let recording = stage.record(&["--qemu-debug", &named])?;
    thread::sleep(Duration::from_millis(700));
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let manifest = manifest(&ended.bundle)?;
    let attached = |name: &str| {
        let mut probes = manifest.probes.iter();
        probes.any(|probe| probe.source == "qemu" && probe.name == name)
    };
    for name in nameless_qemu::NAMES {
        case.holds(&format!("{name} is attached"), attached(name), "no");
    }
    let keys = [("guest", stage.guest.name()), ("disk", DISK)];
    let writes = number(entry(&analysis, "qemu", &keys)?, "/writes")?;
    case.holds("requests of QEMU", writes > 100, &writes.to_string());
    case.figure(format!("{writes} writes by QEMU's accounting"));
    stage.ctx.discard(&ended.bundle);
    for (file, reason) in [
        ("/bin/busybox", "build-id"),
        ("/dev/zero", "not a regular file"),
        ("/none", "No such file"),
    ] {
        let bundle = folder.path().join("refused.nest").display().to_string();
        let guest = ["record", "--guest", stage.guest.name(), "-o", &bundle];
        let arguments = [&guest[..], &["--duration", "1", "--qemu-debug", file]].concat();
        let end = recorder::nestrace(&stage.ctx.nestrace, &arguments)?;
        let code = end.code.unwrap_or(-1);
        case.equal(&format!("exit code with {file}"), code, 3);
        let told = end.stderr.contains(reason) && end.stderr.contains("hint:");
        case.holds(
            &format!("{file} is refused for {reason}"),
            told,
            &end.stderr,
        );
    }
    Ok(())
}

/// Without the line breaks of a page.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
