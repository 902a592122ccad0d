//! Which file systems are mounted from the disks.

use std::os::unix::fs::MetadataExt;

use nestrace_probes::block_device;
use nestrace_probes::mountinfo::{self, MountEntry};
use nestrace_trace::manifest::{GuestDisk, GuestMount};

/// How deep dm, md and loop devices may lie on one another.
const MAX_DEPTH: usize = 8;

/// File systems that lie on these disks, on their partitions, or on dm and md devices on them.
pub fn on(disks: &[GuestDisk]) -> Vec<GuestMount> {
    // The agent may have a mount namespace of its own; the guest's is that of its first process.
    let entries = mountinfo::read(1).or_else(|_| mountinfo::read(0));
    of_entries(&entries.unwrap_or_default(), disks, |entry| {
        disks_under(device_of(entry)?, MAX_DEPTH)
    })
}

fn of_entries(
    entries: &[MountEntry],
    disks: &[GuestDisk],
    under: impl Fn(&MountEntry) -> Option<Vec<u32>>,
) -> Vec<GuestMount> {
    let mut mounts = Vec::new();
    for entry in entries {
        let Some(under) = under(entry) else { continue };
        let disk = disks.iter().find(|disk| under.contains(&disk.dev));
        let Some(disk) = disk else { continue };
        let mount = entry.to_mount();
        mounts.push(GuestMount {
            disk: disk.name.clone(),
            dev: entry.dev,
            fs_type: mount.fs_type,
            mount_point: mount.mount_point,
            options: mount.options,
        });
    }
    mounts
}

/// The device that a file system lies on. btrfs has an anonymous number, and says its device by name.
fn device_of(entry: &MountEntry) -> Option<u32> {
    if entry.dev >> 20 != 0 {
        return Some(entry.dev);
    }
    if !entry.source.starts_with("/dev/") {
        return None;
    }
    let about = std::fs::metadata(&entry.source).ok()?;
    Some(block_device::from_stat(about.rdev()))
}

/// The device and everything below it.
fn disks_under(dev: u32, depth: usize) -> Option<Vec<u32>> {
    let mut under = vec![dev];
    let beneath = block_device::read(dev).ok()?.beneath;
    if depth > 0 {
        let deeper = beneath
            .iter()
            .filter_map(|dev| disks_under(*dev, depth - 1));
        under.extend(deeper.flatten());
    }
    Some(under)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_is_given_to_its_disk() {
        let entries = mountinfo::parse(
            "22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
             23 22 0:21 / /proc rw - proc proc rw\n\
             24 22 0:44 /sub /mnt rw - btrfs /dev/vdb rw,space_cache\n\
             25 22 7:0 / /snap ro - squashfs /dev/loop0 ro\n",
        );
        let disk = |name: &str, dev| GuestDisk {
            name: name.to_owned(),
            dev,
            ..GuestDisk::default()
        };
        let disks = [disk("vda", 254 << 20), disk("vdb", (254 << 20) | 16)];
        let found = of_entries(&entries, &disks, |entry| match entry.source.as_str() {
            "/dev/vda1" => Some(vec![(254 << 20) | 1, 254 << 20]),
            "/dev/vdb" => Some(vec![(254 << 20) | 16]),
            "/dev/loop0" => Some(vec![7 << 20]),
            _ => None,
        });
        let seen: Vec<_> = found
            .iter()
            .map(|m| (m.disk.as_str(), m.dev, m.mount_point.as_str()))
            .collect();
        assert_eq!(seen, [("vda", (254 << 20) | 1, "/"), ("vdb", 44, "/mnt")]);
    }
}
