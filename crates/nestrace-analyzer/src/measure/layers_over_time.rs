//! What the layers had counted at the ends of stretches of time, for comparisons: their differences add up to
//! what is said of the whole recording, because they are made by the same counts.

use crate::measure::series::FIRST_STEP_NS;
use crate::result::series::{Period, Series};
use crate::result::sums::LayerSums;

/// Stretches that are kept: when there would be more, neighbours become one.
const MOST: usize = 64;

/// Totals of every disk, by time.
#[derive(Debug, Default)]
pub(crate) struct LayersOverTime {
    /// Time of the first event.
    begin_ns: Option<u64>,
    step_ns: u64,
    /// End of the stretch that is being counted.
    next_ns: u64,
    /// At the end of each stretch, by the numbers of the disks.
    ends: Vec<Vec<LayerSums>>,
}

impl LayersOverTime {
    /// Whether a stretch ends before an event of this time.
    #[inline]
    pub(crate) const fn is_due(&self, ts_ns: u64) -> bool {
        ts_ns >= self.next_ns
    }

    /// Takes what was counted before an event of this time.
    pub(crate) fn note(&mut self, ts_ns: u64, totals: &[LayerSums]) {
        let Some(begin_ns) = self.begin_ns else {
            self.begin_ns = Some(ts_ns);
            self.step_ns = FIRST_STEP_NS;
            self.next_ns = ts_ns.saturating_add(FIRST_STEP_NS);
            return;
        };
        while self.is_due(ts_ns) && self.next_ns < u64::MAX {
            self.ends.push(totals.to_vec());
            if self.ends.len() == MOST {
                let mut place = 0;
                self.ends.retain(|_| {
                    place += 1;
                    place % 2 == 0
                });
                self.step_ns = self.step_ns.saturating_mul(2);
            }
            let stretches = self.ends.len() as u64 + 1;
            self.next_ns = begin_ns.saturating_add(stretches.saturating_mul(self.step_ns));
        }
    }

    /// The stretches of a disk; the last one ends with `end_ns` and these totals.
    pub(crate) fn series(&self, disk: usize, end_ns: u64, totals: LayerSums) -> Series<LayerSums> {
        let known = self.ends.iter().map(|ends| ends.get(disk).copied());
        let mut before = LayerSums::default();
        let begin_ns = self.begin_ns.unwrap_or(end_ns);
        let begins = (0u64..).map(|nth| begin_ns.saturating_add(nth.saturating_mul(self.step_ns)));
        let mut stretches: Vec<(Period, LayerSums)> = begins
            .zip(known)
            .map(|(from_ns, end)| {
                let end = end.unwrap_or_default();
                let counted = end.since(&before);
                before = end;
                let ns = self.step_ns;
                (Period { from_ns, ns }, counted)
            })
            .collect();
        let last_ns = self.next_ns.saturating_sub(self.step_ns);
        let last = Period {
            from_ns: last_ns,
            ns: end_ns.saturating_sub(last_ns),
        };
        stretches.push((last, totals.since(&before)));
        Series { stretches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::analysis::ReadWrite;

    #[test]
    fn differences_add_up_and_are_bounded() {
        let mut layers = LayersOverTime::default();
        let totals = |n: u64| LayerSums {
            qemu: ReadWrite {
                read: 0,
                write: n * 512,
            },
            device_flushes: n,
            ..LayerSums::default()
        };
        // One in each millisecond of three seconds, and nothing for a minute in between.
        let at = |n: u64| 7 + n * 1_000_000 + if n < 2_000 { 0 } else { 60_000_000_000 };
        for n in 0..3_000 {
            if layers.is_due(at(n)) {
                layers.note(at(n), &[LayerSums::default(), totals(n)]);
            }
        }
        let series = layers.series(1, at(3_000), totals(3_000)).stretches;
        assert!((32..=64).contains(&series.len()), "{}", series.len());
        let whole = series.iter().fold((0, 0, 0), |sum, (ns, sums)| {
            (
                sum.0 + ns.ns,
                sum.1 + sums.qemu.write,
                sum.2 + sums.device_flushes,
            )
        });
        assert_eq!(whole, (at(3_000) - at(0), 3_000 * 512, 3_000));
        let idle = series.iter().filter(|it| it.1.device_flushes == 0).count();
        assert!(idle * 20 > series.len() * 17, "{idle} of {}", series.len());
        let other = layers.series(0, at(3_000), LayerSums::default()).stretches;
        assert!(other.iter().all(|it| it.1 == LayerSums::default()));
    }

    #[test]
    fn the_end_of_time_ends() {
        let mut layers = LayersOverTime::default();
        layers.note(0, &[]);
        layers.note(u64::MAX, &[]);
        layers.note(u64::MAX, &[]);
        assert!(layers.ends.len() < MOST);
    }
}
