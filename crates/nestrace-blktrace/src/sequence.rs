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
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    /// Device and processor.
    of: (u32, u32),
    last: u32,
    /// A number that did not follow `last`.
    odd: Option<u32>,
}

impl Counter {
    /// Whether a number is in line, as nearly all are.
    #[inline(always)]
    fn follows(&self, number: u32) -> bool {
        self.odd.is_none() && self.last.checked_add(1) == Some(number)
    }

    /// How many numbers are known to be missing now.
    #[inline]
    fn next(&mut self, number: u32) -> u32 {
        if self.follows(number) {
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
    /// Takes a record; whether it shows that some before it are missing. `place` is where the record before it in the
    /// same file was counted: nearly always this one is, too.
    #[inline]
    pub(super) fn take(&mut self, trace: &Trace, place: &mut usize) -> bool {
        if self.take_next(trace, *place) {
            return false;
        }
        let of = (trace.device, trace.cpu);
        let is_elsewhere = |counter: &Counter| counter.of != of;
        if self.counters.get(*place).is_none_or(is_elsewhere) {
            let Some(known) = self.places.get(&of) else {
                self.begin(of, trace.sequence, place);
                return false;
            };
            *place = *known;
        }
        let Some(counter) = self.counters.get_mut(*place) else {
            return false;
        };
        let missing = u64::from(counter.next(trace.sequence));
        self.lost = self.lost.saturating_add(missing);
        missing > 0
    }

    /// Takes a record if it is the next one where `place` counts, as nearly all are; whether it is.
    #[inline(always)]
    pub(super) fn take_next(&mut self, trace: &Trace, place: usize) -> bool {
        let Some(counter) = self.counters.get_mut(place) else {
            return false;
        };
        let is_next = counter.of == (trace.device, trace.cpu) && counter.follows(trace.sequence);
        if is_next {
            counter.last = trace.sequence;
        }
        is_next
    }

    #[cold]
    fn begin(&mut self, of: (u32, u32), number: u32, place: &mut usize) {
        if self.counters.len() < MAX_COUNTERS {
            *place = self.counters.len();
            self.places.insert(of, *place);
            self.counters.push(Counter {
                of,
                last: number,
                odd: None,
            });
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
        let (mut sequences, mut place) = (Sequences::default(), 0);
        for number in numbers {
            let trace = Trace {
                sequence: *number,
                ..Trace::default()
            };
            sequences.take(&trace, &mut place);
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
        let (mut sequences, mut place) = (Sequences::default(), 0);
        for (device, cpu, sequence) in [
            (1, 0, 1),
            (0, 0, 9),
            (0, 0, 10),
            (2, 0, 1),
            (1, 1, 1),
            (1, 0, 2),
            (2, 0, 2),
            // The number after that, but of another device and processor, whose second one is missing.
            (1, 1, 3),
            (1, 1, 4),
        ] {
            let trace = Trace {
                device,
                cpu,
                sequence,
                ..Trace::default()
            };
            let shows_loss = sequences.take(&trace, &mut place);
            assert_eq!(shows_loss, (cpu, sequence) == (1, 4));
        }
        assert_eq!(sequences.lost(), 1);
    }
}
