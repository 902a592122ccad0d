//! Real guests, loop devices and mounts for the tests, all gone again when a test ends or panics.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nestrace_record::guest::{Discovery, Selection, discover};
use nestrace_trace::manifest::{Disk, Guest};

pub const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// Whether this machine can run the test. Says why not; on CI that is a failure.
pub fn ready(needs: &[&str]) -> bool {
    let root = nix::unistd::geteuid().is_root();
    let missing: Vec<&&str> = needs
        .iter()
        .filter(|tool| find_tool(tool).is_none())
        .collect();
    let reason = match (root, missing.is_empty()) {
        (true, true) => return true,
        (false, _) => "not root".to_owned(),
        (true, false) => format!("not installed: {missing:?}"),
    };
    assert!(
        std::env::var_os("NESTRACE_CI").is_none_or(|v| v != "1"),
        "cannot run here: {reason}"
    );
    eprintln!("skipped: {reason}");
    false
}

fn find_tool(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|d| Path::new(d).join(name))
        .find(|p| p.exists())
}

/// Runs a command that must succeed; its stdout.
pub fn run(words: &[&str]) -> String {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .expect("the command starts");
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A directory on the root file system.
pub fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("nestrace-discovery-")
        .tempdir_in("/var/tmp")
        .expect("a directory")
}

/// A sparse file.
pub fn sparse(path: &Path, mib: u64) -> &Path {
    File::create(path)
        .and_then(|f| f.set_len(mib << 20))
        .expect("a sparse file");
    path
}

/// A loop device.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn new(file: &Path) -> Self {
        Self(PathBuf::from(run(&[
            "losetup",
            "--find",
            "--show",
            file.to_str().expect("UTF-8"),
        ])))
    }

    pub fn name(&self) -> &str {
        self.0.file_name().and_then(|n| n.to_str()).expect("a name")
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A mount point.
pub struct Mounted(pub PathBuf);

impl Mounted {
    pub fn new(fs_type: &str, options: &str, source: &str, at: &Path) -> Self {
        fs::create_dir_all(at).expect("mkdir");
        run(&[
            "mount",
            "-t",
            fs_type,
            "-o",
            options,
            source,
            at.to_str().expect("UTF-8"),
        ]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A child process, killed at the end.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A paused guest.
pub struct Qemu {
    process: Running,
    pub pid: u32,
}

impl Qemu {
    /// Starts QEMU, paused, and waits until its main loop runs. `sockets` holds its monitors.
    pub fn start(sockets: &Path, arguments: &[&str]) -> Self {
        Self::start_with(&[QEMU], sockets, arguments)
    }

    /// The same through another program; `exec` must keep the pid.
    pub fn start_with(program: &[&str], sockets: &Path, arguments: &[&str]) -> Self {
        let ready = sockets
            .join(format!("hmp-{:?}", Instant::now()).replace([' ', '{', '}', ':', ','], ""));
        let hmp = format!("unix:{},server=on,wait=off", ready.display());
        let mut command = Command::new(program[0]);
        command
            .args(&program[1..])
            .args([
                "-S",
                "-machine",
                "q35,accel=tcg",
                "-m",
                "32",
                "-display",
                "none",
                "-nodefaults",
            ])
            .args(["-monitor", &hmp])
            .args(arguments)
            // A copy of QEMU looks for its modules beside itself.
            .env("QEMU_MODULE_DIR", "/usr/lib/x86_64-linux-gnu/qemu")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().expect("QEMU starts");
        let mut qemu = Self {
            pid: child.id(),
            process: Running(child),
        };
        qemu.wait(&ready);
        qemu
    }

    /// Waits for the prompt of the human monitor.
    fn wait(&mut self, socket: &Path) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.process.0.try_wait().expect("wait") {
                panic!("QEMU exited: {status}");
            }
            let path = format!("/proc/{}/root{}", self.pid, socket.display());
            if let Ok(mut stream) = UnixStream::connect(&path) {
                let mut byte = [0];
                if stream.read_exact(&mut byte).is_ok() {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "QEMU does not come up");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What discovery finds of this guest.
    pub fn discover(&self) -> Discovery {
        discover(&Selection::Named(vec![format!("pid:{}", self.pid)])).expect("it is found")
    }
}

/// The only guest of a discovery.
pub fn guest(found: &Discovery) -> &Guest {
    assert_eq!(found.topology.guests.len(), 1, "{found:?}");
    &found.topology.guests[0]
}

/// The disk called so.
pub fn disk<'a>(found: &'a Discovery, name: &str) -> &'a Disk {
    guest(found)
        .disks
        .iter()
        .find(|d| d.name == name)
        .unwrap_or_else(|| panic!("no {name} in {found:#?}"))
}
