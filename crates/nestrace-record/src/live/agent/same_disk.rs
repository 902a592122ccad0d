//! Which disk of a guest is which of QEMU's.

use std::collections::BTreeMap;

use nestrace_trace::manifest::{Disk, GuestDisk};

/// Names of QEMU's disks by the guest's device numbers: by serial number, else by bus and size, where nothing else fits.
pub(super) fn same_disks(devices: &[GuestDisk], disks: &[(String, Disk)]) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    let by_serial = |device: &GuestDisk, disk: &Disk| device.has_serial_of(disk);
    take(devices, disks, by_serial, &mut found);
    // Of two serial numbers that differ, each is another disk's.
    let is_alike = |device: &GuestDisk, disk: &Disk| {
        device.is_like(disk) && (disk.serial.is_none() || device.serial.is_empty())
    };
    take(devices, disks, is_alike, &mut found);
    found
}

/// Takes pairs that are each other's only choice among those that are left.
fn take(
    devices: &[GuestDisk],
    disks: &[(String, Disk)],
    fits: impl Fn(&GuestDisk, &Disk) -> bool,
    found: &mut BTreeMap<u32, String>,
) {
    let left_devices: Vec<&GuestDisk> = devices
        .iter()
        .filter(|device| !found.contains_key(&device.dev))
        .collect();
    let left_disks: Vec<&(String, Disk)> = disks
        .iter()
        .filter(|(name, _)| !found.values().any(|taken| taken == name))
        .collect();
    for device in &left_devices {
        let mut choice = left_disks.iter().filter(|(_, disk)| fits(device, disk));
        let (Some((name, disk)), None) = (choice.next(), choice.next()) else {
            continue;
        };
        let rivals = left_devices.iter().filter(|other| fits(other, disk));
        if rivals.count() == 1 {
            found.insert(device.dev, name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, serial: Option<&str>, size: u64) -> (String, Disk) {
        let disk = Disk {
            name: name.to_owned(),
            bus: "virtio-blk".to_owned(),
            serial: serial.map(str::to_owned),
            virtual_size: size,
            ..Disk::default()
        };
        (name.to_owned(), disk)
    }

    fn device(dev: u32, serial: &str, size: u64) -> GuestDisk {
        GuestDisk {
            name: format!("vd{dev}"),
            dev,
            serial: serial.to_owned(),
            size,
            ..GuestDisk::default()
        }
    }

    fn check(devices: &[GuestDisk], disks: &[(String, Disk)], expected: &[(u32, &str)]) {
        let found = same_disks(devices, disks);
        let found: Vec<_> = found
            .iter()
            .map(|(dev, name)| (*dev, name.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_serial_number_decides_and_then_bus_and_size() {
        let disks = [
            disk("a", Some("A"), 1),
            disk("b", None, 1),
            disk("c", None, 2),
        ];
        let devices = [device(1, "A", 1), device(2, "", 1), device(3, "", 2)];
        check(&devices, &disks, &[(1, "a"), (2, "b"), (3, "c")]);
    }

    #[test]
    fn what_is_ambiguous_is_no_one_s() {
        let alike = [disk("a", None, 1), disk("b", None, 1)];
        check(&[device(1, "", 1), device(2, "", 1)], &alike, &[]);
        check(&[device(1, "", 1)], &alike, &[]);
        // Two paths to one disk.
        let one = [disk("a", Some("A"), 1)];
        check(&[device(1, "A", 1), device(2, "A", 1)], &one, &[]);
        // Another serial number is another disk.
        check(&[device(1, "B", 1)], &one, &[]);
        check(&[device(1, "", 1)], &one, &[(1, "a")]);
    }
}
