//! The table of `iostat -x`: what happened on each device in each interval.

use crate::measure::device::DeviceMeter;
use crate::result::analysis::IostatRow;

/// What was counted of a device up to the last row.
#[derive(Debug, Default)]
struct Counted(IostatRow);

/// Cuts the recording into intervals.
#[derive(Debug)]
pub(crate) struct Intervals {
    length_ns: u64,
    /// End of the interval that runs.
    next_ns: Option<u64>,
    start_ns: u64,
    counted: Vec<Counted>,
    rows: Vec<IostatRow>,
}

/// An event long after the one before makes no more rows than this.
const MAX_EMPTY: u64 = 1000;

impl Intervals {
    pub(crate) fn new(length_ns: u64) -> Self {
        Self {
            length_ns: length_ns.max(1_000_000),
            next_ns: None,
            start_ns: 0,
            counted: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Before an event of this time is taken.
    #[inline]
    pub(crate) fn before(&mut self, ts_ns: u64, devices: &mut [DeviceMeter]) {
        match self.next_ns {
            Some(next_ns) if ts_ns < next_ns => {}
            Some(next_ns) => self.close(next_ns, ts_ns, devices),
            None => {
                self.start_ns = ts_ns;
                self.next_ns = Some(ts_ns.saturating_add(self.length_ns));
            }
        }
    }

    #[cold]
    fn close(&mut self, next_ns: u64, ts_ns: u64, devices: &mut [DeviceMeter]) {
        let behind = (ts_ns - next_ns) / self.length_ns;
        let mut until_ns = next_ns;
        for _ in 0..=behind.min(MAX_EMPTY) {
            self.row(until_ns, self.length_ns, devices);
            until_ns = until_ns.saturating_add(self.length_ns);
        }
        let skipped = behind.saturating_sub(MAX_EMPTY);
        self.next_ns = Some(until_ns.saturating_add(skipped.saturating_mul(self.length_ns)));
    }

    fn row(&mut self, until_ns: u64, lasted_ns: u64, devices: &mut [DeviceMeter]) {
        for (place, meter) in devices.iter_mut().enumerate() {
            let now = snapshot(meter, until_ns);
            if self.counted.len() <= place {
                self.counted.resize_with(place + 1, Counted::default);
            }
            let before = std::mem::replace(&mut self.counted[place].0, now);
            self.rows.push(IostatRow {
                lasted_ns,
                ..since(&now, &before)
            });
        }
    }

    /// The rows that are ready.
    pub(crate) fn drain(&mut self) -> std::vec::Drain<'_, IostatRow> {
        self.rows.drain(..)
    }

    /// The whole recording up to `end_ns`, a row for each device.
    pub(crate) fn total(&self, end_ns: u64, devices: &mut [DeviceMeter]) -> Vec<IostatRow> {
        let lasted_ns = end_ns.saturating_sub(self.start_ns);
        let of = |meter: &mut DeviceMeter| IostatRow {
            lasted_ns,
            ..snapshot(meter, end_ns)
        };
        devices.iter_mut().map(of).collect()
    }
}

/// Everything so far.
fn snapshot(meter: &mut DeviceMeter, until_ns: u64) -> IostatRow {
    let (ended, q2c_ns) = meter.q2c_so_far();
    let (in_flight_ns, _) = meter.stats.in_flight.so_far(until_ns);
    let busy_ns = meter.busy_so_far(until_ns);
    IostatRow {
        dev: meter.dev,
        until_ns,
        lasted_ns: 0,
        merged: meter.stats.merged,
        completed: meter.stats.completed,
        sectors: meter.stats.sectors,
        ended,
        q2c_ns: u64::try_from(q2c_ns).unwrap_or(u64::MAX),
        in_flight_ns,
        busy_ns,
    }
}

fn since(now: &IostatRow, before: &IostatRow) -> IostatRow {
    let pair = |now: [u64; 2], before: [u64; 2]| {
        [
            now[0].saturating_sub(before[0]),
            now[1].saturating_sub(before[1]),
        ]
    };
    IostatRow {
        merged: pair(now.merged, before.merged),
        completed: pair(now.completed, before.completed),
        sectors: pair(now.sectors, before.sectors),
        ended: now.ended.saturating_sub(before.ended),
        q2c_ns: now.q2c_ns.saturating_sub(before.q2c_ns),
        in_flight_ns: now.in_flight_ns.saturating_sub(before.in_flight_ns),
        busy_ns: now.busy_ns.saturating_sub(before.busy_ns),
        ..*now
    }
}
