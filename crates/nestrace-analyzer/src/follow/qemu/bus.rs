//! Which disks are on virtio-blk, whose requests are tied in another way than those of other buses.
//!
//! A disk that was plugged in while somebody else held QEMU's monitor has no bus in the topology. On virtio-blk
//! the `opaque` of a `blk_aio_*` is the element that `virtqueue_push` gets later; no other bus pushes what it
//! called with.

use nestrace_trace::manifest::Guest;

use crate::model::pointer::PointerMap;

/// Elements that were called with: an address of another bus' may be used again for an element.
const ENOUGH: u32 = 3;
/// Calls that are remembered.
const MAX_CALLS: usize = 1 << 12;

/// How a disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bus {
    VirtioBlk,
    /// SCSI, IDE: a request's call comes right after its accounting.
    Other,
    Unknown,
}

/// The disks of one guest.
#[derive(Debug, Default)]
pub(super) struct Buses {
    of_disk: Vec<Bus>,
    /// Elements seen, by disk.
    elements: Vec<u32>,
    /// Disks by what they were called with.
    calls: PointerMap<u64, u32>,
}

impl Buses {
    pub(super) fn new(guest: &Guest) -> Self {
        let bus = |name: &str| match name {
            "virtio-blk" => Bus::VirtioBlk,
            "" => Bus::Unknown,
            _ => Bus::Other,
        };
        Self {
            of_disk: guest.disks.iter().map(|disk| bus(&disk.bus)).collect(),
            elements: vec![0; guest.disks.len()],
            calls: PointerMap::default(),
        }
    }

    /// A call of a disk, or of a backend that belongs to none.
    pub(super) fn called(&mut self, disk: Option<u32>, opaque: u64) -> Bus {
        let found = disk.and_then(|disk| Some((disk, *self.of_disk.get(disk as usize)?)));
        let Some((disk, bus)) = found else {
            return Bus::VirtioBlk;
        };
        if bus == Bus::Unknown {
            if self.calls.len() >= MAX_CALLS {
                self.calls.clear();
            }
            self.calls.insert(opaque, disk);
        }
        bus
    }

    /// What is known of a disk by now.
    pub(super) fn is_virtio_blk(&self, disk: u32) -> bool {
        self.of_disk.get(disk as usize) == Some(&Bus::VirtioBlk)
    }

    pub(super) fn pushed(&mut self, element: u64) {
        let Some(disk) = self.calls.remove(&element) else {
            return;
        };
        let seen = self.elements.get_mut(disk as usize);
        let Some((seen, bus)) = seen.zip(self.of_disk.get_mut(disk as usize)) else {
            return;
        };
        *seen += 1;
        if *seen >= ENOUGH {
            *bus = Bus::VirtioBlk;
            self.calls.retain(|_, other| *other != disk);
        }
    }
}

#[cfg(test)]
mod tests {
    use nestrace_trace::manifest::Disk;

    use super::*;

    fn buses(names: &[&str]) -> Buses {
        let disk = |name: &&str| Disk {
            bus: (*name).to_owned(),
            ..Disk::default()
        };
        Buses::new(&Guest {
            disks: names.iter().map(disk).collect(),
            ..Guest::default()
        })
    }

    #[test]
    fn elements_tell_an_unknown_bus() {
        let mut buses = buses(&["", "", "ide"]);
        for (request, before) in [Bus::Unknown, Bus::Unknown, Bus::Unknown, Bus::VirtioBlk]
            .into_iter()
            .enumerate()
        {
            let opaque = 0x1000 * (request as u64 + 1);
            assert_eq!(buses.called(Some(0), opaque), before);
            assert_eq!(buses.called(Some(1), opaque + 8), Bus::Unknown);
            assert_eq!(buses.called(Some(2), opaque), Bus::Other);
            assert_eq!(buses.is_virtio_blk(0), before == Bus::VirtioBlk);
            buses.pushed(opaque);
            buses.pushed(opaque);
        }
        assert_eq!(buses.called(None, 1), Bus::VirtioBlk);
        assert_eq!(buses.called(Some(9), 1), Bus::VirtioBlk);
    }

    #[test]
    fn calls_without_an_end_are_forgotten() {
        let mut buses = buses(&[""]);
        for opaque in 0..10 * MAX_CALLS as u64 {
            assert_eq!(buses.called(Some(0), opaque), Bus::Unknown);
            assert!(buses.calls.len() <= MAX_CALLS);
        }
    }
}
