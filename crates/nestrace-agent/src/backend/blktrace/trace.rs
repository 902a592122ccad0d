//! The trace of one disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nestrace_trace::Event;
use nestrace_trace::blktrace::{Feed, event, thread};
use nestrace_trace::manifest::GuestDisk;
use nix::errno::Errno;

use super::ioctl;

/// Bytes of a relay sub-buffer, and how many a processor has: 1 MiB, some 18,000 events.
const BUFFER_BYTES: u32 = 256 << 10;
const N_BUFFERS: u32 = 4;
/// More is not read of a file in one round: the processor may write as fast as it is read.
const MAX_ROUND: usize = (BUFFER_BYTES * N_BUFFERS) as usize;

/// A running trace. Dropping it ends it.
pub struct DiskTrace {
    /// `vda`.
    pub name: String,
    pub dev: u32,
    disk: File,
    /// In debugfs; where the kernel says how much it dropped.
    folder: PathBuf,
    /// By processor.
    files: Vec<RelayFile>,
    buffer: Vec<u8>,
}

/// One processor's relay file, and the beginning of a record that was not whole.
struct RelayFile {
    file: File,
    feed: Feed,
}

impl DiskTrace {
    /// Sets the trace up and starts it; `block` is that folder of debugfs.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn start(disk: &GuestDisk, block: &Path) -> Result<Self, String> {
        let node = Path::new("/dev").join(&disk.name);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&node)
            .map_err(|error| format!("{} cannot be opened: {error}", node.display()))?;
        let folder = set_up(&file, block)?;
        // From here on, dropping it tears down what was set up.
        let mut trace = Self {
            name: disk.name.clone(),
            dev: disk.dev,
            disk: file,
            folder: block.join(folder),
            files: Vec::new(),
            buffer: vec![0; BUFFER_BYTES as usize],
        };
        trace.files = open_relay_files(&trace.folder)?;
        ioctl::start(&trace.disk).map_err(|error| format!("it does not start: {error}"))?;
        Ok(trace)
    }

    /// Processors that have a file.
    pub fn n_cpus(&self) -> usize {
        self.files.len()
    }

    /// Reads what a processor has written. To be called on that processor.
    pub fn read(&mut self, cpu: usize, to: &mut Vec<Event>) {
        let Some(RelayFile { file, feed }) = self.files.get_mut(cpu) else {
            return;
        };
        let mut n_read = 0;
        while n_read < MAX_ROUND {
            // A relay file that has nothing more reads as its end, for now.
            let n = match file.read(&mut self.buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => n,
            };
            n_read += n;
            feed.push(&self.buffer[..n]);
            while let Some(trace) = feed.next_trace() {
                to.extend(event(&trace).or_else(|| thread(&trace)));
            }
        }
    }

    /// Events that found no room.
    pub fn dropped(&self) -> u64 {
        fs::read_to_string(self.folder.join("dropped"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Ends recording; [`Self::read`] gives the rest.
    pub fn stop(&mut self) {
        let _ = ioctl::stop(&self.disk);
    }
}

impl Drop for DiskTrace {
    fn drop(&mut self) {
        tear_down(&self.disk);
    }
}

/// Kernels before 5.x refuse to remove a trace that runs.
fn tear_down(disk: &File) {
    let _ = ioctl::stop(disk);
    let _ = ioctl::teardown(disk);
}

/// Prepares the trace. One that an agent left behind when it was killed is removed first: nobody has
/// its files open.
fn set_up(disk: &File, block: &Path) -> Result<String, String> {
    let mut result = ioctl::setup(disk, BUFFER_BYTES, N_BUFFERS);
    if result == Err(Errno::EBUSY) && !somebody_reads(block) {
        tear_down(disk);
        result = ioctl::setup(disk, BUFFER_BYTES, N_BUFFERS);
    }
    result.map_err(|errno| match errno {
        Errno::ENOTTY | Errno::EINVAL => {
            "this kernel was built without blktrace (CONFIG_BLK_DEV_IO_TRACE)".to_owned()
        }
        Errno::EBUSY => "somebody else runs blktrace on it".to_owned(),
        Errno::EPERM => "blktrace needs root (CAP_SYS_ADMIN)".to_owned(),
        errno => format!("blktrace cannot be set up: {errno}"),
    })
}

/// Whether a process has a relay file of blktrace open.
fn somebody_reads(block: &Path) -> bool {
    // The files are told by where they are in debugfs, which may be mounted elsewhere for others.
    let is_relay = |link: &Path| {
        let name = link.file_name().unwrap_or_default().to_string_lossy();
        let digits = name.strip_prefix("trace").unwrap_or_default();
        let folder = link.parent().and_then(Path::parent);
        !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
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

fn open_relay_files(folder: &Path) -> Result<Vec<RelayFile>, String> {
    let mut files = Vec::new();
    loop {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(folder.join(format!("trace{}", files.len())));
        match opened {
            Ok(file) => files.push(RelayFile {
                file,
                feed: Feed::default(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !files.is_empty() => {
                return Ok(files);
            }
            Err(error) => return Err(refusal(&error)),
        }
    }
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
