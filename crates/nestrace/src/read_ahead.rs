//! Reads a stream on another thread while this one analyses what was read.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, Scope};
use std::{io, iter, vec};

use nestrace_trace::Event;

/// Events that are handed over at once: so many that to wake the other thread costs little beside them.
const BATCH: usize = 2048;
/// Batches that may wait.
const BATCHES: usize = 4;

/// Events that another thread reads.
pub struct ReadAhead {
    batch: vec::IntoIter<Event>,
    batches: Receiver<Vec<Event>>,
}

impl ReadAhead {
    /// The events that are left as they were handed over: an event is large, and best looked at where it lies.
    pub fn batches(self) -> impl Iterator<Item = Vec<Event>> {
        iter::once(self.batch.collect()).chain(self.batches)
    }
}

impl Iterator for ReadAhead {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.batch.next();
            if event.is_some() {
                return event;
            }
            self.batch = self.batches.recv().ok()?.into_iter();
        }
    }
}

/// The same events, read, decoded and put in order by a thread of `scope`. It is never further ahead than 10,240
/// events, and ends when nobody takes them any more.
///
/// # Errors
/// The thread cannot be started.
pub fn read_ahead<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut events: impl Iterator<Item = Event> + Send + 'scope,
) -> io::Result<ReadAhead> {
    let (sender, receiver) = sync_channel(BATCHES);
    Builder::new()
        .name("read-ahead".to_owned())
        .spawn_scoped(scope, move || {
            loop {
                let mut batch = Vec::with_capacity(BATCH);
                while batch.len() < BATCH
                    && let Some(event) = events.next()
                {
                    batch.push(event);
                }
                if batch.is_empty() || sender.send(batch).is_err() {
                    return;
                }
            }
        })?;
    Ok(ReadAhead {
        batch: Vec::new().into_iter(),
        batches: receiver,
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn numbered(n: u64) -> impl Iterator<Item = Event> + Send {
        (0..n).map(|ts_ns| Event {
            ts_ns,
            ..Event::default()
        })
    }

    #[test]
    fn all_events_arrive_in_their_order() {
        for n in [0, 1, 2047, 2048, 2049, 100_000] {
            let same =
                thread::scope(|scope| read_ahead(scope, numbered(n)).unwrap().eq(numbered(n)));
            assert!(same, "{n}");
            let taken = n / 2;
            let same = thread::scope(|scope| {
                let mut events = read_ahead(scope, numbered(n)).unwrap();
                let first: Vec<Event> = events.by_ref().take(taken as usize).collect();
                first
                    .into_iter()
                    .chain(events.batches().flatten())
                    .eq(numbered(n))
            });
            assert!(same, "{taken} of {n} one by one");
        }
    }

    #[test]
    fn a_reader_ends_when_nobody_takes_its_events() {
        let first = thread::scope(|scope| {
            let mut events = read_ahead(scope, numbered(u64::MAX)).unwrap();
            events.next()
        });
        assert_eq!(first.map(|event| event.ts_ns), Some(0));
    }
}
