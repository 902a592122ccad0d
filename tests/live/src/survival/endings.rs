//! Recordings that are asked to end, or end by what they were given.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::recorder::RecorderEnd;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xtask::case::Case;

use crate::stage::{CLOSED, Ended, LIVE, Stage, manifest, monotonic_ns};

/// SIGTERM under load.
pub fn sigterm(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stopped_by(stage, case, Signal::SIGTERM, "terminated")
}

/// SIGHUP under load.
pub fn sighup(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stopped_by(stage, case, Signal::SIGHUP, "hangup")
}

/// The recorder's messages have no reader any more, before the first one and at the end.
pub fn terminal_gone(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let bundle = stage.ctx.bundle("terminal-gone");
    let mut recorder = Command::new(&stage.ctx.nestrace)
        .args(["record", "--guest", stage.guest.name(), "-o"])
        .arg(&bundle)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start nestrace record")?;
    drop(recorder.stderr.take());
    let deadline = Instant::now() + LIVE;
    while !bundle.exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(700));
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGHUP).context("signal the recorder")?;
    let asked = Instant::now();
    let status = recorder.wait()?;
    let end = RecorderEnd {
        status,
        stderr: String::new(),
        took: asked.elapsed(),
    };
    let ended = Ended { end, bundle };
    stage.ended_well(case, &ended, "hangup")?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

fn stopped_by(
    stage: &Stage<'_>,
    case: &mut Case,
    signal: Signal,
    reason: &str,
) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_millis(600));
    let ended = recording.stop(signal)?;
    stage.ended_well(case, &ended, reason)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Ctrl-C while the guest's processors stand still, and a recording begun and ended meanwhile.
pub fn silent_guest(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_millis(300));
    stage.guest.qmp("stop", Value::Null)?;
    thread::sleep(Duration::from_millis(700));
    let stopped = recording
        .stop(Signal::SIGINT)
        .and_then(|ended| Ok((ended, stage.record(&[])?.stop(Signal::SIGINT)?)));
    stage.guest.qmp("cont", Value::Null)?;
    let (ended, silent) = stopped?;
    stage.ended_well(case, &ended, "interrupted")?;
    case.holds(
        "a recording of nothing ends well",
        silent.end.status.code() == Some(0) && silent.end.took < CLOSED,
        &silent.end.stderr,
    );
    stage.analysis(&silent.bundle)?;
    stage.text(&silent.bundle)?;
    stage.ctx.discard(&ended.bundle);
    stage.ctx.discard(&silent.bundle);
    Ok(())
}

/// `--duration`.
pub fn duration(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&["--duration", "1.5"])?;
    let ended = recording.wait(LIVE)?;
    stage.ended_well(case, &ended, "duration")?;
    // What it takes to attach is not part of it.
    let manifest = manifest(&ended.bundle)?;
    let seconds = (manifest.end_mono_ns - manifest.live_mono_ns) as f64 / 1e9;
    case.holds(
        "it took what was asked for",
        (1.4..2.5).contains(&seconds),
        &format!("{seconds:.2} s"),
    );
    case.figure(format!("{seconds:.2} s of 1.5 s"));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// `-- COMMAND` starts when everything is live, and its end is the recording's.
pub fn command(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let folder = tempfile::tempdir().context("make a folder for the command's notes")?;
    let begun = folder.path().join("begun");
    // Hundredths of a second since the boot, as CLOCK_MONOTONIC of a machine that never slept.
    let script = format!("cut -d' ' -f1 /proc/uptime > {}; sleep 1", begun.display());
    let recording = stage.record(&["--", "sh", "-c", &script])?;
    let ended = recording.wait(LIVE)?;
    let end_ns = monotonic_ns()?;
    stage.ended_well(case, &ended, "command ended")?;
    let manifest = manifest(&ended.bundle)?;
    let begun: f64 = std::fs::read_to_string(&begun)
        .context("read when the command began")?
        .trim()
        .parse()?;
    let live = manifest.live_mono_ns as f64 / 1e9;
    case.holds(
        "the command began after everything was live",
        begun >= live - 0.01,
        &format!("{begun:.2} s, live at {live:.2} s"),
    );
    let recorded = (manifest.end_mono_ns - manifest.live_mono_ns) as f64 / 1e9;
    case.holds(
        "the recording ended with it",
        (0.9..2.5).contains(&recorded) && manifest.end_mono_ns <= end_ns,
        &format!("{recorded:.2} s"),
    );
    case.figure(format!(
        "begun {:.0} ms after live, recorded {recorded:.2} s of a command of 1 s",
        (begun - live) * 1e3
    ));
    failed_command(stage, case)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// A command that fails ends the recording all the same, and the manifest says how.
fn failed_command(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let recording = stage.record(&["--", "sh", "-c", "sleep 0.3; exit 7"])?;
    let ended = recording.wait(LIVE)?;
    stage.ended_well(case, &ended, "command ended (exit status: 7)")?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// A reader of `analyze` that has had enough, and one that never read.
pub fn closed_pipe(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&["--duration", "0.5"])?;
    let ended = recording.wait(LIVE)?;
    for format in ["text", "json"] {
        for bytes in [0, 1] {
            let mut child = Command::new(&stage.ctx.nestrace)
                .args(["analyze", "--format", format])
                .arg(&ended.bundle)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .context("start nestrace analyze")?;
            let mut stdout = child.stdout.take().context("read its stdout")?;
            stdout.read_exact(&mut vec![0; bytes])?;
            drop(stdout);
            let output = child.wait_with_output()?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            case.holds(
                &format!("{format}, closed after {bytes} bytes: exit 0 without a word"),
                output.status.code() == Some(0) && stderr.is_empty(),
                &format!("{}: {stderr}", output.status),
            );
        }
    }
    stage.ctx.discard(&ended.bundle);
    Ok(())
}
