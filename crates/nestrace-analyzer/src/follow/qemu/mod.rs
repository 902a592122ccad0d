//! QEMU's requests: from `block_acct_start` to their completion notification, disk by disk.
//!
//! Counts are QEMU's own: an I/O counts at `block_acct_done`, with the bytes that it was started
//! with. Its latency ends with the completion notification to the guest where that was recorded
//! (`virtqueue_push`, which comes before `block_acct_done`).

mod again;
mod backend;
mod bus;
mod meter;
mod opaque;
mod requests;

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;
use nestrace_trace::manifest::{Guest, Manifest, Notice};

use crate::follow::image::{DiskRef, Images};
use crate::measure::overlap::{Activity, Clocks};
use crate::model::pointer::PointerMap;
use crate::result::analysis::{QemuDisk, ReadWrite};
use crate::result::sums;

use backend::Backends;
use bus::{Bus, Buses};
use meter::{Meter, merges};
use opaque::{AioCalls, Deltas};
pub(crate) use requests::{Call, Ended, Step};
use requests::{Requests, Tie};

/// QEMU's `enum BlockAcctType` (`include/block/accounting.h`).
const TYPES: usize = 5;
const READ: usize = 1;
const WRITE: usize = 2;
const FLUSH: usize = 3;
const UNMAP: usize = 4;
/// In the order of [`sums::OPERATIONS`].
const OPERATIONS: [usize; sums::OPERATIONS.len()] = [READ, WRITE, UNMAP, FLUSH];

/// A request between start and done.
#[derive(Clone, Debug)]
struct Request {
    stats: u64,
    kind: usize,
    bytes: u64,
    tid: u32,
    start_ns: u64,
    disk: Option<u32>,
    clocks: Clocks,
    /// The completion notification: its time, and the disk's clocks then.
    handed_back: Option<(u64, Clocks)>,
    /// Distances to the `blk_aio_*` calls that may be its own.
    deltas: Deltas,
}

/// How a disk's requests overlapped the host's work: sums over requests with a known disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overlap {
    pub requests: u64,
    pub latency_ns: u64,
    pub clocks: Clocks,
    /// Reads with data.
    pub reads: u64,
    /// Writes with data.
    pub writes: u64,
    /// Those during which no file I/O began that changes one of the disk's images.
    pub writes_alone: u64,
}

impl Overlap {
    /// Counts a request by what it moved; file I/O that changes an image began last at `last_change_ns`.
    fn moved(&mut self, request: &Request, last_change_ns: Option<u64>) {
        match request.kind {
            READ if request.bytes > 0 => self.reads += 1,
            WRITE if request.bytes > 0 => {
                self.writes += 1;
                let alone = last_change_ns.is_none_or(|ns| ns < request.start_ns);
                self.writes_alone += u64::from(alone);
            }
            _ => {}
        }
    }
}

/// One QEMU.
#[derive(Debug, Default)]
struct QemuProcess {
    in_flight: PointerMap<u64, Request>,
    meters: PointerMap<u64, Meter>,
    backends: Backends,
    calls: AioCalls,
    recorded: bool,
    buses: Buses,
    /// Requests one by one; `None` unless asked for.
    requests: Option<Box<Requests>>,
}

/// Every QEMU of the recording.
#[derive(Debug, Default)]
pub(crate) struct Qemu {
    processes: Vec<QemuProcess>,
    /// By the numbers of [`Images::disks`].
    pub overlap: Vec<Overlap>,
}

/// What the requests' overlap is measured with.
pub(crate) struct Disks<'a> {
    pub images: &'a Images,
    pub activity: &'a mut [Activity],
}

impl Disks<'_> {
    fn number(&self, guest: usize, disk: u32) -> Option<u32> {
        let found = self
            .images
            .disks
            .iter()
            .position(|known| known.guest as usize == guest && known.disk == disk);
        found.and_then(|number| u32::try_from(number).ok())
    }

    fn of(&mut self, disk: Option<u32>) -> Option<&mut Activity> {
        self.activity.get_mut(disk? as usize)
    }
}

/// Whether the recording has no function of a guest's QEMU, but its file I/O: what knows no probes has what its events say.
pub(crate) fn has_no_functions(manifest: &Manifest, guest: &str) -> bool {
    let mut probes = manifest.probes.iter();
    probes.any(|probe| probe.source == Source::File.name()) && !has_functions(manifest, guest)
}

/// Whether probes were on functions of a guest's QEMU.
pub(crate) fn has_functions(manifest: &Manifest, guest: &str) -> bool {
    manifest
        .probes
        .iter()
        .any(|probe| probe.source == Source::Qemu.name() && probe.guest.as_deref() == Some(guest))
}

impl Qemu {
    pub(crate) fn new(guests: &[Guest], notices: &[Notice], n_disks: usize) -> Self {
        let processes = guests
            .iter()
            .map(|guest| QemuProcess {
                backends: Backends::new(guest, backend::first_opened_ns(notices, guest)),
                buses: Buses::new(guest),
                ..QemuProcess::default()
            })
            .collect();
        Self {
            processes,
            overlap: vec![Overlap::default(); n_disks],
        }
    }

    pub(crate) fn push(&mut self, kind: Kind, event: &Event, disks: &mut Disks<'_>) {
        let guest = event.dev as usize;
        let Some(process) = self.processes.get_mut(guest) else {
            return;
        };
        process.recorded = true;
        if kind.is_aio_call() && process.backends.saw_backend(event.backend()) {
            process.take_back(guest, disks, &mut self.overlap);
        }
        match kind {
            Kind::AcctStart => process.start(guest, event, disks, &mut self.overlap),
            Kind::AcctDone | Kind::AcctFailed => {
                process.done(kind, event, disks, &mut self.overlap);
            }
            Kind::AcctInvalid => process.meters.entry(event.stats()).or_default().invalid += 1,
            Kind::AioPreadv => process.aio(READ, event),
            Kind::AioPwritev => process.aio(WRITE, event),
            Kind::AioPwriteZeroes => {
                process.zeroes(guest, event, disks);
                process.aio(WRITE, event);
            }
            Kind::AioFlush => process.aio(FLUSH, event),
            Kind::AioPdiscard => process.aio(UNMAP, event),
            Kind::VirtqueuePush => process.hand_back(event, disks),
            _ => {}
        }
    }

    /// Events are missing: every request in flight may have ended, and its end may be another's.
    pub(crate) fn interrupted(&mut self, ts_ns: u64, disks: &mut Disks<'_>) {
        for process in &mut self.processes {
            for (cookie, request) in process.in_flight.drain() {
                process.calls.ended(request.tid, cookie);
                leave(&request, ts_ns, disks);
            }
            if let Some(requests) = &mut process.requests {
                requests.interrupted();
            }
        }
    }

    /// Asks for requests one by one.
    pub(crate) fn follow_requests(&mut self) {
        for (guest, process) in (0u32..).zip(&mut self.processes) {
            process.requests = Some(Box::new(Requests::new(guest)));
        }
    }

    /// What a guest's requests did since this was last asked for.
    pub(crate) fn steps(&mut self, guest: u32) -> Vec<Step> {
        let process = self.processes.get_mut(guest as usize);
        let requests = process.and_then(|process| process.requests.as_mut());
        requests.map_or_else(Vec::new, |requests| std::mem::take(&mut requests.steps))
    }

    /// Whether a disk is on virtio-blk, as far as its requests tell.
    pub(crate) fn is_virtio_blk(&self, disk: &DiskRef) -> bool {
        let process = self.processes.get(disk.guest as usize);
        process.is_some_and(|process| process.buses.is_virtio_blk(disk.disk))
    }

    /// Bytes read and written, and flushes, of a disk so far.
    pub(crate) fn so_far(&self, disk: &DiskRef, guest: &Guest) -> (ReadWrite, u64) {
        let (mut bytes, mut flushes) = (ReadWrite::default(), 0);
        let Some(process) = self.processes.get(disk.guest as usize) else {
            return (bytes, flushes);
        };
        let disks = process
            .backends
            .assign(guest, process.meters.keys().copied());
        for (stats, meter) in &process.meters {
            if disks.get(stats).copied().flatten() == Some(disk.disk) {
                bytes.read += meter.bytes[READ];
                bytes.write += meter.bytes[WRITE];
                flushes += meter.done[FLUSH];
            }
        }
        (bytes, flushes)
    }

    /// `qemu[]`.
    pub(crate) fn finish(&self, guests: &[Guest], probed: impl Fn(&str) -> bool) -> Vec<QemuDisk> {
        let mut disks = Vec::new();
        for (process, guest) in self.processes.iter().zip(guests) {
            if process.recorded || probed(&guest.name) {
                disks.extend(process.finish(guest));
            }
        }
        disks
    }
}

impl QemuProcess {
    fn start(
        &mut self,
        guest: usize,
        event: &Event,
        disks: &mut Disks<'_>,
        overlap: &mut [Overlap],
    ) {
        if self.backends.saw_stats(event.stats(), event.ts_ns) {
            self.take_back(guest, disks, overlap);
        }
        let disk = self
            .backends
            .disk_of_stats(event.stats())
            .and_then(|disk| disks.number(guest, disk));
        let mut clocks = Clocks::default();
        if let Some(activity) = disks.of(disk) {
            clocks = activity.clocks(event.ts_ns);
            activity.qemu += 1;
        }
        let request = Request {
            stats: event.stats(),
            kind: usize::from(event.sub),
            bytes: event.bytes,
            tid: event.tid,
            start_ns: event.ts_ns,
            disk,
            clocks,
            handed_back: None,
            deltas: Deltas::default(),
        };
        self.calls.started(event.tid, event.object);
        if let Some(requests) = &mut self.requests {
            requests.started(event);
        }
        // A request that was stopped by an error and restarted starts again with the same cookie.
        if let Some(old) = self.in_flight.insert(event.object, request) {
            self.calls.ended(old.tid, event.object);
            leave(&old, event.ts_ns, disks);
        }
    }

    /// What was taken for the guest's only disk may be another one.
    fn take_back(&mut self, guest: usize, disks: &mut Disks<'_>, overlap: &mut [Overlap]) {
        let only = disks.number(guest, 0);
        if let Some(overlap) = only.and_then(|disk| overlap.get_mut(disk as usize)) {
            *overlap = Overlap::default();
        }
        if let Some(activity) = disks.of(only) {
            activity.qemu = 0;
        }
        for request in self.in_flight.values_mut() {
            request.disk = None;
        }
    }

    fn aio(&mut self, kind: usize, event: &Event) {
        let disk = self.backends.disk_of_backend(event.backend());
        let bus = self.buses.called(disk, event.object);
        self.calls.recorded = true;
        // IDE's cookie lies in its drive, at a constant distance too: it must not be taken for this one.
        if bus == Bus::VirtioBlk {
            self.vote(kind, event);
        }
        let Some(requests) = &mut self.requests else {
            return;
        };
        let tie = Tie {
            disk,
            bus,
            by_distance: self.calls.cookie_of(event.object),
        };
        if let Some(kind) = event.kind() {
            requests.called(kind, event, tie);
        }
    }

    /// What is zero already needs no file I/O.
    fn zeroes(&self, guest: usize, event: &Event, disks: &mut Disks<'_>) {
        let disk = self.backends.disk_of_backend(event.backend());
        let disk = disk.and_then(|disk| disks.number(guest, disk));
        if let Some(activity) = disks.of(disk) {
            activity.last_change_ns = Some(event.ts_ns);
        }
    }

    /// Lets the call say at which distance its own request may be.
    fn vote(&mut self, kind: usize, event: &Event) {
        let in_flight = &mut self.in_flight;
        self.calls.called(event.tid, event.object, |cookie, delta| {
            if let Some(request) = in_flight.get_mut(&cookie)
                && request.kind == kind
            {
                request.deltas.add(delta);
                return true;
            }
            false
        });
    }

    fn hand_back(&mut self, event: &Event, disks: &mut Disks<'_>) {
        self.buses.pushed(event.object);
        if let Some(requests) = &mut self.requests {
            requests.pushed(event);
        }
        let Some(cookie) = self.calls.cookie_of(event.object) else {
            return;
        };
        if let Some(requests) = &mut self.requests {
            requests.handed_back(cookie, event);
        }
        let Some(request) = self.in_flight.get_mut(&cookie) else {
            return;
        };
        if request.handed_back.is_none() {
            let clocks = disks.of(request.disk).map(|activity| {
                let clocks = activity.clocks(event.ts_ns);
                activity.qemu = activity.qemu.saturating_sub(1);
                clocks
            });
            request.handed_back = Some((event.ts_ns, clocks.unwrap_or_default()));
        }
    }

    fn done(&mut self, kind: Kind, event: &Event, disks: &mut Disks<'_>, overlap: &mut [Overlap]) {
        if let Some(requests) = &mut self.requests {
            let disk = self.backends.disk_of_stats(event.stats());
            requests.ended(event.object, kind == Kind::AcctFailed, disk, event);
        }
        let Some(request) = self.in_flight.remove(&event.object) else {
            self.meters.entry(event.stats()).or_default().unlinked += 1;
            return;
        };
        self.calls.ended(request.tid, event.object);
        leave(&request, event.ts_ns, disks);
        let meter = self.meters.entry(request.stats).or_default();
        let kind_index = request.kind;
        if kind == Kind::AcctFailed {
            meter.failed += 1;
            return;
        }
        if kind_index >= TYPES {
            return;
        }
        meter.done[kind_index] += 1;
        // A guest may well discard a huge disk again and again.
        meter.bytes[kind_index] = meter.bytes[kind_index].saturating_add(request.bytes);
        for delta in request.deltas.iter() {
            meter.own_aio.entry(delta).or_default()[kind_index] += 1;
        }
        let (end_ns, end_clocks) = match request.handed_back {
            Some((ts_ns, clocks)) => {
                meter.ended_by_push += 1;
                (ts_ns, clocks)
            }
            None => (
                event.ts_ns,
                disks
                    .of(request.disk)
                    .map(|activity| activity.clocks(event.ts_ns))
                    .unwrap_or_default(),
            ),
        };
        let latency_ns = end_ns.saturating_sub(request.start_ns);
        let last_change_ns = disks
            .of(request.disk)
            .and_then(|activity| activity.last_change_ns);
        meter.latency[kind_index].record(latency_ns);
        if let Some(place) = OPERATIONS.iter().position(|kind| *kind == kind_index) {
            let sums = meter.series.at(end_ns);
            sums.latency[place].record(latency_ns);
            sums.bytes[place] = sums.bytes[place].saturating_add(request.bytes);
        }
        if let Some(overlap) = request.disk.and_then(|disk| overlap.get_mut(disk as usize)) {
            let passed = end_clocks.since(request.clocks);
            overlap.requests += 1;
            overlap.moved(&request, last_change_ns);
            overlap.latency_ns = overlap.latency_ns.saturating_add(latency_ns);
            overlap.clocks.file_ns = overlap.clocks.file_ns.saturating_add(passed.file_ns);
            overlap.clocks.queue_ns = overlap.clocks.queue_ns.saturating_add(passed.queue_ns);
            overlap.clocks.device_ns = overlap.clocks.device_ns.saturating_add(passed.device_ns);
        }
    }

    fn finish(&self, guest: &Guest) -> Vec<QemuDisk> {
        let delta = self.calls.distance();
        let stats_disks = self.backends.assign(guest, self.meters.keys().copied());
        let mut disks = Vec::new();
        for (index, disk) in guest.disks.iter().enumerate() {
            let mut sum = Meter::default();
            for (stats, meter) in &self.meters {
                if stats_disks.get(stats).copied().flatten() == Some(index as u32) {
                    sum.merge(meter);
                }
            }
            let merges = merges(&sum, &disk.bus, delta).filter(|_| self.calls.recorded);
            disks.push(sum.finish(&guest.name, Some(disk.name.clone()), merges));
        }
        let mut strays = Meter::default();
        for (stats, meter) in &self.meters {
            if stats_disks.get(stats).copied().flatten().is_none() {
                strays.merge(meter);
            }
        }
        if strays.has_io() {
            disks.push(strays.finish(&guest.name, None, None));
        }
        disks
    }
}

/// A request leaves QEMU, unless it did with its completion notification.
fn leave(request: &Request, ts_ns: u64, disks: &mut Disks<'_>) {
    if request.handed_back.is_none()
        && let Some(activity) = disks.of(request.disk)
    {
        activity.advance(ts_ns);
        activity.qemu = activity.qemu.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
