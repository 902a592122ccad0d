//! Runs `nestrace` as a user would.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::last_lines;
use nestrace_rig::interrupt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

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
    pub fn start(nestrace: &Path, args: &[&str], echo: bool) -> anyhow::Result<Self> {
        let mut command = Command::new(nestrace);
        command.arg("record").args(args);
        Self::spawn(command, echo)
    }

    /// Starts a whole command line that ends in `nestrace record`: under another environment, or
    /// through a program that changes user or mounts and then becomes the recorder.
    pub fn spawn(mut command: Command, echo: bool) -> anyhow::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C at a terminal reaches xtask alone, which stops the recorder in order.
            .process_group(0);
        ends_with_us(&mut command, Signal::SIGINT);
        let mut child = command
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let stderr = Arc::new(Mutex::new(String::new()));
        let pipe = child
            .stderr
            .take()
            .context("read the recorder's messages")?;
        let heard = Arc::clone(&stderr);
        let reader = thread::spawn(move || {
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
    pub fn wait_live(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.wait_for_word("live", patience)
    }

    /// Waits until a word stands in its messages.
    pub fn wait_for_word(&mut self, word: &str, patience: Duration) -> anyhow::Result<()> {
        self.wait_for_line(&[word], patience)
    }

    /// Waits until one line of its messages has all of these words (of letters, digits, `-` and `_`).
    pub fn wait_for_line(&mut self, words: &[&str], patience: Duration) -> anyhow::Result<()> {
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
            if self.child.try_wait()?.is_some() {
                let end = self.wait(patience)?;
                bail!(
                    "record: nestrace ended ({}): {}",
                    end.status,
                    last_lines(&end.stderr, 5)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "hear {words:?} from nestrace within {patience:?}: {}",
                    last_lines(&stderr, 5)
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal and waits for the end.
    pub fn stop(mut self, signal: Signal, patience: Duration) -> anyhow::Result<RecorderEnd> {
        self.signal(signal)?;
        self.wait(patience)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), signal).context("signal the recorder")
    }

    /// Waits for its end by itself.
    pub fn wait(&mut self, patience: Duration) -> anyhow::Result<RecorderEnd> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
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
            interrupt::check()?;
            if start.elapsed() > patience {
                bail!(
                    "see the recorder end within {patience:?}: {}",
                    last_lines(&self.stderr(), 5)
                );
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
pub fn analyze(program: &Path, bundle: &Path) -> anyhow::Result<Value> {
    let path = bundle.to_str().context("name the bundle")?;
    let end = nestrace(program, &["analyze", path, "--format", "json"])
        .context("start nestrace analyze")?;
    if end.code != Some(0) {
        bail!(
            "analyze {path} (exit {:?}): {}",
            end.code,
            last_lines(&end.stderr, 5)
        );
    }
    serde_json::from_str(&end.stdout).with_context(|| format!("read the analysis of {path}"))
}
