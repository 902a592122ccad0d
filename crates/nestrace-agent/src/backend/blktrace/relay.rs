//! The relay files of one trace: one for each processor that was online when the trace was set up or has come since.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The files of a folder of debugfs, as far as they have been found.
pub struct RelayFiles {
    folder: PathBuf,
    by_cpu: BTreeMap<usize, File>,
}

impl RelayFiles {
    /// None yet.
    pub fn of(folder: PathBuf) -> Self {
        Self {
            folder,
            by_cpu: BTreeMap::new(),
        }
    }

    /// Opens those that are there and not open.
    ///
    /// # Errors
    /// Why one cannot be opened, or that there is none, in words.
    pub fn look(&mut self) -> Result<(), String> {
        for (cpu, path) in list(&self.folder).map_err(|error| refusal(&error))? {
            if let Entry::Vacant(place) = self.by_cpu.entry(cpu) {
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                    .open(path)
                    .map_err(|error| refusal(&error))?;
                place.insert(file);
            }
        }
        if self.by_cpu.is_empty() {
            return Err("it has no relay files".to_owned());
        }
        Ok(())
    }

    /// Processors that have one.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.by_cpu.keys().copied()
    }

    /// Closes all.
    pub fn close(&mut self) {
        self.by_cpu.clear();
    }

    /// Reads once from the file of a processor. A relay file that has nothing more reads as its end, for now.
    pub fn read<'b>(&mut self, cpu: usize, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let file = self.by_cpu.get_mut(&cpu)?;
        let n = file.read(buffer).ok().filter(|n| *n > 0)?;
        buffer.get(..n)
    }
}

/// The relay files of a folder, by processor. There is none of a processor that is offline.
///
/// # Errors
/// The folder cannot be read.
pub fn list(folder: &Path) -> io::Result<Vec<(usize, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        files.extend(cpu_of(&path).map(|cpu| (cpu, path)));
    }
    Ok(files)
}

/// The processor of a file that has a relay file's name, `trace12`.
pub fn cpu_of(path: &Path) -> Option<usize> {
    let digits = path.file_name()?.to_str()?.strip_prefix("trace")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

fn refusal(error: &io::Error) -> String {
    if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return format!("its relay files cannot be opened: {error}");
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = lockdown
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(mode, _)| mode);
    match mode {
        // securityfs may not be mounted.
        "" => format!(
            "its relay files in debugfs are refused ({error}); a locked-down kernel (Secure Boot) \
             does that"
        ),
        "none" => format!("its relay files in debugfs are refused: {error}"),
        mode => format!(
            "the kernel is locked down ({mode}; Secure Boot does that), which refuses blktrace's \
             relay files in debugfs"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(files: &RelayFiles) -> Vec<usize> {
        files.cpus().collect()
    }

    #[test]
    fn processors_that_are_offline_have_no_file_and_others_come() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str| fs::write(folder.path().join(name), b"12345").unwrap();
        let mut files = RelayFiles::of(folder.path().to_owned());
        for name in ["dropped", "msg", "trace", "tracer", "trace+4"] {
            add(name);
        }
        assert_eq!(files.look(), Err("it has no relay files".to_owned()));
        for name in ["trace0", "trace2", "trace10"] {
            add(name);
        }
        files.look().unwrap();
        assert_eq!(cpus(&files), [0, 2, 10]);
        let mut buffer = [0; 4];
        let mut read = |files: &mut RelayFiles, cpu| files.read(cpu, &mut buffer).map(<[u8]>::len);
        assert_eq!(read(&mut files, 2), Some(4));
        assert_eq!(read(&mut files, 1), None);
        add("trace1");
        files.look().unwrap();
        assert_eq!(cpus(&files), [0, 1, 2, 10]);
        // What was open goes on where it was.
        assert_eq!((read(&mut files, 2), read(&mut files, 2)), (Some(1), None));
        assert_eq!(read(&mut files, 1), Some(4));
        files.close();
        assert!(cpus(&files).is_empty());
    }
}
