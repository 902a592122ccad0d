//! What a session says in the end: its devices, and the counts of its disks.

use nestrace_trace::manifest::{self, GuestDisk, Topology};

use super::Session;
use crate::link::chains::DiskChains;
use crate::link::clock::{BY_REQUESTS, BY_REQUESTS_OF_OTHERS, ClockSummary, DeviceDisk};
use crate::measure::clues::CallWaits;
use crate::measure::device::DeviceMeter;
use crate::model::clocks::{GuestNs, HostNs};
use crate::result::analysis::{ClockPiece, Device, ReadWrite, TimePiece};
use crate::result::side::Side;
use crate::result::unlinked::UnlinkedReason;

/// What was asked for of a recording, on the host's clock; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostStretch {
    pub from_ns: Option<HostNs>,
    pub to_ns: Option<HostNs>,
}

impl Session {
    /// `chains[]` of a disk, but for its names.
    pub(crate) fn chains_of(&self, disk: usize) -> Option<DiskSummary<'_>> {
        let counts = self.disks.get(disk)?;
        let dev = self.about(disk)?.dev;
        let meter = self
            .block
            .gathered
            .devices
            .iter()
            .find(|meter| meter.dev == dev)?;
        let metered = counts.metered(meter)?;
        Some(DiskSummary {
            guest_bios: counts.bios.saturating_sub(metered.refused),
            guest_requests: metered.issued.saturating_sub(counts.requeues) + metered.flushes,
            bytes: metered.bytes,
            flushes: metered.flushes,
            chains: &counts.chains,
            open: self.reason_of_open(),
        })
    }

    /// What the calls on a disk's file systems waited for; `device` is its place among the guest's disks.
    pub(crate) fn call_waits(&self, device: usize) -> CallWaits {
        let disk = self.disks.get(device);
        let mounted = disk.map(|disk| disk.clues.mounted());
        self.calls.waits(mounted.unwrap_or_default(), &self.side)
    }

    /// What the manifest says of one of [`Session::disks`].
    pub(crate) fn about(&self, device: usize) -> Option<&GuestDisk> {
        self.numbers_of_disks.about(device, &self.side)
    }

    /// Why it is not known which of QEMU's disks one of [`Session::disks`] is; `None` where it is known.
    pub(crate) fn why_no_disk(&self, clock: &ClockSummary, device: usize) -> Option<String> {
        if device >= self.side.disks.len() {
            return Some(String::from(
                "another disk got its device number then, and nothing tells which of the two it was",
            ));
        }
        match clock.devices.get(device)? {
            DeviceDisk::Is { .. } => None,
            DeviceDisk::OneOf(_) => Some(String::from(
                "neither serial number, bus, size nor the requests tell which of QEMU's disks it is",
            )),
            DeviceDisk::Unknown { reason } => {
                Some(format!("{reason}; it may have been plugged in later"))
            }
        }
    }

    /// Why what has no decision at the end has none.
    pub(super) fn reason_of_open(&self) -> UnlinkedReason {
        if self.reasons.lost_so_far || self.reasons.lost_sometime {
            UnlinkedReason::LostEvents
        } else {
            UnlinkedReason::AfterEnd
        }
    }

    /// `devices[]` of this guest; the recording began at `host_start_ns`, and what lies in `selected` was asked for.
    pub(crate) fn devices(
        &mut self,
        host_start_ns: HostNs,
        selected: HostStretch,
        stretches: &[ClockPiece],
    ) -> Vec<Device> {
        let topology = self.topology();
        let (begin_ns, end_ns) = self.recorded(selected);
        let name = |dev: u32| crate::measure::device::major_minor(dev);
        let timeline = self.timeline(begin_ns, host_start_ns, stretches);
        let meters = self.block.gathered.devices.iter_mut();
        let finish = |meter: &mut DeviceMeter| {
            let mut device = meter.finish(&topology, end_ns.0, end_ns.since(begin_ns));
            device.side = Side::Guest;
            device.guest = Some(self.side.guest.clone());
            device.figures.timeline.clone_from(&timeline);
            if !meter.light {
                device.users = Some(meter.users.finish(&|_| None, &[], &name));
                let disk = self.side.disks.iter().position(|it| it.dev == meter.dev);
                let disk = disk.and_then(|disk| self.disks.get(disk));
                device.files = disk.map(|disk| disk.clues.files(&self.side.mounts));
            }
            device
        };
        meters.filter(|meter| meter.has_io()).map(finish).collect()
    }

    /// From when to when the session recorded, of what lies in `selected`.
    fn recorded(&self, selected: HostStretch) -> (GuestNs, GuestNs) {
        let begin_ns = match self.side.start_mono_ns {
            0 => self.first_ns.unwrap_or(0),
            start_ns => start_ns,
        };
        let end_ns = self.side.end_mono_ns.max(self.last_ns).max(begin_ns);
        let (begin_ns, end_ns) = (GuestNs(begin_ns), GuestNs(end_ns));
        let since = |limit_ns: Option<HostNs>, otherwise_ns: GuestNs| {
            limit_ns.map_or(otherwise_ns, |host_ns| {
                self.first_since(host_ns, (begin_ns, end_ns))
            })
        };
        let from_ns = since(selected.from_ns, begin_ns);
        (from_ns, since(selected.to_ns, end_ns).max(from_ns))
    }

    /// The first of the guest's times that are not before this one of the host; by halving, since a guest's
    /// time never goes back. Where the clock is not known, everything was taken.
    fn first_since(&self, host_ns: HostNs, (begin_ns, end_ns): (GuestNs, GuestNs)) -> GuestNs {
        let is_before = |guest_ns: u64| {
            let at_ns = self.host_time(GuestNs(guest_ns));
            at_ns.is_some_and(|at_ns| at_ns < host_ns)
        };
        let (mut low, mut high) = (begin_ns.0, end_ns.0);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        GuestNs(low)
    }

    /// Where the session's times, counted from `begin_ns`, lie in the recording.
    fn timeline(
        &self,
        begin_ns: GuestNs,
        host_start_ns: HostNs,
        stretches: &[ClockPiece],
    ) -> Vec<TimePiece> {
        // Damaged times are far apart.
        let (begin, host_start) = (i128::from(begin_ns.0), i128::from(host_start_ns.0));
        let piece = |from_guest_ns: i128, offset_ns: i128| {
            let ahead_ns = begin - offset_ns - host_start;
            Some(TimePiece {
                from_ns: u64::try_from((from_guest_ns - begin).max(0)).ok()?,
                ahead_ns: i64::try_from(ahead_ns).ok()?,
            })
        };
        if stretches.is_empty() {
            let host_ns = self.host_time(begin_ns);
            let host_ns = host_ns.map(|host_ns| i128::from(host_ns.0));
            return host_ns
                .and_then(|host_ns| piece(begin, begin - host_ns))
                .into_iter()
                .collect();
        }
        let pieces = stretches.iter().filter_map(|stretch| {
            let offset_ns = i128::from(stretch.offset_ns);
            let host_ns = host_start + i128::from(stretch.from_ns);
            piece(host_ns + offset_ns, offset_ns)
        });
        pieces.collect()
    }

    /// The guest's disks as the host's are described.
    fn topology(&self) -> Topology {
        let devices = self.side.disks.iter().map(|disk| {
            let mut device = manifest::Device::default();
            device.name.clone_from(&disk.name);
            device.dev = disk.dev;
            device.scheduler.clone_from(&disk.scheduler);
            device
        });
        let mut topology = Topology::default();
        topology.devices.extend(devices);
        topology
    }
}

/// A disk's counts, and what became of its bios.
pub(crate) struct DiskSummary<'a> {
    pub guest_bios: u64,
    pub guest_requests: u64,
    /// Bytes that its requests have moved.
    pub bytes: ReadWrite,
    /// Flushes that were issued to it.
    pub flushes: u64,
    pub chains: &'a DiskChains,
    /// Why bios have no end.
    pub open: UnlinkedReason,
}

/// The disk of QEMU that a device of the guest is, by its place among the guest's disks.
pub(crate) fn disk_of(clock: &ClockSummary, device: usize) -> Option<u32> {
    match clock.devices.get(device) {
        Some(DeviceDisk::Is { disk, .. }) => Some(*disk),
        Some(_) => None,
        None => u32::try_from(device).ok(),
    }
}

/// The disk of a device that its requests distinguished from others that look the same, and why in words.
pub(crate) fn told_by_requests(clock: &ClockSummary, device: usize) -> Option<(u32, &'static str)> {
    match clock.devices.get(device)? {
        DeviceDisk::Is { disk, proof } if *proof == BY_REQUESTS => {
            Some((*disk, "no other disk had its requests"))
        }
        DeviceDisk::Is { disk, proof } if *proof == BY_REQUESTS_OF_OTHERS => {
            Some((*disk, "the others were told by their requests"))
        }
        _ => None,
    }
}
