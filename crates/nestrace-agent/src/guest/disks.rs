//! Disks, from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use nestrace_trace::device_number;
use nestrace_trace::manifest::GuestDisk;

/// Where sysfs has them.
pub const BLOCK: &str = "/sys/block";

/// The disks of these names (all that have a driver if there are none), and the names that are none.
/// What is `known` of a disk's serial number is not asked for again: virtio-blk sends the question to
/// the device (`virtblk_get_id()`), and that would be recorded.
pub fn find(names: &[String], known: &[GuestDisk]) -> (Vec<GuestDisk>, Vec<String>) {
    find_in(Path::new(BLOCK), names, known)
}

fn find_in(block: &Path, names: &[String], known: &[GuestDisk]) -> (Vec<GuestDisk>, Vec<String>) {
    let read = |folder: &Path| read(folder, known);
    if names.is_empty() {
        let mut folders: Vec<PathBuf> = fs::read_dir(block)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|folder| is_a_guests_disk(folder))
            .collect();
        folders.sort();
        return (
            folders.iter().filter_map(|folder| read(folder)).collect(),
            Vec::new(),
        );
    }
    let mut disks: Vec<GuestDisk> = Vec::new();
    let mut missing = Vec::new();
    for name in names {
        match read(&block.join(name.replace('/', "!"))) {
            Some(disk) if disks.iter().any(|known| known.dev == disk.dev) => {}
            Some(disk) => disks.push(disk),
            None => missing.push(name.clone()),
        }
    }
    (disks, missing)
}

/// What the hypervisor gives: it has a driver (loop, ram, zram, dm and md have none), a size, and is no
/// CD or floppy drive, which has a size in sysfs even when it is empty.
fn is_a_guests_disk(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let removable = ["sr", "fd"].iter().any(|prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    });
    !removable && folder.join("device").exists() && text(&folder.join("size")) != "0"
}

/// One disk; `None` where there is none.
fn read(folder: &Path, known: &[GuestDisk]) -> Option<GuestDisk> {
    let dev = device_number::parse(&text(&folder.join("dev")))?;
    let name = folder.file_name()?.to_string_lossy().replace('!', "/");
    let sysfs_path = fs::canonicalize(folder)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let diskseq = diskseq(folder);
    let is_it = |disk: &&GuestDisk| {
        (disk.dev, disk.diskseq) == (dev, diskseq)
            && (&disk.name, &disk.sysfs_path) == (&name, &sysfs_path)
    };
    let before = known.iter().find(is_it);
    let queue = |file: &str| text(&folder.join("queue").join(file));
    let number = |file: &str| queue(file).parse().unwrap_or(0);
    Some(GuestDisk {
        name,
        dev,
        size: text(&folder.join("size"))
            .parse::<u64>()
            .unwrap_or(0)
            .saturating_mul(512),
        serial: before.map_or_else(|| serial(folder), |disk| disk.serial.clone()),
        diskseq,
        since_mono_ns: 0,
        until_mono_ns: 0,
        model: text(&folder.join("device/model")),
        sysfs_path,
        driver: fs::read_link(folder.join("device/driver"))
            .ok()
            .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_default(),
        scheduler: active(&queue("scheduler")),
        nr_requests: number("nr_requests"),
        read_ahead_kb: number("read_ahead_kb"),
        max_sectors_kb: number("max_sectors_kb"),
        write_cache: queue("write_cache"),
        rotational: queue("rotational") == "1",
        logical_block_size: number("logical_block_size"),
    })
}

/// What tells a disk from any other of this boot (13927b31b13f, Linux 5.15); 0 where the kernel does not say it.
pub fn diskseq(folder: &Path) -> u64 {
    text(&folder.join("diskseq")).parse().unwrap_or(0)
}

/// virtio says it at the disk, NVMe and others at the device, SCSI (libata's disks too) in page 0x80.
fn serial(folder: &Path) -> String {
    for file in ["serial", "device/serial"] {
        let serial = text(&folder.join(file));
        if !serial.is_empty() {
            return serial;
        }
    }
    fs::read(folder.join("device/vpd_pg80"))
        .ok()
        .and_then(|page| unit_serial_number(&page))
        .unwrap_or_default()
}

/// SPC-4, 7.8.15: four bytes with the page's code and length, then the number in ASCII.
fn unit_serial_number(page: &[u8]) -> Option<String> {
    let (header, rest) = page.split_first_chunk::<4>()?;
    let [_, 0x80, high, low] = *header else {
        return None;
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let number = rest.get(..length).unwrap_or(rest);
    Some(String::from_utf8_lossy(number).trim().to_owned())
}

/// `mq-deadline` of `none [mq-deadline] kyber`.
fn active(schedulers: &str) -> String {
    let chosen = schedulers
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    match chosen {
        Some((chosen, _)) => chosen.to_owned(),
        None => schedulers.to_owned(),
    }
}

/// Without blanks and trailing zeros around; empty where it cannot be read.
fn text(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .trim_matches(|c: char| c.is_whitespace() || c == '\0')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as sysfs has it; files of `contents` are `path content`.
    fn block(contents: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in contents {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn all_disks_are_those_with_a_driver() {
        let root = block(&[
            ("vdb/dev", "254:16\n"),
            ("vdb/size", "8\n"),
            ("vdb/device/vendor", "0x1af4\n"),
            ("sda/dev", "8:0\n"),
            ("sda/size", "16\n"),
            ("sda/device/model", "QEMU HARDDISK   \n"),
            ("sr0/dev", "11:0\n"),
            ("sr0/size", "2097151\n"),
            ("sr0/device/model", "QEMU DVD-ROM\n"),
            ("loop0/dev", "7:0\n"),
            ("loop0/size", "8\n"),
            ("nvme0n1/dev", "259:0\n"),
            ("nvme0n1/size", "0\n"),
            ("nvme0n1/device/serial", "x\n"),
        ]);
        let (disks, missing) = find_in(root.path(), &[], &[]);
        let seen: Vec<_> = disks
            .iter()
            .map(|d| (d.name.as_str(), d.dev, d.size, d.model.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("sda", 8 << 20, 8192, "QEMU HARDDISK"),
                ("vdb", (254 << 20) | 16, 4096, "")
            ]
        );
        assert!(missing.is_empty());
    }

    #[test]
    fn named_disks_may_be_any_and_may_be_missing() {
        let root = block(&[
            ("loop0/dev", "7:0\n"),
            ("loop0/size", "8\n"),
            ("loop0/queue/scheduler", "none [mq-deadline] kyber\n"),
            ("loop0/queue/write_cache", "write back\n"),
            ("loop0/queue/read_ahead_kb", "128\n"),
            ("cciss!c0d0/dev", "104:0\n"),
            ("vda/dev", "254:0\n"),
            ("vda/serial", "my-serial\n"),
        ]);
        let names = ["loop0", "vdz", "cciss/c0d0", "vda", "loop0"].map(str::to_owned);
        let (disks, missing) = find_in(root.path(), &names, &[]);
        let seen: Vec<_> = disks
            .iter()
            .map(|d| (d.name.as_str(), d.scheduler.as_str(), d.serial.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("loop0", "mq-deadline", ""),
                ("cciss/c0d0", "", ""),
                ("vda", "", "my-serial")
            ]
        );
        assert_eq!(
            (disks[0].read_ahead_kb, disks[0].write_cache.as_str()),
            (128, "write back")
        );
        assert_eq!(missing, ["vdz"]);

        fs::remove_file(root.path().join("vda/serial")).unwrap();
        let (again, _) = find_in(root.path(), &names, &disks);
        assert_eq!(again, disks, "a serial number is asked for once");

        // In its place there is another disk.
        fs::write(root.path().join("vda/diskseq"), "9\n").unwrap();
        let (other, _) = find_in(root.path(), &names, &disks);
        assert_eq!((other[2].serial.as_str(), other[2].diskseq), ("", 9));
    }

    #[test]
    fn scsi_serial_numbers() {
        for (page, expected) in [
            (&b"\0\x80\0\x05QM001"[..], Some("QM001")),
            (b"\0\x80\0\x08QM00", Some("QM00")),
            (b"\0\x80\0\x06  ab  junk", Some("ab")),
            (b"\0\x83\0\x05QM001", None),
            (b"\0\x80", None),
        ] {
            assert_eq!(unit_serial_number(page).as_deref(), expected);
        }
    }
}
