//! What a call of a program costs while the agent records on this machine as it does in a guest.
//!
//! The agent writes a bundle of a loop device's I/O and of the calls on its file system. A translated guest says
//! nothing of this: there, a program of BPF and a system call take other times than on a processor.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_rig::recorder::Recorder;
use nix::sys::signal::Signal;
use xtask::progress::Progress;

use crate::call_cost::{Call, Contest};
use crate::trace_size;

const LIVE: Duration = Duration::from_secs(60);
const ENDED: Duration = Duration::from_secs(30);
const CONTEST: Contest<'_> = Contest {
    title: "agent: a call of a program on this machine's kernel, ext4 on loop devices over memory",
    recorder: "agent ebpf",
    details: &["io", "full"],
    calls: &[Call::CachedRead, Call::OtherMount, Call::NoFile, Call::Sync],
};

/// Alternates, and gives Markdown.
pub fn run(agent: &Path, rounds: u32, progress: &Progress) -> anyhow::Result<String> {
    CONTEST.run(rounds, progress, |scene, detail, measure| {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-bench-")
            .tempdir_in("/dev/shm")
            .context("make a folder for the trace")?;
        let bundle = folder.path().join("trace.nest");
        let mut command = Command::new(agent);
        command
            .args(["--backend", "ebpf", "--device", scene.device()])
            .args(["--detail", detail, "--output"])
            .arg(&bundle);
        let mut recorder = Recorder::spawn(command, false)?;
        recorder.wait_for_line(&["recording", "to"], LIVE)?;
        let phase = measure(recorder.pid())?;
        let end = recorder.stop(Signal::SIGINT, ENDED)?;
        let said = end.stderr;
        ensure!(end.status.success(), "record with the agent: {said}");
        let size = trace_size::of_side(&bundle, "guest")?;
        // Of each read its begin and its end.
        let reads = 2 * Contest::calls_of(Call::CachedRead);
        let has_reads = size.events >= reads && size.lost == 0;
        ensure!(
            phase.is_none() || has_reads == (detail == "full"),
            "record calls with --detail full alone: {size:?} with {detail}, {reads} of cached reads"
        );
        Ok(phase)
    })
}
