//! The two clocks of a recording, and how far NTP bends the one that events are stamped with.

use nix::time::{ClockId, clock_gettime};

/// A rate is taken over this time at least. The kernel's NTP keeps its rate for a second, so that one such
/// stretch lies wholly within it, however late the next look comes.
const STRETCH_NS: u64 = 450_000_000;
/// The same for the last one, which ends when the recording does.
const LAST_STRETCH_NS: u64 = 100_000_000;
/// A reading that took longer does not count: it was interrupted. So a stretch is known to 110 ppm at worst, and to
/// less than one where a reading takes 100 ns.
const MAX_READING_NS: u64 = 25_000;
/// The fastest of so many readings counts.
const READINGS: usize = 8;
/// The largest correction is rounded up to a multiple of this, so that it is news a few times only.
const STEP_PPM: u64 = 10;

fn read(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
    })
}

/// `CLOCK_MONOTONIC` in nanoseconds: what `bpf_ktime_get_ns` gives the probes.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    read(ClockId::CLOCK_REALTIME)
}

/// `CLOCK_MONOTONIC`, and `CLOCK_MONOTONIC_RAW`, which nothing corrects, right before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    raw_before_ns: u64,
    mono_ns: u64,
    raw_after_ns: u64,
}

impl Reading {
    /// The fastest of a few; `None` where each of them was interrupted.
    fn now() -> Option<Self> {
        let readings = (0..READINGS).map(|_| Self {
            raw_before_ns: read(ClockId::CLOCK_MONOTONIC_RAW),
            mono_ns: monotonic_ns(),
            raw_after_ns: read(ClockId::CLOCK_MONOTONIC_RAW),
        });
        let took = |reading: &Self| reading.raw_after_ns.saturating_sub(reading.raw_before_ns);
        let fastest = readings.min_by_key(took)?;
        (took(&fastest) <= MAX_READING_NS).then_some(fastest)
    }

    /// The most that the clock can have been corrected by since `earlier`, in parts per million of the true time.
    fn most_corrected_ppm(self, earlier: Self) -> Option<u64> {
        let mono_ns = self.mono_ns.checked_sub(earlier.mono_ns)?;
        // How long it truly was lies between these.
        let least_ns = self.raw_before_ns.checked_sub(earlier.raw_after_ns)?;
        let most_ns = self.raw_after_ns.checked_sub(earlier.raw_before_ns)?;
        let apart_ns = mono_ns.abs_diff(least_ns).max(mono_ns.abs_diff(most_ns));
        let ppm = u128::from(apart_ns) * 1_000_000;
        (least_ns > 0).then(|| {
            ppm.div_ceil(u128::from(least_ns))
                .try_into()
                .unwrap_or(u64::MAX)
        })
    }
}

/// Watches how far NTP bends `CLOCK_MONOTONIC`: by frequency, by what it still has to make up for, and by the length
/// of a tick, which `adjtimex` tells in three places and the two clocks in one.
#[derive(Clone, Debug)]
pub struct Correction {
    /// Where the running stretch began.
    began: Option<Reading>,
    most_ppm: Option<u32>,
}

impl Correction {
    /// Begins to watch.
    #[must_use]
    pub fn watch() -> Self {
        Self {
            began: Reading::now(),
            most_ppm: None,
        }
    }

    /// Takes the rate if a stretch is over; whether it was bent more than ever before. To be called some times a
    /// second.
    pub fn look(&mut self) -> bool {
        self.look_after(STRETCH_NS)
    }

    /// The same at the end of a recording.
    pub fn look_last(&mut self) -> bool {
        self.look_after(LAST_STRETCH_NS)
    }

    /// The most that it was bent, parts per million; `None` if that is not known (yet).
    #[must_use]
    pub const fn most_ppm(&self) -> Option<u32> {
        self.most_ppm
    }

    fn look_after(&mut self, least_ns: u64) -> bool {
        let due = |began: Reading| monotonic_ns().saturating_sub(began.mono_ns) >= least_ns;
        if !self.began.is_none_or(due) {
            return false;
        }
        // One that was interrupted leaves the stretch to the next look.
        Reading::now().is_some_and(|now| self.take(now))
    }

    /// Ends a stretch and begins the next.
    fn take(&mut self, now: Reading) -> bool {
        let ppm = self
            .began
            .replace(now)
            .and_then(|began| now.most_corrected_ppm(began))
            .map(|ppm| ppm.div_ceil(STEP_PPM).saturating_mul(STEP_PPM));
        let ppm = ppm.map(|ppm| u32::try_from(ppm).unwrap_or(u32::MAX));
        let grew = ppm > self.most_ppm;
        self.most_ppm = self.most_ppm.max(ppm);
        grew
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestrace_trace::manifest::MAX_CLOCK_CORRECTION_PPM;
    use std::time::Duration;

    /// A reading that took `took_ns`, at a time of either clock.
    const fn reading(raw_ns: u64, mono_ns: u64, took_ns: u64) -> Reading {
        Reading {
            raw_before_ns: raw_ns,
            mono_ns,
            raw_after_ns: raw_ns + took_ns,
        }
    }

    #[test]
    fn the_most_that_readings_leave_possible() {
        let check = |mono_ns: u64, took_ns, expected| {
            let (began, now) = (
                reading(7, 5, took_ns),
                reading(500_000_007, mono_ns + 5, took_ns),
            );
            assert_eq!(now.most_corrected_ppm(began), expected, "{mono_ns}");
        };
        check(500_000_000, 0, Some(0));
        check(500_010_000, 0, Some(20));
        check(499_990_000, 0, Some(20));
        // Each reading is uncertain by what it took.
        check(500_000_000, 500, Some(2));
        check(500_010_000, 500, Some(22));
        check(541_666_500, 0, Some(83_333));
        assert_eq!(reading(7, 5, 1).most_corrected_ppm(reading(7, 5, 1)), None);
        assert_eq!(reading(0, 0, 0).most_corrected_ppm(reading(9, 9, 9)), None);
    }

    #[test]
    fn the_largest_stays() {
        let mut correction = Correction {
            began: Some(reading(0, 0, 0)),
            most_ppm: None,
        };
        let mut seen = Vec::new();
        for (raw_ns, mono_ns) in [
            (500_000_000, 500_005_500),
            (1_000_000_000, 1_041_672_000),
            (1_500_000_000, 1_541_672_000),
        ] {
            seen.push((
                correction.take(reading(raw_ns, mono_ns, 0)),
                correction.most_ppm(),
            ));
        }
        // Rounded up.
        assert_eq!(
            seen,
            [
                (true, Some(20)),
                (true, Some(83_340)),
                (false, Some(83_340))
            ]
        );
    }

    #[test]
    fn this_kernel_bends_its_clock_by_what_a_kernel_can() {
        let mut correction = Correction::watch();
        assert!(!correction.look() && correction.most_ppm().is_none());
        let mut n_looks = 0;
        // A reading may be interrupted.
        while correction.most_ppm().is_none() && n_looks < 100 {
            std::thread::sleep(Duration::from_nanos(LAST_STRETCH_NS));
            correction.look_last();
            n_looks += 1;
        }
        assert!(
            correction
                .most_ppm()
                .is_some_and(|ppm| ppm <= MAX_CLOCK_CORRECTION_PPM)
        );
    }
}
