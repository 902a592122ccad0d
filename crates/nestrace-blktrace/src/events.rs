//! blktrace's records as events of a recording.
//!
//! A record names no bio and no request, so `object` is 0 in all of them; place and length stand in
//! *every* event, and the analyzer tells bios and requests apart by them. What a record cannot say:
//!
//! - Whether a request belongs to the flush machinery ([`flags::FLUSH_SEQ`] is never set).
//! - A merge of two requests: it is an M like that of a bio.
//! - Write-zeroes: a write. Zone operations: [`flags::OP_OTHER`].
//! - How many bytes of a request remain after a part of it was completed.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use nestrace_abi::{Kind, flags};

use super::{Action, Notify, Trace, category};
use nestrace_trace::Event;

/// Category bits and the flags that they mean.
const MARKS: [(u16, u32); 5] = [
    (category::FLUSH, flags::PREFLUSH),
    (category::SYNC, flags::SYNC),
    (category::META, flags::META),
    (category::FUA, flags::FUA),
    (category::AHEAD, flags::RAHEAD),
];
/// The flags of all values of one half of the category bits: the lower one, and the upper one.
static MARKS_OF: [[u32; 256]; 2] = [marks_of_half(0), marks_of_half(8)];

// The compiler does these, so whatever is wrong with them does not compile.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
const fn marks_of_half(shift: u32) -> [u32; 256] {
    let mut all = [0; 256];
    let mut half = 0;
    while half < all.len() {
        let mut place = 0;
        while place < MARKS.len() {
            let (bit, flag) = MARKS[place];
            if (half as u32) << shift & bit as u32 != 0 {
                all[half] |= flag;
            }
            place += 1;
        }
        half += 1;
    }
    all
}

/// Bits of the upper half of an action: operations on zones (Linux 6.19).
const ZONES: u64 = 0x3f << 32;
/// What a request has that was never given a place (`blk_rq_init()`).
const NO_SECTOR: u64 = u64::MAX;

/// The event that a record stands for; `None` for notifications and for what no event stands for
/// (bounces, aborts and drivers' own data).
#[must_use]
#[inline]
pub fn event(trace: &Trace) -> Option<Event> {
    let mut event = Event::default();
    put_event(trace, &mut event).then_some(event)
}

/// Puts the event that a record stands for into a place that is empty; whether there is one.
#[inline(always)]
pub(super) fn put_event(trace: &Trace, event: &mut Event) -> bool {
    let Some(kind) = trace.action().and_then(kind) else {
        return false;
    };
    if kind == Kind::BioRemap {
        let Some(from) = trace.remap() else {
            return false;
        };
        event.file_offset = from.from_sector.saturating_mul(512);
        event.owner_dev = from.from_device;
    }
    event.ts_ns = trace.time_ns;
    event.kind = kind as u8;
    event.cpu = u16::try_from(trace.cpu).unwrap_or(u16::MAX);
    event.tid = trace.tid;
    event.dev = trace.device;
    match kind {
        Kind::Plug => return true,
        Kind::Unplug => {
            event.bytes = trace.number().unwrap_or(0);
            event.sub = u8::from(trace.action() == Some(Action::UnplugTimer));
            return true;
        }
        Kind::Complete => event.sub = error(trace.error),
        _ => {}
    }
    event.offset = place(trace.sector);
    event.bytes = u64::from(trace.bytes);
    event.flags = block_flags(trace);
    event.cgroup = trace.cgroup.unwrap_or(0);
    true
}

/// A sector in bytes. Before Linux 4.11 a request without a place has sector −1 in its records, since then 0.
#[inline]
const fn place(sector: u64) -> u64 {
    match sector {
        NO_SECTOR => 0,
        sector => sector.saturating_mul(512),
    }
}

/// The kind of an action that an event stands for.
#[inline]
const fn kind(action: Action) -> Option<Kind> {
    Some(match action {
        Action::Queue => Kind::Queue,
        Action::GetRequest => Kind::GetRequest,
        Action::BackMerge => Kind::BackMerge,
        Action::FrontMerge => Kind::FrontMerge,
        Action::Split => Kind::Split,
        Action::Remap => Kind::BioRemap,
        Action::Insert => Kind::Insert,
        Action::Issue => Kind::Issue,
        Action::Requeue => Kind::Requeue,
        Action::Complete => Kind::Complete,
        Action::Plug => Kind::Plug,
        Action::Unplug | Action::UnplugTimer => Kind::Unplug,
        Action::SleepRequest => Kind::SleepRequest,
        Action::Bounce | Action::Abort | Action::DriverData => return None,
    })
}

#[inline]
fn block_flags(trace: &Trace) -> u32 {
    let categories = trace.category();
    let has = |bit| categories & bit != 0;
    let (write, flush) = (has(category::WRITE), has(category::FLUSH));
    let value = if has(category::PC) || trace.raw_action & ZONES != 0 {
        flags::OP_OTHER
    } else if has(category::DISCARD) {
        flags::OP_DISCARD
    } else if flush && trace.sector == NO_SECTOR {
        // Where it has no place, the device's flush request counts as a write.
        flags::OP_FLUSH
    } else if write {
        flags::OP_WRITE
    } else if flush && trace.bytes == 0 {
        flags::OP_FLUSH
    } else {
        flags::OP_READ
    };
    // The kernel's own flush requests have FLUSH and PREFLUSH (`blk_kick_flush()`).
    value | mark(categories)
}

/// The flags that category bits mean.
#[inline]
fn mark(categories: u16) -> u32 {
    let [lower, upper] = categories.to_le_bytes().map(usize::from);
    let [of_lower, of_upper] = &MARKS_OF;
    of_lower.get(lower).unwrap_or(&0) | of_upper.get(upper).unwrap_or(&0)
}

/// The errno: newer kernels store it negative. What does not fit is an error all the same.
fn error(stored: u16) -> u8 {
    let errno = stored.cast_signed().unsigned_abs();
    u8::try_from(errno).unwrap_or(u8::MAX)
}

/// The name of a thread, where the record is that notification. Its process is not known: each thread is
/// taken for one.
#[must_use]
pub fn thread(trace: &Trace) -> Option<Event> {
    if trace.notify() != Some(Notify::Process) {
        return None;
    }
    let mut name = [0; 16];
    for (to, from) in name.iter_mut().zip(&trace.payload) {
        *to = *from;
    }
    let (first, second) = name.split_first_chunk::<8>()?;
    let mut event = Event::at(trace.time_ns, Kind::Thread);
    event.cpu = u16::try_from(trace.cpu).unwrap_or(u16::MAX);
    event.tid = trace.tid;
    event.object = u64::from(trace.tid);
    event.related = u64::from_le_bytes(*first);
    event.offset = u64::from_le_bytes(*second.first_chunk()?);
    Some(event)
}

/// `CLOCK_REALTIME` in nanoseconds since 1970 at the record's time, where it is that notification. The
/// kernel writes one when a trace starts.
#[must_use]
pub fn wall_clock(trace: &Trace) -> Option<u64> {
    if trace.notify() != Some(Notify::Timestamp) {
        return None;
    }
    let (seconds, rest) = trace.payload.split_first_chunk::<4>()?;
    let nanoseconds = trace.order.u32(*rest.first_chunk()?);
    u64::from(trace.order.u32(*seconds))
        .checked_mul(1_000_000_000)?
        .checked_add(u64::from(nanoseconds))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Reader;

    const CPU_0: &[u8] =
        include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0");

    /// A record with this action, these categories and a length.
    fn trace(action: Action, categories: u16, bytes: u32) -> Trace {
        Trace {
            time_ns: 5,
            sector: 8,
            bytes,
            raw_action: action as u64 | u64::from(categories) << 16,
            device: 8 << 20,
            ..Trace::default()
        }
    }

    #[test]
    fn operations_and_flags() {
        use category::{AHEAD, DISCARD, FLUSH, FUA, META, PC, READ, SYNC, WRITE};
        for (categories, bytes, expected) in [
            (READ, 4096, flags::OP_READ),
            (READ | AHEAD, 4096, flags::OP_READ | flags::RAHEAD),
            (
                WRITE | SYNC | META,
                4096,
                flags::OP_WRITE | flags::SYNC | flags::META,
            ),
            (
                WRITE | SYNC | FLUSH | FUA,
                512,
                flags::OP_WRITE | flags::SYNC | flags::PREFLUSH | flags::FUA,
            ),
            // An empty flush bio is a write, the flush request of the device is not.
            (
                WRITE | SYNC | FLUSH,
                0,
                flags::OP_WRITE | flags::SYNC | flags::PREFLUSH,
            ),
            (READ | FLUSH, 0, flags::OP_FLUSH | flags::PREFLUSH),
            (
                WRITE | DISCARD | SYNC,
                1 << 20,
                flags::OP_DISCARD | flags::SYNC,
            ),
            (READ | PC, 36, flags::OP_OTHER),
        ] {
            let event = event(&trace(Action::Issue, categories, bytes)).unwrap();
            assert_eq!(event.flags, expected, "{categories:#x}");
            assert_eq!((event.offset, event.bytes), (4096, u64::from(bytes)));
        }
    }

    #[test]
    fn a_flush_request_of_an_old_kernel_has_no_place() {
        let mut trace = trace(
            Action::Issue,
            category::WRITE | category::SYNC | category::FLUSH,
            0,
        );
        trace.sector = NO_SECTOR;
        let event = event(&trace).unwrap();
        assert_eq!(event.offset, 0);
        assert_eq!(event.flags, flags::OP_FLUSH | flags::PREFLUSH | flags::SYNC);
    }

    #[test]
    fn errors_of_all_kernels() {
        for (stored, expected) in [(0, 0), (5, 5), (0xfffb, 5), (0x8000, 255), (600, 255)] {
            assert_eq!(error(stored), expected);
        }
    }

    #[test]
    fn what_payloads_say() {
        let mut remap = trace(Action::Remap, category::WRITE, 4096);
        assert_eq!(event(&remap), None, "without its payload it says nothing");
        remap.payload = [
            &((8_u32 << 20) | 1).to_be_bytes()[..],
            &(8_u32 << 20).to_be_bytes(),
            &3_u64.to_be_bytes(),
        ]
        .concat();
        let event_of = event(&remap).unwrap();
        assert_eq!(
            (event_of.kind(), event_of.owner_dev, event_of.file_offset),
            (Some(Kind::BioRemap), (8 << 20) | 1, 1536)
        );
        let mut unplug = trace(Action::UnplugTimer, 0, 0);
        unplug.payload = 3_u64.to_be_bytes().to_vec();
        let event_of = event(&unplug).unwrap();
        assert_eq!((event_of.bytes, event_of.sub), (3, 1));
    }

    #[test]
    fn a_capture_becomes_events() {
        let traces: Vec<Trace> = Reader::new(CPU_0).unwrap().collect();
        let events: Vec<Event> = traces.iter().filter_map(event).collect();
        let n = |kind: Kind| events.iter().filter(|e| e.kind() == Some(kind)).count();
        assert_eq!(n(Kind::Issue), 34);
        assert!(events.iter().all(|event| event.object == 0));
        let names: Vec<String> = traces
            .iter()
            .filter_map(thread)
            .map(|event| event.thread_name())
            .collect();
        assert!(names.iter().any(|name| name == "fio"), "{names:?}");
        // 2020 to 2100: the wall clock of the machine that recorded.
        let clocks: Vec<u64> = traces.iter().filter_map(wall_clock).collect();
        assert!(
            clocks
                .iter()
                .all(|ns| (1_577_000_000_000_000_000..4_102_000_000_000_000_000).contains(ns))
        );
        assert!(!clocks.is_empty());
    }
}
