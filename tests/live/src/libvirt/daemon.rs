//! A private libvirtd.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::{Tool, last_lines};
use nestrace_rig::{interrupt, packages};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use xtask::progress::Progress;

const SETUP: &str = include_str!("setup.sh");
/// Debian's packages of libvirt with QEMU.
const PACKAGES: [&str; 4] = [
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "libvirt-clients",
];
/// It asks QEMU what it can do before it answers for the first time.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A libvirtd in namespaces of its own. Dropping it kills every process in them, its domains too.
#[derive(Debug)]
pub struct Libvirt {
    child: Child,
    folder: TempDir,
}

impl Libvirt {
    /// Installs what is missing, starts it and waits until it answers.
    pub fn start(progress: &Progress) -> anyhow::Result<Self> {
        packages::install_packages(&PACKAGES, |line| progress.say(line))?;
        let folder = tempfile::Builder::new()
            .prefix("nestrace-libvirt-")
            .tempdir()
            .context("make a folder for libvirt")?;
        let log = std::fs::File::create(folder.path().join("daemons.log"))?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "slave", "--net", "--pid"])
            .args(["--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", SETUP, "setup"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        // A run that is killed takes the namespace's first process along, and the kernel every other
        // process in it.
        ends_with_us(&mut command, Signal::SIGKILL);
        let child = command.spawn().context("start unshare")?;
        let mut this = Self { child, folder };
        this.wait()?;
        Ok(this)
    }

    /// Its folder: what libvirt keeps in `/etc`, `/var` and `/run` elsewhere.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `virsh` and gives its stdout.
    pub fn virsh(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = Tool::new("virsh")
            .args(["-q", "-c", &self.uri()])
            .args(args);
        Ok(output.run()?)
    }

    /// Where libvirt's clients reach it.
    pub fn uri(&self) -> String {
        format!("qemu+unix:///system?socket={}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        self.folder().join("run/libvirt-sock")
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            interrupt::check()?;
            let error = match self.virsh(&["version"]) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let ended = self.child.try_wait()?.is_some();
            if ended || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.folder().join("daemons.log"));
                let log = last_lines(&log.unwrap_or_default(), 8);
                bail!("start libvirtd: {error}; the daemons say: {log}");
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
