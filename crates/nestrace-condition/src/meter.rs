//! Whether a condition holds, from the events as they pass.

use std::collections::BTreeSet;

use nestrace_trace::Event;

use crate::expression::{Comparison, Expression, Layer, Limit, Side, Statistic, Subject};
use crate::in_flight::{Ended, InFlight};
use crate::window::{TICK_NS, Value, Window};

/// Ticks that are made up for after a pause; the windows begin anew after a longer one.
const MAX_LATE_TICKS: u64 = 36_000;

/// A comparison at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// It, as it was understood.
    pub comparison: Comparison,
    /// The value; `None` where there was no request.
    pub value: Option<Limit>,
    /// Whether it held.
    pub holds: bool,
}

/// The condition held.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// When that was known, on the caller's clock.
    pub at_ns: u64,
    /// All comparisons, from left to right.
    pub readings: Vec<Reading>,
}

/// What computes the value of a comparison.
enum Gauge {
    Window(Box<Window>),
    /// Since when it has held.
    Oldest {
        since_ns: Option<u64>,
    },
}

/// Evaluates a condition ten times a second.
pub struct Meter {
    expression: Expression,
    gauges: Vec<(Comparison, Gauge, Value)>,
    in_flight: InFlight,
    next_tick_ns: u64,
}

impl Meter {
    /// Begins now. `outermost` stands for layers that the condition does not name; `lowest` are the host's devices that
    /// stand on no other.
    #[must_use]
    pub fn new(
        expression: &Expression,
        outermost: Layer,
        lowest: BTreeSet<u32>,
        now_ns: u64,
    ) -> Self {
        let expression = expression.clone().with_outermost(outermost);
        let gauge = |comparison: &&Comparison| {
            let gauge = match comparison.statistic {
                Statistic::Oldest => Gauge::Oldest { since_ns: None },
                _ => Gauge::Window(Box::new(Window::new(comparison))),
            };
            ((*comparison).clone(), gauge, Value::NONE)
        };
        let comparisons = expression.comparisons();
        let gauges = comparisons.iter().map(gauge).collect();
        Self {
            gauges,
            in_flight: InFlight::new(expression.layers(outermost), lowest),
            expression,
            next_tick_ns: now_ns.saturating_add(TICK_NS),
        }
    }

    /// Takes an event of a side, which came at `now_ns` of the host.
    pub fn take(&mut self, side: Side, event: &Event, now_ns: u64) {
        let gauges = &mut self.gauges;
        self.in_flight
            .take(side, event, now_ns, &mut |ended: Ended| {
                for (comparison, gauge, _) in &mut *gauges {
                    let Subject { op, layer } = comparison.subject;
                    let is_of = layer == Some(ended.layer) && op.is_none_or(|op| op == ended.op);
                    if let (Gauge::Window(window), true) = (gauge, is_of) {
                        window.ended(ended.latency_ns);
                    }
                }
            });
    }

    /// The requests that a side had in flight will not end: it was started anew.
    pub fn forget(&mut self, side: Side) {
        self.in_flight.forget(side);
    }

    /// Does what is due; whether the condition holds now. It costs little where nothing is due.
    pub fn evaluate(&mut self, now_ns: u64) -> Option<Held> {
        if now_ns < self.next_tick_ns {
            return None;
        }
        let late = now_ns.saturating_sub(self.next_tick_ns) / TICK_NS;
        if late > MAX_LATE_TICKS {
            for (comparison, gauge, value) in &mut self.gauges {
                if let Gauge::Window(window) = gauge {
                    **window = Window::new(comparison);
                }
                *value = Value::NONE;
            }
        }
        for _ in 0..=late.min(MAX_LATE_TICKS) {
            for (_, gauge, value) in &mut self.gauges {
                if let Gauge::Window(window) = gauge
                    && let Some(new) = window.tick()
                {
                    *value = new;
                }
            }
        }
        self.next_tick_ns = self
            .next_tick_ns
            .saturating_add(late.saturating_add(1).saturating_mul(TICK_NS));
        for (comparison, gauge, value) in &mut self.gauges {
            if let Gauge::Oldest { since_ns } = gauge {
                let Subject { op, layer } = comparison.subject;
                // Without a request in flight, there is no oldest one.
                let age_ns = layer.and_then(|layer| self.in_flight.oldest_ns(layer, op, now_ns));
                let age = age_ns.map(Limit::Time);
                let found = Value::of(age, comparison.relation, comparison.limit);
                let held_ns = match found.holds {
                    true => Some(*since_ns.get_or_insert(now_ns)),
                    false => {
                        *since_ns = None;
                        None
                    }
                };
                let for_long =
                    held_ns.is_some_and(|ns| now_ns.saturating_sub(ns) >= comparison.window_ns());
                *value = Value {
                    holds: for_long,
                    ..found
                };
            }
        }
        let mut holds = self.gauges.iter().map(|(.., value)| value.holds);
        self.expression.holds(&mut holds).then(|| Held {
            at_ns: now_ns,
            readings: self.readings(),
        })
    }

    /// All comparisons as they were when they were evaluated last.
    #[must_use]
    pub fn readings(&self) -> Vec<Reading> {
        let reading = |(comparison, _, value): &(Comparison, Gauge, Value)| Reading {
            comparison: comparison.clone(),
            value: value.value,
            holds: value.holds,
        };
        self.gauges.iter().map(reading).collect()
    }
}

#[cfg(test)]
mod tests {
    use nestrace_trace::{Kind, flags};

    use super::*;

    const DISK: u32 = 8 << 20;
    const MS: u64 = 1_000_000;

    fn meter(text: &str) -> Meter {
        let expression = Expression::parse(text).unwrap();
        Meter::new(&expression, Layer::Device, [DISK].into(), 0)
    }

    fn event(kind: Kind, at_ms: u64, object: u64) -> Event {
        Event {
            kind: kind as u8,
            ts_ns: at_ms * MS,
            object,
            dev: DISK,
            bytes: 4096,
            flags: flags::OP_WRITE,
            ..Event::default()
        }
    }

    /// Requests by the milliseconds of their begin and end; the milliseconds at which the condition begins to hold.
    fn check(text: &str, requests: &[(u64, u64)], until_ms: u64, expected: &[u64]) {
        let mut events: Vec<Event> = requests
            .iter()
            .zip(1..)
            .flat_map(|((begin, end), n)| {
                [
                    event(Kind::Issue, *begin, n),
                    event(Kind::Complete, *end, n),
                ]
            })
            .collect();
        events.sort_by_key(|event| event.ts_ns);
        let mut meter = meter(text);
        let mut began = Vec::new();
        let mut held = false;
        let mut events = events.iter().peekable();
        for ms in (0..until_ms).step_by(50) {
            while let Some(event) = events.next_if(|event| event.ts_ns <= ms * MS) {
                meter.take(Side::Host, event, ms * MS);
            }
            if !ms.is_multiple_of(100) {
                continue;
            }
            let holds = meter.evaluate(ms * MS).is_some();
            if holds && !held {
                began.push(ms);
            }
            held = holds;
        }
        assert_eq!(began, expected, "{text}");
    }

    fn quiet(until_ms: u64) -> Vec<(u64, u64)> {
        (10..until_ms).step_by(10).map(|at| (at, at + 1)).collect()
    }

    #[test]
    fn it_holds_when_it_must_and_never_else() {
        let mut requests = quiet(5_000);
        check("max(write) > 100ms", &requests, 5_000, &[]);
        check("p99(write) > 2ms for 2s", &requests, 5_000, &[]);
        check("oldest(write) > 100ms", &requests, 5_000, &[]);
        requests.push((3_005, 3_255));
        check("max(write) > 100ms", &requests, 5_000, &[3_300]);
        check("max(read) > 100ms", &requests, 5_000, &[]);
        check("max(write) > 300ms", &requests, 5_000, &[]);
        // One of a hundred is not the 99th.
        check("p99(write) > 100ms", &requests, 5_000, &[]);
        check("oldest(any) > 100ms", &requests, 5_000, &[3_200]);
        check("oldest(any) > 100ms for 100ms", &requests, 5_000, &[]);
        check(
            "max(write) > 100ms and count(any) > 1000",
            &requests,
            5_000,
            &[],
        );
        check(
            "count(any) > 1000 or max(write) > 100ms",
            &requests,
            5_000,
            &[3_300],
        );
    }

    #[test]
    fn a_window_counts_only_when_it_was_watched_as_a_whole() {
        check("count(any) < 10", &quiet(2_000), 2_000, &[]);
        check("count(any) < 10", &[], 2_000, &[1_000]);
        check("count(any) < 10 for 1.5s", &[], 2_000, &[1_500]);
        check("max(any) < 10ms", &[], 2_000, &[]);
    }

    #[test]
    fn after_a_pause_the_windows_have_passed() {
        let mut meter = meter("max(any) > 100ms");
        for event in [event(Kind::Issue, 1, 1), event(Kind::Complete, 500, 1)] {
            meter.take(Side::Host, &event, 500 * MS);
        }
        assert!(meter.evaluate(1_000 * MS).is_some());
        assert!(meter.evaluate(1_099 * MS).is_none());
        assert!(meter.evaluate(9_000 * MS).is_none());
        meter.take(Side::Host, &event(Kind::Issue, 9_001, 1), 9_001 * MS);
        meter.take(Side::Host, &event(Kind::Complete, 9_801, 1), 9_801 * MS);
        let hours = 1 << 50;
        assert!(meter.evaluate(hours).is_none());
        assert!(meter.readings().iter().all(|reading| !reading.holds));
        assert!(meter.evaluate(hours + TICK_NS).is_none());
    }

    #[test]
    fn what_held_says_every_value() {
        let mut meter = meter("max(write) > 100ms or max(read) > 1s");
        meter.take(Side::Host, &event(Kind::Issue, 1, 1), MS);
        meter.take(Side::Host, &event(Kind::Complete, 301, 1), 301 * MS);
        let held = meter.evaluate(1_000 * MS).unwrap();
        assert_eq!(held.at_ns, 1_000 * MS);
        let values: Vec<_> = held.readings.iter().map(|r| (r.value, r.holds)).collect();
        assert_eq!(values, [(Some(Limit::Time(300 * MS)), true), (None, false)]);
        let shown: Vec<String> = held
            .readings
            .iter()
            .map(|reading| reading.comparison.to_string())
            .collect();
        assert_eq!(shown[0], "max(write, device) > 100ms");
    }
}
