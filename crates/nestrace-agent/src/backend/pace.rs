//! How often rings and relay files are read.
//!
//! To wake up costs a guest more than what is found then, if that is little (in a translated one, whose caches of
//! translations are empty after each change of the process, most of all), so it is done as seldom as the room allows.

use std::time::{Duration, Instant};

/// A third of what fills a ring with plain records at a million events per second.
const SHORTEST: Duration = Duration::from_millis(20);
/// What comes all of a sudden has room for as long, at 280,000 events a second and processor.
const LONGEST: Duration = Duration::from_millis(100);
/// The part of the room that may be full when it is read.
const PART: u64 = 4;

/// The time between two rounds of reading, by what the last one found.
#[derive(Debug)]
pub struct Pace {
    last: Instant,
    period: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            last: Instant::now(),
            period: SHORTEST,
        }
    }
}

impl Pace {
    /// A round has found so many events, where one processor has room for `room`: they may all be of one.
    pub fn found(&mut self, n_events: u64, room: u64) {
        let now = Instant::now();
        self.period = next(room, now.duration_since(self.last), n_events);
        self.last = now;
    }

    /// How long to wait for the next.
    pub fn period(&self) -> Duration {
        self.period
    }
}

fn next(room: u64, elapsed: Duration, n_events: u64) -> Duration {
    let full = elapsed.as_secs_f64() * room as f64 / n_events.max(1) as f64;
    Duration::from_secs_f64(full / PART as f64).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_guest_is_read_more_often() {
        let ms = Duration::from_millis;
        assert_eq!(next(40_000, ms(100), 0), LONGEST);
        assert_eq!(next(40_000, ms(100), 5_000), LONGEST);
        assert_eq!(next(40_000, ms(100), 20_000), ms(50));
        assert_eq!(next(40_000, ms(50), 20_000), ms(25));
        assert_eq!(next(40_000, ms(20), 40_000), SHORTEST);
        assert_eq!(next(0, Duration::ZERO, 1), SHORTEST);
    }
}
