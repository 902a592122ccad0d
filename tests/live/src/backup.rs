//! A backup that QEMU does of a disk while its guest works.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::guest::Guest;
use serde_json::json;

/// What QEMU may take to end a job.
const ENDS: Duration = Duration::from_secs(20);
/// Bytes a second that the job copies by itself: its first chunk, and then next to nothing.
pub const SPEED: u64 = 64 << 10;

/// A backup that goes on; dropping it cancels it.
pub struct Backup<'a> {
    guest: &'a Guest,
    disk: String,
}

impl<'a> Backup<'a> {
    /// Starts the backup of a disk to a file of its own in `folder`, which takes so many bytes a second.
    pub fn start(
        guest: &'a Guest,
        disk: &str,
        size_bytes: u64,
        folder: &Path,
        bytes_per_second: u64,
    ) -> anyhow::Result<Self> {
        let path = folder.join(format!("{disk}.backup"));
        let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
        file.set_len(size_bytes)?;
        let backup = Self {
            guest,
            disk: disk.to_owned(),
        };
        let group = backup.group();
        let limits = json!({ "bps-write": bytes_per_second });
        guest.qmp(
            "object-add",
            json!({ "qom-type": "throttle-group", "id": group, "limits": limits }),
        )?;
        let file = json!({ "driver": "file", "filename": path });
        let throttled = json!({ "driver": "throttle", "throttle-group": group, "file": file });
        guest.qmp(
            "blockdev-add",
            json!({ "driver": "raw", "node-name": backup.target(), "file": throttled }),
        )?;
        guest.qmp(
            "blockdev-backup",
            json!({
                "job-id": backup.job(), "device": disk, "target": backup.target(), "sync": "full", "speed": SPEED
            }),
        )?;
        Ok(backup)
    }

    /// The job's id.
    pub fn job(&self) -> String {
        format!("backup-{}", self.disk)
    }

    fn group(&self) -> String {
        format!("slow-{}", self.disk)
    }

    fn target(&self) -> String {
        format!("target-{}", self.disk)
    }

    /// Cancels it and takes away what it needed.
    pub fn end(self) -> anyhow::Result<()> {
        self.take_down()?;
        std::mem::forget(self);
        Ok(())
    }

    fn take_down(&self) -> anyhow::Result<()> {
        let cancel = json!({ "device": self.job(), "force": true });
        self.guest.qmp("block-job-cancel", cancel)?;
        let deadline = Instant::now() + ENDS;
        let runs = || {
            let jobs = self.guest.qmp("query-jobs", json!({}))?;
            anyhow::Ok(jobs.as_array().is_some_and(|jobs| !jobs.is_empty()))
        };
        while runs()? {
            ensure!(Instant::now() < deadline, "see the job {} end", self.job());
            thread::sleep(Duration::from_millis(20));
        }
        let node = json!({ "node-name": self.target() });
        self.guest.qmp("blockdev-del", node)?;
        self.guest
            .qmp("object-del", json!({ "id": self.group() }))?;
        Ok(())
    }
}

impl Drop for Backup<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("failed to end {}: {error:#}", self.job());
        }
    }
}
