//! Whether a disk that a guest lists is one that QEMU has, or that the guest listed before.

use super::{Disk, GuestDisk};

/// What virtio-blk and IDE show of a serial number.
const SERIAL_SHOWN: usize = 20;

impl GuestDisk {
    /// Whether it is the disk that was listed as `before`, and not another one that has its number by now.
    #[must_use]
    pub fn is_still(&self, before: &Self) -> bool {
        (self.dev, self.diskseq) == (before.dev, before.diskseq)
            && (&self.serial, &self.sysfs_path) == (&before.serial, &before.sysfs_path)
    }

    /// Whether it shows the serial number that was given to this disk of QEMU's. Two disks may have the same.
    #[must_use]
    pub fn has_serial_of(&self, disk: &Disk) -> bool {
        let (shown, given) = (self.serial.trim(), disk.serial.as_deref().unwrap_or(""));
        let cut = given.get(..SERIAL_SHOWN).unwrap_or(given);
        !shown.is_empty() && (shown == given || shown == cut)
    }

    /// Whether it has the bus and the size of this disk of QEMU's. What is unknown does not differ.
    #[must_use]
    pub fn is_like(&self, disk: &Disk) -> bool {
        let is_size_known = self.size != 0 && disk.virtual_size != 0;
        let has_size = !is_size_known || self.size == disk.virtual_size;
        let is_bus_known = !disk.bus.is_empty();
        let has_bus = |buses: &[&str]| !is_bus_known || buses.contains(&disk.bus.as_str());
        has_size && self.buses().is_none_or(has_bus)
    }

    /// The buses that its name, driver and place tell of; `None` where they do not.
    fn buses(&self) -> Option<&'static [&'static str]> {
        let path = self.sysfs_path.as_str();
        if self.driver.contains("virtio_blk") || self.name.starts_with("vd") {
            Some(&["virtio-blk"])
        } else if self.name.starts_with("nvme") {
            Some(&["nvme"])
        } else if path.contains("/usb") {
            Some(&["usb"])
        } else if path.contains("/ata") {
            Some(&["ide", "sata", "ahci"])
        } else if path.contains("/virtio") {
            Some(&["virtio-scsi"])
        } else {
            None
        }
    }
}
