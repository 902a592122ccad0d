//! The recording that a key starts: ten seconds of a guest by this program, and what it says of them.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nestrace_top::state::Progress;
use nestrace_trace::manifest::{Guest, Topology};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::record::default_output;

/// Seconds of a recording.
const SECONDS: u64 = 10;
/// What is read of an answer.
const MAX_ANSWER: u64 = 8 << 20;
/// Lines of a recording's progress that wait.
const MAX_WAITING: usize = 16;

/// A recording that goes on, until its answer.
pub struct Job {
    /// The folder that it writes, in the current one.
    pub output: PathBuf,
    progress: mpsc::Receiver<Progress>,
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Job {
    /// Begins to record the guest of this process.
    pub fn start(guest: &str, pid: u32) -> Self {
        let topology = Topology {
            guests: vec![Guest {
                name: guest.to_owned(),
                ..Guest::default()
            }],
            ..Topology::default()
        };
        let output = default_output(&topology);
        let (sender, progress) = mpsc::channel(MAX_WAITING);
        let (end, ended) = oneshot::channel();
        let path = output.clone();
        let guest = guest.to_owned();
        let task = tokio::spawn(async move {
            // A screen that has gone wants no answer.
            let _ = sender.send(Progress::Begins(guest.clone())).await;
            let last = match answer(&path, pid, &sender, ended).await {
                Ok(text) => {
                    let title = format!("nestrace analyze {}: {guest}", path.display());
                    Progress::Answer(title, text)
                }
                Err(reason) => Progress::Failed(reason),
            };
            let _ = sender.send(last).await;
        });
        Self {
            output,
            progress,
            end: Some(end),
            task,
        }
    }

    /// What it does next; `None`: no more.
    pub async fn next(&mut self) -> Option<Progress> {
        self.progress.recv().await
    }

    /// Ends the recording before its time.
    pub fn end(&mut self) {
        if let Some(end) = self.end.take() {
            // It may have ended by itself.
            let _ = end.send(());
        }
    }

    /// Ends it and waits until the recording is closed; an answer is not waited for.
    pub async fn close(mut self) {
        self.end();
        while let Some(progress) = self.next().await {
            if !matches!(progress, Progress::Begins(_) | Progress::Left(_)) {
                break;
            }
        }
        // A process that analyzes is killed with it.
        self.task.abort();
    }
}

/// Records and analyzes; an error is a line for a person.
async fn answer(
    output: &Path,
    pid: u32,
    progress: &mpsc::Sender<Progress>,
    ended: oneshot::Receiver<()>,
) -> Result<String, String> {
    let cannot = |what: &str, error: io::Error| format!("cannot {what}: {error}");
    let mut child = own_program()
        .args(["record", "--guest"])
        .arg(format!("pid:{pid}"))
        .args(["--duration", &SECONDS.to_string(), "-o"])
        .arg(output)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| cannot("start the recording", error))?;
    let said = follow(&mut child, progress, ended).await;
    let status = child.wait().await;
    let status = status.map_err(|error| cannot("wait for the recording", error))?;
    if !status.success() {
        let line = said.unwrap_or_else(|| status.to_string());
        return Err(format!("the recording failed: {line}"));
    }
    let _ = progress.send(Progress::Analyzes).await;
    analyze(output)
        .await
        .map_err(|error| cannot("analyze the recording", error))
}

/// This program again. What is typed into the terminal is for the screen.
fn own_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("nestrace")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

/// Reports how a recording goes, ends it when that is asked for, and gives the failure that it says.
async fn follow(
    child: &mut Child,
    progress: &mpsc::Sender<Progress>,
    mut ended: oneshot::Receiver<()>,
) -> Option<String> {
    let mut lines = BufReader::new(child.stderr.take()?).lines();
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut live: Option<Instant> = None;
    let mut is_ending = false;
    let mut failure = None;
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) if line.starts_with("live: ") => {
                    live.get_or_insert_with(Instant::now);
                }
                Ok(Some(line)) => {
                    if let Some(reason) = line.strip_prefix("nestrace: ") {
                        failure = Some(reason.to_owned());
                    }
                }
                _ => return failure,
            },
            _ = &mut ended, if !is_ending => {
                is_ending = true;
                // One that has ended is not there any more.
                if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
                }
            }
            _ = seconds.tick() => {
                let Some(live) = live else { continue };
                let left = SECONDS.saturating_sub(live.elapsed().as_secs());
                let left = if is_ending { 0 } else { left };
                let _ = progress.send(Progress::Left(left)).await;
            }
        }
    }
}

/// The text, and below it what was noted.
async fn analyze(recording: &Path) -> io::Result<String> {
    let mut child = own_program()
        .arg("analyze")
        .arg(recording)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (mut text, mut notes) = (Vec::new(), Vec::new());
    if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
        let (mut stdout, mut stderr) = (stdout.take(MAX_ANSWER), stderr.take(MAX_ANSWER));
        tokio::try_join!(
            stdout.read_to_end(&mut text),
            stderr.read_to_end(&mut notes)
        )?;
    }
    child.wait().await?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if !notes.is_empty() {
        let _ = write!(text, "\n{}", String::from_utf8_lossy(&notes));
    }
    Ok(text)
}
