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

use super::{Reader, Trace};
use crate::events::{put_event, thread, wall_clock};
use crate::sequence::Sequences;
use nestrace_trace::{Diagnostic, Event};

/// Devices of one capture; what blktrace traces at once is one device.
const MAX_DEVICES: usize = 256;

/// Merges the records of all processors by time and turns them into events. A gap in the records' numbers
/// gives a [`Kind::Loss`] event as well.
///
/// Files of several processors (`blktrace -o -`) come in runs: put [`nestrace_trace::TimeOrdered`] behind.
///
/// ```
/// use nestrace_blktrace::{Capture, Reader};
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
    /// Files by the time of their next record.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    translation: Translation,
    /// For whoever takes events one by one, the last first.
    ready: Vec<Event>,
}

/// What became of the records so far.
#[derive(Debug, Default)]
struct Translation {
    sequences: Sequences,
    outline: Outline,
    /// The device of the record before, which is one of `outline`'s.
    last_device: Option<u32>,
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

/// Events that are made at once for whoever takes them one by one.
const READY: usize = 64;
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

    /// Counts the next record, whose time was asked for, and passes it.
    #[inline]
    fn give(&mut self, translation: &mut Translation, batch: &mut Vec<Event>) {
        if let Some(notification) = self.before.pop_front() {
            translation.notification(&notification, batch);
        } else if self.has_next {
            translation.action(&self.next, &mut self.counter, batch);
            self.has_next = false;
        }
    }

    /// Gives the records that follow while they are plain, and wanted by their time and the number of events in the batch.
    /// Where one processor has several in a row, most are given here.
    #[inline(always)]
    fn give_plain(
        &mut self,
        translation: &mut Translation,
        batch: &mut Vec<Event>,
        is_wanted: impl Fn(u64, usize) -> bool,
    ) {
        if self.has_next || !self.before.is_empty() {
            return;
        }
        let counter = self.counter;
        self.reader.take_plain(|trace| {
            is_wanted(trace.time_ns, batch.len()) && translation.plain_action(trace, counter, batch)
        });
    }
}

/// What a capture has shown so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outline {
    /// Device numbers, `MAJOR << 20 | MINOR`.
    pub devices: BTreeSet<u32>,
    /// `CLOCK_MONOTONIC` and `CLOCK_REALTIME` at the same moment, nanoseconds; the earliest that the capture holds.
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

impl Outline {
    /// An event of I/O.
    #[inline(always)]
    fn add(&mut self, ts_ns: u64) {
        self.first_ns.get_or_insert(ts_ns);
        self.last_ns = self.last_ns.max(ts_ns);
        self.n_events = self.n_events.saturating_add(1);
    }
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
            translation: Translation::default(),
            ready: Vec::new(),
        };
        for place in 0..capture.files.len() {
            let time_ns = capture.files.get_mut(place).and_then(File::next_time);
            capture.heads.extend(time_ns.map(|ns| Reverse((ns, place))));
        }
        capture
    }

    /// What the records so far have shown. Whoever takes events one by one is up to 64 of them behind.
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

    /// Adds events to a batch until it holds `most` (or one more: a record may give two), or there are no more. An event is
    /// large: it is made where it stays, and not looked at before.
    pub fn fill(&mut self, batch: &mut Vec<Event>, most: usize) {
        while batch.len() < most
            && let Some(event) = self.ready.pop()
        {
            batch.push(event);
        }
        while batch.len() < most && self.run(batch, most) {}
    }

    /// Gives what stands in the file with the oldest record, up to where another one's is older; whether there was a record.
    fn run(&mut self, batch: &mut Vec<Event>, most: usize) -> bool {
        let Some(Reverse((_, place))) = self.heads.pop() else {
            return false;
        };
        let Some(file) = self.files.get_mut(place) else {
            return false;
        };
        let other = self.heads.peek();
        let other = other.map_or((u64::MAX, usize::MAX), |Reverse(head)| *head);
        loop {
            file.give(&mut self.translation, batch);
            file.give_plain(&mut self.translation, batch, |time_ns, n_events| {
                n_events < most && (time_ns, place) <= other
            });
            let Some(time_ns) = file.next_time() else {
                return true;
            };
            if batch.len() >= most || (time_ns, place) > other {
                self.heads.push(Reverse((time_ns, place)));
                return true;
            }
        }
    }
}

impl Translation {
    /// Counts a record of I/O, and adds what comes of it: its event, and a loss before it.
    #[inline]
    fn action(&mut self, trace: &Trace, counter: &mut usize, batch: &mut Vec<Event>) {
        if self.last_device != Some(trace.device) && !self.turn_to(trace.device) {
            return;
        }
        if self.sequences.take(trace, counter) {
            self.loss(trace.time_ns, batch);
        }
        batch.push(Event::default());
        let is_event = batch
            .last_mut()
            .is_some_and(|event| put_event(trace, event));
        if is_event {
            self.outline.add(trace.time_ns);
        } else {
            batch.pop();
            self.outline.other = self.outline.other.saturating_add(1);
        }
    }

    /// The same of a record that is the next one by its number, so that its device is known, and that an event stands for.
    /// Of another one nothing is done, and that is the answer.
    #[inline(always)]
    fn plain_action(&mut self, trace: &Trace, counter: usize, batch: &mut Vec<Event>) -> bool {
        batch.push(Event::default());
        let is_plain = batch
            .last_mut()
            .is_some_and(|event| put_event(trace, event))
            && self.sequences.take_next(trace, counter);
        if is_plain {
            self.outline.add(trace.time_ns);
        } else {
            batch.pop();
        }
        is_plain
    }

    /// Makes this device the last one; whether there is room for it.
    #[cold]
    fn turn_to(&mut self, device: u32) -> bool {
        let outline = &mut self.outline;
        let devices = &mut outline.devices;
        if devices.len() >= MAX_DEVICES && !devices.contains(&device) {
            outline.ignored = outline.ignored.saturating_add(1);
            return false;
        }
        devices.insert(device);
        self.last_device = Some(device);
        true
    }

    /// Adds the name that a notification tells.
    #[cold]
    fn notification(&mut self, trace: &Trace, batch: &mut Vec<Event>) {
        let outline = &mut self.outline;
        if let Some(unix_ns) = wall_clock(trace) {
            let now = (trace.time_ns, unix_ns);
            let earliest = outline.wall_clock.map_or(now, |known| known.min(now));
            outline.wall_clock = Some(earliest);
        }
        let thread = thread(trace);
        outline.other = outline.other.saturating_add(u64::from(thread.is_none()));
        batch.extend(thread);
    }

    /// Records are missing before the one of this time.
    #[cold]
    fn loss(&mut self, ts_ns: u64, batch: &mut Vec<Event>) {
        let outline = &mut self.outline;
        outline.lost = self.sequences.lost();
        let mut loss = Event::at(ts_ns, Kind::Loss);
        loss.sub = Source::Block as u8;
        loss.object = outline.lost;
        batch.push(loss);
    }
}

impl<R: Read> Iterator for Capture<R> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let next = self.ready.pop();
        if next.is_some() {
            return next;
        }
        let mut ready = mem::take(&mut self.ready);
        self.fill(&mut ready, READY);
        ready.reverse();
        self.ready = ready;
        self.ready.pop()
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::Writer;
    use proptest::prelude::*;

    const CPUS: [&[u8]; 2] = [
        include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0"),
        include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.1"),
    ];

    /// A capture in which every 40th record of I/O is missing.
    fn with_gaps() -> Capture<std::io::Cursor<Vec<u8>>> {
        let readers = CPUS.map(|file| {
            let mut writer = Writer::new(Vec::new());
            let traces = Reader::new(file).into_iter().flatten();
            for (number, trace) in (0_u64..).zip(traces) {
                if trace.notify().is_some() || number % 40 != 39 {
                    writer.write(&trace).unwrap_or_default();
                } else {
                    writer.lose(trace.device, trace.cpu, 1);
                }
            }
            Reader::new(std::io::Cursor::new(writer.into_inner())).ok()
        });
        Capture::new(readers.into_iter().flatten().collect())
    }

    /// Everything that a capture of these files says: in batches of `most`, or record by record where that is 0.
    fn said(files: &[Vec<u8>], most: usize) -> (Vec<Event>, Outline, Vec<(usize, String)>) {
        let readers = files.iter().map(|file| Reader::new(file.as_slice()).ok());
        let mut capture = Capture::new(readers.flatten().collect());
        let mut all = Vec::new();
        let mut goes_on = true;
        while goes_on {
            let n = all.len();
            goes_on = if most == 0 {
                capture.run(&mut all, 0)
            } else {
                capture.fill(&mut all, n + most);
                all.len() > n
            };
        }
        let notes = capture.diagnostics();
        let notes = notes.map(|(place, note)| (place, format!("{note:?}")));
        (all, capture.outline().clone(), notes.collect())
    }

    /// The files so many times over, each time later; of every other record of one, the device is another; with `joined`,
    /// as the one file that blktrace writes to a pipe.
    fn repeated(times: u64, other_device: bool, joined: bool) -> [Vec<u8>; 2] {
        let mut writers = CPUS.map(|_| Writer::new(Vec::new()));
        for repetition in 0..times {
            for (cpu, file) in CPUS.iter().enumerate() {
                let traces = Reader::new(*file).into_iter().flatten();
                for (number, mut trace) in traces.enumerate() {
                    trace.time_ns += repetition * 860_000_000;
                    trace.device += u32::from(other_device && number % 2 > 0 && cpu > 0);
                    let writer = &mut writers[if joined { 0 } else { cpu }];
                    writer.write(&trace).unwrap_or_default();
                }
            }
        }
        writers.map(Writer::into_inner)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Most records are taken in runs, and what comes of them is what comes of each for itself. Files are longer than
        /// what is read at once, or shorter than what is held for a second look.
        #[test]
        fn runs_say_what_single_records_say(
            (times, other_device, joined) in (prop::sample::select(vec![1, 60]), any::<bool>(), any::<bool>()),
            damage in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..60, any::<u8>()), 0..12),
            cut in prop::option::of(any::<prop::sample::Index>()),
            most in 2_usize..200,
        ) {
            let mut files = repeated(times, other_device, joined);
            for (number, (place, length, byte)) in damage.into_iter().enumerate() {
                let file = &mut files[if joined { 0 } else { number % 2 }];
                let from = place.index(file.len());
                let end = from.saturating_add(length / 5).min(file.len());
                match length % 5 {
                    // Bytes are missing, are there twice, or are others.
                    0 => drop(file.drain(from..end)),
                    1 => file.extend_from_within(from..end),
                    _ => file[from] = byte,
                }
            }
            if let Some(cut) = cut {
                let length = cut.index(files[0].len());
                files[0].truncate(length);
            }
            prop_assert_eq!(said(&files, most), said(&files, 0));
        }
    }

    #[test]
    fn batches_of_any_size_hold_what_an_iterator_gives() {
        let mut capture = with_gaps();
        let expected: Vec<Event> = capture.by_ref().collect();
        let n_losses = |event: &&Event| event.kind == Kind::Loss as u8;
        assert!(expected.iter().filter(n_losses).count() > 5);
        for most in [1, 2, 7, 100, 10_000] {
            let mut batches = with_gaps();
            let mut all = Vec::new();
            loop {
                let mut batch = Vec::new();
                batches.fill(&mut batch, most);
                assert!(batch.len() <= most.saturating_add(1));
                if batch.is_empty() {
                    break;
                }
                all.extend(batch);
                // One by one between the batches.
                all.extend(batches.next());
            }
            assert_eq!(all, expected, "{most}");
            assert_eq!(batches.outline(), capture.outline());
        }
    }
}
