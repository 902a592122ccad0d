//! The files of a capture as one stream of events.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::io::Read;
use std::mem;

use nestrace_abi::{Kind, Source};

use super::events::{event, thread, wall_clock};
use super::sequence::Sequences;
use super::{Reader, Trace};
use crate::{Diagnostic, Event};

/// Devices of one capture; what blktrace traces at once is one device.
const MAX_DEVICES: usize = 256;

/// Merges the records of all processors by time and turns them into events. A gap in the records' numbers
/// gives a [`Kind::Loss`] event as well.
///
/// Files of several processors (`blktrace -o -`) come in runs: put [`crate::TimeOrdered`] behind.
///
/// ```
/// use nestrace_trace::blktrace::{Capture, Reader};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cpu_0: &[u8] = include_bytes!(concat!(
/// #     env!("CARGO_MANIFEST_DIR"), "/../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0"));
/// # let cpu_1: &[u8] = include_bytes!(concat!(
/// #     env!("CARGO_MANIFEST_DIR"), "/../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.1"));
/// let mut capture = Capture::new(vec![Reader::new(cpu_0)?, Reader::new(cpu_1)?]);
/// let events = capture.by_ref().count();
/// assert_eq!((events, capture.outline().devices.len(), capture.outline().lost), (405, 1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Capture<R> {
    files: Vec<File<R>>,
    /// Files but for `current`, by the time of their next record.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// The file that gave the last event, and gives the next one if its next record is the oldest.
    current: Option<usize>,
    translation: Translation,
}

/// What became of the records so far.
#[derive(Debug, Default)]
struct Translation {
    sequences: Sequences,
    outline: Outline,
    /// The device of the record before, which is one of `outline`'s.
    last_device: Option<u32>,
    /// What follows a loss.
    next: Option<Event>,
}

#[derive(Debug)]
struct File<R> {
    reader: Reader<R>,
    /// Notifications before the next action.
    before: VecDeque<Trace>,
    /// The next action, where there is one. Records are large: it is read, and looked at, where it lies.
    next: Trace,
    has_next: bool,
    /// Where the numbers of its last record are counted.
    counter: usize,
}

/// Notifications in a row that are put in order.
const MAX_NOTIFICATIONS: usize = 1 << 12;

impl<R: Read> File<R> {
    /// Time of the next record. A notification comes no later than what it was written for: dumps of
    /// blkparse leave it the machine's own time while all others count from the first event.
    #[inline]
    fn next_time(&mut self) -> Option<u64> {
        if let Some(notification) = self.before.front() {
            return Some(notification.time_ns);
        }
        if !self.has_next {
            self.has_next = self.reader.read_into(&mut self.next);
            if self.has_next && self.next.notify().is_some() {
                return self.read_notifications();
            }
        }
        self.has_next.then_some(self.next.time_ns)
    }

    /// What was read next is a notification: finds the action that follows. The time of the first of them.
    #[cold]
    fn read_notifications(&mut self) -> Option<u64> {
        while self.has_next && self.next.notify().is_some() {
            self.before.push_back(mem::take(&mut self.next));
            self.has_next =
                self.before.len() < MAX_NOTIFICATIONS && self.reader.read_into(&mut self.next);
        }
        let known_ns = if self.has_next {
            self.next.time_ns
        } else {
            u64::MAX
        };
        for notification in &mut self.before {
            notification.time_ns = notification.time_ns.min(known_ns);
        }
        self.before.front().map(|trace| trace.time_ns)
    }

    #[inline]
    fn pass_head(&mut self) {
        if self.before.pop_front().is_none() {
            self.has_next = false;
        }
    }
}

/// What a capture has shown so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Device numbers, `MAJOR << 20 | MINOR`.
    pub devices: BTreeSet<u32>,
    /// `CLOCK_MONOTONIC` and `CLOCK_REALTIME` at the same moment, nanoseconds; the earliest that was told.
    pub wall_clock: Option<(u64, u64)>,
    /// Time of the first event of I/O.
    pub first_ns: Option<u64>,
    /// Time of the last one.
    pub last_ns: u64,
    /// Events of I/O.
    pub n_events: u64,
    /// Records that are missing by their numbers.
    pub lost: u64,
    /// Events of further devices than 256, which were left out.
    pub ignored: u64,
    /// Records that no event stands for: messages, bounces, actions of newer kernels.
    pub other: u64,
}

impl<R: Read> Capture<R> {
    /// The capture that these files are.
    #[must_use]
    pub fn new(readers: Vec<Reader<R>>) -> Self {
        let mut capture = Self {
            files: readers
                .into_iter()
                .map(|reader| File {
                    reader,
                    before: VecDeque::new(),
                    next: Trace::default(),
                    has_next: false,
                    counter: 0,
                })
                .collect(),
            heads: BinaryHeap::new(),
            current: None,
            translation: Translation::default(),
        };
        for place in 0..capture.files.len() {
            if let Some(time_ns) = capture.read_head(place) {
                capture.heads.push(Reverse((time_ns, place)));
            }
        }
        capture
    }

    /// What the records given so far have shown.
    #[must_use]
    pub fn outline(&self) -> &Outline {
        &self.translation.outline
    }

    /// What was wrong with each file, by its place.
    pub fn diagnostics(&self) -> impl Iterator<Item = (usize, &Diagnostic)> {
        let files = self.files.iter().enumerate();
        files.flat_map(|(place, file)| {
            let diagnostics = file.reader.diagnostics().iter();
            diagnostics.map(move |diagnostic| (place, diagnostic))
        })
    }

    /// Reads a file's next record; its time.
    fn read_head(&mut self, place: usize) -> Option<u64> {
        self.files.get_mut(place)?.next_time()
    }

    /// The file with the oldest record that waits, where the one that gave the last event has read on.
    #[inline]
    fn oldest(&mut self) -> Option<usize> {
        if let Some(place) = self.current {
            self.files.get_mut(place)?.pass_head();
            if let Some(time_ns) = self.read_head(place) {
                let other = self.heads.peek();
                if other.is_none_or(|Reverse(other)| (time_ns, place) < *other) {
                    return self.current;
                }
                self.heads.push(Reverse((time_ns, place)));
            }
        }
        self.current = self.heads.pop().map(|Reverse((_, place))| place);
        self.current
    }
}

impl Translation {
    /// Counts a record; what comes of it: its event, a name, or a loss before it.
    #[inline]
    fn count(&mut self, trace: &Trace, counter: &mut usize) -> Option<Event> {
        if trace.notify().is_some() {
            return self.notification(trace);
        }
        let outline = &mut self.outline;
        if self.last_device != Some(trace.device) {
            let devices = &mut outline.devices;
            if devices.len() >= MAX_DEVICES && !devices.contains(&trace.device) {
                outline.ignored = outline.ignored.saturating_add(1);
                return None;
            }
            devices.insert(trace.device);
            self.last_device = Some(trace.device);
        }
        let gap = self.sequences.take(trace, counter);
        let event = event(trace);
        if event.is_some() {
            outline.first_ns.get_or_insert(trace.time_ns);
            outline.last_ns = outline.last_ns.max(trace.time_ns);
            outline.n_events = outline.n_events.saturating_add(1);
        } else {
            outline.other = outline.other.saturating_add(1);
        }
        if gap {
            return Some(self.loss(trace.time_ns, event));
        }
        event
    }

    #[cold]
    fn notification(&mut self, trace: &Trace) -> Option<Event> {
        let outline = &mut self.outline;
        if let Some(unix_ns) = wall_clock(trace) {
            let now = (trace.time_ns, unix_ns);
            let earliest = outline.wall_clock.map_or(now, |known| known.min(now));
            outline.wall_clock = Some(earliest);
        }
        let thread = thread(trace);
        outline.other = outline.other.saturating_add(u64::from(thread.is_none()));
        thread
    }

    /// Records are missing before one: the loss comes first, then its event.
    #[cold]
    fn loss(&mut self, ts_ns: u64, event: Option<Event>) -> Event {
        let outline = &mut self.outline;
        outline.lost = self.sequences.lost();
        self.next = event;
        Event {
            ts_ns,
            kind: Kind::Loss as u8,
            sub: Source::Block as u8,
            object: outline.lost,
            ..Event::default()
        }
    }
}

impl<R: Read> Iterator for Capture<R> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.translation.next.is_some() {
            return self.translation.next.take();
        }
        loop {
            let place = self.oldest()?;
            let File {
                before,
                next,
                has_next,
                counter,
                ..
            } = self.files.get_mut(place)?;
            let action = has_next.then_some(&*next);
            let trace = before.front().or(action)?;
            let event = self.translation.count(trace, counter);
            if event.is_some() {
                return event;
            }
        }
    }
}
