//! How fast a guest may be: what it sends above that waits in its port, where its agent loses it.

/// Bytes and events that a guest may send a second. An agent at 200,000 events a second sends some 15 MB, as they lie in
/// its kernel's buffers; a hostile one could fill the host's disk or keep a processor busy with decoding.
const BYTES_PER_S: u64 = 64 << 20;
const EVENTS_PER_S: u64 = 2_000_000;
/// What may come at once after a silence, in seconds of the above.
const BURST_S: u64 = 2;
/// An agent looks once a second whether disks or mounts have changed, and on a host of containers they have
/// each time. What a stuck port has kept of that may come at once.
const HELLOS_PER_S: u64 = 1;
const BURST_HELLOS: u64 = 1000;

/// Counts what comes against the time that passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    bytes: Bucket,
    events: Bucket,
    hellos: Bucket,
}

/// What is owed, in nanoseconds of the allowed rate.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    owed_ns: u64,
    at_ns: u64,
}

impl Bucket {
    fn charge(&mut self, amount: u64, per_s: u64, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.at_ns);
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(per_s.max(1));
        self.owed_ns = self
            .owed_ns
            .saturating_sub(passed)
            .saturating_add(u64::try_from(cost).unwrap_or(u64::MAX));
        self.at_ns = now_ns;
    }

    fn wait_ns(&self, now_ns: u64) -> u64 {
        let passed = now_ns.saturating_sub(self.at_ns);
        let owed = self.owed_ns.saturating_sub(passed);
        owed.saturating_sub(BURST_S * 1_000_000_000)
    }
}

impl Throttle {
    /// So much came.
    pub fn charge(&mut self, bytes: u64, events: u64, now_ns: u64) {
        self.bytes.charge(bytes, BYTES_PER_S, now_ns);
        self.events.charge(events, EVENTS_PER_S, now_ns);
    }

    /// A Hello came; `false` where they are too many.
    pub fn take_hello(&mut self, now_ns: u64) -> bool {
        self.hellos.charge(1, HELLOS_PER_S, now_ns);
        self.hellos.owed_ns <= BURST_HELLOS / HELLOS_PER_S * 1_000_000_000
    }

    /// How long nothing is to be read; 0 if it may go on.
    #[must_use]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        self.bytes.wait_ns(now_ns).max(self.events.wait_ns(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events that come through in ten seconds when as many as may are sent.
    fn through(chunk_bytes: u64, chunk_events: u64) -> u64 {
        let mut throttle = Throttle::default();
        let (mut now_ns, mut total) = (1, 0);
        while now_ns < 10_000_000_000 {
            match throttle.wait_ns(now_ns) {
                0 => {
                    throttle.charge(chunk_bytes, chunk_events, now_ns);
                    total += chunk_events;
                    now_ns += 1000;
                }
                wait => now_ns += wait,
            }
        }
        total
    }

    #[test]
    fn the_rate_holds_over_time() {
        let limit = EVENTS_PER_S * (10 + BURST_S);
        for (bytes, events) in [(100, 10), (3000, 65_536), (1 << 20, 8192)] {
            let total = through(bytes, events);
            assert!(total <= limit + 65_536, "{total}");
        }
        // 64 KiB for one event: the bytes decide.
        let total = through(64 << 10, 1);
        assert!(total <= (BYTES_PER_S >> 16) * (10 + BURST_S) + 1, "{total}");
        assert!(total >= (BYTES_PER_S >> 16) * 9);
    }

    #[test]
    fn facts_may_change_every_second_for_a_day() {
        let mut throttle = Throttle::default();
        let mut hello = |ms: u64| throttle.take_hello(ms * 1_000_000);
        assert!((1..86_400).all(|s| hello(s * 1001)));
        let stuck_until = 86_400 * 1001;
        assert!((0..BURST_HELLOS / 2).all(|_| hello(stuck_until)));
        assert!((0..BURST_HELLOS).any(|_| !hello(stuck_until)));
    }

    #[test]
    fn an_ordinary_agent_never_waits() {
        let mut throttle = Throttle::default();
        for n in 0..4000 {
            let now_ns = n * 250_000_000;
            assert_eq!(throttle.wait_ns(now_ns), 0);
            throttle.charge(1 << 20, 50_000, now_ns);
        }
    }
}
