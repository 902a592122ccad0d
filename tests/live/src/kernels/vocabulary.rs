//! Events of both recorders in the terms that both have.

use std::collections::HashMap;

use nestrace_blktrace::{Action, Trace, category};
use nestrace_trace::{Event, Kind, flags};

/// What the workload has to bring about for the comparison to mean something.
pub const EXPECTED: &[Action] = &[
    Action::Queue,
    Action::GetRequest,
    Action::BackMerge,
    Action::FrontMerge,
    Action::Split,
    Action::Remap,
    Action::Insert,
    Action::Issue,
    Action::Requeue,
    Action::Complete,
    Action::Plug,
    Action::Unplug,
    Action::UnplugTimer,
];

/// And the marks that have to be among them; with flushes and FUA, the flush machinery has run.
pub const EXPECTED_MARKS: &[(u16, &str)] = &[
    (category::SYNC, "sync"),
    (category::META, "meta"),
    (category::FUA, "FUA"),
    (category::FLUSH, "flush"),
    (category::AHEAD, "read-ahead"),
    (category::DISCARD, "discard"),
];

/// Marks that both recorders have.
const MARKS: [(u16, u32); 5] = [
    (category::SYNC, flags::SYNC),
    (category::META, flags::META),
    (category::FUA, flags::FUA),
    (category::FLUSH, flags::PREFLUSH),
    (category::AHEAD, flags::RAHEAD),
];

/// Bytes from here on are no place on a device. dm gives a flush a place before the beginning of the
/// device below, and blktrace leaves out what is beyond the device's end.
const NOWHERE: u64 = 1 << 63;
/// Where a flush is: the kernel keeps all ones there, which blktrace shows as 0.
const NO_PLACE: u64 = u64::MAX << 9;

/// Everything about an event that both recorders state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Facts {
    /// Whole disk.
    pub device: u32,
    /// Processor.
    pub cpu: u32,
    /// Thread.
    pub tid: u32,
    /// What happened.
    pub action: Action,
    /// Where, in sectors.
    pub sector: u64,
    /// How much.
    pub bytes: u64,
    /// [`category`] bits.
    pub marks: u16,
    /// Requests of an unplug, sector of a split's second half, sector before a remap.
    pub detail: u64,
    /// Device before a remap.
    pub from_device: u32,
    /// Whether a completion was an error.
    pub failed: bool,
}

/// An event of one recorder.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What both state.
    pub facts: Facts,
    /// The bio or request, where the recorder names it; else 0.
    pub object: u64,
}

/// blktrace's records, as they are.
pub fn of_blktrace(traces: &[Trace]) -> Vec<Seen> {
    traces.iter().filter_map(of_trace).collect()
}

fn of_trace(trace: &Trace) -> Option<Seen> {
    let action = trace.action()?;
    let remap = trace.remap().filter(|_| action == Action::Remap);
    let detail = match action {
        Action::Remap => remap?.from_sector,
        Action::Split | Action::Unplug | Action::UnplugTimer => trace.number()?,
        _ => 0,
    };
    let facts = Facts {
        device: trace.device,
        cpu: trace.cpu,
        tid: trace.tid,
        action,
        sector: trace.sector,
        bytes: u64::from(trace.bytes),
        marks: comparable(action, trace.category()),
        detail,
        from_device: remap.map_or(0, |remap| remap.from_device),
        failed: action == Action::Complete && trace.error != 0,
    };
    Some(Seen {
        time_ns: trace.time_ns,
        facts,
        object: 0,
    })
}

/// The marks that an event of ours has too. Plugs are not about I/O; of a driver's own command, the
/// direction is not recorded.
fn comparable(action: Action, marks: u16) -> u16 {
    if matches!(action, Action::Plug | Action::Unplug | Action::UnplugTimer) {
        return 0;
    }
    let direction = category::READ | category::WRITE;
    let all = MARKS.iter().fold(
        category::DISCARD | category::PC | direction,
        |all, (mark, _)| all | mark,
    );
    if marks & category::PC != 0 {
        marks & all & !direction
    } else {
        marks & all
    }
}

/// nestrace's events in the order of time. What the kernel says of a bio only at Q and X is carried
/// over to its G, M and F.
pub fn of_recording(events: &[Event]) -> Vec<Seen> {
    let mut bios = Bios::default();
    events.iter().filter_map(|event| bios.see(event)).collect()
}

/// Where a bio stands, how long it is, and its flags.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    offset: u64,
    bytes: u64,
    flags: u32,
    /// A split bio goes on with its rest under its own name (dm).
    trimmed: bool,
}

impl Extent {
    fn of(event: &Event) -> Self {
        Self {
            offset: event.offset,
            bytes: event.bytes,
            flags: event.flags,
            trimmed: false,
        }
    }
}

#[derive(Debug, Default)]
struct Bios(HashMap<u64, Extent>);

impl Bios {
    fn see(&mut self, event: &Event) -> Option<Seen> {
        let action = action_of(event)?;
        let kind = event.kind()?;
        let mut extent = match kind {
            // The blktrace backend names no bio and says everything in every event.
            Kind::GetRequest | Kind::BackMerge | Kind::FrontMerge if event.object != 0 => {
                self.0.get(&event.object).copied().unwrap_or_default()
            }
            Kind::Plug | Kind::Unplug => Extent::default(),
            _ => Extent::of(event),
        };
        match kind {
            Kind::Queue if event.object != 0 => {
                self.0.insert(event.object, extent);
            }
            Kind::Split => extent.trimmed = !self.split(event),
            _ => {}
        }
        if extent.offset >= NOWHERE && extent.offset != NO_PLACE {
            return None;
        }
        Some(Seen {
            time_ns: event.ts_ns,
            facts: facts(event, action, extent),
            object: event.object,
        })
    }

    /// The front half is a bio of its own; the parent keeps the rest. dm has no front half: the event
    /// names the bio itself, which has been trimmed to its rest. Says whether there is a front half.
    fn split(&mut self, event: &Event) -> bool {
        let parent = self.0.get_mut(&event.related);
        let halved = parent.filter(|parent| parent.offset == event.offset);
        let has_front = halved.is_some();
        if let Some(parent) = halved {
            parent.offset += event.bytes;
            parent.bytes = parent.bytes.saturating_sub(event.bytes);
        }
        self.0.insert(event.object, Extent::of(event));
        has_front
    }
}

fn facts(event: &Event, action: Action, extent: Extent) -> Facts {
    let sector = extent.offset >> 9;
    let is_remap = action == Action::Remap;
    Facts {
        device: event.dev,
        cpu: u32::from(event.cpu),
        tid: event.tid,
        action,
        sector: if extent.offset == NO_PLACE { 0 } else { sector },
        bytes: extent.bytes,
        marks: match action {
            Action::Plug | Action::Unplug | Action::UnplugTimer => 0,
            _ => marks(extent.flags),
        },
        detail: match action {
            Action::Remap => event.file_offset >> 9,
            Action::Split if extent.trimmed => sector,
            Action::Split => sector + (extent.bytes >> 9),
            Action::Unplug | Action::UnplugTimer => event.bytes,
            _ => 0,
        },
        from_device: if is_remap { event.owner_dev } else { 0 },
        failed: match event.kind() {
            Some(Kind::Complete) => event.sub != 0,
            Some(Kind::BioComplete) => event.aux != 0,
            _ => false,
        },
    }
}

fn action_of(event: &Event) -> Option<Action> {
    Some(match event.kind()? {
        Kind::Queue => Action::Queue,
        Kind::GetRequest => Action::GetRequest,
        // blktrace has one letter for a bio and for a whole request that is merged at the back.
        Kind::BackMerge | Kind::RequestMerge => Action::BackMerge,
        Kind::FrontMerge => Action::FrontMerge,
        Kind::Split => Action::Split,
        Kind::BioRemap | Kind::RequestRemap => Action::Remap,
        Kind::BioComplete | Kind::Complete => Action::Complete,
        Kind::Insert => Action::Insert,
        Kind::Issue => Action::Issue,
        Kind::Requeue => Action::Requeue,
        Kind::Plug => Action::Plug,
        Kind::Unplug if event.sub == 1 => Action::UnplugTimer,
        Kind::Unplug => Action::Unplug,
        _ => return None,
    })
}

/// Our flags as blktrace's marks.
fn marks(ours: u32) -> u16 {
    let mut marks = match ours & flags::OP_MASK {
        flags::OP_READ => category::READ,
        flags::OP_WRITE | flags::OP_WRITE_ZEROES => category::WRITE,
        // A flush counts as a read: the kernel takes the lowest bit of the operation.
        flags::OP_FLUSH => category::READ | category::FLUSH,
        flags::OP_DISCARD | flags::OP_SECURE_ERASE => category::WRITE | category::DISCARD,
        _ => category::PC,
    };
    for (mark, flag) in MARKS {
        if ours & flag != 0 {
            marks |= mark;
        }
    }
    marks
}
