//! `--detail io` beside `--detail full`: the same work on a mounted disk, once without its calls.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::stack::GuestFsKind;
use nestrace_trace::Source;
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::sides;
use crate::analysis::{entry, number};
use crate::direct_io_link::stream_events;
use crate::stage::{DISK, Stage, manifest};

const FOLDER: &str = "/mnt/io";
/// Files that are written and synced.
const FILES: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(120);

/// The only case.
pub fn without_calls(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let guest = &stage.guest;
    stage.rest()?;
    guest.make_fs(DISK, GuestFsKind::Ext4)?;
    guest.mount(DISK, GuestFsKind::Ext4, FOLDER, "rw")?;
    // One that was there before would load its programs again for ext4, in the time of the recording.
    guest.kill_agent("TERM")?;
    guest.start_agent("--backend ebpf")?;
    guest.wait_for_agent(PATIENCE)?;
    for detail in ["full", "io"] {
        recorded(stage, case, detail)?;
    }
    guest.unmount(FOLDER)?;
    Ok(())
}

fn recorded(stage: &Stage<'_>, case: &mut Case, detail: &str) -> anyhow::Result<()> {
    let has_calls = detail == "full";
    let mut recording = stage.record(&["--detail", detail])?;
    sides::wait_agent(stage, &mut recording)?;
    let work = format!(
        "for n in $(seq {FILES}); do \
         dd if=/dev/zero of={FOLDER}/file-$n bs=64k count=4 conv=fsync 2> /dev/null; done"
    );
    stage.guest.run_ok(&work, PATIENCE)?;
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let manifest = manifest(&ended.bundle)?;
    case.equal("detail", manifest.detail.as_str(), detail);
    let side = manifest
        .guest_sides
        .first()
        .context("find the guest's side")?;
    let for_calls = [Source::File, Source::HostFs];
    let is_for_calls = |name: &str| for_calls.iter().any(|source| source.name() == name);
    let probes = side
        .probes
        .iter()
        .filter(|probe| is_for_calls(&probe.source));
    let n_probes = probes.count();
    case.holds(
        "probes of calls",
        (n_probes > 0) == has_calls,
        &n_probes.to_string(),
    );
    let refused = side
        .probes_refused
        .iter()
        .filter(|probe| is_for_calls(&probe.source));
    let n_refused = refused.count();
    case.holds(
        "probes of calls that were refused",
        has_calls || n_refused == 0,
        &n_refused.to_string(),
    );
    let events = stream_events(&ended.bundle, &side.file)?;
    let of_calls = events.iter().filter_map(|event| event.kind());
    let n_events = of_calls
        .filter(|kind| for_calls.contains(&kind.source()))
        .count();
    case.holds(
        "events of calls",
        (n_events > 0) == has_calls,
        &n_events.to_string(),
    );
    let chains = entry(&analysis, "chains", &[("disk", DISK)])?;
    let (bios, linked) = (number(chains, "/guest_bios")?, number(chains, "/linked")?);
    case.holds("bios of the guest", bios >= FILES, &bios.to_string());
    // The journal may write at an edge.
    case.holds(
        "bios linked",
        linked * 100 >= bios * 99,
        &format!("{linked} of {bios}"),
    );
    let rows = analysis["calls"].as_array();
    let syncs = rows
        .into_iter()
        .flatten()
        .filter(|row| row["op"] == "fsync");
    let syncs: u64 = syncs.filter_map(|row| row["n"].as_u64()).sum();
    case.equal("syncs", syncs, if has_calls { FILES } else { 0 });
    case.holds(
        "calls[] is null",
        analysis["calls"].is_null() != has_calls,
        &analysis["calls"].to_string(),
    );
    if !has_calls {
        let why = &analysis["guest_calls"][0]["why_none"];
        let says = |text: &str| text.contains("--detail io") && text.contains("--detail full");
        case.holds("why_none", why.as_str().is_some_and(says), &why.to_string());
        let text = stage.text(&ended.bundle)?;
        case.holds("the text says how to get them", says(&text), &text);
    }
    case.figure(format!("{detail}: {bios} bios, {n_events} events of calls"));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}
