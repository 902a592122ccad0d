//! Runs `nestrace` as a user would.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::child_process::ends_with_us;
use crate::external_tool::last_lines;
use crate::interrupt::{self, Interrupted};

/// Lines of the recorder's messages that an error shows.
const SHOWN_LINES: usize = 5;

/// A recorder did not do what was expected of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// It could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It ended before it said what was waited for.
    #[error("record: nestrace ended ({status}): {}", last_lines(.said, SHOWN_LINES))]
    Ended {
        /// How.
        status: ExitStatus,
        /// Its messages.
        said: String,
    },
    /// It did not say what was waited for.
    #[error("hear {words:?} from nestrace within {patience:?}: {}", last_lines(.said, SHOWN_LINES))]
    Silent {
        /// What was waited for.
        words: Vec<String>,
        /// How long.
        patience: Duration,
        /// Its messages.
        said: String,
    },
    /// It did not end.
    #[error("see the recorder end within {patience:?}: {}", last_lines(.said, SHOWN_LINES))]
    Endless {
        /// How long was waited.
        patience: Duration,
        /// Its messages.
        said: String,
    },
    /// It could not be waited for.
    #[error("wait for the recorder")]
    Wait(#[source] io::Error),
    /// No signal could be sent to it.
    #[error("signal the recorder")]
    Signal(#[source] Errno),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// A recording could not be analysed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalyzeError {
    /// nestrace could not be started.
    #[error("start nestrace analyze")]
    Start(#[source] io::Error),
    /// The name of the recording is not text.
    #[error("name the bundle {0:?}")]
    Name(PathBuf),
    /// It was refused.
    #[error("analyze {bundle} (exit {code:?}): {}", last_lines(.said, SHOWN_LINES))]
    Refused {
        /// The recording.
        bundle: String,
        /// The exit code.
        code: Option<i32>,
        /// What nestrace said.
        said: String,
    },
    /// The answer is no JSON.
    #[error("read the analysis of {bundle}")]
    Content {
        /// The recording.
        bundle: String,
        /// Why not.
        source: serde_json::Error,
    },
}

/// A running `nestrace record`. Dropping it kills it.
#[derive(Debug)]
pub struct Recorder {
    child: Child,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// How a recording ended.
#[derive(Clone, Debug)]
pub struct RecorderEnd {
    /// Exit status.
    pub status: ExitStatus,
    /// Everything it said.
    pub stderr: String,
    /// From the signal (or the call) to its end.
    pub took: Duration,
}

impl Recorder {
    /// Starts `nestrace record` with `args`; with `echo` its messages are shown too.
    pub fn start(nestrace: &Path, args: &[&str], echo: bool) -> Result<Self, RecorderError> {
        let mut command = Command::new(nestrace);
        command.arg("record").args(args);
        Self::spawn(command, echo)
    }

    /// Starts a whole command line that ends in `nestrace record`: under another environment, or
    /// through a program that changes user or mounts and then becomes the recorder.
    pub fn spawn(mut command: Command, echo: bool) -> Result<Self, RecorderError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C at a terminal reaches its caller alone, which stops the recorder in order.
            .process_group(0);
        ends_with_us(&mut command, Signal::SIGINT);
        let mut child = command.spawn().map_err(|source| RecorderError::Start {
            program: command.get_program().into(),
            source,
        })?;
        let stderr = Arc::new(Mutex::new(String::new()));
        let pipe = child.stderr.take();
        let heard = Arc::clone(&stderr);
        let reader = thread::spawn(move || {
            let Some(pipe) = pipe else {
                return;
            };
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if echo {
                    eprintln!("           {line}");
                }
                let mut text = heard.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&line);
                text.push('\n');
            }
        });
        Ok(Self {
            child,
            stderr,
            reader: Some(reader),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said up to now.
    pub fn stderr(&self) -> String {
        self.stderr
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until it says that its sources are live.
    pub fn wait_live(&mut self, patience: Duration) -> Result<(), RecorderError> {
        self.wait_for_word("live", patience)
    }

    /// Waits until a word stands in its messages.
    pub fn wait_for_word(&mut self, word: &str, patience: Duration) -> Result<(), RecorderError> {
        self.wait_for_line(&[word], patience)
    }

    /// Waits until one line of its messages has all of these words (of letters, digits, `-` and `_`).
    pub fn wait_for_line(
        &mut self,
        words: &[&str],
        patience: Duration,
    ) -> Result<(), RecorderError> {
        let deadline = Instant::now() + patience;
        loop {
            interrupt::check()?;
            let stderr = self.stderr();
            let is_edge = |c: char| !c.is_alphanumeric() && !['-', '_'].contains(&c);
            let has = |line: &str, word: &str| line.split(is_edge).any(|w| w == word);
            let fits = |line: &str| words.iter().all(|word| has(line, word));
            if stderr.lines().any(fits) {
                return Ok(());
            }
            if self.try_wait()?.is_some() {
                let end = self.wait(patience)?;
                return Err(RecorderError::Ended {
                    status: end.status,
                    said: end.stderr,
                });
            }
            if Instant::now() > deadline {
                return Err(RecorderError::Silent {
                    words: words.iter().map(|word| (*word).to_owned()).collect(),
                    patience,
                    said: stderr,
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal and waits for the end.
    pub fn stop(
        mut self,
        signal: Signal,
        patience: Duration,
    ) -> Result<RecorderEnd, RecorderError> {
        self.signal(signal)?;
        self.wait(patience)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), RecorderError> {
        kill(Pid::from_raw(self.child.id() as i32), signal).map_err(RecorderError::Signal)
    }

    /// Ends it at once; everything that it said.
    pub fn kill(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.stderr()
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, RecorderError> {
        self.child.try_wait().map_err(RecorderError::Wait)
    }

    /// Waits for its end by itself.
    pub fn wait(&mut self, patience: Duration) -> Result<RecorderEnd, RecorderError> {
        self.wait_unless(patience, interrupt::check)
    }

    /// The same, and Ctrl-C does not end it: the recording is to be closed.
    pub fn wait_through_ctrl_c(
        &mut self,
        patience: Duration,
    ) -> Result<RecorderEnd, RecorderError> {
        self.wait_unless(patience, || Ok(()))
    }

    fn wait_unless(
        &mut self,
        patience: Duration,
        check: impl Fn() -> Result<(), Interrupted>,
    ) -> Result<RecorderEnd, RecorderError> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                let took = start.elapsed();
                if let Some(reader) = self.reader.take() {
                    let _ = reader.join();
                }
                return Ok(RecorderEnd {
                    status,
                    stderr: self.stderr(),
                    took,
                });
            }
            check()?;
            if start.elapsed() > patience {
                return Err(RecorderError::Endless {
                    patience,
                    said: self.stderr(),
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a run of `nestrace` left.
#[derive(Clone, Debug)]
pub struct CommandEnd {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

/// Runs `nestrace` to its end.
pub fn nestrace(program: &Path, args: &[&str]) -> io::Result<CommandEnd> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    Ok(CommandEnd {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The JSON of `nestrace analyze`.
pub fn analyze(program: &Path, bundle: &Path) -> Result<Value, AnalyzeError> {
    let path = bundle.to_str();
    let path = path.ok_or_else(|| AnalyzeError::Name(bundle.to_owned()))?;
    let end = nestrace(program, &["analyze", path, "--format", "json"]);
    let end = end.map_err(AnalyzeError::Start)?;
    if end.code != Some(0) {
        return Err(AnalyzeError::Refused {
            bundle: path.to_owned(),
            code: end.code,
            said: end.stderr,
        });
    }
    serde_json::from_str(&end.stdout).map_err(|source| AnalyzeError::Content {
        bundle: path.to_owned(),
        source,
    })
}
