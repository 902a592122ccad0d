//! Brings the events of a stream into the order of time.
//!
//! The rings of the processors are drained one after the other, so a stream is a sequence of short
//! ascending runs. [`TimeOrdered`] puts the events into a few ascending queues (there are about as
//! many as processors) and merges the queues.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use crate::Event;

/// How far events may lie from their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// An event is given out when one has been seen that is this much younger, nanoseconds.
    pub time_ns: u64,
    /// Or when so many events wait.
    pub events: usize,
}

impl Default for Window {
    /// Half a second, the longest that the recorder leaves a ring; at most half a million events,
    /// 60 MiB.
    fn default() -> Self {
        Self {
            time_ns: 500_000_000,
            events: 1 << 19,
        }
    }
}

/// Yields events in the order of `ts_ns`; equal stamps keep the order in which they came.
///
/// An event that comes after a younger one was given out is *late*: it is given out at once, and
/// counted in [`Self::late`]. So nothing is lost, and where `late()` is 0 the order is exact.
pub struct TimeOrdered<I> {
    input: I,
    window: Window,
    queues: Vec<Queue>,
    /// The queues that are not empty, but for `current`, by their first event.
    heads: BinaryHeap<Reverse<Head>>,
    /// The queue that events are taken from now.
    current: usize,
    /// The queue that events are put into now.
    filling: usize,
    waiting: usize,
    arrived: u64,
    newest_ns: u64,
    given_ns: u64,
    late: u64,
    exhausted: bool,
}

/// Events with ascending stamps, each with its number in the input.
#[derive(Default)]
struct Queue {
    events: VecDeque<(u64, Event)>,
    last_ns: u64,
}

/// Stamp and number of a queue's first event, and the queue.
type Head = (u64, u64, usize);

/// With this many queues the oldest events go out, so that no more are searched and filled. It is
/// more than the processors of most machines; with more, the window shrinks.
const MAX_QUEUES: usize = 1024;

impl<I: Iterator<Item = Event>> TimeOrdered<I> {
    /// Orders `input` with the default [`Window`].
    pub fn new(input: I) -> Self {
        Self::with_window(input, Window::default())
    }

    /// Orders `input`.
    pub fn with_window(input: I, window: Window) -> Self {
        Self {
            input,
            window,
            queues: vec![Queue::default()],
            heads: BinaryHeap::new(),
            current: 0,
            filling: 0,
            waiting: 0,
            arrived: 0,
            newest_ns: 0,
            given_ns: 0,
            late: 0,
            exhausted: false,
        }
    }

    /// How many events so far came too late to be given out in order.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The events that were given out last and those that wait are lost to the caller; gives the
    /// input back.
    #[must_use]
    pub fn into_inner(self) -> I {
        self.input
    }

    /// Whether the oldest event that waits may go out.
    #[inline]
    fn is_due(&self) -> bool {
        self.waiting >= self.window.events.max(1)
            || self.heads.len() >= MAX_QUEUES
            || self.oldest().is_some_and(|(ts_ns, _)| {
                ts_ns.saturating_add(self.window.time_ns) <= self.newest_ns
            })
    }

    /// Stamp and number of the first event of the current queue.
    #[inline]
    fn current_head(&self) -> Option<(u64, u64)> {
        let (number, event) = self.queues[self.current].events.front()?;
        Some((event.ts_ns, *number))
    }

    /// Stamp and number of the oldest event that waits.
    #[inline]
    fn oldest(&self) -> Option<(u64, u64)> {
        let other = self
            .heads
            .peek()
            .map(|Reverse((ts_ns, number, _))| (*ts_ns, *number));
        match (self.current_head(), other) {
            (Some(current), Some(other)) => Some(current.min(other)),
            (current, other) => current.or(other),
        }
    }

    /// Puts an event into a queue that ends before it.
    #[inline]
    fn take_in(&mut self, event: Event) {
        if !self.queues[self.filling].takes(event.ts_ns) {
            self.filling = self.queue_for(event.ts_ns);
        }
        let queue = &mut self.queues[self.filling];
        if queue.events.is_empty() && self.filling != self.current {
            self.heads
                .push(Reverse((event.ts_ns, self.arrived, self.filling)));
        }
        queue.last_ns = event.ts_ns;
        queue.events.push_back((self.arrived, event));
        self.arrived += 1;
        self.waiting += 1;
        self.newest_ns = self.newest_ns.max(event.ts_ns);
    }

    /// The queue whose last event is closest before `ts_ns`, else an empty one, else a new one.
    fn queue_for(&mut self, ts_ns: u64) -> usize {
        let fits = (0..self.queues.len()).filter(|queue| self.queues[*queue].takes(ts_ns));
        let best = fits.max_by_key(|queue| {
            let queue = &self.queues[*queue];
            (!queue.events.is_empty(), queue.last_ns)
        });
        best.unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        })
    }

    /// Takes out the oldest event that waits.
    #[inline]
    fn give_out(&mut self) -> Option<Event> {
        let current = self.current_head();
        if let Some(Reverse((ts_ns, number, queue))) = self.heads.peek().copied()
            && current.is_none_or(|current| (ts_ns, number) < current)
        {
            self.heads.pop();
            let left = mem::replace(&mut self.current, queue);
            if let Some((ts_ns, number)) = current {
                self.heads.push(Reverse((ts_ns, number, left)));
            }
        }
        let (_, event) = self.queues[self.current].events.pop_front()?;
        self.waiting -= 1;
        self.given_ns = event.ts_ns;
        Some(event)
    }
}

impl Queue {
    #[inline]
    fn takes(&self, ts_ns: u64) -> bool {
        self.last_ns <= ts_ns || self.events.is_empty()
    }
}

impl<I: Iterator<Item = Event>> Iterator for TimeOrdered<I> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        while !self.exhausted && !self.is_due() {
            match self.input.next() {
                Some(event) if event.ts_ns < self.given_ns => {
                    self.late += 1;
                    return Some(event);
                }
                Some(event) => self.take_in(event),
                None => self.exhausted = true,
            }
        }
        self.give_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Orders stamps; gives the stamps in the new order, with the number of each in the input.
    fn order(stamps: &[u64], window: Window) -> (Vec<(u64, u64)>, u64) {
        let events = stamps.iter().zip(0u64..).map(|(ts_ns, object)| Event {
            ts_ns: *ts_ns,
            object,
            ..Event::default()
        });
        let mut ordered = TimeOrdered::with_window(events, window);
        let out = ordered
            .by_ref()
            .map(|event| (event.ts_ns, event.object))
            .collect();
        (out, ordered.late())
    }

    fn check(stamps: &[u64], time_ns: u64, expected: &[u64], late: u64) {
        let (out, n_late) = order(
            stamps,
            Window {
                time_ns,
                ..Window::default()
            },
        );
        let out: Vec<u64> = out.iter().map(|(ts_ns, _)| *ts_ns).collect();
        assert_eq!(
            (out.as_slice(), n_late),
            (expected, late),
            "{stamps:?} within {time_ns}"
        );
    }

    #[test]
    fn orders_within_the_window() {
        check(&[], 10, &[], 0);
        check(&[1, 2, 3], 10, &[1, 2, 3], 0);
        check(&[3, 2, 1], 10, &[1, 2, 3], 0);
        check(
            &[1, 5, 9, 2, 6, 8, 10, 12],
            10,
            &[1, 2, 5, 6, 8, 9, 10, 12],
            0,
        );
        // 7 pushes 5 out of a window of 2, so 4 is late; it still comes.
        check(&[5, 6, 7, 4, 8], 2, &[5, 4, 6, 7, 8], 1);
        check(&[7, 7, 1_000, 8], 5_000, &[7, 7, 8, 1_000], 0);
    }

    #[test]
    fn never_holds_more_than_the_window() {
        let stamps: Vec<u64> = (0..5_000).rev().collect();
        let (out, late) = order(
            &stamps,
            Window {
                time_ns: u64::MAX,
                events: 100,
            },
        );
        assert_eq!(out.len(), stamps.len());
        assert_eq!(late, 5_000 - 100);
        // The limit on queues makes events late as well, and loses none.
        let (out, late) = order(
            &stamps,
            Window {
                time_ns: u64::MAX,
                events: 1 << 20,
            },
        );
        assert_eq!(out.len(), stamps.len());
        assert!(late > 0);
    }

    proptest! {
        #[test]
        fn is_a_stable_sort(stamps in proptest::collection::vec(0u64..500, 0..900)) {
            let (out, late) = order(&stamps, Window { time_ns: 500, ..Window::default() });
            let mut expected: Vec<(u64, u64)> = stamps.iter().copied().zip(0u64..).collect();
            expected.sort();
            prop_assert_eq!(out, expected);
            prop_assert_eq!(late, 0);
        }

        #[test]
        fn loses_and_invents_nothing(
            stamps in proptest::collection::vec(any::<u64>(), 0..300),
            time_ns in any::<u64>(),
            events in 0usize..50,
        ) {
            let (mut out, late) = order(&stamps, Window { time_ns, events });
            let mut given = 0;
            let mut n_late = 0;
            for (ts_ns, _) in &out {
                if *ts_ns < given { n_late += 1 } else { given = *ts_ns }
            }
            prop_assert_eq!(late, n_late);
            out.sort();
            let mut expected: Vec<(u64, u64)> = stamps.iter().copied().zip(0u64..).collect();
            expected.sort();
            prop_assert_eq!(out, expected);
        }
    }
}
