//! The packets of a trace: `TracePacket` with tracks, slices, flows and counters.
//!
//! The numbers of fields are those of Perfetto's `trace_packet.proto` and `track_event.proto`, which keep
//! them for ever.

use nestrace_analyzer::CALL_SEGMENT_NAMES;

use super::message::Message;
use crate::{exit::Failure, export::new_file::NewFile};

/// All packets belong to this sequence, so each name is written once.
const SEQUENCE: u64 = 1;
/// `CLOCK_MONOTONIC` and `CLOCK_REALTIME` in `builtin_clock.proto`.
const MONOTONIC: u64 = 3;
const REALTIME: u64 = 1;

/// What is said of a slice beside its name; the place in this list (from 1) is its number in the file. Behind them stand
/// the segments of a call.
pub const NOTES: [&str; 19] = [
    "io",
    "offset",
    "bytes",
    "sector",
    "shared",
    "unlinked",
    "ambiguous",
    "clock_bound_ns",
    "requeues",
    "call",
    "process",
    "pid",
    "mount",
    "inode",
    "path",
    "result",
    "bios",
    "without_io",
    "not_linked",
];

/// The value of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A count, a size, a place.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Yes.
    Yes,
    /// A word.
    Word(&'static str),
    /// A name.
    Text(String),
}

/// A track as the file describes it.
#[derive(Clone, Debug)]
pub struct Track<'a> {
    /// Its number; never 0.
    pub uuid: u64,
    /// The track that it stands under; 0: none.
    pub parent: u64,
    /// Its name. Tracks of one name under one parent are drawn as one.
    pub name: &'a str,
    /// Where it stands among its siblings.
    pub rank: i64,
    /// It counts instead of having slices.
    pub counter: bool,
}

/// A stretch of time on a track.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// Host's `CLOCK_MONOTONIC`, nanoseconds.
    pub start_ns: u64,
    /// Likewise; not before the start.
    pub end_ns: u64,
    /// What stands on it.
    pub name: String,
    /// Index into [`NOTES`] and value.
    pub notes: Vec<(usize, Note)>,
    /// Arrows that begin here.
    pub flows_out: Vec<u64>,
    /// Arrows that end here.
    pub flows_in: Vec<u64>,
    /// Slices of one chain have one colour.
    pub correlation: u64,
}

/// The file.
pub struct Packets {
    file: NewFile,
}

impl Packets {
    /// Begins with the clocks and the names of notes.
    pub fn create(file: NewFile, start_mono_ns: u64, start_unix_ns: u64) -> Result<Self, Failure> {
        let mut packets = Self { file };
        let clock = |id, ns| Message::default().number(1, id).number(2, ns);
        let clocks = Message::default().message(1, &clock(MONOTONIC, start_mono_ns));
        let clocks = match start_unix_ns {
            0 => clocks,
            ns => clocks.message(1, &clock(REALTIME, ns)),
        };
        // Times are the host's monotonic clock; of its wall clock only the start is known.
        let clocks = clocks.number(2, MONOTONIC);
        packets.put(&packet().message(6, &clocks))?;
        let segments = CALL_SEGMENT_NAMES.map(|name| format!("{name}_ns"));
        let segments = segments.iter().map(String::as_str);
        let names = NOTES
            .into_iter()
            .chain(segments)
            .zip(1..)
            .fold(Message::default(), |names, (name, iid)| {
                names.message(3, &Message::default().number(1, iid).text(2, name))
            });
        let defaults = Message::default().number(58, MONOTONIC);
        packets.put(
            &packet()
                // The state of the sequence begins here.
                .number(13, 1)
                .number(87, 1)
                .message(59, &defaults)
                .message(12, &names),
        )?;
        Ok(packets)
    }

    /// Describes a track, before anything is on it.
    pub fn track(&mut self, track: &Track<'_>) -> Result<(), Failure> {
        const EXPLICIT: u64 = 3;
        const BY_NAME: u64 = 1;
        const COUNT: u64 = 2;
        let mut about = Message::default()
            .number(1, track.uuid)
            .text(2, track.name)
            .number(11, EXPLICIT)
            .signed(12, track.rank)
            .number(15, BY_NAME);
        if track.parent != 0 {
            about = about.number(5, track.parent);
        }
        if track.counter {
            about = about.message(8, &Message::default().number(3, COUNT));
        }
        self.put(&packet().message(60, &about))
    }

    /// A slice: its begin and its end.
    pub fn slice(&mut self, uuid: u64, slice: &Slice) -> Result<(), Failure> {
        const BEGIN: u64 = 1;
        const END: u64 = 2;
        let mut begin = Message::default()
            .number(9, BEGIN)
            .number(11, uuid)
            .text(23, &slice.name);
        if slice.correlation != 0 {
            begin = begin.number(52, slice.correlation);
        }
        for (name, note) in &slice.notes {
            let note = match note {
                Note::Number(number) => annotation(*name).number(3, *number),
                Note::Yes => annotation(*name).number(2, 1),
                Note::Signed(number) => annotation(*name).signed(4, *number),
                Note::Word(word) => annotation(*name).text(6, word),
                Note::Text(text) => annotation(*name).text(6, text),
            };
            begin = begin.message(4, &note);
        }
        for flow in &slice.flows_out {
            begin = begin.fixed(47, *flow);
        }
        for flow in &slice.flows_in {
            begin = begin.fixed(48, *flow);
        }
        self.put(&at(slice.start_ns).message(11, &begin))?;
        let end = Message::default().number(9, END).number(11, uuid);
        self.put(&at(slice.end_ns.max(slice.start_ns)).message(11, &end))
    }

    /// The value of a counter from this time on.
    pub fn count(&mut self, uuid: u64, ts_ns: u64, value: i64) -> Result<(), Failure> {
        const COUNTER: u64 = 4;
        let value = Message::default()
            .number(9, COUNTER)
            .number(11, uuid)
            .signed(30, value);
        self.put(&at(ts_ns).message(11, &value))
    }

    /// The file appears.
    pub fn finish(self) -> Result<(), Failure> {
        self.file.finish()
    }

    /// `Trace.packet`.
    fn put(&mut self, packet: &Message) -> Result<(), Failure> {
        self.file.put(Message::default().message(1, packet).bytes())
    }
}

fn packet() -> Message {
    Message::default().number(10, SEQUENCE)
}

/// A packet that needs the names written before it.
fn at(ts_ns: u64) -> Message {
    packet().number(8, ts_ns).number(13, 2)
}

fn annotation(name: usize) -> Message {
    Message::default().number(1, name as u64 + 1)
}
