//! Runs `nestrace record` beside a workload.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::last_lines;
use nestrace_rig::interrupt::{self, Interrupted};

/// Until every source is live: TCG and a loaded machine included.
const LIVE_PATIENCE: Duration = Duration::from_secs(60);
/// Until the bundle is closed.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// A recording does not grow beyond this.
const MOST_BYTES: &str = "256M";

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
pub(super) struct Recorder {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    patience: u32,
}

impl Recorder {
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
            .args(["--max-size", MOST_BYTES])
            .arg("-o")
            .arg(bundle)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C at a terminal reaches the lab alone, which stops the recorder in order.
            .process_group(0);
        // A lab that is killed leaves a closed recording.
        ends_with_us(&mut command, Signal::SIGINT);
        let mut child = command.spawn().map_err(|source| RecorderError::Start {
            program: nestrace.to_owned(),
            source,
        })?;
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        let pipe = child.stderr.take();
        let reader = thread::spawn(move || {
            let Some(pipe) = pipe else {
                return;
            };
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let mut text = heard.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&line);
                text.push('\n');
            }
        });
        let mut recorder = Self {
            child,
            said,
            reader: Some(reader),
            patience,
        };
        recorder.wait_for(&["live"])?;
        if has_agent {
            recorder.wait_for(&[guest, "agent", "live"])?;
        }
        Ok(recorder)
    }

    /// Stops it and waits until the bundle is closed.
    pub(super) fn stop(mut self) -> Result<(), RecorderError> {
        // It may have ended by itself, at the size limit.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT);
        let start = Instant::now();
        while start.elapsed() < END_PATIENCE * self.patience {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.failed(&format!("it ended ({status})"))),
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        }
        Err(self.failed("it does not end"))
    }

    fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }

    fn failed(&mut self, what: &str) -> RecorderError {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        RecorderError::Recorder {
            what: what.to_owned(),
            said: last_lines(&self.said(), 6),
        }
    }

    /// Waits until one line of its messages has all of these words.
    fn wait_for(&mut self, words: &[&str]) -> Result<(), RecorderError> {
        let deadline = Instant::now() + LIVE_PATIENCE * self.patience;
        let is_edge = |c: char| !c.is_alphanumeric() && !['-', '_'].contains(&c);
        let has = |line: &str, word: &str| line.split(is_edge).any(|w| w == word);
        loop {
            interrupt::check()?;
            let fits = |line: &str| words.iter().all(|word| has(line, word));
            if self.said().lines().any(fits) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(&format!("it ended ({status})")));
            }
            if Instant::now() > deadline {
                return Err(self.failed(&format!("no word of {}", words.join(" "))));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
