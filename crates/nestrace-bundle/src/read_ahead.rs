//! Reads a stream on another thread while this one analyses what was read, where there is a processor for it.

use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::{Builder, Scope, available_parallelism};
use std::{io, mem};

use nestrace_trace::Event;

/// Events that are handed over at once: so many that to wake the other thread costs little beside them, so few that those on
/// their way lie in a processor's cache.
const BATCH: usize = 1024;
/// Batches that may wait.
const BATCHES: usize = 4;

/// Events in batches: an event is large, and best looked at where it lies.
pub struct ReadAhead<'a> {
    batch: Vec<Event>,
    /// How many of `batch` were taken.
    taken: usize,
    reader: Reader<'a>,
}

/// Who reads.
enum Reader<'a> {
    /// Another thread.
    Thread {
        batches: Receiver<Vec<Event>>,
        /// Batches whose memory it uses again.
        used: Sender<Vec<Event>>,
    },
    /// Whoever asks for events.
    Here(Box<dyn Fill + 'a>),
}

impl ReadAhead<'_> {
    /// Events as they were handed over.
    pub fn next_batch(&mut self) -> Option<&[Event]> {
        if self.taken >= self.batch.len() {
            self.read()?;
        }
        let from = mem::replace(&mut self.taken, self.batch.len());
        self.batch.get(from..)
    }

    fn read(&mut self) -> Option<()> {
        match &mut self.reader {
            Reader::Thread { batches, used } => {
                let next = batches.recv().ok()?;
                // Nothing waits for it when the last batch was read.
                let _ = used.send(mem::replace(&mut self.batch, next));
            }
            Reader::Here(fill) => fill_anew(&mut self.batch, fill),
        }
        self.taken = 0;
        (!self.batch.is_empty()).then_some(())
    }
}

fn fill_anew(batch: &mut Vec<Event>, fill: &mut impl Fill) {
    batch.clear();
    // Links come on top.
    batch.reserve(BATCH + BATCH / 4);
    fill(batch, BATCH);
}

impl Iterator for ReadAhead<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.taken >= self.batch.len() {
            self.read()?;
        }
        let event = self.batch.get(self.taken).copied();
        self.taken += 1;
        event
    }
}

/// Something that adds events to a batch until it holds so many, or there are no more.
pub trait Fill: FnMut(&mut Vec<Event>, usize) + Send {}

impl<F: FnMut(&mut Vec<Event>, usize) + Send + ?Sized> Fill for F {}

/// Fills batches with what an iterator gives.
pub fn each(mut events: impl Iterator<Item = Event> + Send) -> impl Fill {
    move |batch: &mut Vec<Event>, most: usize| {
        while batch.len() < most
            && let Some(event) = events.next()
        {
            batch.push(event);
        }
    }
}

/// Events that a thread of `scope` reads, decodes and puts in order. It is never further ahead than 6,144
/// events, and ends when its receiver is dropped. Where this program has one processor, there is no such thread.
///
/// # Errors
/// The thread cannot be started.
pub fn read_ahead<'scope>(
    scope: &'scope Scope<'scope, '_>,
    fill: impl Fill + 'scope,
) -> io::Result<ReadAhead<'scope>> {
    let reader = if available_parallelism().is_ok_and(|processors| processors.get() == 1) {
        Reader::Here(Box::new(fill))
    } else {
        start_reader(scope, fill)?
    };
    Ok(ReadAhead {
        batch: Vec::new(),
        taken: 0,
        reader,
    })
}

fn start_reader<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut fill: impl Fill + 'scope,
) -> io::Result<Reader<'scope>> {
    let (sender, batches) = sync_channel(BATCHES);
    let (used, given_back) = channel();
    Builder::new()
        .name("read-ahead".to_owned())
        .spawn_scoped(scope, move || {
            loop {
                let mut batch = given_back.try_recv().unwrap_or_default();
                fill_anew(&mut batch, &mut fill);
                if batch.is_empty() || sender.send(batch).is_err() {
                    return;
                }
            }
        })?;
    Ok(Reader::Thread { batches, used })
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

    /// Takes some events one by one and the rest in batches, from either reader.
    fn read(n: u64, one_by_one: u64, on_a_thread: bool) -> Vec<Event> {
        thread::scope(|scope| {
            let fill = each(numbered(n));
            let mut events = ReadAhead {
                batch: Vec::new(),
                taken: 0,
                reader: match on_a_thread {
                    true => start_reader(scope, fill).unwrap(),
                    false => Reader::Here(Box::new(fill)),
                },
            };
            let mut all: Vec<Event> = events.by_ref().take(one_by_one as usize).collect();
            while let Some(batch) = events.next_batch() {
                all.extend(batch);
            }
            assert_eq!(events.next(), None);
            all
        })
    }

    #[test]
    fn all_events_arrive_in_their_order() {
        let batch = BATCH as u64;
        for n in [0, 1, batch - 1, batch, batch + 1, 100_000] {
            for on_a_thread in [false, true] {
                for one_by_one in [0, n / 2, n] {
                    let all = read(n, one_by_one, on_a_thread);
                    assert!(all.into_iter().eq(numbered(n)), "{one_by_one} of {n}");
                }
            }
        }
    }

    #[test]
    fn a_reader_ends_when_nobody_takes_its_events() {
        let first = thread::scope(|scope| {
            let mut events = read_ahead(scope, each(numbered(u64::MAX))).unwrap();
            events.next()
        });
        assert_eq!(first.map(|event| event.ts_ns), Some(0));
    }
}
