//! The trace of one disk.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nestrace_blktrace::category;
use nestrace_kernel::plan::Detail;
use nestrace_trace::manifest::GuestDisk;
use nix::errno::Errno;

use super::ioctl;
use super::relay::{self, RelayFiles};
use crate::guest::disks::BLOCK;
use crate::guest::filesystems::DebugFs;

/// Bytes of a relay sub-buffer, and how many a processor has: 2 MiB.
const BUFFER_BYTES: u32 = 512 << 10;
const N_BUFFERS: u32 = 4;
/// Events that a processor has room for, if few have a payload and one sub-buffer is begun.
pub const ROOM: u64 = (BUFFER_BYTES * (N_BUFFERS - 1)) as u64 / 56;
/// More is not read of a file in one round: the processor may write as fast as it is read.
const MAX_ROUND: usize = (BUFFER_BYTES * N_BUFFERS) as usize;

/// What the kernel records with this detail. An event is recorded if it is in one of these categories.
fn categories(detail: Detail) -> u16 {
    match detail {
        // It knows no calls.
        Detail::Full | Detail::Io => u16::MAX,
        Detail::Light | Detail::Sums => category::ISSUE | category::REQUEUE | category::COMPLETE,
    }
}

/// A running trace. Dropping it ends it.
pub struct DiskTrace {
    /// `vda`.
    pub name: String,
    pub dev: u32,
    disk: File,
    /// Where the kernel says how much it dropped.
    dropped: File,
    files: RelayFiles,
    buffer: Vec<u8>,
}

impl DiskTrace {
    /// Sets the trace up and starts it; `block` is that folder of debugfs.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn start(disk: &GuestDisk, block: &Path, detail: Detail) -> Result<Self, String> {
        let file = open_node(&disk.name)?;
        let folder = block.join(set_up(&file, block, categories(detail))?);
        let dropped = File::open(folder.join("dropped"));
        let dropped = dropped.map_err(|error| {
            tear_down(&file);
            format!("its counter of dropped events cannot be opened: {error}")
        })?;
        // From here on, dropping it tears down what was set up.
        let mut trace = Self {
            name: disk.name.clone(),
            dev: disk.dev,
            disk: file,
            dropped,
            files: RelayFiles::of(folder),
            buffer: vec![0; BUFFER_BYTES as usize],
        };
        trace.look()?;
        ioctl::start(&trace.disk).map_err(|error| format!("it does not start: {error}"))?;
        Ok(trace)
    }

    /// Processors that write to it.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.files.cpus()
    }

    /// Looks for processors that have come.
    ///
    /// # Errors
    /// Why one cannot be read, in words.
    pub fn look(&mut self) -> Result<(), String> {
        self.files.look()
    }

    /// Reads what a processor has written, at most `max_bytes` and what one round may have; gives whether that was all.
    /// To be called on that processor.
    pub fn read(&mut self, cpu: usize, max_bytes: usize, mut to: impl FnMut(&[u8])) -> bool {
        let mut n_read = 0;
        while n_read < MAX_ROUND && max_bytes.saturating_sub(n_read) >= self.buffer.len() {
            let Some(bytes) = self.files.read(cpu, &mut self.buffer) else {
                return true;
            };
            n_read += bytes.len();
            to(bytes);
        }
        false
    }

    /// Events that found no room.
    pub fn dropped(&self) -> u64 {
        let mut text = [0; 32];
        let n = self.dropped.read_at(&mut text, 0).unwrap_or(0);
        let text = text.get(..n).and_then(|text| str::from_utf8(text).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Ends recording; [`Self::read`] gives the rest.
    pub fn stop(&mut self) {
        let _ = ioctl::stop(&self.disk);
    }
}

impl Drop for DiskTrace {
    fn drop(&mut self) {
        // Before Linux 3.10 a file that is open outlives its trace, and the folder around it then stays for good: no
        // process could set up another trace of this disk until the guest restarts.
        self.files.close();
        tear_down(&self.disk);
    }
}

fn open_node(name: &str) -> Result<File, String> {
    let node = Path::new("/dev").join(name);
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(&node)
        .map_err(|error| format!("{} cannot be opened: {error}", node.display()))
}

/// Ends traces that an agent left behind when it was killed: the kernel would go on without a reader, and refuse a trace to
/// everybody else.
pub fn end_left_behind() {
    let Ok(debugfs) = DebugFs::open() else {
        return;
    };
    for name in left_behind(Path::new(BLOCK), &debugfs.path().join("block")) {
        match open_node(&name) {
            Ok(disk) => {
                tear_down(&disk);
                eprintln!("nestrace-agent: {name}: ended a blktrace run without a reader");
            }
            Err(reason) => {
                eprintln!("nestrace-agent: a blktrace run without a reader goes on: {reason}")
            }
        }
    }
}

/// Disks (of sysfs) that have relay files (in debugfs), if no process reads any.
fn left_behind(disks: &Path, block: &Path) -> Vec<String> {
    let disks = fs::read_dir(disks).into_iter().flatten().flatten();
    let mut left: Vec<String> = disks
        .filter_map(|disk| disk.file_name().into_string().ok())
        .filter(|name| {
            // What is a slash in a disk's name, the two spell differently.
            let folder = block.join(name.replace('!', "_"));
            relay::list(&folder).is_ok_and(|files| !files.is_empty())
        })
        .map(|name| name.replace('!', "/"))
        .collect();
    if !left.is_empty() && somebody_reads(block) {
        left.clear();
    }
    left
}

/// Kernels before 5.x refuse to remove a trace that runs.
fn tear_down(disk: &File) {
    let _ = ioctl::stop(disk);
    let _ = ioctl::teardown(disk);
}

/// Prepares the trace. If an agent was killed after this one started, its trace may still be there. It is removed
/// first: no process has its files open.
fn set_up(disk: &File, block: &Path, categories: u16) -> Result<String, String> {
    let set_up = || ioctl::setup(disk, categories, BUFFER_BYTES, N_BUFFERS);
    let mut result = set_up();
    if result == Err(Errno::EBUSY) && !somebody_reads(block) {
        tear_down(disk);
        result = set_up();
    }
    result.map_err(|errno| match errno {
        Errno::ENOTTY | Errno::EINVAL => {
            "this kernel was built without blktrace (CONFIG_BLK_DEV_IO_TRACE)".to_owned()
        }
        Errno::EBUSY => "another program runs blktrace on it".to_owned(),
        // `debugfs_create_dir` of those kernels does not say why.
        Errno::ENOENT => "the kernel cannot make its folder in debugfs; before Linux 3.10 the folder stays for good when a \
             trace ends while a program reads it: restart the guest"
            .to_owned(),
        Errno::EPERM => "blktrace needs root (CAP_SYS_ADMIN)".to_owned(),
        errno => format!("blktrace cannot be set up: {errno}"),
    })
}

/// Whether a process has a relay file of blktrace open.
fn somebody_reads(block: &Path) -> bool {
    // The files are known by their place in debugfs, which may be mounted elsewhere for others.
    let is_relay = |link: &Path| {
        let folder = link.parent().and_then(Path::parent);
        relay::cpu_of(link).is_some()
            && folder.is_some_and(|folder| folder == block || folder.ends_with("block"))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut descriptors = processes.flat_map(|process| {
        fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
    });
    descriptors.any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|link| is_relay(&link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_nobody_reads_was_left_behind() {
        let root = tempfile::tempdir().unwrap();
        let (disks, block) = (root.path().join("disks"), root.path().join("block"));
        for disk in ["vda", "vdb", "cciss!c0d0"] {
            fs::create_dir_all(disks.join(disk)).unwrap();
        }
        // The multi-queue block layer has its own files there.
        for file in [
            "vda/state",
            "vdb/state",
            "vdb/trace1",
            "cciss_c0d0/trace0",
            "sr0/trace0",
        ] {
            let file = block.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, b"").unwrap();
        }
        let left = || {
            let mut left = left_behind(&disks, &block);
            left.sort();
            left
        };
        assert_eq!(left(), ["cciss/c0d0", "vdb"]);
        let reads = File::open(block.join("vdb/trace1")).unwrap();
        assert!(left().is_empty());
        drop(reads);
        assert_eq!(left().len(), 2);
    }
}
