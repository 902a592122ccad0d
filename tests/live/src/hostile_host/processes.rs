//! Processes of an unprivileged user, and what `nestrace` costs beside them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::child_process::ends_with_us;
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// `nobody`.
pub const USER: u32 = 65534;

/// A process that is killed when this is dropped.
pub struct Hostile(Child);

impl Hostile {
    /// Starts a program as `nobody`, and waits until it runs it.
    pub fn start(program: &Path, args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(program, args, &[])
    }

    /// The same with variables of the environment.
    pub fn start_with(
        program: &Path,
        args: &[&str],
        variables: &[(&str, &OsStr)],
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(variables.iter().copied())
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ends_with_us(&mut command, Signal::SIGKILL);
        let child = command
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self(child))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until `holds` is true of it.
    pub fn wait_until(&self, what: &str, holds: impl Fn(u32) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self.pid()) {
            ensure!(Instant::now() < deadline, "see that {what}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that everybody may look into, with programs of C in it.
pub struct Programs(TempDir);

impl Programs {
    /// An empty one.
    pub fn folder() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-hostile-")
            .tempdir()
            .context("make a folder")?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
            .context("open the folder to all")?;
        Ok(Self(folder))
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles a program under this name.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> anyhow::Result<PathBuf> {
        let (file, program) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&file, source).context("write the source")?;
        let status = Command::new("cc")
            .args(["-O1", "-w", "-o"])
            .args([program.as_os_str(), file.as_os_str()])
            .args(options.iter().map(OsStr::new))
            .status()
            .context("start cc")?;
        ensure!(status.success(), "compile {name}");
        Ok(program)
    }
}

/// What a command came to.
pub struct Cost {
    /// Its exit code.
    pub code: Option<i32>,
    /// From its start to its end.
    pub took: Duration,
    /// The largest resident memory of it and of each process that it waited for, in KiB.
    pub memory_kib: u64,
    /// What it said, stdout and stderr.
    pub said: String,
}

/// Runs a command with at most 2 GiB of address space, and measures it.
pub fn cost_of(program: &Path, args: &[&str]) -> anyhow::Result<Cost> {
    let begin = Instant::now();
    // GNU's time would be a package more: the shell's child is waited for here, and its own usage read.
    let output = Command::new("python3")
        .args(["-c", MEASURE])
        .arg(program)
        .args(args)
        .output()
        .context("start python3")?;
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (said, last) = said
        .trim_end()
        .rsplit_once('\n')
        .with_context(|| format!("read what {} cost: {said}", program.display()))?;
    let memory_kib = last.trim().parse().context("read its memory")?;
    Ok(Cost {
        code: output.status.code(),
        took,
        memory_kib,
        said: format!("{said}\n{}", String::from_utf8_lossy(&output.stderr)),
    })
}

const MEASURE: &str = "\
import resource, subprocess, sys
limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
ended = subprocess.run(sys.argv[1:], preexec_fn=limit, timeout=120)
print()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.stdout.flush()
sys.exit(ended.returncode & 0xff)
";
