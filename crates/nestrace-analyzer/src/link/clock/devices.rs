//! Which device of the guest is which disk of QEMU.
//!
//! The manifest tells most of it: serial number, size, bus. Where disks are alike, their requests tell:
//! those of a device have their like on one disk and not on the others.

use std::collections::VecDeque;

use nestrace_trace::manifest::{Disk, GuestDisk};

use super::device_disk::DeviceDisk;
use super::election::{Election, Seen};
use super::pending::{DiskKey, Pending};
use super::request::{GuestRequest, UnpairedReason};
use super::timeline::Timeline;
use crate::model::clocks::GuestNs;

/// Requests that are asked at most.
const ASKED: usize = 256;
/// Requests of a device that have to be on one disk, and next to none on another, before the clock is known.
const VOTES_WITHOUT_CLOCK: usize = 16;
/// Requests that wait for their disk to be known.
const HELD: usize = 1 << 16;

/// Proof of a device whose requests are on no other disk.
pub(crate) const BY_REQUESTS: &str = "requests";
/// Proof of a device that is what is left once the others are known by theirs.
pub(crate) const BY_REQUESTS_OF_OTHERS: &str = "requests of the others";

/// For each device the disk, or those that it can be, by what the manifest says of both.
#[must_use]
pub fn match_disks(devices: &[GuestDisk], disks: &[Disk]) -> Vec<DeviceDisk> {
    let numbered = || (0u32..).zip(disks);
    let mut matched: Vec<DeviceDisk> = devices
        .iter()
        .map(|device| {
            let serials = numbered().filter(|(_, disk)| device.has_serial_of(disk));
            let serials: Vec<u32> = serials.map(|(number, _)| number).collect();
            if let [disk] = serials[..] {
                let proof = "serial";
                return DeviceDisk::Is { disk, proof };
            }
            let alike = numbered().filter(|(_, disk)| device.is_like(disk));
            DeviceDisk::OneOf(alike.map(|(number, _)| number).collect())
        })
        .collect();
    let proof = if disks.len() == 1 && devices.len() == 1 {
        "only disk"
    } else {
        "bus and size"
    };
    settle(&mut matched, proof);
    matched
}

/// Takes disks that are given away from the choice of the others, until nothing changes. A disk that
/// two devices can be is given to none.
fn settle(matched: &mut [DeviceDisk], proof: &'static str) {
    loop {
        let taken: Vec<u32> = matched
            .iter()
            .filter_map(|device| match device {
                DeviceDisk::Is { disk, .. } => Some(*disk),
                _ => None,
            })
            .collect();
        for device in matched.iter_mut() {
            if let DeviceDisk::OneOf(choice) = device {
                choice.retain(|disk| !taken.contains(disk));
                if choice.is_empty() {
                    *device = DeviceDisk::Unknown {
                        reason: String::from("no disk of this guest has its bus and size"),
                    };
                }
            }
        }
        let wanted = |wanted: u32| {
            let wants = |device: &&DeviceDisk| match device {
                DeviceDisk::OneOf(choice) => choice.contains(&wanted),
                _ => false,
            };
            matched.iter().filter(wants).count()
        };
        let certain = matched
            .iter()
            .enumerate()
            .find_map(|(i, device)| match device {
                DeviceDisk::OneOf(choice) if choice.len() == 1 && wanted(choice[0]) == 1 => {
                    Some((i, choice[0]))
                }
                _ => None,
            });
        let Some((i, disk)) = certain else {
            return;
        };
        matched[i] = DeviceDisk::Is { disk, proof };
    }
}

/// The devices of one guest while its requests come in.
#[derive(Debug, Default)]
pub(super) struct Devices {
    devices: Vec<DeviceDisk>,
    held: Vec<VecDeque<GuestRequest>>,
    elections: Vec<Election>,
    /// Without a clock tried again when so many are held.
    at: usize,
}

impl Devices {
    pub(super) fn new(devices: Vec<DeviceDisk>) -> Self {
        Self {
            held: devices.iter().map(|_| VecDeque::new()).collect(),
            elections: vec![Election::default(); devices.len()],
            devices,
            at: VOTES_WITHOUT_CLOCK,
        }
    }

    /// The disk of a device: `None` while the requests do not show it.
    pub(super) fn disk(&self, device: u32) -> Result<Option<u32>, UnpairedReason> {
        match self.devices.get(device as usize) {
            None => Ok(Some(device)),
            Some(DeviceDisk::Is { disk, .. }) => Ok(Some(*disk)),
            Some(DeviceDisk::OneOf(_)) => Ok(None),
            Some(DeviceDisk::Unknown { .. }) => Err(UnpairedReason::NoMatch),
        }
    }

    /// Keeps a request until its device's disk is known; gives back the oldest if they are too many.
    pub(super) fn hold(&mut self, request: GuestRequest) -> Option<GuestRequest> {
        let held = self.held.get_mut(request.device as usize)?;
        held.push_back(request);
        if held.len() <= HELD {
            return None;
        }
        if let Some(election) = self.elections.get_mut(request.device as usize) {
            election.oldest_gone();
        }
        held.pop_front()
    }

    /// D of the oldest request that is kept.
    pub(super) fn oldest_ns(&self) -> Option<GuestNs> {
        let oldest = |held: &VecDeque<GuestRequest>| held.front().map(|request| request.issued_ns);
        self.held.iter().filter_map(oldest).min()
    }

    /// Asks the requests; those whose disk is known now. `seen`: which of them can be asked, `None` while the
    /// clock is in doubt or the host's recording has gaps.
    pub(super) fn resolve(
        &mut self,
        pending: &Pending,
        timeline: &Timeline,
        seen: Option<Seen>,
        end: bool,
    ) -> Vec<(u32, GuestRequest)> {
        let most = self.held.iter().map(VecDeque::len).max().unwrap_or(0);
        if most == 0 {
            return Vec::new();
        }
        let disks = if timeline.is_empty() {
            if most < self.at && !end {
                return Vec::new();
            }
            self.at = (most.max(VOTES_WITHOUT_CLOCK) * 2).min(HELD);
            self.without_clock(pending)
        } else {
            seen.map_or_else(Vec::new, |seen| self.by_clock(pending, timeline, seen))
        };
        for (index, device) in self.devices.iter_mut().enumerate() {
            let mine = disks.get(index).copied().flatten();
            // Two devices are not one disk: one of them was reported wrong.
            let alone = disks.iter().filter(|disk| **disk == mine).count() == 1;
            if let Some(disk) = mine.filter(|_| alone) {
                let proof = BY_REQUESTS;
                *device = DeviceDisk::Is { disk, proof };
            }
        }
        settle(&mut self.devices, BY_REQUESTS_OF_OTHERS);
        let mut resolved = Vec::new();
        for (device, held) in self.devices.iter().zip(&mut self.held) {
            if let DeviceDisk::Is { disk, .. } = device {
                resolved.extend(held.drain(..).map(|request| (*disk, request)));
            }
        }
        resolved.sort_by_key(|(_, request)| request.completed_ns);
        resolved
    }

    /// By the requests that one disk alone has inside their time.
    fn by_clock(&mut self, pending: &Pending, timeline: &Timeline, seen: Seen) -> Vec<Option<u32>> {
        let held = self.held.iter().zip(&mut self.elections);
        let all = self.devices.iter().zip(held);
        let elected = all.map(|(device, (held, election))| match device {
            DeviceDisk::OneOf(choice) => {
                election.ask(choice, held, (pending, timeline), seen);
                election.elected(choice)
            }
            _ => None,
        });
        elected.collect()
    }

    /// By the requests that one disk has at any time, and the others have not.
    fn without_clock(&self, pending: &Pending) -> Vec<Option<u32>> {
        let all = self.devices.iter().zip(&self.held);
        let elected = all.map(|(device, held)| match device {
            DeviceDisk::OneOf(choice) => most_have(choice, held, pending),
            _ => None,
        });
        elected.collect()
    }

    /// Serials of requests whose device stayed unknown.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        let held = self.held.iter_mut().flat_map(|held| held.drain(..));
        held.map(|request| request.serial).collect()
    }

    pub(super) fn found(&self) -> Vec<DeviceDisk> {
        self.devices.clone()
    }
}

/// The disk that has most of the requests, if the others have next to none.
fn most_have(choice: &[u32], held: &VecDeque<GuestRequest>, pending: &Pending) -> Option<u32> {
    let votes = |disk: u32| {
        let is_on = |request: &&GuestRequest| {
            let key = DiskKey::new(disk, request.key);
            pending.hosts_with(key).next().is_some()
        };
        held.iter().take(ASKED).filter(is_on).count()
    };
    let mut votes: Vec<(usize, u32)> = choice.iter().map(|disk| (votes(*disk), *disk)).collect();
    votes.sort_unstable();
    let (best, disk) = votes.pop()?;
    let others: usize = votes.iter().map(|(n, _)| n).sum();
    (best >= VOTES_WITHOUT_CLOCK && others * 8 <= best).then_some(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(bus: &str, size: u64, serial: Option<&str>) -> Disk {
        Disk {
            bus: String::from(bus),
            virtual_size: size,
            serial: serial.map(String::from),
            ..Disk::default()
        }
    }

    fn device(name: &str, path: &str, size: u64, serial: &str) -> GuestDisk {
        GuestDisk {
            name: String::from(name),
            sysfs_path: String::from(path),
            size,
            serial: String::from(serial),
            ..GuestDisk::default()
        }
    }

    fn is(matched: &DeviceDisk) -> Option<(u32, &'static str)> {
        match matched {
            DeviceDisk::Is { disk, proof } => Some((*disk, proof)),
            _ => None,
        }
    }

    #[test]
    fn serial_first_then_bus_and_size_then_what_is_left() {
        let disks = [
            disk("virtio-scsi", 1 << 30, None),
            disk("ide", 1 << 30, None),
            disk(
                "virtio-blk",
                1 << 30,
                Some("a-serial-number-of-more-than-20"),
            ),
            disk("virtio-blk", 1 << 30, None),
        ];
        let devices = [
            device(
                "sda",
                "/devices/pci0000:00/0000:00:01.1/ata1/host0/block/sda",
                1 << 30,
                "QM00001",
            ),
            device(
                "sdb",
                "/devices/pci0000:00/0000:00:05.0/virtio2/host2/block/sdb",
                1 << 30,
                "",
            ),
            device(
                "vda",
                "/devices/pci0000:00/0000:00:04.0/virtio1/block/vda",
                1 << 30,
                "a-serial-number-of-m",
            ),
            device(
                "vdb",
                "/devices/pci0000:00/0000:00:06.0/virtio3/block/vdb",
                1 << 30,
                "",
            ),
        ];
        let matched = match_disks(&devices, &disks);
        let found: Vec<_> = matched.iter().map(is).collect();
        let by_bus = Some("bus and size");
        assert_eq!(found[2], Some((2, "serial")));
        assert_eq!(
            [found[0], found[1], found[3]].map(|of| of.map(|of| of.0)),
            [Some(1), Some(0), Some(3)]
        );
        assert!(
            [found[0], found[1], found[3]]
                .iter()
                .all(|of| of.map(|of| of.1) == by_bus)
        );
    }

    #[test]
    fn what_is_alike_stays_open() {
        let disks = [disk("virtio-blk", 512, None), disk("virtio-blk", 512, None)];
        let devices = [
            device("vda", "", 512, ""),
            device("vdb", "", 512, ""),
            device("vdc", "", 1024, ""),
        ];
        let matched = match_disks(&devices, &disks);
        assert_eq!(matched[0], DeviceDisk::OneOf(vec![0, 1]));
        assert_eq!(matched[1], DeviceDisk::OneOf(vec![0, 1]));
        assert!(matches!(matched[2], DeviceDisk::Unknown { .. }));
    }

    #[test]
    fn a_disk_that_two_can_be_is_given_to_none() {
        let disks = [disk("virtio-blk", 512, None)];
        let devices = [device("vda", "", 512, ""), device("vdb", "", 512, "")];
        let matched = match_disks(&devices, &disks);
        let found: Vec<_> = matched.iter().map(is).collect();
        assert_eq!(found, [None, None], "{matched:?}");
    }
}
