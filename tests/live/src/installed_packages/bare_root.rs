//! A fresh Debian in memory, in mount and process namespaces of its own: what is done there, this machine never sees, and
//! nothing of it is left when its first process ends, by whatever end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use nestrace_rig::cache_dir;
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::debian_archive;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::packages;
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// The release that packages are made for.
const SUITE: &str = "bookworm";
/// Beyond the packages without which Debian does not run: what reads man pages, and what checks units.
const BESIDE: &str = "man-db,systemd";
const ARCHIVE: &str = "root.tar";

/// Makes one and packs it: folder, suite, packages, mirror.
const MAKE: &str = r#"
set -e
root=$1/root
mkdir "$root"
mount -t tmpfs -o mode=755 root "$root"
debootstrap --variant=minbase --include="$3" "$2" "$root" "$4"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar --numeric-owner --one-file-system -cf "$1/root.tar" -C "$root" .
umount -R "$root"
rmdir "$root"
"#;

/// Unpacks it in memory, says its own process id as this machine counts, and waits: folder, archive.
const ENTER: &str = r#"
set -e
mount -t tmpfs -o mode=755 root "$1"
tar --numeric-owner -xpf "$2" -C "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
read -r pid rest < /proc/self/stat
echo "$pid"
exec sleep infinity
"#;

/// A root that runs; dropping it ends all that is in it.
pub struct BareRoot {
    first: Child,
    /// The first process of the root, as this machine counts.
    pid: u32,
    folder: TempDir,
}

/// How a command in the root ended.
pub struct Ended {
    /// Its exit code; -1 after a signal.
    pub code: i32,
    /// What it wrote.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

impl BareRoot {
    /// From the cache, or downloaded.
    pub fn start() -> anyhow::Result<Self> {
        let archive = archive()?;
        let folder = tempfile::Builder::new()
            .prefix("nestrace-root-")
            .tempdir()
            .context("make a folder for a root")?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .args(["--propagation", "private", "sh", "-c", ENTER, "sh"])
            .args([folder.path(), &archive])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut first = ends_with_us(&mut command, Signal::SIGKILL)
            .spawn()
            .context("start unshare")?;
        let mut line = String::new();
        let stdout = first.stdout.take().context("listen to unshare")?;
        let read = BufReader::new(stdout).read_line(&mut line);
        // From here on dropping it ends it.
        let mut root = Self {
            first,
            pid: 0,
            folder,
        };
        read.context("listen to unshare")?;
        let pid = line.trim().parse();
        root.pid = pid.context("unpack a root and mount what it needs: see above")?;
        Ok(root)
    }

    /// Runs shell in it.
    pub fn run(&self, script: &str) -> anyhow::Result<Ended> {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid.to_string(), "--mount", "--pid"])
            .arg("chroot")
            .arg(self.folder.path())
            .args(["/usr/bin/env", "-i", "HOME=/root", "LC_ALL=C.UTF-8"])
            .args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MANWIDTH=80"])
            .args(["DEBIAN_FRONTEND=noninteractive", "sh", "-c"])
            .arg(format!("cd /root\n{script}"))
            .stdin(Stdio::null());
        let output = ends_with_us(&mut command, Signal::SIGKILL)
            .output()
            .context("start nsenter")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ended {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    /// The same of a command that has to succeed: its stdout.
    pub fn run_ok(&self, script: &str) -> anyhow::Result<String> {
        let ended = self.run(script)?;
        ensure!(
            ended.code == 0,
            "run `{script}` in a bare Debian ({}): {}{}",
            ended.code,
            ended.stdout,
            ended.stderr
        );
        Ok(ended.stdout)
    }

    /// Copies a file or a folder into its `/root`.
    pub fn copy(&self, from: &Path) -> anyhow::Result<()> {
        let inside = self.folder.path().strip_prefix("/")?.join("root");
        let place = PathBuf::from(format!("/proc/{}/root", self.pid)).join(inside);
        Tool::new("cp").arg("-r").arg(from).arg(place).run()?;
        Ok(())
    }

    /// Every file that packages might leave, one a line: without logs, caches and dpkg's own lists.
    pub fn listing(&self) -> anyhow::Result<String> {
        self.run_ok(
            "find / -xdev \\( -path /root -o -path /tmp -o -path /var/log -o -path /run -o -path /var/cache \
             -o -path '/var/lib/dpkg/*' \\) -prune -o -print | sort",
        )
    }
}

impl Drop for BareRoot {
    fn drop(&mut self) {
        // Its child, the root's first process, ends with it, and all in the root with that.
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

/// The packed root, from the cache or made.
fn archive() -> anyhow::Result<PathBuf> {
    let name = format!("debian-root-{SUITE}-{}", BESIDE.replace(',', "-"));
    let folder = cache_dir::entry(&cache_dir::root()?, &name, |folder| {
        packages::install_programs(&[("debootstrap", "debootstrap")], |line| {
            eprintln!("{line}")
        })?;
        let mirror =
            debian_archive::mirror()?.context("find a mirror of Debian in apt's sources")?;
        Tool::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", MAKE])
            .arg("sh")
            .arg(folder)
            .args([SUITE, BESIDE, &mirror])
            .run()
            .context("make a bare Debian with debootstrap")?;
        anyhow::Ok(())
    })?;
    Ok(folder.join(ARCHIVE))
}
