//! Events out of the buffers that a kernel writes while it records, in the order of their times. An agent sends what it
//! reads there as it is: to make events of it costs its guest several times as much.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod records;
mod relay_file;
mod requests;
mod translation;

use std::collections::BTreeMap;

use nestrace_blktrace::{event, thread};
use nestrace_trace::Event;
pub use records::{PLAIN_BYTES, put_record, put_slots, record_bytes};
use relay_file::RelayFile;
use requests::Requests;
pub use translation::Translation;

/// Relay files of one machine: a disk has one for each processor.
const MAX_FILES: usize = 65_536;
/// Bytes of records that are not whole, of all files. The kernel writes none beyond a few hundred bytes.
const MAX_HELD: usize = 8 << 20;
/// Events that may wait for [`KernelBuffers::until`].
const MAX_PENDING: usize = 1 << 17;

/// What is in the buffers.
#[derive(Debug)]
pub enum Format {
    /// Those of blktrace's relay files: records of version 7 or 8 in this machine's byte order, cut anywhere.
    Blktrace {
        /// One event for a request ([`nestrace_trace::Kind::RequestDone`]) takes the place of its D and C.
        light: bool,
    },
    /// Those of the probes, by way of [`put_record`] and [`put_slots`]; a portion ends where a record does.
    Probes(Translation),
}

/// What the records of a format become events by.
#[derive(Debug)]
enum Reader {
    Blktrace {
        files: BTreeMap<u32, RelayFile>,
        /// Bytes that they hold.
        held: usize,
        requests: Option<Requests>,
    },
    Probes(Translation),
}

/// Puts together what is read of the buffers. The records of a buffer are in order but for neighbours; buffers are read one
/// after the other. A buffer is named by any number that no other one of the recording has.
///
/// ```
/// use nestrace_wire::kernel_buffers::{Format, KernelBuffers};
/// # let relay_file: &[u8] = include_bytes!(concat!(
/// #     env!("CARGO_MANIFEST_DIR"), "/../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0"));
/// let mut buffers = KernelBuffers::new(Format::Blktrace { light: false });
/// for portion in relay_file.chunks(1000) {
///     buffers.push(0, portion);
/// }
/// assert!(buffers.until(u64::MAX).count() > 100);
/// ```
#[derive(Debug)]
pub struct KernelBuffers {
    reader: Reader,
    /// Nearly in order.
    pending: Vec<Event>,
    is_incomplete: bool,
    newest_ns: u64,
    out_of_order: u64,
    /// [`Self::skipped`] apart from what the files of now know.
    refused: u64,
}

impl Default for KernelBuffers {
    fn default() -> Self {
        Self::new(Format::Blktrace { light: false })
    }
}

impl KernelBuffers {
    /// Of this format; empty.
    #[must_use]
    pub fn new(format: Format) -> Self {
        let reader = match format {
            Format::Blktrace { light } => Reader::Blktrace {
                files: BTreeMap::new(),
                held: 0,
                requests: light.then(Requests::default),
            },
            Format::Probes(translation) => Reader::Probes(translation),
        };
        Self {
            reader,
            pending: Vec::new(),
            is_incomplete: false,
            newest_ns: 0,
            out_of_order: 0,
            refused: 0,
        }
    }

    /// Takes bytes of a buffer that follow those before.
    pub fn push(&mut self, buffer: u32, bytes: &[u8]) {
        let pending = &mut self.pending;
        match &mut self.reader {
            Reader::Probes(translation) => {
                let rest = records::take_records(bytes, |record| {
                    pending.push(translation.event(record));
                });
                self.refused = self.refused.saturating_add(rest as u64);
            }
            Reader::Blktrace { files, held, .. } => {
                if files.len() >= MAX_FILES && !files.contains_key(&buffer) {
                    self.refused = self.refused.saturating_add(bytes.len() as u64);
                    return;
                }
                let file = files.entry(buffer).or_default();
                *held = held.saturating_sub(file.held());
                file.push(bytes, |trace| {
                    pending.extend(event(trace).or_else(|| thread(trace)));
                });
                *held = held.saturating_add(file.held());
                if *held > MAX_HELD {
                    self.refused = self.refused.saturating_add(*held as u64);
                    self.interrupted();
                }
            }
        }
    }

    /// Takes an event that is in no buffer: a loss.
    pub fn push_event(&mut self, event: Event) {
        self.pending.push(event);
    }

    /// Whether so many events wait for [`Self::until`] that they must be handed over before more is pushed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pending.len() > MAX_PENDING
    }

    /// Among what comes up to the next [`Self::until`], records may be missing.
    pub fn incomplete(&mut self) {
        self.is_incomplete = true;
    }

    /// Bytes are missing: what follows of any buffer begins a record.
    pub fn interrupted(&mut self) {
        self.refused = self.skipped();
        if let Reader::Blktrace { files, held, .. } = &mut self.reader {
            files.clear();
            *held = 0;
        }
        self.incomplete();
    }

    /// Everything stamped before `horizon_ns` (`u64::MAX`: everything) has been pushed: the events of it, in the order of
    /// their times. They are gone from here, taken or not.
    pub fn until(&mut self, horizon_ns: u64) -> impl Iterator<Item = Event> + '_ {
        let mut requests = match &mut self.reader {
            Reader::Blktrace { requests, .. } => requests.as_mut(),
            Reader::Probes(_) => None,
        };
        if std::mem::take(&mut self.is_incomplete)
            && let Some(requests) = &mut requests
        {
            requests.forget_before(horizon_ns);
        }
        // A stable sort of a few ordered runs is a merge.
        self.pending.sort_by_key(|event| event.ts_ns);
        let is_ready = |event: &Event| event.ts_ns < horizon_ns || horizon_ns == u64::MAX;
        let n = self.pending.partition_point(is_ready);
        let (newest_ns, out_of_order) = (&mut self.newest_ns, &mut self.out_of_order);
        self.pending.drain(..n).filter_map(move |event| {
            *out_of_order = out_of_order.saturating_add(u64::from(event.ts_ns < *newest_ns));
            *newest_ns = event.ts_ns.max(*newest_ns);
            match &mut requests {
                None => Some(event),
                Some(requests) => requests.take(&event),
            }
        })
    }

    /// Events that were handed over after a younger one.
    #[must_use]
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Bytes that were no record, or of more buffers than a machine has.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        match &self.reader {
            Reader::Blktrace { files, .. } => {
                let skipped = files.values().map(RelayFile::skipped);
                skipped.fold(self.refused, u64::saturating_add)
            }
            Reader::Probes(_) => self.refused,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

    use nestrace_abi::Kind;

    use super::*;

    #[test]
    fn events_of_all_files_come_in_order_and_the_youngest_wait() {
        let at = |ts_ns| Event {
            ts_ns,
            ..Event::default()
        };
        let mut buffers = KernelBuffers::new(Format::Blktrace { light: false });
        let mut seen = Vec::new();
        for ts_ns in [10, 30, 50, 20, 40] {
            buffers.push_event(at(ts_ns));
        }
        seen.extend(buffers.until(45).map(|event| event.ts_ns));
        buffers.push_event(at(42));
        buffers.push_event(at(60));
        seen.extend(buffers.until(u64::MAX).map(|event| event.ts_ns));
        assert_eq!(seen, [10, 20, 30, 40, 42, 50, 60]);
        assert_eq!(buffers.out_of_order(), 0);
        buffers.push_event(at(7));
        seen.extend(buffers.until(u64::MAX).map(|event| event.ts_ns));
        assert_eq!((seen.last(), buffers.out_of_order()), (Some(&7), 1));
    }

    const CPU_0: &[u8] =
        include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0");

    fn told(light: bool, portion: usize) -> Vec<Event> {
        let mut buffers = KernelBuffers::new(Format::Blktrace { light });
        let mut events = Vec::new();
        for bytes in CPU_0.chunks(portion) {
            buffers.push(3, bytes);
            events.extend(buffers.until(0));
        }
        events.extend(buffers.until(u64::MAX));
        assert_eq!((buffers.skipped(), buffers.out_of_order()), (0, 0));
        events
    }

    #[test]
    fn light_detail_has_what_the_full_one_has_of_requests() {
        let full = told(false, 4096);
        let light = told(true, 100);
        let of = |kind: Kind| full.iter().filter(move |event| event.kind() == Some(kind));
        let done: Vec<&Event> = light
            .iter()
            .filter(|event| event.kind() == Some(Kind::RequestDone))
            .collect();
        // Every one of this capture that was issued ends in one piece.
        let issued_ns: Vec<u64> = of(Kind::Issue).map(|event| event.ts_ns).collect();
        assert_eq!(issued_ns.len(), 34);
        let mut begun_ns: Vec<u64> = done.iter().map(|event| event.related).collect();
        begun_ns.retain(|ns| *ns > 0);
        begun_ns.sort_unstable();
        assert_eq!(begun_ns, issued_ns);
        let bytes = |events: &mut dyn Iterator<Item = &Event>| events.map(|e| e.bytes).sum::<u64>();
        let completed = bytes(&mut of(Kind::Complete));
        assert_eq!(bytes(&mut done.iter().copied()), completed);
        assert!(light.len() < full.len() / 2);
    }

    #[test]
    fn what_it_holds_is_bounded() {
        let mut buffers = KernelBuffers::new(Format::Blktrace { light: false });
        let mut begun = CPU_0[..48].to_vec();
        begun[46..48].copy_from_slice(&u16::MAX.to_le_bytes());
        begun.resize(40_000, 0);
        for file in 0..1000 {
            buffers.push(file, &begun);
            assert!(matches!(&buffers.reader, Reader::Blktrace { held, .. } if *held <= MAX_HELD));
        }
        assert!(buffers.skipped() > 0);
    }

    #[test]
    fn after_bytes_that_are_missing_records_are_found_again() {
        let mut buffers = KernelBuffers::new(Format::Blktrace { light: false });
        buffers.push(0, &CPU_0[..48 * 3 + 20]);
        buffers.interrupted();
        buffers.push(0, CPU_0);
        let n = buffers.until(u64::MAX).count();
        assert_eq!(buffers.skipped(), 0);
        assert!(n > told(false, 4096).len());
    }
}
