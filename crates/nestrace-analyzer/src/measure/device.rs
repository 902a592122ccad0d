//! One block device while it is counted.

use nestrace_trace::manifest::Topology;

use crate::measure::at_device::{AtDevice, Coming};
use crate::measure::block_stats::{ActivePeriodsMeter, ProcessId, ProcessMeter, StatsMeter};
use crate::measure::collects::Collects;
use crate::measure::depth::IntervalDepth;
use crate::measure::figures::FigureMeter;
use crate::measure::histogram::{CURVE_STEPS, Histogram};
use crate::measure::parts::PartMeters;
use crate::measure::seek::SeekMeter;
use crate::measure::users::Users;
use crate::model::operation::Operation;
use crate::result::analysis::{
    self, ByOperation, Bytes, Check, Counts, DeviceFigures, Latency, Seeks,
};
use crate::result::dist::Dist;
use crate::result::side::Side;
use crate::result::unlinked::Unlinked;

/// Everything that is counted on a device.
#[derive(Debug, Default)]
pub(crate) struct DeviceMeter {
    /// `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// Only whole requests are recorded, no bios.
    pub light: bool,
    /// It ends bios itself and has no requests (dm, md).
    pub bio_based: bool,
    pub queued: u64,
    pub issued: u64,
    pub completed: u64,
    pub discards: u64,
    pub device_flushes: u64,
    /// Empty flushes that dm made of bios with data.
    pub flushes_made: u64,
    pub request_merges: u64,
    pub requeues: u64,
    pub remaps: u64,
    pub readahead: u64,
    pub meta: u64,
    pub bytes: Bytes,
    pub check: Check,
    /// Before the end only of I/Os whose process is not known: the rest is with the processes.
    pub read: PartMeters,
    pub write: PartMeters,
    pub discard: PartMeters,
    pub q2q: Histogram,
    pub flush: Histogram,
    pub flush_d2c: Histogram,
    pub last_queued_ns: Option<u64>,
    pub seek_q: SeekMeter,
    pub seek_d: SeekMeter,
    at_device: AtDevice,
    /// What was at the device, of a light recording and of bios without requests.
    pub intervals: IntervalDepth,
    pub users: Users,
    pub unlinked: Unlinked,
    pub stats: StatsMeter,
    pub figures: FigureMeter,
}

impl DeviceMeter {
    pub(crate) fn new(dev: u32, collects: Collects) -> Self {
        Self {
            dev,
            stats: StatsMeter::new(collects),
            figures: FigureMeter::new(collects),
            q2q: collects.histogram(),
            ..Self::default()
        }
    }

    /// The histograms of an operation with data.
    #[inline]
    pub(crate) fn parts(&mut self, operation: Operation) -> Option<&mut PartMeters> {
        match operation {
            Operation::Read => Some(&mut self.read),
            Operation::Write => Some(&mut self.write),
            Operation::Discard => Some(&mut self.discard),
            Operation::Other => None,
        }
    }

    /// Records a part of a data bio's way, for its operation and its process.
    #[inline]
    pub(crate) fn record(
        &mut self,
        (operation, process): (Operation, ProcessId),
        part: impl Fn(&mut PartMeters) -> &mut Histogram,
        ns: u64,
    ) {
        if let Some(parts) = self.stats.processes.parts_of(process, operation) {
            part(parts).record(ns);
        } else if let Some(parts) = self.parts(operation) {
            part(parts).record(ns);
        }
    }

    /// Number and sum of all Q2C up to now.
    pub(crate) fn q2c_so_far(&self) -> (u64, u128) {
        let of_processes = self.stats.processes.parts().map(|(_, parts)| parts);
        let parts = [&self.read, &self.write, &self.discard].into_iter();
        parts.chain(of_processes).fold((0, 0), |(n, sum), parts| {
            (n + parts.q2c.n(), sum + parts.q2c.sum())
        })
    }

    /// The processes by name. From then on the parts of the way are with the device, all of them.
    pub(crate) fn take_processes(&mut self) -> Vec<ProcessMeter> {
        let Self {
            read,
            write,
            discard,
            stats,
            ..
        } = self;
        for (operation, parts) in stats.processes.parts() {
            match operation {
                Operation::Read => read.merge(parts),
                Operation::Write => write.merge(parts),
                Operation::Discard => discard.merge(parts),
                Operation::Other => {}
            }
        }
        stats.processes.by_name()
    }

    /// Whether it has no requests of its own, as far as is known.
    pub(crate) const fn stacked(&self) -> bool {
        self.bio_based && self.issued == 0
    }

    /// Whether what is at the device is known when it has ended only: without D there is nothing else.
    const fn by_intervals(&self) -> bool {
        self.light || self.stacked()
    }

    /// Flush requests, or the flushes of a device that has none.
    pub(crate) const fn flushes_done(&self) -> u64 {
        if self.stacked() {
            self.check.empty_flushes + self.flushes_made
        } else {
            self.device_flushes
        }
    }

    /// D.
    #[inline]
    pub(crate) fn comes(&mut self, ts_ns: u64, has_data: bool) -> Coming {
        self.at_device.comes(ts_ns, has_data)
    }

    /// What is at it, and when it had work so far.
    pub(crate) fn at_device_and_active(&self) -> (AtDevice, ActivePeriodsMeter) {
        (self.at_device.clone(), self.stats.active_so_far())
    }

    /// C, or R.
    #[inline]
    pub(crate) fn leaves(&mut self, coming: Coming, ts_ns: u64) {
        self.at_device.leaves(coming, ts_ns);
        self.tell_known();
    }

    /// A request has left without being seen to.
    pub(crate) fn leaving_missed(&mut self, coming: Coming) {
        self.at_device.missed(coming);
        self.tell_known();
    }

    /// Whether a request that has not left must have been missed.
    pub(crate) fn is_overdue(&self, coming: Coming) -> bool {
        self.at_device.is_overdue(coming)
    }

    fn tell_known(&mut self) {
        while let Some(change) = self.at_device.next_known() {
            self.figures.depth_changed(change.ts_ns, change.comes);
            if change.has_data {
                self.stats.active(change);
            }
        }
    }

    /// Time with a request at the device up to `ts_ns`, where each that is not known to have left is there.
    pub(crate) fn busy_so_far(&self, ts_ns: u64) -> u64 {
        let mut depth = self.figures.depth.now();
        for change in self.at_device.held() {
            if change.comes {
                depth.enter(change.ts_ns);
            } else {
                depth.leave(change.ts_ns);
            }
        }
        let (_, busy_ns) = depth.so_far(ts_ns);
        busy_ns
    }

    /// Adds completed bytes.
    pub(crate) fn transferred(&mut self, operation: Operation, bytes: u64) {
        add_bytes(&mut self.bytes, operation, bytes);
    }

    /// Bytes of a request have moved, but the C that says so was not seen.
    pub(crate) fn transfer_missed(&mut self, operation: Operation, bytes: u64) {
        self.check.completions_missed += 1;
        add_bytes(&mut self.check.missed.bytes, operation, bytes);
    }

    /// A request with data has completed for good, and nothing was seen of it.
    pub(crate) fn completion_missed(&mut self, operation: Operation) {
        self.check.missed.completed += 1;
        self.check.missed.discards += u64::from(operation == Operation::Discard);
    }

    /// A request with data has completed for good.
    pub(crate) fn request_completed(&mut self, operation: Operation) {
        self.completed += 1;
        self.stats.completed(operation);
        self.discards += u64::from(operation == Operation::Discard);
    }

    /// Whether anything was done on it.
    pub(crate) const fn has_io(&self) -> bool {
        self.completed
            + self.issued
            + self.check.queued
            + self.device_flushes
            + self.check.empty_flushes
            > 0
    }

    fn counts(&self) -> Counts {
        let bios = |n: u64| (!self.light).then_some(n);
        Counts {
            queued: bios(self.queued),
            issued: self.issued,
            completed: self.completed,
            discards: self.discards,
            flushes: self.check.empty_flushes + self.flushes_made,
            device_flushes: self.device_flushes,
            back_merges: bios(self.check.back_merges + self.check.untraced_merges),
            front_merges: bios(self.check.front_merges),
            request_merges: bios(self.request_merges),
            splits: bios(self.check.splits),
            requeues: bios(self.requeues),
            remaps: bios(self.remaps),
            readahead: self.readahead,
            meta: self.meta,
        }
    }

    fn latency(&self) -> Latency {
        let mut all = PartMeters::default();
        [&self.read, &self.write, &self.discard]
            .into_iter()
            .for_each(|parts| all.merge(parts));
        let (bios, requests) = (!self.light, !self.bio_based);
        let dist = |histogram: &Histogram, recorded: bool| -> Option<Dist> {
            recorded.then(|| histogram.dist())
        };
        Latency {
            q2q: dist(&self.q2q, bios),
            all: all.parts(bios, requests),
            flush: dist(&self.flush, bios),
            flush_d2c: dist(&self.flush_d2c, requests),
            by_op: ByOperation {
                read: self.read.parts(bios, requests),
                write: self.write.parts(bios, requests),
                discard: self.discard.parts(bios, requests),
            },
        }
    }

    /// `devices[]`, but for the users.
    pub(crate) fn finish(
        &mut self,
        topology: &Topology,
        end_ns: u64,
        duration_ns: u64,
    ) -> analysis::Device {
        self.at_device.stay();
        self.tell_known();
        let pieces = self.queued + self.check.splits + self.requeues;
        let (issued, stacked) = (self.issued, self.bio_based);
        let start_ns = end_ns.saturating_sub(duration_ns);
        let processes = self.take_processes();
        let stats = (!self.light).then(|| {
            let pieces = (pieces, issued);
            self.stats.finish(start_ns, pieces, stacked, &processes)
        });
        let known = topology
            .devices
            .iter()
            .find(|device| device.dev == self.dev);
        analysis::Device {
            side: Side::Host,
            guest: None,
            name: known.map_or_else(|| major_minor(self.dev), |device| device.name.clone()),
            dev: major_minor(self.dev),
            scheduler: known
                .map(|device| device.scheduler.clone())
                .filter(|name| !name.is_empty()),
            server: known
                .and_then(|device| device.served_by())
                .map(|server| (&server).into()),
            recorded_ns: duration_ns,
            counts: self.counts(),
            bytes: self.bytes,
            latency_ns: self.latency(),
            seek_sectors: Seeks {
                q2q: (!self.light).then(|| self.seek_q.seek()),
                d2d: (!self.bio_based).then(|| self.seek_d.seek()),
            },
            queue_depth: if self.by_intervals() {
                self.intervals.finish(duration_ns)
            } else {
                self.figures.depth.now().finish(end_ns, duration_ns)
            },
            users: None,
            files: None,
            stripes: None,
            unlinked: self.unlinked.by_reason(),
            check: (!self.light).then_some(self.check),
            stats,
            figures: self.device_figures(start_ns, end_ns),
        }
    }

    fn device_figures(&self, start_ns: u64, end_ns: u64) -> DeviceFigures {
        let mut figures = self.figures.finish(start_ns, end_ns);
        if self.by_intervals() {
            figures.depth_series = self.intervals.series();
        }
        self.stats.add_curves(&mut figures);
        DeviceFigures {
            q2c_read: self.read.q2c.cdf(CURVE_STEPS),
            q2c_write: self.write.q2c.cdf(CURVE_STEPS),
            d2c_read: self.read.d2c.cdf(CURVE_STEPS),
            d2c_write: self.write.d2c.cdf(CURVE_STEPS),
            seek_sectors: self.seek_d.cdf(CURVE_STEPS),
            ..figures
        }
    }
}

/// `MAJ:MIN` of a device number as the kernel holds it.
pub(crate) fn major_minor(dev: u32) -> String {
    format!("{}:{}", dev >> 20, dev & 0xf_ffff)
}

fn add_bytes(total: &mut Bytes, operation: Operation, bytes: u64) {
    match operation {
        Operation::Read => total.read += bytes,
        Operation::Write => total.write += bytes,
        Operation::Discard => total.discard += bytes,
        Operation::Other => {}
    }
}
