//! Block devices below a file system, from sysfs: partition → disk, dm, md and bcache → members, loop →
//! what its backing file lies on.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nestrace_trace::manifest::Device;

use nestrace_trace::device_number;

use crate::{mapped_device, network_device};

/// What sysfs says about one device, without following anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysfsDevice {
    /// The device with all but `loop_file`, and `beneath` without what lies under a loop's file.
    pub device: Device,
    /// Device numbers of `beneath`, in the same order.
    pub beneath: Vec<u32>,
    /// A loop device's backing file, as the kernel names it.
    pub loop_backing: Option<LoopBacking>,
}

/// A loop device's backing file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopBacking {
    /// Path from the reader's root, if it can be reached from there.
    pub path: String,
    /// The file has no name any more.
    pub deleted: bool,
    /// The loop device reads and writes it with direct I/O.
    pub direct: Option<bool>,
    /// Where in the file the device begins, in bytes.
    pub start: u64,
}

/// Reads `/sys/dev/block/MAJOR:MINOR`.
///
/// # Errors
///
/// Where there is no such device.
pub fn read(dev: u32) -> io::Result<SysfsDevice> {
    let path = fs::canonicalize(format!("/sys/dev/block/{}:{}", dev >> 20, dev & 0xf_ffff))?;
    let directory = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_partition = path.join("partition").exists();
    let mut beneath = Vec::new();
    if is_partition {
        beneath.extend(path.parent().and_then(number_and_name));
    }
    if let Ok(slaves) = fs::read_dir(path.join("slaves")) {
        let mut slaves: Vec<PathBuf> = slaves.flatten().map(|s| s.path()).collect();
        slaves.sort();
        beneath.extend(slaves.iter().filter_map(|s| number_and_name(s)));
    }
    let name = kernel_name(&directory);
    let loop_backing = (!is_partition).then(|| loop_backing(&path)).flatten();
    let kind = match () {
        () if is_partition => "partition",
        () if loop_backing.is_some() || path.join("loop").is_dir() => "loop",
        () if path.join("dm").is_dir() => "dm",
        () if path.join("md").is_dir() => "md",
        () if name.starts_with("bcache") && path.join("bcache").exists() => "bcache",
        () => "disk",
    };
    let driver = match kind {
        "md" => text(&path.join("md/level")).unwrap_or_default(),
        _ => String::new(),
    };
    let queue = |file: &str| text(&path.join("queue").join(file)).unwrap_or_default();
    // The kernel counts in 512 bytes whatever a device's sectors are.
    let sectors = |file: &str| {
        let n = text(&path.join(file)).and_then(|n| n.parse::<u64>().ok());
        n.unwrap_or(0).saturating_mul(512)
    };
    let mut device = Device {
        name,
        dev,
        kind: kind.to_owned(),
        driver,
        driver_options: Vec::new(),
        mapped_name: text(&path.join("dm/name")).unwrap_or_default(),
        beneath: beneath.iter().map(|(_, name)| name.clone()).collect(),
        loop_file: None,
        server: (kind == "disk")
            .then(|| network_device::server_of(&path))
            .flatten(),
        scheduler: active_scheduler(&queue("scheduler")),
        nr_requests: queue("nr_requests").parse().unwrap_or(0),
        read_ahead_kb: queue("read_ahead_kb").parse().unwrap_or(0),
        write_cache: queue("write_cache"),
        rotational: queue("rotational") == "1",
        size: sectors("size"),
        // Partitions have one.
        start: sectors("start"),
    };
    ask_mapper(&mut device);
    Ok(SysfsDevice {
        device,
        beneath: beneath.into_iter().map(|(dev, _)| dev).collect(),
        loop_backing,
    })
}

/// Adds what device mapper makes a device of, where it makes it, that is not known yet, and this user may ask
/// (`CAP_SYS_ADMIN`).
pub fn ask_mapper(device: &mut Device) {
    if device.kind == "dm"
        && device.driver.is_empty()
        && let Some(mapped) = mapped_device::read(device.dev)
    {
        device.driver = mapped.targets;
        device.driver_options = mapped.options;
    }
}

/// A loop device that has a file.
fn loop_backing(path: &Path) -> Option<LoopBacking> {
    let file = fs::read(path.join("loop/backing_file")).ok()?;
    let file = String::from_utf8_lossy(&file);
    let file = file.strip_suffix('\n').unwrap_or(&file);
    let live = file.strip_suffix(" (deleted)");
    Some(LoopBacking {
        path: live.unwrap_or(file).to_owned(),
        deleted: live.is_some(),
        direct: text(&path.join("loop/dio")).map(|d| d == "1"),
        start: text(&path.join("loop/offset"))
            .and_then(|start| start.parse().ok())
            .unwrap_or(0),
    })
}

/// Members of a btrfs, found through any of them: kernel device numbers. Empty if none is known.
#[must_use]
pub fn btrfs_members(source: &str) -> Vec<u32> {
    // The source may be a symbolic link (`/dev/mapper/x`); sysfs knows the kernel's name.
    let node = fs::canonicalize(source).unwrap_or_else(|_| PathBuf::from(source));
    let name = node.file_name().unwrap_or_default().to_os_string();
    let Ok(file_systems) = fs::read_dir("/sys/fs/btrfs") else {
        return Vec::new();
    };
    for file_system in file_systems.flatten() {
        let devices = file_system.path().join("devices");
        if devices.join(&name).exists() {
            let mut members: Vec<u32> = fs::read_dir(devices)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|d| number_and_name(&d.path()).map(|(dev, _)| dev))
                .collect();
            members.sort_unstable();
            return members;
        }
    }
    Vec::new()
}

/// Number and kernel name of a device's directory in sysfs (or a link to it).
fn number_and_name(path: &Path) -> Option<(u32, String)> {
    let number = device_number::parse(&text(&path.join("dev"))?)?;
    let name = path.file_name()?.to_string_lossy();
    Some((number, kernel_name(&name)))
}

/// sysfs writes `!` for the `/` in names such as `cciss/c0d0`.
fn kernel_name(directory: &str) -> String {
    directory.replace('!', "/")
}

/// `mq-deadline` of `none [mq-deadline] kyber`.
fn active_scheduler(text: &str) -> String {
    match text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
    {
        Some((active, _)) => active.to_owned(),
        None => text
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The kernel's form (`MAJOR << 20 | MINOR`) of a `dev_t` as `stat` gives it.
#[must_use]
pub fn from_stat(dev: u64) -> u32 {
    device_number::of(libc::major(dev), libc::minor(dev))
}

/// The node in `/dev` of a device, if it is there and is that device.
#[must_use]
pub fn node(device: &Device) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/dev/{}", device.name));
    let about = fs::metadata(&path).ok()?;
    (about.mode() & libc::S_IFMT == libc::S_IFBLK && from_stat(about.rdev()) == device.dev)
        .then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers() {
        assert_eq!(active_scheduler("none [mq-deadline] kyber"), "mq-deadline");
        assert_eq!(active_scheduler("[none]"), "none");
        assert_eq!(active_scheduler("none"), "none");
        assert_eq!(active_scheduler(""), "");
    }

    #[test]
    fn names() {
        assert_eq!(kernel_name("cciss!c0d0"), "cciss/c0d0");
    }

    #[test]
    fn numbers() {
        assert_eq!(
            from_stat(libc::makedev(259, 0x12345)),
            (259 << 20) | 0x12345
        );
    }

    #[test]
    fn a_device_that_is_not_there() {
        assert!(read(device_number::of(4095, 0xf_ffff)).is_err());
    }
}
