//! Runs `nestrace record` beside a workload.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nestrace_rig::external_tool::last_lines;
use nestrace_rig::interrupt::Interrupted;
use nestrace_rig::recorder::{self, Recorder};
use nix::sys::signal::Signal;

/// Until every source is live: TCG and a loaded machine included.
const LIVE_PATIENCE: Duration = Duration::from_secs(60);
/// Until the bundle is closed.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// A recording does not grow beyond this.
const MAX_BYTES: &str = "256M";
/// Lines of its messages that a failure shows.
const SHOWN_LINES: usize = 6;

/// A recording was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// nestrace could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It ended, or was not live in time.
    #[error("record the guest: {what}: {said}")]
    Recorder {
        /// What it did.
        what: String,
        /// The end of its messages.
        said: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// A running recording; dropping it kills it.
#[derive(Debug)]
pub(super) struct Recording {
    recorder: Recorder,
    patience: u32,
}

impl Recording {
    /// Starts a recording of `guest` and waits until it is live; with an agent, that one too. `patience` says how
    /// many times longer than usual all of it may take.
    pub(super) fn start(
        nestrace: &Path,
        guest: &str,
        bundle: &Path,
        has_agent: bool,
        patience: u32,
    ) -> Result<Self, RecorderError> {
        let agent = if has_agent { "auto" } else { "off" };
        let mut command = Command::new(nestrace);
        command
            .args(["record", "--force", "--guest", guest, "--agent", agent])
            .args(["--max-size", MAX_BYTES])
            .arg("-o")
            .arg(bundle);
        let mut recorder = Recorder::spawn(command, false)?;
        let live = LIVE_PATIENCE * patience;
        let mut words = recorder.wait_for_line(&["live"], live);
        if has_agent && words.is_ok() {
            words = recorder.wait_for_line(&[guest, "agent", "live"], live);
        }
        match words {
            Ok(()) => Ok(Self { recorder, patience }),
            Err(error) => Err(failed(recorder, error)),
        }
    }

    /// Stops it and waits until the bundle is closed.
    pub(super) fn stop(self) -> Result<(), RecorderError> {
        let Self {
            mut recorder,
            patience,
        } = self;
        // It may have ended by itself, at the size limit.
        let _ = recorder.signal(Signal::SIGINT);
        match recorder.wait_through_ctrl_c(END_PATIENCE * patience) {
            Ok(end) if end.status.success() => Ok(()),
            Ok(end) => Err(RecorderError::Recorder {
                what: format!("it ended ({})", end.status),
                said: last_lines(&end.stderr, SHOWN_LINES),
            }),
            Err(error) => Err(failed(recorder, error)),
        }
    }
}

/// What a recorder that is given up did, with the end of its messages.
fn failed(recorder: Recorder, error: recorder::RecorderError) -> RecorderError {
    use recorder::RecorderError as Cause;
    let what = match &error {
        Cause::Start { .. } | Cause::Interrupted(_) => return error.into(),
        Cause::Ended { status, .. } => format!("it ended ({status})"),
        Cause::Silent { words, .. } => format!("it did not report {}", words.join(" ")),
        Cause::Endless { .. } => String::from("it does not end"),
        Cause::Wait(cause) => cause.to_string(),
        other => other.to_string(),
    };
    RecorderError::Recorder {
        what,
        said: last_lines(&recorder.kill(), SHOWN_LINES),
    }
}

impl From<recorder::RecorderError> for RecorderError {
    fn from(error: recorder::RecorderError) -> Self {
        use recorder::RecorderError as Cause;
        match error {
            Cause::Start { program, source } => Self::Start { program, source },
            Cause::Interrupted(interrupted) => interrupted.into(),
            other => Self::Recorder {
                what: other.to_string(),
                said: String::new(),
            },
        }
    }
}
