//! What the kernel knows of a device, and what of that speaks against writing to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::O_EXCL;
use nix::sys::stat::{major, minor};

use crate::external_tool::Tool;

/// Tables of partitions, as wipefs names them.
const TABLES: [&str; 8] = ["gpt", "PMBR", "dos", "mac", "sgi", "sun", "bsd", "atari"];
/// Sectors of sysfs.
const SECTOR: u64 = 512;

/// Why a device may not be written to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Objection {
    /// A file, a terminal, …
    #[error("it is not a block device")]
    NoBlockDevice,
    /// As the kernel sees it.
    #[error("it is read-only")]
    ReadOnly,
    /// Of this name space.
    #[error("it is mounted at {0}")]
    Mounted(String),
    /// dm, md, bcache.
    #[error("{} lies on it", .0.join(" and "))]
    Holders(Vec<String>),
    /// By the kernel's own list.
    #[error("it holds the partitions {}", .0.join(", "))]
    Partitions(Vec<String>),
    /// One that the kernel was not asked to read.
    #[error("it holds a partition table ({0})")]
    Table(String),
    /// As the file of a loop device.
    #[error("{0} lies on it")]
    Loop(String),
    /// A virtual machine, mkfs, …
    #[error("the process {pid} ({name}) has it open")]
    Open {
        /// Process id.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A mount of another name space, swap, …
    #[error("the kernel uses it")]
    Busy,
    /// By another lab.
    #[error("another run of the lab uses it")]
    Locked,
    /// Since it was looked at first.
    #[error("its name belongs to another device now")]
    Another,
    /// Smaller than what is to be put on it.
    #[error("{needed_mib} MiB are needed, it has {mib}")]
    TooSmall {
        /// MiB.
        needed_mib: u64,
        /// MiB.
        mib: u64,
    },
}

impl Objection {
    /// Whether it may be gone in a moment: udev and others look at a device that was written.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Busy)
    }
}

/// What there is to know of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    is_block_device: bool,
    /// The kernel's name.
    pub(super) name: String,
    /// Its node, without symbolic links.
    pub(super) node: PathBuf,
    /// Major and minor number.
    pub(super) number: (u64, u64),
    is_read_only: bool,
    bytes: u64,
    mounted_at: Option<String>,
    holders: Vec<String>,
    partitions: Vec<String>,
    table: Option<String>,
    loop_device: Option<String>,
    opened_by: Option<(u32, String)>,
    is_busy: bool,
}

impl Facts {
    /// Looks; nothing is written.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let about = std::fs::metadata(path)?;
        if !about.file_type().is_block_device() {
            return Ok(Self::default());
        }
        let number = (major(about.rdev()), minor(about.rdev()));
        let node = path.canonicalize()?;
        let sysfs = PathBuf::from(format!("/sys/dev/block/{}:{}", number.0, number.1));
        let folder = sysfs.canonicalize()?;
        let name = folder.file_name().unwrap_or_default();
        let word = |file: &str| -> io::Result<u64> {
            let text = std::fs::read_to_string(folder.join(file))?;
            text.trim().parse().map_err(io::Error::other)
        };
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        Ok(Self {
            is_block_device: true,
            name: name.to_string_lossy().into_owned(),
            number,
            is_read_only: word("ro")? != 0,
            bytes: word("size")? * SECTOR,
            mounted_at: mount_of(&mounts, number, &node),
            holders: names(&folder.join("holders"), |_| true),
            partitions: names(&folder, |entry| entry.join("partition").exists()),
            table: table(path)?,
            loop_device: loop_device_on(&node),
            opened_by: opened_by(about.rdev()),
            is_busy: is_busy(path)?,
            node,
        })
    }

    /// Why the device may not be written to, if it may not.
    pub(super) fn objection(&self, needed_bytes: u64) -> Option<Objection> {
        if !self.is_block_device {
            return Some(Objection::NoBlockDevice);
        }
        if let Some(point) = &self.mounted_at {
            return Some(Objection::Mounted(point.clone()));
        }
        if !self.holders.is_empty() {
            return Some(Objection::Holders(self.holders.clone()));
        }
        if !self.partitions.is_empty() {
            return Some(Objection::Partitions(self.partitions.clone()));
        }
        if let Some(table) = &self.table {
            return Some(Objection::Table(table.clone()));
        }
        if let Some(device) = &self.loop_device {
            return Some(Objection::Loop(device.clone()));
        }
        if self.is_read_only {
            return Some(Objection::ReadOnly);
        }
        if self.bytes < needed_bytes {
            return Some(Objection::TooSmall {
                needed_mib: needed_bytes.div_ceil(MIB),
                mib: self.bytes / MIB,
            });
        }
        if let Some((pid, name)) = &self.opened_by {
            let (pid, name) = (*pid, name.clone());
            return Some(Objection::Open { pid, name });
        }
        self.is_busy.then_some(Objection::Busy)
    }
}

const MIB: u64 = 1 << 20;

/// Entries of a folder of sysfs.
fn names(folder: &Path, fits: impl Fn(&Path) -> bool) -> Vec<String> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| fits(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Where a device is mounted: by its number, or (btrfs has numbers of its own) by its name.
fn mount_of(mountinfo: &str, (major, minor): (u64, u64), node: &Path) -> Option<String> {
    let number = format!("{major}:{minor}");
    let mut mounts = mountinfo.lines().filter_map(|line| {
        let (own, behind) = line.split_once(" - ")?;
        let mut own = own.split(' ').skip(2);
        let (device, point) = (own.next()?, own.nth(1)?);
        let source = behind.split(' ').nth(1)?;
        Some((device, point, source))
    });
    let is_it = |source: &str| {
        Path::new(source)
            .canonicalize()
            .is_ok_and(|path| path == node)
    };
    mounts
        .find(|(device, _, source)| *device == number || (source.starts_with('/') && is_it(source)))
        .map(|(_, point, _)| point.to_owned())
}

/// A table of partitions that the kernel need not have read.
fn table(path: &Path) -> io::Result<Option<String>> {
    let listing = Tool::new("wipefs")
        .args(["--noheadings", "--output", "TYPE"])
        .arg(path)
        .run()
        .map_err(io::Error::other)?;
    let mut kinds = listing.lines().map(str::trim);
    Ok(kinds.find(|kind| TABLES.contains(kind)).map(str::to_owned))
}

/// A loop device whose file it is: losetup does not claim it.
fn loop_device_on(node: &Path) -> Option<String> {
    names(Path::new("/sys/block"), |entry| {
        let file = std::fs::read_to_string(entry.join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end()) == node)
    })
    .into_iter()
    .next()
}

/// A process that has it open: QEMU does not claim a disk either.
fn opened_by(device: u64) -> Option<(u32, String)> {
    let processes = names(Path::new("/proc"), |_| true);
    let pids = processes.iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in pids.filter(|pid| *pid != std::process::id()) {
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        let is_it = |fd: &Path| {
            // Only nodes of devices: to look at a file may mean to ask a server that is gone.
            std::fs::read_link(fd).is_ok_and(|target| target.starts_with("/dev"))
                && std::fs::metadata(fd).is_ok_and(|about| {
                    about.file_type().is_block_device() && about.rdev() == device
                })
        };
        if !names(&folder, is_it).is_empty() {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

/// Whether the kernel itself has it in use; a claim of a moment.
fn is_busy(path: &Path) -> io::Result<bool> {
    let opened: io::Result<File> = OpenOptions::new()
        .read(true)
        .custom_flags(O_EXCL)
        .open(path);
    match opened {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
        Err(error) => Err(error),
    }
}

/// The folder of a device's queue: a partition has its disk's.
pub(super) fn queue(name: &str) -> PathBuf {
    let folder = Path::new("/sys/class/block").join(name);
    let folder = folder.canonicalize().unwrap_or(folder);
    let own = folder.join("queue");
    match folder.parent() {
        Some(disk) if !own.exists() => disk.join("queue"),
        _ => own,
    }
}

/// The value of a setting: `[mq-deadline] none` shows all and marks the one that holds.
pub(super) fn chosen(text: &str) -> &str {
    let marked = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    marked.map_or(text.trim(), |(chosen, _)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn free() -> Facts {
        Facts {
            is_block_device: true,
            name: String::from("sdb1"),
            number: (8, 17),
            bytes: GIB,
            ..Facts::default()
        }
    }

    #[test]
    fn a_free_device_is_taken_up_to_its_last_byte() {
        assert_eq!(free().objection(GIB), None);
        assert_eq!(
            free().objection(GIB + 1).unwrap().to_string(),
            "1025 MiB are needed, it has 1024"
        );
    }

    #[test]
    fn what_is_in_use_is_refused_with_who_uses_it() {
        let name = String::from;
        let list = |word: &str| vec![word.to_owned()];
        type Change<'c> = Box<dyn Fn(&mut Facts) + 'c>;
        let cases: [(Change<'_>, &str, bool); 9] = [
            (
                Box::new(|facts| facts.is_block_device = false),
                "it is not a block device",
                false,
            ),
            (
                Box::new(|facts| facts.is_read_only = true),
                "it is read-only",
                false,
            ),
            (
                Box::new(|facts| facts.mounted_at = Some(name("/home"))),
                "it is mounted at /home",
                false,
            ),
            (
                Box::new(|facts| facts.holders = list("dm-3")),
                "dm-3 lies on it",
                false,
            ),
            (
                Box::new(|facts| facts.partitions = list("sdb5")),
                "it holds the partitions sdb5",
                false,
            ),
            (
                Box::new(|facts| facts.table = Some(name("gpt"))),
                "it holds a partition table (gpt)",
                false,
            ),
            (
                Box::new(|facts| facts.loop_device = Some(name("loop2"))),
                "loop2 lies on it",
                false,
            ),
            (
                Box::new(|facts| facts.opened_by = Some((7, name("qemu")))),
                "the process 7 (qemu) has it open",
                true,
            ),
            (
                Box::new(|facts| facts.is_busy = true),
                "the kernel uses it",
                true,
            ),
        ];
        for (change, told, may_pass) in cases {
            let mut facts = free();
            change(&mut facts);
            let objection = facts.objection(1).expect(told);
            assert_eq!(objection.to_string(), told);
            assert_eq!(objection.may_pass(), may_pass, "{told}");
        }
    }

    #[test]
    fn a_mount_is_found_by_number_and_by_name() {
        let mountinfo = "\
            36 1 8:17 / /home rw shared:1 - ext4 /dev/sdb1 rw\n\
            40 36 0:35 /@ /data rw - btrfs /dev/null rw\n\
            41 36 0:36 / /run rw - tmpfs tmpfs rw\n";
        let find = |number, node: &str| mount_of(mountinfo, number, Path::new(node));
        assert_eq!(find((8, 17), "/dev/x").as_deref(), Some("/home"));
        // btrfs shows a number of its own.
        assert_eq!(find((1, 3), "/dev/null").as_deref(), Some("/data"));
        assert_eq!(find((8, 1), "/dev/zero"), None);
    }

    #[test]
    fn a_setting_is_put_back_as_it_was() {
        assert_eq!(chosen("none [mq-deadline] kyber\n"), "mq-deadline");
        assert_eq!(chosen("128\n"), "128");
    }

    #[test]
    fn a_file_is_no_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let facts = Facts::of(file.path()).unwrap();
        assert_eq!(facts.objection(1), Some(Objection::NoBlockDevice));
        assert!(Facts::of(Path::new("/dev/no-such-device")).is_err());
    }
}
