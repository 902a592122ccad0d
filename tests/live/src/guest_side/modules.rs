//! File systems whose modules are loaded while the agent stands by: it looks again when a recording
//! begins.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::stack::GuestFsKind;
use nestrace_trace::flags::op;
use nestrace_trace::{Event, Kind};
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::sides::sides;
use crate::direct_io_link::stream_events;
use crate::stage::{SPARE_DISK, Stage};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long all programs may take on a loaded machine.
const LOADED_ANEW: Duration = Duration::from_secs(150);
/// Of the modules ext4 and jbd2; jbd2's need the place of a field that only the module knows.
const PROBES: [&str; 7] = [
    "ext4_sync_file_enter",
    "ext4_sync_file_exit",
    "jbd2_start_commit",
    "jbd2_commit_locking",
    "jbd2_commit_flushing",
    "jbd2_commit_logging",
    "jbd2_end_commit",
];
/// The agent looks for new mounts once a second; a loaded machine gets more.
const AGENT_LOOKS: Duration = Duration::from_secs(4);
/// Files that are written.
const N_FILES: usize = 20;

/// An agent that was started before `load ext4`: `agent/late` started it.
pub fn loaded_later(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let guest = &stage.guest;
    let ensure_agent = "kill -0 $(cat /run/agent.pid) 2> /dev/null";
    if guest.run(ensure_agent, PATIENCE)?.status != 0 {
        guest.start_agent("--backend ebpf")?;
    }
    let loaded = guest.run("[ -d /sys/module/ext4 ]", PATIENCE)?.status == 0;
    case.holds("ext4 comes after the agent", !loaded, "it was there before");
    // The verifier is slow enough in a TCG guest that has nothing else to do.
    stage.rest()?;
    guest.run_ok("load ext4", PATIENCE)?;
    let start = Instant::now();
    let mut recording = stage.record(&[])?;
    let words = [guest.name(), "agent", "live"];
    recording.recorder.wait_for_line(&words, LOADED_ANEW)?;
    let live = start.elapsed().as_secs_f64();
    case.figure(format!("its agent is live after {live:.1} s"));
    guest.make_fs(SPARE_DISK, GuestFsKind::Ext4)?;
    guest.mount(SPARE_DISK, GuestFsKind::Ext4, "/mnt/later", "")?;
    // What is mounted during a recording is recorded from the agent's next look on.
    thread::sleep(AGENT_LOOKS);
    let write = format!(
        "cd /mnt/later && for n in $(seq {N_FILES}); do \
         dd if=/dev/zero of=/mnt/later/$n bs=4k count=4 conv=fsync 2> /dev/null; done; \
         truncate -s 100 1 && truncate -s 200 2 && rm 3 4 5 && mkdir a && mv 6 a/ && rm -r a"
    );
    guest.run_ok(&write, PATIENCE)?;
    guest.unmount("/mnt/later")?;
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let sides = sides(&ended.bundle)?;
    let (side, _) = sides.first().context("find the guest's side")?;
    for name in PROBES {
        let attached = side.probes.iter().any(|probe| probe.name == name);
        let refused = side.probes_refused.iter().find(|probe| probe.name == name);
        let reason = refused.map_or("not named", |probe| probe.reason.as_str());
        case.holds(&format!("{name} is attached"), attached, reason);
    }
    let events = stream_events(&ended.bundle, &side.file)?;
    let commits = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::JournalCommitStart));
    let n = commits.count();
    case.holds("commits of jbd2", n > 0, "none");
    case.figure(format!("{n} commits of jbd2"));
    syncs_and_commits(case, &events);
    calls_by_path(case, &events);
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Each fsync names a transaction whose commit has ended, and each commit goes through its phases in their order.
fn syncs_and_commits(case: &mut Case, events: &[Event]) {
    let of = |kind: Kind| events.iter().filter(move |e| e.kind() == Some(kind));
    let ended: BTreeSet<u64> = of(Kind::JournalCommitEnd).map(|e| e.object).collect();
    let named = of(Kind::SyncExit)
        .filter(|exit| ended.contains(&(exit.related & 0xffff_ffff)))
        .count();
    case.equal("syncs that name an ended commit", named, N_FILES);
    let mut steps: BTreeMap<(u32, u64), Vec<u8>> = BTreeMap::new();
    for event in events {
        let step = match event.kind() {
            Some(Kind::JournalCommitStart) => 0,
            Some(Kind::JournalCommitPhase) => event.sub,
            Some(Kind::JournalCommitEnd) => 4,
            _ => continue,
        };
        let commit = (event.dev, event.object);
        steps.entry(commit).or_default().push(step);
    }
    let in_order = |steps: &&Vec<u8>| **steps == [0, 1, 2, 3, 4];
    case.equal(
        "commits with all phases in order",
        steps.values().filter(in_order).count(),
        steps.len(),
    );
}

/// What the shell has made and removed in the new file system, as often as it did.
fn calls_by_path(case: &mut Case, events: &[Event]) {
    let n = |kind: Kind, op: u8| {
        let fits = |e: &&Event| e.kind() == Some(kind) && e.sub == op && e.offset < 1 << 63;
        events.iter().filter(fits).count()
    };
    let done = |op: u8| n(Kind::CallDone, op);
    case.equal("files created", done(op::OPEN), N_FILES);
    // The one in the folder is removed with it.
    case.equal("files removed", done(op::UNLINK), 4);
    case.equal("folders made", done(op::MKDIR), 1);
    case.equal("folders removed", done(op::RMDIR), 1);
    case.equal("files renamed", done(op::RENAME), 1);
    case.equal("ftruncate", n(Kind::SyscallEnter, op::TRUNCATE), 2);
}
