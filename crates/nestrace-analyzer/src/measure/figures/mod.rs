//! What plots are drawn from, collected in the same pass and in bounded memory.

mod addresses;
mod depth_series;

use crate::measure::collects::Collects;
use crate::measure::histogram::{CURVE_STEPS, Histogram};
use crate::measure::over_time::OverTime;
use crate::measure::series::SeriesMeter;
use crate::model::operation::Operation;
use crate::result::analysis::{DepthSlot, DeviceFigures, LatencySlot};
use crate::result::latencies::Latencies;
use crate::result::sums::{DeviceSums, FLUSH};

use addresses::AddressSample;
use depth_series::DepthSeries;

/// What is collected of one device for its plots only.
#[derive(Debug, Default)]
pub(crate) struct FigureMeter {
    collects: Collects,
    addresses: AddressSample,
    latency: OverTime<Latencies>,
    /// Requests at the device.
    pub depth: DepthSeries,
    series: SeriesMeter<DeviceSums>,
    to_end_write: Histogram,
    flushed_after: u64,
}

impl FigureMeter {
    pub(crate) fn new(collects: Collects) -> Self {
        Self {
            collects,
            ..Self::default()
        }
    }

    /// A request came to the device, or left it.
    #[inline]
    pub(crate) fn depth_changed(&mut self, ts_ns: u64, comes: bool) {
        if self.collects.only_what_btt_has() {
            self.depth.changed_only(ts_ns, comes);
        } else {
            self.depth.changed(ts_ns, comes);
        }
    }

    /// Q of a bio with data.
    #[inline]
    pub(crate) fn queued(&mut self, ts_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.series.at(ts_ns).queued += 1;
    }

    /// It was none: it is taken back.
    pub(crate) fn unqueued(&mut self, ts_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        let queued = &mut self.series.at(ts_ns).queued;
        *queued = queued.saturating_sub(1);
    }

    /// A bio or a request went into a request that was there.
    #[inline]
    pub(crate) fn merged(&mut self, ts_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.series.at(ts_ns).merged += 1;
    }

    /// D of a request with data.
    #[inline]
    pub(crate) fn issued(
        &mut self,
        ts_ns: u64,
        operation: Operation,
        (offset, bytes): (u64, u64),
        is_seek: bool,
    ) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.addresses.io(ts_ns, operation, offset, bytes);
        let sums = self.series.at(ts_ns);
        sums.issued.record(bytes);
        sums.sequential += u64::from(!is_seek);
    }

    /// A data I/O ended; `wait_ns` is its time from Q to D, where it was issued here.
    #[inline]
    pub(crate) fn ended(
        &mut self,
        ts_ns: u64,
        (operation, bytes): (Operation, u64),
        latency_ns: u64,
        wait_ns: Option<u64>,
    ) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.latency.at(ts_ns).record(latency_ns);
        if let Some(place) = operation.place() {
            let sums = self.series.at(ts_ns);
            sums.q2c[place].record(latency_ns);
            sums.bytes[place] += bytes;
            if let Some(wait_ns) = wait_ns {
                sums.wait[place].record(wait_ns);
            }
        }
    }

    /// The bio of a data I/O ended, `latency_ns` after its Q its data, and `to_end_ns` after it all of it.
    #[inline]
    pub(crate) fn ended_whole(&mut self, operation: Operation, latency_ns: u64, to_end_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        if operation == Operation::Write {
            self.to_end_write.record(to_end_ns);
            self.flushed_after += u64::from(to_end_ns > latency_ns);
        }
    }

    /// A data I/O was at the device for so long.
    #[inline]
    pub(crate) fn served(&mut self, ts_ns: u64, operation: Operation, d2c_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        if let Some(place) = operation.place() {
            self.series.at(ts_ns).d2c[place].record(d2c_ns);
        }
    }

    /// A flush without data ended.
    pub(crate) fn flush_ended(&mut self, ts_ns: u64, q2c_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.series.at(ts_ns).q2c[FLUSH].record(q2c_ns);
    }

    /// A flush request was at the device for so long.
    pub(crate) fn flush_served(&mut self, ts_ns: u64, d2c_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.series.at(ts_ns).d2c[FLUSH].record(d2c_ns);
    }

    /// The part of [`DeviceFigures`] that is collected here.
    pub(crate) fn finish(&self, start_ns: u64, end_ns: u64) -> DeviceFigures {
        let latency = self.latency.slots().filter(|(_, slot)| slot.n() > 0);
        DeviceFigures {
            touched: self.addresses.touched(),
            addresses: self.addresses.kept(start_ns),
            addresses_of: self.addresses.n(),
            latency: latency
                .map(|(from_ns, slot)| LatencySlot {
                    from_ns: from_ns.saturating_sub(start_ns),
                    n: slot.n(),
                    p50_ns: slot.quantile(0.5),
                    p99_ns: slot.quantile(0.99),
                })
                .collect(),
            latency_step_ns: self.latency.step_ns(),
            depth: self.depth.finish(start_ns),
            to_end_write: self.to_end_write.cdf(CURVE_STEPS),
            to_end_write_ns: self.to_end_write.dist(),
            flushed_after: self.flushed_after,
            series: self.series.finish().after(start_ns),
            depth_series: self.depth.series(end_ns),
            ..DeviceFigures::default()
        }
    }
}

impl DepthSeries {
    fn finish(&self, start_ns: u64) -> Vec<DepthSlot> {
        let since_start = |slot: DepthSlot| DepthSlot {
            from_ns: slot.from_ns.saturating_sub(start_ns),
            until_ns: slot.until_ns.saturating_sub(start_ns),
            ..slot
        };
        self.slots().map(since_start).collect()
    }
}
