//! Gaps in the numbers of records: what the kernel had no room for.

use std::collections::HashMap;

use super::Trace;

/// Numbers are followed for so many pairs of device and processor.
const MAX_COUNTERS: usize = 1 << 16;

/// The kernel numbers the events of each device on each processor. A number that is out of line on its own
/// is damage, not a gap: a gap is one where the next number goes on after it.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    counters: Vec<Counter>,
    places: HashMap<(u32, u32), usize>,
    /// The pair that was taken last, and its counter.
    last: ((u32, u32), usize),
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    last: u32,
    /// A number that did not follow `last`.
    odd: Option<u32>,
}

impl Counter {
    /// How many numbers are known to be missing now.
    #[inline]
    fn next(&mut self, number: u32) -> u32 {
        // Nearly all.
        if self.odd.is_none() && self.last.checked_add(1) == Some(number) {
            self.last = number;
            return 0;
        }
        self.out_of_line(number)
    }

    #[cold]
    fn out_of_line(&mut self, number: u32) -> u32 {
        let follows = |before: u32, by: u32| before.checked_add(by) == Some(number);
        let missing = match self.odd.take() {
            None => {
                self.odd = Some(number);
                return 0;
            }
            // The odd one stood in the place of the one after `last`.
            Some(_) if follows(self.last, 2) => 0,
            Some(odd) => {
                let missing = self.gap(odd);
                if !follows(odd, 1) {
                    (self.last, self.odd) = (odd, Some(number));
                    return missing;
                }
                missing
            }
        };
        self.last = number;
        missing
    }

    /// Numbers between the last one and this.
    fn gap(&self, number: u32) -> u32 {
        number.saturating_sub(self.last).saturating_sub(1)
    }
}

impl Sequences {
    /// Takes a record; whether it shows that some before it are missing.
    #[inline]
    pub(super) fn take(&mut self, trace: &Trace) -> bool {
        let key = (trace.device, trace.cpu);
        if self.last.0 != key {
            self.turn_to(key);
        }
        let (last, place) = self.last;
        match self.counters.get_mut(place) {
            Some(counter) if last == key => {
                let missing = u64::from(counter.next(trace.sequence));
                self.lost = self.lost.saturating_add(missing);
                missing > 0
            }
            _ => {
                self.begin(key, trace.sequence);
                false
            }
        }
    }

    /// Makes this pair the last one, if it has a counter.
    fn turn_to(&mut self, key: (u32, u32)) {
        if let Some(place) = self.places.get(&key) {
            self.last = (key, *place);
        }
    }

    #[cold]
    fn begin(&mut self, key: (u32, u32), number: u32) {
        if self.counters.len() < MAX_COUNTERS {
            let first = Counter {
                last: number,
                odd: None,
            };
            self.last = (key, self.counters.len());
            self.places.insert(key, self.counters.len());
            self.counters.push(first);
        }
    }

    /// How many are missing so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(numbers: &[u32]) -> u64 {
        let mut sequences = Sequences::default();
        for number in numbers {
            sequences.take(&Trace {
                sequence: *number,
                ..Trace::default()
            });
        }
        sequences.lost()
    }

    #[test]
    fn gaps_are_lost_and_damage_is_not() {
        for (numbers, expected) in [
            (&[][..], 0),
            (&[1, 2, 3], 0),
            // A capture may begin anywhere.
            (&[100, 101], 0),
            (&[1, 2, 5, 6], 2),
            (&[1, 2, 5, 6, 7, 10, 11], 4),
            // One number is damaged.
            (&[1, 2, 1_000_003, 4, 5], 0),
            (&[u32::MAX, 5, 6, 7], 0),
            // Two gaps in a row.
            (&[1, 3, 5, 6], 2),
            // The numbers begin again.
            (&[7, 8, 1, 2, 3], 0),
        ] {
            assert_eq!(lost(numbers), expected, "{numbers:?}");
        }
    }

    #[test]
    fn each_device_and_processor_counts_for_itself() {
        let mut sequences = Sequences::default();
        for (device, cpu, sequence) in [
            (1, 0, 1),
            (0, 0, 9),
            (0, 0, 10),
            (2, 0, 1),
            (1, 1, 1),
            (1, 0, 2),
            (2, 0, 2),
        ] {
            let trace = Trace {
                device,
                cpu,
                sequence,
                ..Trace::default()
            };
            assert!(!sequences.take(&trace));
        }
        assert_eq!(sequences.lost(), 0);
    }
}
