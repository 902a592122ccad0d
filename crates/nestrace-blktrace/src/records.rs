//! Events of a recording as blktrace's records: the way back of `events`.
//!
//! A record has place and length in every event, where a probe names a bio, so these are remembered from Q
//! on. What has no record: links between requests and bios, file I/O, QEMU.

use std::collections::HashMap;

use nestrace_abi::{Kind, Source, flags};

use super::{Trace, category};
use crate::action::{Action, NOTIFY_PROCESS, NOTIFY_TIMESTAMP};
use nestrace_trace::Event;

/// Bios remembered at once; more are not in flight.
const MAX_BIOS: usize = 1 << 20;
/// Threads whose names are remembered.
const MAX_THREADS: usize = 1 << 20;

/// Turns the events of one machine, in the order of time, into records.
#[derive(Debug, Default)]
pub struct Records {
    /// Place, length and flags of bios, by address.
    bios: HashMap<u64, Extent>,
    names: HashMap<u32, [u8; 16]>,
    /// Threads whose name was written.
    told: HashMap<u32, ()>,
    last_device: Option<(u32, u16)>,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    bytes: u64,
    flags: u32,
}

impl Records {
    /// The record that says the wall clock: `unix_ns` at the time `time_ns`.
    #[must_use]
    pub fn wall_clock(time_ns: u64, unix_ns: u64, device: u32) -> Trace {
        let seconds = u32::try_from(unix_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let rest = (unix_ns % 1_000_000_000) as u32;
        Trace {
            time_ns,
            device,
            raw_action: NOTIFY_TIMESTAMP,
            payload: [seconds.to_le_bytes(), rest.to_le_bytes()].concat(),
            ..Trace::default()
        }
    }

    /// Takes the name of a thread ([`Kind::Thread`]) before its time: btt keeps the first name that it hears of,
    /// and a recorder may tell a name right after the thread's first event.
    pub fn know(&mut self, event: &Event) {
        if event.kind() == Some(Kind::Thread) && self.names.len() < MAX_THREADS {
            let name = name(event);
            self.names.entry(event.tid).or_insert(name);
        }
    }

    /// Gives out the records of one event: none, one, or the name of its thread before it.
    pub fn push(&mut self, event: &Event, mut out: impl FnMut(Trace)) {
        let Some(kind) = event.kind() else {
            return;
        };
        if kind == Kind::Thread {
            return self.thread(event, &mut out);
        }
        if kind.source() != Source::Block {
            return;
        }
        let Some(trace) = self.trace(kind, event) else {
            return;
        };
        self.last_device = Some((event.dev, event.cpu));
        if !self.told.contains_key(&event.tid) {
            let idle = (event.tid == 0).then_some(*b"swapper/0\0\0\0\0\0\0\0");
            if let Some(name) = self.names.get(&event.tid).copied().or(idle) {
                self.told.insert(event.tid, ());
                out(process(
                    event.ts_ns,
                    event.tid,
                    (event.dev, event.cpu),
                    name,
                ));
            }
        }
        out(trace);
    }

    fn thread(&mut self, event: &Event, out: &mut impl FnMut(Trace)) {
        let name = name(event);
        if self.names.len() >= MAX_THREADS {
            self.names.clear();
            self.told.clear();
        }
        let renamed = self.names.insert(event.tid, name) != Some(name);
        // Else it comes before the thread's first event.
        if renamed
            && self.told.contains_key(&event.tid)
            && let Some((device, _)) = self.last_device
        {
            out(process(event.ts_ns, event.tid, (device, event.cpu), name));
        }
    }

    fn trace(&mut self, kind: Kind, event: &Event) -> Option<Trace> {
        let action = match kind {
            Kind::Queue => Action::Queue,
            Kind::GetRequest => Action::GetRequest,
            Kind::SleepRequest => Action::SleepRequest,
            Kind::BackMerge | Kind::RequestMerge => Action::BackMerge,
            Kind::FrontMerge => Action::FrontMerge,
            Kind::Split => Action::Split,
            Kind::BioRemap | Kind::RequestRemap => Action::Remap,
            Kind::Insert => Action::Insert,
            Kind::Issue => Action::Issue,
            Kind::Requeue => Action::Requeue,
            Kind::Complete | Kind::BioComplete => Action::Complete,
            Kind::Plug => Action::Plug,
            Kind::Unplug if event.sub == 1 => Action::UnplugTimer,
            Kind::Unplug => Action::Unplug,
            _ => return None,
        };
        let extent = self.extent(kind, event);
        let mut trace = Trace {
            time_ns: event.ts_ns,
            raw_action: action as u64 | u64::from(stage(kind)) << 16,
            tid: event.tid,
            device: event.dev,
            cpu: u32::from(event.cpu),
            ..Trace::default()
        };
        match kind {
            Kind::Plug => return Some(trace),
            Kind::Unplug => {
                trace.payload = event.bytes.to_be_bytes().to_vec();
                return Some(trace);
            }
            Kind::Complete => trace.error = u16::from(event.sub),
            Kind::BioComplete => trace.error = u16::try_from(event.status()).unwrap_or(u16::MAX),
            Kind::BioRemap | Kind::RequestRemap => {
                trace.payload =
                    [event.former_dev().to_be_bytes(), event.dev.to_be_bytes()].concat();
                trace
                    .payload
                    .extend((event.former_offset() / 512).to_be_bytes());
            }
            Kind::Split => {
                let rest = extent.offset.saturating_add(extent.bytes) / 512;
                trace.payload = rest.to_be_bytes().to_vec();
            }
            _ => {}
        }
        trace.raw_action |= u64::from(categories(extent.flags)) << 16;
        trace.sector = sector(extent.offset);
        if is_passthrough(&extent) {
            trace.raw_action &= !(u64::from(category::FS) << 16);
        }
        trace.bytes = u32::try_from(extent.bytes).unwrap_or(u32::MAX);
        Some(trace)
    }

    /// Place, length and flags: the event's own, or those of its bio.
    fn extent(&mut self, kind: Kind, event: &Event) -> Extent {
        let own = Extent {
            offset: event.offset,
            bytes: event.bytes,
            flags: event.flags,
        };
        match kind {
            Kind::Queue if event.object != 0 => {
                self.remember(event.object, own);
                own
            }
            Kind::Split => self.split(event, own),
            Kind::GetRequest | Kind::BackMerge | Kind::FrontMerge | Kind::SleepRequest => {
                self.bios.get(&event.object).copied().unwrap_or(own)
            }
            Kind::BioComplete => match self.bios.remove(&event.object) {
                Some(bio) if event.bytes == 0 => bio,
                Some(bio) => Extent {
                    flags: bio.flags,
                    ..own
                },
                None => own,
            },
            _ => own,
        }
    }

    /// The front half is a bio of its own, the parent keeps the rest.
    fn split(&mut self, event: &Event, own: Extent) -> Extent {
        let parent = self.bios.get_mut(&event.parent_bio());
        let front = Extent {
            flags: parent.as_ref().map_or(own.flags, |parent| parent.flags),
            ..own
        };
        if let Some(parent) = parent
            && event.parent_bio() != event.object
        {
            parent.offset = own.offset.saturating_add(own.bytes);
            parent.bytes = parent.bytes.saturating_sub(own.bytes);
        }
        if event.object != 0 {
            self.remember(event.object, front);
        }
        front
    }

    fn remember(&mut self, bio: u64, extent: Extent) {
        if self.bios.len() >= MAX_BIOS {
            self.bios.clear();
        }
        self.bios.insert(bio, extent);
    }
}

/// As `blk_rq_trace_sector()` of the kernel has it (`include/linux/blktrace_api.h`): 0 for what has no place,
/// which is a pass-through request, or one whose sector was never set and is −1.
const fn sector(offset: u64) -> u64 {
    match offset {
        Event::NOWHERE => 0,
        place => place / 512,
    }
}

/// Such a request is a driver's or a user's command and not a file system's (`blk_add_trace_rq()`). Zone
/// operations, which have the same number here, do have a place.
fn is_passthrough(extent: &Extent) -> bool {
    extent.offset == Event::NOWHERE && extent.flags & flags::OP_MASK == flags::OP_OTHER
}

/// What a thread is called.
fn name(event: &Event) -> [u8; 16] {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&event.related.to_le_bytes());
    name[8..].copy_from_slice(&event.offset.to_le_bytes());
    name
}

/// The record that names a thread.
fn process(time_ns: u64, tid: u32, (device, cpu): (u32, u16), name: [u8; 16]) -> Trace {
    Trace {
        time_ns,
        tid,
        device,
        cpu: u32::from(cpu),
        raw_action: NOTIFY_PROCESS,
        payload: name.to_vec(),
        ..Trace::default()
    }
}

/// Category bits of an action (`BLK_TA_*`), and of requests that they are a file system's. blkparse leaves out
/// what has no category.
const fn stage(kind: Kind) -> u16 {
    match kind {
        Kind::Issue => category::ISSUE | category::FS,
        Kind::Complete => category::COMPLETE | category::FS,
        Kind::BioComplete => category::COMPLETE,
        Kind::Requeue => category::REQUEUE | category::FS,
        Kind::Insert | Kind::RequestMerge => category::QUEUE | category::FS,
        Kind::Split => 0,
        // Plugs have no operation, which is a read.
        Kind::Plug | Kind::Unplug => category::QUEUE | category::READ,
        _ => category::QUEUE,
    }
}

/// Category bits as the kernel sets them (`__blk_add_trace()`).
fn categories(value: u32) -> u16 {
    let operation = match value & flags::OP_MASK {
        flags::OP_READ => category::READ,
        flags::OP_WRITE | flags::OP_WRITE_ZEROES => category::WRITE,
        flags::OP_DISCARD | flags::OP_SECURE_ERASE => category::WRITE | category::DISCARD,
        flags::OP_FLUSH => category::READ | category::FLUSH,
        _ => category::READ | category::PC,
    };
    let marks = [
        (flags::SYNC, category::SYNC),
        (flags::META, category::META),
        (flags::FUA, category::FUA),
        (flags::RAHEAD, category::AHEAD),
        (flags::PREFLUSH, category::FLUSH),
    ];
    let set = marks.into_iter().filter(|(flag, _)| value & flag != 0);
    set.fold(operation, |bits, (_, bit)| bits | bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capture, Notify, Reader, Writer, event};

    const CPUS: [&[u8]; 2] = [
        include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0"),
        include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.1"),
    ];

    fn events(files: &[&[u8]]) -> Vec<Event> {
        let readers = files
            .iter()
            .map(|bytes| Reader::new(*bytes).expect("blktrace"));
        Capture::new(readers.collect()).collect()
    }

    #[test]
    fn what_has_no_place_is_at_sector_0_as_blktrace_has_it() {
        // What asks a virtio disk for its serial number, and a flush.
        for (op, expected) in [
            (flags::OP_OTHER, category::READ | category::PC),
            (
                flags::OP_FLUSH,
                category::READ | category::FLUSH | category::FS,
            ),
        ] {
            let issue = Event {
                kind: Kind::Issue as u8,
                offset: Event::NOWHERE,
                flags: op,
                bytes: 20,
                ..Event::default()
            };
            let mut written = Vec::new();
            Records::default().push(&issue, |trace| written.push(trace));
            // After the name of the process.
            let trace = written.last().expect("a record");
            assert_eq!((trace.sector, trace.bytes), (0, 20));
            assert_eq!(trace.category(), category::ISSUE | expected);
        }
    }

    #[test]
    fn a_capture_survives_the_way_there_and_back() {
        let before = events(&CPUS);
        let mut records = Records::default();
        let mut writers = [Writer::new(Vec::new()), Writer::new(Vec::new())];
        for event in &before {
            records.push(event, |trace| {
                writers[trace.cpu as usize].write(&trace).expect("memory");
            });
        }
        let files = writers.map(Writer::into_inner);
        let after = events(&files.each_ref().map(Vec::as_slice));
        let blocks = |events: &[Event]| -> Vec<Event> {
            let block = |event: &&Event| event.kind().is_some_and(|k| k.source() == Source::Block);
            events.iter().filter(block).copied().collect()
        };
        let (after_blocks, before_blocks) = (blocks(&after), blocks(&before));
        for (after, before) in after_blocks.iter().zip(&before_blocks) {
            assert_eq!(after, before);
        }
        assert_eq!(after_blocks.len(), before_blocks.len());
        let actions = |files: &[&[u8]]| -> Vec<(u64, u64)> {
            let readers = files
                .iter()
                .map(|bytes| Reader::new(*bytes).expect("blktrace"));
            let traces = readers.flatten().filter(|trace| trace.notify().is_none());
            traces
                .map(|trace| (trace.time_ns, trace.raw_action))
                .collect()
        };
        let files = files.each_ref().map(Vec::as_slice);
        for ((ts_ns, ours), (_, theirs)) in actions(&files).into_iter().zip(actions(&CPUS)) {
            assert_eq!(format!("{ours:#x}"), format!("{theirs:#x}"), "at {ts_ns}");
        }
        let names = |events: &[Event]| -> Vec<String> {
            let threads = events.iter().filter(|e| e.kind() == Some(Kind::Thread));
            let mut names: Vec<String> = threads.map(Event::thread_name).collect();
            names.sort();
            names.dedup();
            names
        };
        // blktrace itself did no I/O, and is not named.
        assert!(
            names(&after)
                .iter()
                .all(|name| names(&before).contains(name))
        );
        assert!(names(&after).contains(&"fio".to_owned()));
    }

    #[test]
    fn what_only_the_bio_knows_stands_in_every_record() {
        let at = |ts_ns, kind: Kind, object, related| Event {
            ts_ns,
            kind: kind as u8,
            object,
            related,
            ..Event::default()
        };
        let queue = Event {
            offset: 4096,
            bytes: 8192,
            flags: flags::OP_WRITE | flags::META,
            ..at(1, Kind::Queue, 7, 0)
        };
        let split = Event {
            offset: 4096,
            bytes: 4096,
            ..at(2, Kind::Split, 8, 7)
        };
        let mut traces = Vec::new();
        let mut records = Records::default();
        for event in [
            queue,
            split,
            at(3, Kind::GetRequest, 8, 0),
            at(4, Kind::GetRequest, 7, 0),
        ] {
            records.push(&event, |trace| traces.push(trace));
        }
        let places: Vec<_> = traces
            .iter()
            .filter(|trace| trace.notify() != Some(Notify::Process))
            .map(|trace| {
                (
                    trace.sector,
                    trace.bytes,
                    event(trace).map_or(0, |e| e.flags),
                )
            })
            .collect();
        let flags = queue.flags;
        assert_eq!(
            places,
            [
                (8, 8192, flags),
                (8, 4096, flags),
                (8, 4096, flags),
                (16, 4096, flags)
            ]
        );
        let splits = traces
            .iter()
            .filter(|trace| trace.action() == Some(Action::Split));
        assert_eq!(splits.filter_map(Trace::number).collect::<Vec<_>>(), [16]);
    }
}
