//! The open files of a process, as `/proc` shows them.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use nestrace_probes::proc_file;

use super::image_file::{FileIdentity, identity};

/// An open regular file or block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenFile {
    /// The descriptor.
    pub fd: u32,
    /// Where the link points, without the mark of a deleted file.
    pub path: String,
    /// The file has no name any more.
    pub deleted: bool,
    /// Which file it is.
    pub identity: FileIdentity,
    /// A block device.
    pub is_block_device: bool,
    /// Open with O_DIRECT.
    pub direct: bool,
    /// QEMU's image locks are on it: it is a block node's file.
    pub image_locked: bool,
    /// Open for writing.
    pub writable: bool,
    /// `mnt_id` of `fdinfo`: the mount it was opened through.
    pub mount_id: Option<u64>,
}

/// The open files of a process, as far as they matter here.
#[derive(Clone, Debug, Default)]
pub struct OpenFiles {
    /// Regular files and block devices.
    pub files: Vec<OpenFile>,
    /// Sockets: descriptor → inode.
    pub sockets: BTreeMap<u32, u64>,
    /// A virtual machine of KVM is open.
    pub kvm: bool,
    /// How many io_uring instances the process waits for events with.
    pub event_rings: u32,
    /// How many descriptors were looked at.
    pub n_descriptors: usize,
    /// There are more descriptors than are looked at.
    pub is_cut: bool,
}

/// Reads `/proc/PID/fd` and `fdinfo`. Descriptors that are closed meanwhile are left out.
///
/// # Errors
///
/// Where the directory cannot be listed: no such process, or no permission.
pub fn open_files(pid: u32) -> io::Result<OpenFiles> {
    let mut open = OpenFiles::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        if open.n_descriptors >= proc_file::MAX_DESCRIPTORS {
            open.is_cut = true;
            break;
        }
        open.n_descriptors += 1;
        let Some(fd) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(link) = fs::read_link(entry.path()) else {
            continue;
        };
        let link = link.to_string_lossy().into_owned();
        if let Some(inode) = link
            .strip_prefix("socket:[")
            .and_then(|l| l.strip_suffix(']'))
        {
            open.sockets
                .extend(inode.parse().ok().map(|inode| (fd, inode)));
        } else if link == "anon_inode:kvm-vm" {
            open.kvm = true;
        } else if link == IO_URING {
            open.event_rings += u32::from(waits_for_events(pid, fd));
        } else if link.starts_with('/') {
            open.files.extend(open_file(pid, fd, &link));
        }
    }
    open.files.sort_by_key(|f| f.fd);
    Ok(open)
}

/// What the descriptor of an io_uring instance links to.
pub const IO_URING: &str = "anon_inode:[io_uring]";
/// `fdinfo` of an io_uring instance lists each entry of its queues that was not consumed.
pub const MAX_RING_FDINFO: usize = 1 << 20;

/// Descriptors are waited for with the instance, as QEMU 10.2's event loops do.
fn waits_for_events(pid: u32, fd: u32) -> bool {
    let info = proc_file::read(format!("/proc/{pid}/fdinfo/{fd}"), MAX_RING_FDINFO);
    info.is_ok_and(|info| entries_of(&info.text(), "PollList:") > 0)
}

/// How many entries a list in the `fdinfo` of an io_uring instance has.
#[must_use]
pub fn entries_of(info: &str, list: &str) -> usize {
    let entries = info.lines().skip_while(|line| *line != list).skip(1);
    entries.take_while(|line| line.starts_with(' ')).count()
}

fn open_file(pid: u32, fd: u32, link: &str) -> Option<OpenFile> {
    let about = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let is_block_device = about.mode() & libc::S_IFMT == libc::S_IFBLK;
    if !about.is_file() && !is_block_device {
        return None;
    }
    let info = proc_file::read(format!("/proc/{pid}/fdinfo/{fd}"), proc_file::MAX_FDINFO);
    let info = info.map(|info| info.text()).unwrap_or_default();
    let (flags, mount_id) = parse_fdinfo(&info);
    Some(OpenFile {
        fd,
        path: link.strip_suffix(" (deleted)").unwrap_or(link).to_owned(),
        deleted: about.nlink() == 0,
        identity: identity(&about),
        is_block_device,
        image_locked: has_image_locks(&info),
        writable: flags & 0o3 != 0,
        direct: flags & u64::from(libc::O_DIRECT.cast_unsigned()) != 0,
        mount_id,
    })
}

/// `flags` (octal) and `mnt_id` of an `fdinfo` file.
#[must_use]
pub fn parse_fdinfo(text: &str) -> (u64, Option<u64>) {
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name))
            .map(str::trim)
    };
    let flags = field("flags:")
        .and_then(|v| u64::from_str_radix(v, 8).ok())
        .unwrap_or(0);
    (flags, field("mnt_id:").and_then(|v| v.parse().ok()))
}

/// QEMU locks single bytes of an image: 100 and up for what it does, 200 and up for what it allows
/// others to do (`RAW_LOCK_PERM_BASE` and `RAW_LOCK_SHARED_BASE`, since 2.10), with locks that belong to the open file.
#[must_use]
pub fn has_image_locks(info: &str) -> bool {
    info.lines()
        .filter_map(|line| line.strip_prefix("lock:"))
        .any(|lock| {
            let mut fields = lock.split_whitespace().rev();
            let (end, start) = (fields.next(), fields.next());
            let image_byte = |field: Option<&str>| {
                field
                    .and_then(|f| f.parse::<u64>().ok())
                    .is_some_and(|byte| (100..300).contains(&byte))
            };
            lock.contains("OFDLCK") && image_byte(start) && image_byte(end)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_files() {
        assert_eq!(
            parse_fdinfo("pos:\t0\nflags:\t02140002\nmnt_id:\t27\nino:\t5\n"),
            (0o2_140_002, Some(27))
        );
        assert_eq!(parse_fdinfo(""), (0, None));
        assert_eq!(parse_fdinfo("flags:\t9\nmnt_id:\tx\n"), (0, None));
    }

    #[test]
    fn image_locks() {
        assert!(has_image_locks(
            "flags:\t02\nlock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9977970 100 101\n"
        ));
        assert!(!has_image_locks(
            "lock:\t1: POSIX  ADVISORY  WRITE 3015 00:27:33 100 100\n"
        ));
        assert!(!has_image_locks(
            "lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9977970 0 EOF\n"
        ));
        assert!(!has_image_locks("flags:\t02\n"));
    }

    #[test]
    fn open_files_of_this_process() {
        let file = tempfile::tempfile().expect("a temporary file");
        let inode = file.metadata().expect("stat").ino();
        let open = open_files(std::process::id()).expect("own files are listed");
        let found = open
            .files
            .iter()
            .find(|f| f.identity.1 == inode)
            .expect("the file is listed");
        assert!(found.deleted && !found.direct && found.mount_id.is_some());
    }
}
