//! What btt and vscsiStats say of a block device, on top of the block layer's identities.
//!
//! `block` follows bios and requests and records their latencies; here is what does not need an
//! identity of its own: sizes, merges, plugs, what waits at Q, active periods, processes, histograms by
//! operation and over time. [`BlockAnalyzer`](crate::BlockAnalyzer) puts it together for one machine, as btt does.
//!
//! Memory is bounded by the number of devices and processes, never by the length of the recording:
//! distributions are log-linear histograms ([`crate::measure::histogram`]), series have 64 slots, and counts of
//! single values are exact up to 16,384 of them.

mod active_periods;
mod arrival;
mod at_queue;
mod figures;
mod plug;
pub(crate) mod processes;
mod remapped;

pub(crate) use active_periods::ActivePeriodsMeter;
pub(crate) use processes::{ProcessId, ProcessMeter};

use nestrace_trace::Event;

use crate::measure::at_device::Change;
use crate::measure::collects::Collects;
use crate::measure::depth::DepthMeter;
use crate::measure::histogram::Histogram;
use crate::model::operation::Operation;
use crate::result::analysis::{self, Path, Q2d, Sizes};

use arrival::ArrivalMeter;
use at_queue::AtQueueMeter;
use plug::PlugMeter;
use processes::DeviceProcesses;
use remapped::RemapSources;

/// Bytes of a sector in the kernel's terms.
const SECTOR: u64 = 512;

/// Statistics of one device.
#[derive(Debug, Default)]
pub(crate) struct StatsMeter {
    collects: Collects,
    pub plug: PlugMeter,
    pub at_queue: AtQueueMeter,
    active: ActivePeriodsMeter,
    queued_sectors: Histogram,
    issued_sectors: Histogram,
    completed_sectors: Histogram,
    q2d: Histogram,
    q2d_below: [u64; 10],
    /// Sums along the way of each bio's last piece.
    pub path: Path,
    pub processes: DeviceProcesses,
    /// Q and process of bios on a device without requests.
    pub remapped: RemapSources<(u64, ProcessId)>,
    arrivals: ArrivalMeter,
    /// Bios from Q to their end.
    pub in_flight: DepthMeter,
    /// From the Q before on any device; only where the machine is looked at as a whole.
    pub q2q_anywhere: Histogram,
    /// Merged bios, by reads and writes.
    pub merged: [u64; 2],
    /// Completed requests and their sectors, by reads and writes.
    pub completed: [u64; 2],
    pub sectors: [u64; 2],
    /// When anything was queued or completed at last.
    start_ns: Option<u64>,
}

/// Reads are distinguished from everything else.
const fn direction(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        _ => 1,
    }
}

impl StatsMeter {
    pub(crate) fn new(collects: Collects) -> Self {
        Self {
            collects,
            arrivals: ArrivalMeter::new(collects),
            completed_sectors: collects.histogram(),
            q2d: collects.histogram(),
            processes: DeviceProcesses::new(collects),
            ..Self::default()
        }
    }

    /// Q of a bio with data.
    #[inline]
    pub(crate) fn queued(&mut self, event: &Event, operation: Operation) {
        self.start_ns.get_or_insert(event.ts_ns);
        self.plug.seen(event.ts_ns);
        self.at_queue.arrives();
        if !self.collects.only_what_btt_has() {
            self.queued_sectors.record(event.bytes / SECTOR);
        }
        self.arrivals.queued(
            operation,
            event.ts_ns,
            (event.offset, event.bytes),
            self.in_flight.depth(),
        );
        self.in_flight.enter(event.ts_ns);
    }

    /// Q of a flush without data.
    pub(crate) fn flush_queued(&mut self, ts_ns: u64) {
        self.start_ns.get_or_insert(ts_ns);
        self.arrivals.flush_queued(ts_ns, self.in_flight.depth());
        self.in_flight.enter(ts_ns);
    }

    /// End of a flush without data.
    pub(crate) fn flush_ended(&mut self, ts_ns: u64, q2c_ns: u64) {
        self.in_flight.leave(ts_ns);
        self.arrivals.flush_ended(ts_ns, q2c_ns);
    }

    /// M, F.
    pub(crate) fn merged(&mut self, operation: Operation) {
        self.at_queue.leaves();
        self.merged[direction(operation)] += 1;
    }

    /// D of a request with data, which is a seek or not.
    #[inline]
    pub(crate) fn issued(&mut self, event: &Event, is_seek: bool) {
        self.plug.seen(event.ts_ns);
        self.remapped.has_requests();
        self.at_queue.leaves();
        if !self.collects.only_what_btt_has() {
            self.issued_sectors.record(event.bytes / SECTOR);
        }
        if is_seek {
            self.arrivals.seek(event.ts_ns);
        }
    }

    /// R of a request with data that was at the device.
    pub(crate) fn put_back(&mut self) {
        self.at_queue.arrives();
    }

    /// A request with data comes to the device or leaves it.
    #[inline]
    pub(crate) fn active(&mut self, change: Change) {
        self.active.changed(change);
    }

    pub(crate) fn active_so_far(&self) -> ActivePeriodsMeter {
        self.active.clone()
    }

    /// A completion that moved data.
    #[inline]
    pub(crate) fn transferred(&mut self, ts_ns: u64, operation: Operation, bytes: u64) {
        self.plug.seen(ts_ns);
        let sectors = bytes / SECTOR;
        self.completed_sectors.record(sectors);
        self.sectors[direction(operation)] += sectors;
    }

    /// A request with data has completed for good.
    #[inline]
    pub(crate) fn completed(&mut self, operation: Operation) {
        self.completed[direction(operation)] += 1;
    }

    /// A data bio ended: its Q, its last piece's D where there was one, and its C.
    #[inline]
    pub(crate) fn ended(&mut self, operation: Operation, times_ns: (u64, Option<u64>, u64)) {
        let (queued_ns, issued_ns, completed_ns) = times_ns;
        self.in_flight.leave(completed_ns);
        self.arrivals.ended(
            operation,
            completed_ns,
            completed_ns.saturating_sub(queued_ns),
        );
        if let Some(issued_ns) = issued_ns {
            let q2d_ns = issued_ns.saturating_sub(queued_ns);
            self.q2d.record(q2d_ns);
            let passed = |limit_ms: &&u64| **limit_ms * 1_000_000 <= q2d_ns;
            self.q2d_below[Q2d::LIMITS_MS.iter().filter(passed).count()] += 1;
        }
    }

    /// A bio's end was not seen, or it never had one.
    pub(crate) fn gone(&mut self, ts_ns: u64) {
        self.in_flight.leave(ts_ns);
    }

    /// Events were lost: what waits, and whether the queue is plugged, is not known.
    pub(crate) fn interrupted(&mut self) {
        self.at_queue.forget();
        self.plug.forget();
    }

    /// `devices[].stats`. `pieces` are the bios and pieces of bios that requests were made of.
    pub(crate) fn finish(
        &mut self,
        start_ns: u64,
        (pieces, issued): (u64, u64),
        stacked: bool,
        processes: &[ProcessMeter],
    ) -> analysis::Stats {
        analysis::Stats {
            request_sectors: Sizes {
                queued: self.queued_sectors.dist(),
                issued: self.issued_sectors.dist(),
                completed: self.completed_sectors.dist(),
            },
            merge_ratio: (issued > 0).then(|| pieces as f64 / issued as f64),
            plug: self.plug.finish(),
            at_queue: self.at_queue.finish(),
            active: self.active.finish(start_ns),
            q2d: Q2d {
                ns: self.q2d.dist(),
                below_ms: self.q2d_below,
            },
            processes: processes::finish(processes, stacked),
            path_ns: self.path,
            histograms: self.arrivals.finish(start_ns),
        }
    }
}
