//! Cgroups of either version for QEMUs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_probes::mountinfo;

/// A cgroup; dropping it removes it, once its processes are gone.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Makes an empty one in a folder of a hierarchy.
    pub fn create(parent: &Path, name: &str) -> anyhow::Result<Self> {
        let folder = parent.join(name);
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Makes an empty one right below the root of version 2.
    pub fn of_version_2() -> anyhow::Result<Self> {
        let mounts = mountinfo::read(0).context("read mountinfo")?;
        let mount = mounts.iter().find(|mount| mount.fs_type == "cgroup2");
        let root = mount.context("find where cgroup2 is mounted")?;
        Self::create(Path::new(&root.mount_point), &unused_name())
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Moves a process, all of its threads, into it.
    pub fn hold(&self, pid: u32) -> anyhow::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Writes a line to one of its files.
    pub fn write(&self, file: &str, line: &str) -> anyhow::Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, line).with_context(|| format!("write {line} to {}", path.display()))
    }

    /// What one of its files holds.
    pub fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = self.folder.join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }
}

/// A name that no other cgroup has: scenarios that run side by side have one each.
pub fn unused_name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    format!("nestrace-test-{}-{number}", std::process::id())
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        eprintln!("xtask: {} is left", self.folder.display());
    }
}
