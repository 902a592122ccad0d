//! Requests that wait although nothing is under way for them: in QEMU before their file I/O, or in the
//! kernel before their bio is queued. A limit (QEMU's throttling, a cgroup's `io.max`) does that, and
//! lets as much through in each second.

use crate::measure::histogram::Histogram;
use crate::model::span::{Layer, Served, Span, What};
use crate::result::dist::Dist;

/// From here on a request was held back; the way itself takes microseconds.
const HELD_NS: u64 = 1_000_000;
/// The pace is taken in slots: a short recording has enough of the short ones, which hold several slices of
/// the kernel's throttling (20 or 100 ms); under a low limit only the long ones hold enough requests.
const SLOTS_NS: [u64; 3] = [250_000_000, 1_000_000_000, 4_000_000_000];

/// Where requests of a disk were held back, and at which pace they came through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldBackTimes {
    /// QEMU's start to the first file I/O.
    pub in_qemu: Dist,
    /// File I/O's start to its first bio.
    pub in_host: Dist,
    /// QEMU's latency of all these requests, summed.
    pub latency_ns: u64,
    /// The pace while most requests were held back, in slots of each length.
    pub paces: [Pace; SLOTS_NS.len()],
}

/// What came through in each slot in which most requests had been held back, between others of the same
/// kind: the first and the last of a burst are not whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Slots.
    pub slots: u64,
    /// Requests in each, on average.
    pub requests_in_slot: f64,
    /// Requests in a second.
    pub requests: Rate,
    /// Bytes in a second.
    pub bytes: Rate,
}

/// A rate and how much it varies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    /// Mean of the slots, for a second.
    pub per_second: f64,
    /// Standard deviation of the slots as a part of their mean, beyond what one request more or less makes.
    pub deviation: f64,
}

/// A slot that has ended, or not yet.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    requests: u64,
    bytes: u64,
    held: u64,
}

impl Slot {
    const fn is_held(&self) -> bool {
        self.requests > 0 && self.held * 2 >= self.requests
    }
}

/// Sums over slots.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: f64,
    requests: f64,
    requests_squared: f64,
    bytes: f64,
    bytes_squared: f64,
}

/// The requests of a disk.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    in_qemu: Histogram,
    in_host: Histogram,
    latency_ns: u64,
    pacers: [Pacer; SLOTS_NS.len()],
}

/// Requests by slots of one length.
#[derive(Debug, Default)]
struct Pacer {
    /// The slot before the last but one was held, and came right before it.
    earlier_held: bool,
    last: Slot,
    current: Slot,
    sums: Sums,
}

impl HeldBack {
    /// A request of QEMU has ended.
    pub(super) fn request(&mut self, served: &Served) {
        let span = &served.span;
        let moves = |span: &&Span| matches!(span.what, What::Read | What::Write);
        if served.ambiguous || !moves(&span) {
            return;
        }
        let files = || {
            span.children
                .iter()
                .filter(|it| it.layer == Layer::FileIo)
                .filter(moves)
        };
        let Some(first) = files().map(|file| file.start_ns).min() else {
            return;
        };
        // While a job of QEMU's held it, no limit did.
        let jobs = span.children.iter().filter(|it| it.layer == Layer::QemuJob);
        let free = jobs.map(|job| job.end_ns).filter(|end_ns| *end_ns <= first);
        let in_qemu = first.saturating_sub(free.max().unwrap_or(0).max(span.start_ns));
        let before_bio = |file: &Span| {
            let bios = file.children.iter().filter(|it| it.layer == Layer::HostBio);
            let first = bios.filter(moves).map(|bio| bio.start_ns).min()?;
            Some(first.saturating_sub(file.start_ns))
        };
        let in_host = files().filter_map(before_bio).max();
        self.in_qemu.record(in_qemu);
        if let Some(in_host) = in_host {
            self.in_host.record(in_host);
        }
        let latency_ns = span.end_ns.saturating_sub(span.start_ns);
        self.latency_ns = self.latency_ns.saturating_add(latency_ns);
        let held = in_qemu.max(in_host.unwrap_or(0)) >= HELD_NS;
        self.pace(span.end_ns, span.bytes, held);
    }

    fn pace(&mut self, at_ns: u64, bytes: u64, held: bool) {
        for (pacer, slot_ns) in self.pacers.iter_mut().zip(SLOTS_NS) {
            pacer.request(at_ns / slot_ns, bytes, held);
        }
    }

    pub(super) fn finish(&self) -> HeldBackTimes {
        let mut paces = [Pace::default(); SLOTS_NS.len()];
        for ((pace, pacer), slot_ns) in paces.iter_mut().zip(&self.pacers).zip(SLOTS_NS) {
            *pace = pacer.finish(slot_ns);
        }
        HeldBackTimes {
            in_qemu: self.in_qemu.dist(),
            in_host: self.in_host.dist(),
            latency_ns: self.latency_ns,
            paces,
        }
    }
}

impl Pacer {
    fn request(&mut self, number: u64, bytes: u64, held: bool) {
        if number > self.current.number {
            self.slot_ended();
            self.current = Slot {
                number,
                ..Slot::default()
            };
        }
        self.current.requests += 1;
        self.current.bytes += bytes;
        self.current.held += u64::from(held);
    }

    /// The last slot counts if those before and after it are held too.
    fn slot_ended(&mut self) {
        let (last, current) = (self.last, self.current);
        let adjacent = last.requests > 0 && last.number + 1 == current.number;
        if adjacent && self.earlier_held && last.is_held() && current.is_held() {
            let (requests, bytes) = (last.requests as f64, last.bytes as f64);
            self.sums.n += 1.0;
            self.sums.requests += requests;
            self.sums.requests_squared += requests * requests;
            self.sums.bytes += bytes;
            self.sums.bytes_squared += bytes * bytes;
        }
        self.earlier_held = adjacent && last.is_held();
        self.last = current;
    }

    fn finish(&self, slot_ns: u64) -> Pace {
        let sums = &self.sums;
        let a_request = sums.bytes / sums.requests.max(1.0);
        let rate = |sum, squares, one| rate(sums.n, sum, squares, one, slot_ns);
        Pace {
            slots: sums.n as u64,
            requests_in_slot: sums.requests / sums.n.max(1.0),
            requests: rate(sums.requests, sums.requests_squared, 1.0),
            bytes: rate(sums.bytes, sums.bytes_squared, a_request),
        }
    }
}

/// A rate from sums over `n` slots; `one` is what a single request adds.
fn rate(n: f64, sum: f64, squares: f64, one: f64, slot_ns: u64) -> Rate {
    if n < 1.0 || sum <= 0.0 {
        return Rate::default();
    }
    let mean = sum / n;
    let deviation = (squares / n - mean * mean).max(0.0).sqrt();
    Rate {
        per_second: mean * 1e9 / slot_ns as f64,
        deviation: (deviation - one).max(0.0) / mean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of 4 KiB with so many milliseconds between them.
    fn paced(gaps_ms: impl IntoIterator<Item = u64>, held: bool) -> [Pace; 3] {
        let mut all = HeldBack::default();
        let mut at_ns = 0;
        for gap in gaps_ms {
            at_ns += gap * 1_000_000;
            all.pace(at_ns, 4096, held);
        }
        all.finish().paces
    }

    #[test]
    fn a_limit_shows_as_the_same_rate_in_each_slot() {
        let [short, even, _] = paced([10; 500], true);
        assert_eq!(
            (short.slots, even.slots),
            (18, 3),
            "of 21 and 6, without the edges"
        );
        assert!((even.requests.per_second - 100.0).abs() < 1.0, "{even:?}");
        assert!(even.requests.deviation < 0.01 && even.bytes.deviation < 0.01);
        assert_eq!(paced([10; 500], false)[0].slots, 0, "nothing was held");
        // Seven requests a second, for 36 seconds.
        let [_, _, long] = paced([143; 250], true);
        assert!(long.slots >= 3 && long.requests_in_slot > 20.0, "{long:?}");
        assert!((long.requests.per_second - 7.0).abs() < 0.2, "{long:?}");
        let [uneven, ..] = paced((0..500).map(|n| 2 + n / 50 % 5 * 8), true);
        assert!(uneven.requests.deviation > 0.3, "{uneven:?}");
    }
}
