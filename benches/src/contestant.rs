//! Who takes part, and how each is started, watched and stopped.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nestrace_rig::external_tool::last_lines;
use nestrace_rig::{interrupt, packages};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde::Serialize;
use tempfile::TempDir;
use xtask::cargo_build::{self, workspace};

use super::load::LoadedDevice;
use super::machine;
use super::trace_size::{self, TraceSize};

/// bpftrace compiles its script first; a busy machine gets more.
const LIVE: Duration = Duration::from_secs(30);
/// How long a contestant may take to write what it still has.
const STOP: Duration = Duration::from_secs(20);
/// bpftrace leaves in its buffers what it has not read when it is stopped.
const DRAIN: Duration = Duration::from_millis(300);
/// Pages of bpftrace's buffer for each processor: as much memory as a ring of nestrace.
const BPFTRACE_PAGES: &str = "4096";
/// Mounts the kernel's file system `$0` at `$1`, where programs look for it, for this process alone.
const WITH_MOUNT: &str =
    "mountpoint -q \"$1\" || mount -t \"$0\" \"$0\" \"$1\"; shift; exec \"$@\"";

/// The program that makes the load, and its package.
pub const FIO: (&str, &str) = ("fio", "fio");

/// One way to record the block layer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contestant {
    /// Nothing records; the others are compared with this.
    Untraced,
    /// `nestrace record --detail full`.
    Full,
    /// The same with `--cpu off`.
    FullWithoutCpu,
    /// `nestrace record --detail light`.
    Light,
    /// `nestrace top --batch`.
    Sums,
    /// `benches/record/biolatency.bt`.
    Biolatency,
    /// `perf record -e 'block:*' -a`.
    Perf,
    /// `benches/record/full.bt`.
    Bpftrace,
    /// blktrace's records, which stay in the kernel.
    UnreadBlktrace,
}

impl Contestant {
    /// Everyone, in the order of a round.
    pub const ALL: [Self; 9] = [
        Self::Untraced,
        Self::Full,
        Self::FullWithoutCpu,
        Self::Light,
        Self::Sums,
        Self::Biolatency,
        Self::Perf,
        Self::Bpftrace,
        Self::UnreadBlktrace,
    ];

    /// Those whose probes are BPF programs.
    pub const WITH_BPF: [Self; 6] = [
        Self::Full,
        Self::FullWithoutCpu,
        Self::Light,
        Self::Sums,
        Self::Biolatency,
        Self::Bpftrace,
    ];

    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Untraced => "untraced",
            Self::Full => "nestrace full",
            Self::FullWithoutCpu => "nestrace full, --cpu off",
            Self::Light => "nestrace light",
            Self::Sums => "nestrace top",
            Self::Biolatency => "bpftrace, biolatency",
            Self::Perf => "perf record -e 'block:*'",
            Self::Bpftrace => "bpftrace, same stamps",
            Self::UnreadBlktrace => "blktrace, the kernel's part",
        }
    }
}

/// Installs what a peer needs and is missing.
pub fn install_peers(progress: impl Fn(&str)) -> anyhow::Result<()> {
    let peers = [FIO, ("perf", "linux-perf"), ("bpftrace", "bpftrace")];
    packages::install_programs(&peers, progress)?;
    Ok(())
}

/// A contestant that records. Dropping it kills it; its folder goes with it.
#[derive(Debug)]
pub struct Running {
    contestant: Contestant,
    child: Child,
    folder: TempDir,
}

/// What a contestant has cost while the load ran, and what it left.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recorded {
    /// Most resident memory, bytes.
    pub peak_resident_bytes: u64,
    /// The trace, where it left one.
    #[serde(flatten)]
    pub trace: Option<TraceSize>,
}

impl Running {
    /// Starts it and waits until it records.
    ///
    /// Its trace goes to memory, so that no disk takes part.
    pub fn start(
        contestant: Contestant,
        nestrace: &Path,
        device: &LoadedDevice,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-bench-")
            .tempdir_in("/dev/shm")
            .context("make a folder for the trace")?;
        let at = |name: &str| folder.path().join(name);
        let mut command = match contestant {
            Contestant::Untraced => bail!("start nobody"),
            Contestant::Full => {
                nestrace_command(nestrace, device, ("full", "auto"), &at("trace.nest"))
            }
            Contestant::FullWithoutCpu => {
                nestrace_command(nestrace, device, ("full", "off"), &at("trace.nest"))
            }
            Contestant::Light => {
                nestrace_command(nestrace, device, ("light", "off"), &at("trace.nest"))
            }
            Contestant::Sums => top_command(nestrace, device),
            Contestant::Biolatency => {
                bpftrace_command("biolatency.bt", device.number()?, &at("trace.txt"))
            }
            Contestant::Perf => perf_command(folder.path())?,
            Contestant::Bpftrace => bpftrace_command("full.bt", device.number()?, &at("trace.txt")),
            Contestant::UnreadBlktrace => unread_blktrace_command(device)?,
        };
        let stdout = File::create(at("stdout")).context("keep what it prints")?;
        let stderr = File::create(at("stderr")).context("keep its messages")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            // Ctrl-C at a terminal reaches xtask alone, which stops everything in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", contestant.name()))?;
        let mut running = Self {
            contestant,
            child,
            folder,
        };
        running.wait_live()?;
        Ok(running)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where a nestrace records to.
    pub fn bundle(&self) -> PathBuf {
        self.folder.path().join("trace.nest")
    }

    fn wait_live(&mut self) -> anyhow::Result<()> {
        let said = |file: &str, line_start: &str| {
            let text = std::fs::read_to_string(self.folder.path().join(file)).unwrap_or_default();
            text.lines().any(|line| line.starts_with(line_start))
        };
        match self.contestant {
            Contestant::Untraced => {}
            Contestant::Full | Contestant::FullWithoutCpu | Contestant::Light => {
                self.wait_for("live", || said("stderr", "live:"))?
            }
            Contestant::Sums => self.wait_for("live", || said("stdout", "{"))?,
            Contestant::Bpftrace | Contestant::Biolatency => {
                self.wait_for("live", || said("trace.txt", "live"))?
            }
            Contestant::UnreadBlktrace => self.wait_for("live", || said("stdout", "live"))?,
            Contestant::Perf => self.enable_perf()?,
        }
        Ok(())
    }

    fn wait_for(&self, what: &str, reached: impl Fn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIVE;
        while !reached() {
            interrupt::check()?;
            let gone = machine::process_s(self.pid()).is_err();
            if gone || Instant::now() > deadline {
                let name = self.contestant.name();
                bail!("see {name} {what}: {}", last_lines(&self.stderr(), 5));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// perf is started disabled and says when it has enabled its events.
    fn enable_perf(&mut self) -> anyhow::Result<()> {
        let open = |name: &str| {
            let mut options = File::options();
            // Both ways, so that opening does not wait for perf.
            options
                .read(true)
                .write(true)
                .open(self.folder.path().join(name))
        };
        let (mut control, answer) = (open("control")?, open("answer")?);
        control.write_all(b"enable\n").context("command perf")?;
        let heard = thread::spawn(move || (&answer).read(&mut [0; 8]).is_ok());
        self.wait_for("enabled", || heard.is_finished())?;
        Ok(())
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Stops it and looks at what it left. `look` sees the finished trace before it is removed.
    pub fn stop(
        mut self,
        look: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Recorded> {
        thread::sleep(DRAIN);
        let peak_resident_bytes = machine::peak_resident_bytes(self.pid())?;
        self.end()?;
        let at = |name: &str| self.folder.path().join(name);
        let trace = match self.contestant {
            Contestant::Untraced => None,
            Contestant::Full | Contestant::FullWithoutCpu | Contestant::Light => {
                Some(trace_size::of_bundle(&self.bundle())?)
            }
            Contestant::Sums => Some(trace_size::of_live_figures(&at("stdout"))?),
            Contestant::Biolatency => Some(trace_size::of_histogram(&at("trace.txt"))?),
            Contestant::Perf => Some(trace_size::of_perf_data(&at("perf.data"))?),
            Contestant::Bpftrace => {
                let said = self.stderr();
                Some(trace_size::of_bpftrace(&at("trace.txt"), &said)?)
            }
            Contestant::UnreadBlktrace => {
                let said = std::fs::read_to_string(at("stdout")).context("read what it said")?;
                let whole = said.lines().any(|line| line == "lost 0");
                ensure!(whole, "record without a loss: {said}{}", self.stderr());
                None
            }
        };
        look(&self.bundle())?;
        Ok(Recorded {
            peak_resident_bytes,
            trace,
        })
    }

    fn end(&mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGINT).context("stop the recorder")?;
        let deadline = Instant::now() + STOP;
        while self.child.try_wait()?.is_none() {
            interrupt::check()?;
            thread::sleep(Duration::from_millis(10));
            if Instant::now() < deadline {
                continue;
            }
            // bpftrace 0.17 hangs at times; what it has written is whole lines.
            ensure!(
                matches!(
                    self.contestant,
                    Contestant::Bpftrace | Contestant::Biolatency
                ),
                "see {} end",
                self.contestant.name()
            );
            self.child.kill().context("kill bpftrace")?;
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nestrace_command(
    nestrace: &Path,
    device: &LoadedDevice,
    (detail, cpu): (&str, &str),
    bundle: &Path,
) -> Command {
    let mut command = Command::new(nestrace);
    command
        .args([
            "record",
            "--device",
            device.name(),
            "--detail",
            detail,
            "--cpu",
            cpu,
            "-o",
        ])
        .arg(bundle);
    command
}

/// It looks often enough to have seen all when it is stopped.
fn top_command(nestrace: &Path, device: &LoadedDevice) -> Command {
    let mut command = Command::new(nestrace);
    command.args(["top", "--batch", "--interval", "0.2", "--device"]);
    command.arg(device.name());
    command
}

fn perf_command(folder: &Path) -> anyhow::Result<Command> {
    for name in ["control", "answer"] {
        mkfifo(&folder.join(name), Mode::S_IRWXU).context("make perf's control")?;
    }
    let [control, answer] = ["control", "answer"].map(|name| folder.join(name));
    let mut command = with_tracefs("perf");
    command
        .args(["record", "-D", "-1"])
        .arg(format!(
            "--control=fifo:{},{}",
            control.display(),
            answer.display()
        ))
        .args(["-e", "block:*", "-a", "-o"])
        .arg(folder.join("perf.data"));
    Ok(command)
}

fn bpftrace_command(script: &str, device: u32, output: &Path) -> Command {
    let mut command = with_tracefs("bpftrace");
    command
        .env("BPFTRACE_PERF_RB_PAGES", BPFTRACE_PAGES)
        .arg("-o")
        .arg(output)
        .arg(workspace().join("benches/record").join(script))
        .arg(device.to_string());
    command
}

fn unread_blktrace_command(device: &LoadedDevice) -> anyhow::Result<Command> {
    let mut build = cargo_build::cargo();
    build.args(["build", "--quiet", "--example", "unread-blktrace"]);
    let program = cargo_build::executable(build, "unread-blktrace")?;
    let mut command = with_mount("debugfs", "/sys/kernel/debug", &program);
    command.arg(device.path());
    Ok(command)
}

/// A program in a mount namespace of its own, in which tracefs is mounted.
fn with_tracefs(program: &str) -> Command {
    with_mount("tracefs", "/sys/kernel/tracing", Path::new(program))
}

fn with_mount(file_system: &str, place: &str, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITH_MOUNT, file_system, place]);
    command.arg(program);
    command
}
