//! Which part of a device a file system or a block device image takes. Bios carry the whole disk's number and
//! a place on it, so that two partitions of one disk are distinguished by the place alone.

use nestrace_trace::manifest::{Device, Topology};

/// A whole disk, or the part of it that a partition takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The whole disk, `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// Bytes on it: begin, and end (exclusive).
    range: (u64, u64),
}

impl Extent {
    /// All of a disk.
    pub(super) const fn whole(dev: u32) -> Self {
        Self {
            dev,
            range: (0, u64::MAX),
        }
    }

    /// The device of this name; a partition is a part of its disk, if the recording says which.
    pub(super) fn named(topology: &Topology, name: &str) -> Option<Self> {
        let device = device_named(topology, name)?;
        if device.kind != "partition" {
            return Some(Self::whole(device.dev));
        }
        let disk = disk_of(topology, device)?;
        // No partition begins at 0: older recordings do not say where.
        let range = match device.start {
            0 => (0, u64::MAX),
            start => (start, start.saturating_add(device.size)),
        };
        Some(Self {
            dev: disk.dev,
            range,
        })
    }

    /// Whether something at `offset` of a disk is in it; what has no place, such as a flush, can be.
    pub(super) fn holds(&self, dev: u32, offset: Option<u64>) -> bool {
        let (start, end) = self.range;
        self.dev == dev && offset.is_none_or(|offset| (start..end).contains(&offset))
    }
}

/// The device of this name.
pub(crate) fn device_named<'a>(topology: &'a Topology, name: &str) -> Option<&'a Device> {
    let mut devices = topology.devices.iter();
    devices.find(|device| device.name == name)
}

/// The disk that a device is, or is a partition of, if the recording says which.
pub(crate) fn disk_of<'a>(topology: &'a Topology, device: &'a Device) -> Option<&'a Device> {
    match device.kind.as_str() {
        "partition" => device_named(topology, device.beneath.first()?),
        _ => Some(device),
    }
}

/// What images lie on: a file system on one device, or a block device that is an image itself.
#[derive(Debug)]
pub(crate) struct Volume {
    extent: Extent,
    /// Not a block device that a guest has for itself.
    pub is_file_system: bool,
    /// Index into [`Images::disks`](super::Images::disks) of each disk with an image on it.
    pub disks: Vec<u32>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Vec<Volume>);

impl Volumes {
    /// A disk has an image there.
    pub(super) fn add(&mut self, extent: Extent, is_file_system: bool, disk: u32) {
        let same =
            |known: &&mut Volume| known.extent == extent && known.is_file_system == is_file_system;
        match self.0.iter_mut().find(same) {
            Some(known) if known.disks.contains(&disk) => {}
            Some(known) => known.disks.push(disk),
            None => self.0.push(Volume {
                extent,
                is_file_system,
                disks: vec![disk],
            }),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&Volume> {
        self.0.get(number as usize)
    }

    /// Those that something at `offset` of a disk can be of, with their numbers.
    pub(super) fn at(&self, dev: u32, offset: Option<u64>) -> impl Iterator<Item = (u32, &Volume)> {
        let all = (0u32..).zip(&self.0);
        all.filter(move |(_, volume)| volume.extent.holds(dev, offset))
    }
}

#[cfg(test)]
mod tests {
    use nestrace_trace::manifest::Device;

    use super::*;

    fn topology() -> Topology {
        let device = |name: &str, dev, kind: &str, beneath: &[&str], start, size| Device {
            name: name.into(),
            dev,
            kind: kind.into(),
            beneath: beneath.iter().map(|name| (*name).into()).collect(),
            start,
            size,
            ..Device::default()
        };
        Topology {
            devices: vec![
                device("vda", 10, "disk", &[], 0, 900),
                device("vda1", 11, "partition", &["vda"], 100, 200),
                device("vda2", 12, "partition", &["vda"], 300, 600),
                device("old1", 21, "partition", &["vda"], 0, 200),
                device("orphan1", 31, "partition", &["gone"], 100, 200),
            ],
            ..Topology::default()
        }
    }

    #[test]
    fn a_partition_is_a_part_of_its_disk() {
        let topology = topology();
        let at = |name: &str, offset| {
            let extent = Extent::named(&topology, name).unwrap();
            assert_eq!(extent.dev, 10);
            extent.holds(10, offset)
        };
        for (name, offset, expected) in [
            ("vda", Some(0), true),
            ("vda1", Some(99), false),
            ("vda1", Some(100), true),
            ("vda1", Some(299), true),
            ("vda1", Some(300), false),
            ("vda2", Some(300), true),
            ("vda2", None, true),
            ("old1", Some(700), true),
        ] {
            assert_eq!(at(name, offset), expected, "{name} {offset:?}");
        }
        assert!(!Extent::named(&topology, "vda1").unwrap().holds(11, None));
        for unknown in ["orphan1", "vdb"] {
            assert_eq!(Extent::named(&topology, unknown), None);
        }
    }

    #[test]
    fn disks_are_told_apart_by_what_they_lie_on() {
        let topology = topology();
        let [one, two] = ["vda1", "vda2"].map(|name| Extent::named(&topology, name).unwrap());
        let mut volumes = Volumes::default();
        for (extent, is_file_system, disk) in [
            (one, true, 0),
            (one, true, 1),
            (one, true, 0),
            (two, true, 2),
            (two, false, 3),
        ] {
            volumes.add(extent, is_file_system, disk);
        }
        let at = |offset| -> Vec<(u32, bool, &[u32])> {
            let found = volumes.at(10, offset);
            found
                .map(|(number, volume)| (number, volume.is_file_system, volume.disks.as_slice()))
                .collect()
        };
        assert_eq!(at(Some(100)), [(0, true, [0, 1].as_slice())]);
        assert_eq!(
            at(Some(400)),
            [(1, true, [2].as_slice()), (2, false, [3].as_slice())]
        );
        assert_eq!(at(Some(50)), []);
        assert_eq!(at(None).len(), 3);
    }
}
