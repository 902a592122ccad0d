//! Stalls. Each ends when it is dropped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::loop_device::LoopDevice;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A file system that is frozen.
pub struct Frozen(PathBuf);

impl Frozen {
    pub fn freeze(mount: &Path) -> anyhow::Result<Self> {
        Tool::new("fsfreeze").arg("-f").arg(mount).run()?;
        Ok(Self(mount.to_owned()))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = Tool::new("fsfreeze")
            .arg("-u")
            .arg(&self.0)
            .for_clean_up()
            .run()
        {
            eprintln!("failed to thaw {}: {error}", self.0.display());
        }
    }
}

/// A process that a signal has stopped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn stop(pid: u32) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed());
        kill(pid, Signal::SIGSTOP).context("stop a process")?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// A thread that a process of its own traces and has stopped.
pub struct Traced(Child);

/// `PTRACE_SEIZE`, `PTRACE_INTERRUPT`; the thread goes on when its tracer ends.
const TRACER: &str = "
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
tid = int(sys.argv[1])
for request in (0x4206, 0x4207):
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(tid), None, None) != 0:
        sys.exit(ctypes.get_errno())
print('stopped', flush=True)
sys.stdin.read()
";

impl Traced {
    pub fn stop(tid: u32) -> anyhow::Result<Self> {
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", TRACER, &tid.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        ends_with_us(&mut command, Signal::SIGKILL);
        let mut traced = Self(command.spawn().context("start a tracer")?);
        let mut line = String::new();
        let stdout = traced.0.stdout.take().context("read from the tracer")?;
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line == "stopped\n", "trace thread {tid}");
        Ok(traced)
    }

    pub fn tracer(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup of a process, frozen.
pub struct FrozenCgroup {
    root: PathBuf,
    folder: PathBuf,
    pid: u32,
}

impl FrozenCgroup {
    /// Where a cgroup with a freezer can be made: of version 1, and of version 2 beside it or alone.
    pub fn roots() -> Vec<&'static str> {
        let is_there = |root: &&str| {
            let file = if root.ends_with("freezer") {
                "cgroup.procs"
            } else {
                "cgroup.controllers"
            };
            Path::new(root).join(file).exists()
        };
        [
            "/sys/fs/cgroup/freezer",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup",
        ]
        .into_iter()
        .filter(is_there)
        .collect()
    }

    pub fn freeze(root: &Path, pid: u32) -> anyhow::Result<Self> {
        let folder = root.join(format!("nestrace-stuck-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let frozen = Self {
            root: root.to_owned(),
            folder,
            pid,
        };
        fs::write(frozen.folder.join("cgroup.procs"), pid.to_string()).context("move QEMU")?;
        frozen.set(true).context("freeze QEMU")?;
        Ok(frozen)
    }

    /// As the command names it.
    pub fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        format!("/{}", name.to_string_lossy())
    }

    fn set(&self, is_frozen: bool) -> std::io::Result<()> {
        let (file, word) = match (self.root.ends_with("freezer"), is_frozen) {
            (true, true) => ("freezer.state", "FROZEN"),
            (true, false) => ("freezer.state", "THAWED"),
            (false, true) => ("cgroup.freeze", "1"),
            (false, false) => ("cgroup.freeze", "0"),
        };
        fs::write(self.folder.join(file), word)
    }
}

impl Drop for FrozenCgroup {
    fn drop(&mut self) {
        let _ = self.set(false);
        let _ = fs::write(self.root.join("cgroup.procs"), self.pid.to_string());
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("failed to remove {}: {error}", self.folder.display());
        }
    }
}

/// A loop device over a file that a process serves: while that is stopped, the device completes nothing.
pub struct Withheld {
    // It goes before its server does.
    device: Option<LoopDevice>,
    name: String,
    server: Child,
    _folder: TempDir,
}

const BYTES: u64 = 64 << 20;

impl Withheld {
    pub fn create() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-withheld-")
            .tempdir()
            .context("make a folder for a device")?;
        let (backing, served) = (folder.path().join("backing"), folder.path().join("served"));
        fs::File::create(&backing)?.set_len(BYTES)?;
        fs::File::create(&served)?;
        let mut command = Command::new("qemu-storage-daemon");
        command
            .arg("--blockdev")
            .arg(format!(
                "driver=file,node-name=file,filename={}",
                backing.display()
            ))
            .arg("--export")
            .arg(format!(
                "type=fuse,id=served,node-name=file,mountpoint={},writable=on",
                served.display()
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        ends_with_us(&mut command, Signal::SIGTERM);
        let server = command.spawn().context("start qemu-storage-daemon")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::metadata(&served).map_or(0, |about| about.len()) != BYTES {
            ensure!(Instant::now() < deadline, "see the served file within 10 s");
            thread::sleep(Duration::from_millis(20));
        }
        let device =
            LoopDevice::attach(&served, true).or_else(|_| LoopDevice::attach(&served, false))?;
        Ok(Self {
            name: device.name().to_owned(),
            device: Some(device),
            server,
            _folder: folder,
        })
    }

    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.server.id()
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.device = None;
        // By a signal that lets it unmount.
        let _ = kill(
            Pid::from_raw(self.server.id().cast_signed()),
            Signal::SIGTERM,
        );
        let _ = self.server.wait();
    }
}
