//! What calls of the host's other programs cost while a guest is recorded.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_rig::guest::Guest;
use nestrace_rig::recorder::Recorder;
use nix::sys::signal::Signal;
use xtask::progress::Progress;

use super::LIVE;
use crate::call_cost::{Call, Contest};

const ENDED: Duration = Duration::from_secs(20);
const CONTEST: Contest<'_> = Contest {
    title: "guest: a call of another program of the host while the guest is recorded",
    recorder: "nestrace",
    details: &["full", "light"],
    calls: &[Call::OtherMount, Call::NoFile],
};

/// Alternates, and gives Markdown. The guest has nothing to do.
pub fn run(
    guest: &Guest,
    nestrace: &Path,
    rounds: u32,
    progress: &Progress,
) -> anyhow::Result<String> {
    CONTEST.run(rounds, progress, |_, detail, measure| {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-bench-")
            .tempdir_in("/dev/shm")
            .context("make a folder for the trace")?;
        let bundle = folder.path().join("trace.nest");
        let bundle = bundle.to_str().context("name the recording")?;
        let args = ["--guest", guest.name(), "--detail", detail, "-o", bundle];
        let mut recorder = Recorder::start(nestrace, &args, false)?;
        recorder.wait_live(LIVE)?;
        let phase = measure(recorder.pid())?;
        let end = recorder.stop(Signal::SIGINT, ENDED)?;
        ensure!(end.status.success(), "record the guest: {}", end.stderr);
        Ok(phase)
    })
}
