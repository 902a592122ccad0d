//! Notices while recording that a guest is gone or that one of its images was closed or opened.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
};

/// Device and inode as `stat` shows them.
pub type FileIdentity = (u64, u64);

/// What a process closed and opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files that it no longer has open.
    pub closed: Vec<FileIdentity>,
    /// Files that it had not open before.
    pub opened: Vec<FileIdentity>,
}

/// A process that is watched through an open file of its own, so that a reused pid is not taken for it.
pub struct Watched {
    pid: u32,
    stat: Option<File>,
    open: BTreeSet<FileIdentity>,
}

impl Watched {
    /// Begins to watch; a process that is gone already counts as gone.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        let stat = File::open(format!("/proc/{pid}/stat")).ok();
        let mut watched = Self {
            pid,
            stat,
            open: BTreeSet::new(),
        };
        watched.open = watched.open_files().unwrap_or_default();
        watched
    }

    /// Whether the process still runs. A zombie has let go of its files and counts as gone.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Some(stat) = &self.stat else { return false };
        let mut buffer = [0u8; 512];
        let Ok(n) = stat.read_at(&mut buffer, 0) else {
            return false;
        };
        // The name in parentheses may hold anything; the state follows the last one.
        let line = &buffer[..n];
        let state = line
            .iter()
            .rposition(|byte| *byte == b')')
            .and_then(|at| line.get(at + 2));
        !matches!(state, None | Some(b'Z' | b'X'))
    }

    /// Files that were closed and opened since the last call; none where they cannot be listed.
    pub fn changes(&mut self) -> Changes {
        let Some(now) = self.open_files() else {
            return Changes::default();
        };
        let closed = self.open.difference(&now).copied().collect();
        let opened = now.difference(&self.open).copied().collect();
        self.open = now;
        Changes { closed, opened }
    }

    fn open_files(&self) -> Option<BTreeSet<FileIdentity>> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?;
        let files = entries
            .flatten()
            .filter_map(|entry| fs::metadata(entry.path()).ok())
            .filter(|meta| meta.file_type().is_file() || is_block_device(meta));
        Some(files.map(|meta| (meta.dev(), meta.ino())).collect())
    }
}

fn is_block_device(meta: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&meta.file_type())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let watched = Watched::new(child.id());
        assert!(watched.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!watched.is_alive());
    }

    #[test]
    fn files_that_are_opened_and_closed_are_noticed() {
        let mut watched = Watched::new(std::process::id());
        let file = tempfile::tempfile().unwrap();
        let identity = file
            .metadata()
            .map(|meta| (meta.dev(), meta.ino()))
            .unwrap();
        assert!(watched.changes().opened.contains(&identity));
        drop(file);
        assert!(watched.changes().closed.contains(&identity));
    }
}
