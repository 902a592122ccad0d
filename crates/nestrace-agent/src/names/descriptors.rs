//! Names of open files, out of `/proc/PID/fd`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Limit;
use super::noted::FileId;
use super::places::Places;

/// Looks at all processes in turn; where its time was up, the next look goes on.
#[derive(Debug, Default)]
pub struct Look {
    next_pid: u32,
}

impl Look {
    /// The names of those files that a process has open.
    pub fn look(
        &mut self,
        wanted: &BTreeSet<FileId>,
        places: &Places,
        limit: &Limit,
    ) -> Vec<(FileId, String)> {
        let mut by_stat = BTreeMap::new();
        for place in places.iter() {
            let files = wanted.iter().filter(|(dev, _)| *dev == place.dev);
            by_stat.extend(files.map(|file| ((place.st_dev, file.1), *file)));
        }
        let mut found = Vec::new();
        for pid in self.processes() {
            self.next_pid = pid;
            let folder = format!("/proc/{pid}/fd");
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if limit.is_over() || by_stat.is_empty() {
                    return found;
                }
                let path = entry.path();
                let Ok(about) = fs::metadata(&path) else {
                    continue;
                };
                let key = (about.dev(), about.ino());
                if about.is_file()
                    && let Some(file) = by_stat.get(&key)
                    && let Some(name) = name(pid, &path, *file, places)
                {
                    found.push((*file, name));
                    by_stat.remove(&key);
                }
            }
        }
        self.next_pid = 0;
        found
    }

    /// All but this one, from that on at which the last look ended.
    fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let own = std::process::id();
        let mut pids: Vec<u32> = pids.filter(|pid| *pid != own || cfg!(test)).collect();
        pids.sort_unstable_by_key(|pid| (*pid < self.next_pid, *pid));
        pids
    }
}

fn name(pid: u32, descriptor: &Path, file: FileId, places: &Places) -> Option<String> {
    let path = fs::read_link(descriptor).ok()?;
    places.name(path.as_os_str().as_bytes(), file, places.are_those_of(pid))
}
