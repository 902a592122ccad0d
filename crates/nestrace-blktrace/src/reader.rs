//! Takes records off a blktrace file, whatever happened to it.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{self, Read};

use crate::plausible::Plausible;
use crate::trace::{self, Format, RECORD_BYTES, RECORD_BYTES_V8, Trace, Version};
use nestrace_trace::diagnostic::{Diagnostic, DiagnosticKind, Diagnostics};
use nestrace_trace::index::read_up_to;

/// A file that is no blktrace file, or a newer one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It does not begin with a record.
    #[error("read a blktrace file: its first bytes are not those of a record")]
    NotBlktrace,
    /// It begins with a record of another version.
    #[error("read a blktrace file: its records have version {found}, versions 7 and 8 can be read")]
    Version {
        /// The version.
        found: u32,
    },
    /// The input failed.
    #[error("read a blktrace file")]
    Io(#[from] io::Error),
}

/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;
/// Bytes that the longest record can have.
const LONGEST: usize = RECORD_BYTES_V8 + u16::MAX as usize;
/// Bytes of a magic number.
const MAGIC_BYTES: usize = 4;
/// The longest record, and the magic number after it.
const WANTED: usize = LONGEST + MAGIC_BYTES;

/// Yields the records of one file in the order of the file: a processor's file, what `blktrace -o -`
/// writes, or a dump of `blkparse -d`.
///
/// An empty file is valid: nothing happened on that processor. Bytes that are no record are skipped up to
/// the next magic number, a record whose length or time cannot be is repaired or left out, and each of
/// these is noted in [`Reader::diagnostics`].
#[derive(Debug)]
pub struct Reader<R> {
    source: Source<R>,
    /// Offset of the record that was taken last.
    taken_at: u64,
    plausible: Plausible,
    diagnostics: Diagnostics,
}

/// The bytes of a file.
#[derive(Debug)]
struct Source<R> {
    input: R,
    format: Format,
    buffer: Vec<u8>,
    /// What was read and not yet used is `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Offset of `start` in the file.
    offset: u64,
    /// The input has no more, or cannot be read on.
    ended: bool,
    failure: Option<io::Error>,
}

impl<R: Read> Reader<R> {
    /// Finds the first record.
    ///
    /// # Errors
    /// [`OpenError`] when this is no blktrace file of version 7 or 8.
    pub fn new(input: R) -> Result<Self, OpenError> {
        let mut source = Source {
            input,
            format: Format::default(),
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            failure: None,
        };
        source.fill();
        if source.end == 0
            && let Some(error) = source.failure.take()
        {
            return Err(OpenError::Io(error));
        }
        if !source.rest().is_empty() {
            source.format = first_format(source.rest())?;
        }
        Ok(Self {
            source,
            taken_at: 0,
            plausible: Plausible::default(),
            diagnostics: Diagnostics::default(),
        })
    }

    /// Version of the records.
    #[must_use]
    pub fn version(&self) -> Version {
        self.source.format.version
    }

    /// What was wrong with the bytes read so far.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        self.diagnostics.as_slice()
    }

    /// The next record as it stands in the file.
    fn read_record(&mut self) -> Option<Trace> {
        loop {
            self.source.fill();
            let rest = self.source.rest();
            if !self.source.format.begins(rest) {
                if rest.is_empty() {
                    self.note_failure();
                    return None;
                }
                self.skip_to_record();
                continue;
            }
            let record = self.take_record();
            if record.is_some() {
                return record;
            }
        }
    }

    #[cold]
    fn skip_to_record(&mut self) {
        let skipped = self.source.skip_to_record();
        let at = self.source.offset.saturating_sub(skipped);
        let (what, kind) = (
            "bytes that are not a blktrace record",
            DiagnosticKind::BatchDamaged,
        );
        note(&mut self.diagnostics, kind, at, skipped, what);
    }

    /// The record that the rest begins with; `None` where it is not whole, and was passed.
    fn take_record(&mut self) -> Option<Trace> {
        let (format, offset) = (self.source.format, self.source.offset);
        self.taken_at = offset;
        let rest = self.source.rest();
        let record_bytes = format.version.record_bytes();
        let cut = |reader: &mut Self, length: usize| {
            let (what, kind) = ("the file ends within a record", DiagnosticKind::Truncated);
            note(&mut reader.diagnostics, kind, offset, length as u64, what);
            reader.source.advance(length);
        };
        if rest.len() < record_bytes {
            cut(self, rest.len());
            return None;
        }
        let (mut trace, payload_len) = trace::parse(rest, format);
        let end = record_bytes.saturating_add(payload_len);
        let follows = match rest.get(end..) {
            Some(after) => format.may_begin(after),
            None => false,
        };
        if !follows && let Some(inner) = format.find(rest.get(record_bytes..).unwrap_or_default()) {
            let inner = record_bytes.saturating_add(inner);
            if inner < end.min(rest.len()) {
                let what = "a record with a wrong length: another record begins inside it";
                let kind = DiagnosticKind::BatchDamaged;
                note(&mut self.diagnostics, kind, offset, inner as u64, what);
                self.source.advance(inner);
                return trace.is_known().then_some(trace);
            }
        }
        let Some(payload) = rest.get(record_bytes..end) else {
            cut(self, rest.len());
            return None;
        };
        if !payload.is_empty() {
            trace.payload.extend_from_slice(payload);
            trace.split_cgroup();
        }
        self.source.advance(end);
        Some(trace)
    }

    fn note_failure(&mut self) {
        if let Some(error) = self.source.failure.take() {
            let message = format!("the file cannot be read further: {error}");
            let (kind, at) = (DiagnosticKind::Unreadable, self.source.offset);
            note(&mut self.diagnostics, kind, at, 0, &message);
        }
    }
}

fn note(diagnostics: &mut Diagnostics, kind: DiagnosticKind, offset: u64, bytes: u64, what: &str) {
    diagnostics.push(Diagnostic::new(kind, offset, bytes, what));
}

impl<R: Read> Source<R> {
    #[inline]
    fn rest(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    #[inline]
    fn advance(&mut self, length: usize) {
        self.start = self.start.saturating_add(length).min(self.end);
        self.offset = self.offset.saturating_add(length as u64);
    }

    /// Makes sure that a whole record is there, and the magic number after it, unless the input ends.
    fn fill(&mut self) {
        if !self.ended && self.rest().len() < WANTED {
            self.read_on();
        }
    }

    /// Reads as much as there is room for.
    #[cold]
    fn read_on(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end = self.end.saturating_sub(self.start);
        self.start = 0;
        let Some(room) = self.buffer.get_mut(self.end..) else {
            return;
        };
        match read_up_to(&mut self.input, room) {
            Ok(read) => {
                self.ended = read < room.len();
                self.end = self.end.saturating_add(read);
            }
            Err(error) => {
                self.ended = true;
                self.failure = Some(error);
            }
        }
    }

    /// Passes bytes up to the next record, as far as they were read; how many.
    fn skip_to_record(&mut self) -> u64 {
        let from = self.offset;
        while !self.rest().is_empty() && !self.format.begins(self.rest()) {
            let rest = self.rest();
            let next = self.format.find(rest.get(1..).unwrap_or_default());
            let skip = match next {
                Some(at) => at.saturating_add(1),
                // The last bytes may begin a magic number.
                None if !self.ended => rest.len().saturating_sub(MAGIC_BYTES).max(1),
                None => rest.len(),
            };
            self.advance(skip);
            self.fill();
        }
        self.offset.saturating_sub(from)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Trace;

    fn next(&mut self) -> Option<Trace> {
        let mut trace = Trace::default();
        self.read_into(&mut trace).then_some(trace)
    }
}

impl<R: Read> Reader<R> {
    /// Gives `take` the next records as long as they are plain, which is to say of this machine's kind, without a payload,
    /// and such that nothing about them asks for a second look, and as long as it takes them, which is what it answers. A
    /// record is not stored here; the compiler makes an event of its fields right away.
    #[inline(always)]
    pub(super) fn take_plain(&mut self, mut take: impl FnMut(&Trace) -> bool) {
        if self.source.format != Format::NATIVE {
            return;
        }
        let Some(mut run) = self.plausible.begin_run() else {
            return;
        };
        let mut rest = self.source.rest();
        let mut taken = 0_usize;
        while let Some((record, after)) = plain_record(rest) {
            let mut trace = Trace::default();
            let is_plain = trace::parse_native(&mut trace, record) == 0;
            if !is_plain || !run.may_go_on_with(&trace) || !take(&trace) {
                break;
            }
            run.go_on_with(&trace);
            taken = taken.saturating_add(RECORD_BYTES);
            rest = after;
        }
        self.plausible.end_run(run);
        self.source.advance(taken);
    }

    /// Puts the next record into the place of another, whose memory it uses again; whether there was one.
    #[inline(always)]
    pub(super) fn read_into(&mut self, trace: &mut Trace) -> bool {
        self.read_plain(trace) || self.read_other(trace)
    }

    /// The next record, if it is plain. Where processors take turns, most are read here.
    #[inline(always)]
    fn read_plain(&mut self, trace: &mut Trace) -> bool {
        if self.source.format != Format::NATIVE || self.plausible.holds_any() {
            return false;
        }
        let Some((record, _)) = plain_record(self.source.rest()) else {
            return false;
        };
        let is_plain = trace::parse_native(trace, record) == 0 && self.plausible.passes(trace);
        if is_plain {
            self.source.advance(RECORD_BYTES);
        }
        is_plain
    }

    #[inline(never)]
    fn read_other(&mut self, trace: &mut Trace) -> bool {
        if self.read_undamaged(trace) {
            return true;
        }
        let next = self.next_of_any();
        let is_there = next.is_some();
        *trace = next.unwrap_or_default();
        is_there
    }

    /// The next record, of any kind, if nothing about it asks for a second look.
    fn read_undamaged(&mut self, trace: &mut Trace) -> bool {
        if self.plausible.holds_any() {
            return false;
        }
        let (format, rest) = (self.source.format, self.source.rest());
        if rest.len() < WANTED || !format.begins(rest) {
            return false;
        }
        let payload_len = trace::parse_into(trace, rest, format);
        let record_bytes = format.version.record_bytes();
        let end = record_bytes.saturating_add(payload_len);
        let (Some(payload), Some(after)) = (rest.get(record_bytes..end), rest.get(end..)) else {
            return false;
        };
        if !format.begins(after) || !self.plausible.passes(trace) {
            return false;
        }
        if !payload.is_empty() {
            trace.payload.extend_from_slice(payload);
            trace.split_cgroup();
        }
        self.source.advance(end);
        true
    }

    /// The next record, whatever is wrong with it or with those around it.
    #[inline(never)]
    fn next_of_any(&mut self) -> Option<Trace> {
        loop {
            if let Some(trace) = self.plausible.take() {
                return Some(trace);
            }
            let next = self.read_record();
            if next
                .as_ref()
                .is_some_and(|trace| self.plausible.passes(trace))
            {
                return next;
            }
            let ended = next.is_none();
            let next = next.map(|trace| (self.taken_at, trace));
            if let Some(offset) = self.plausible.push(next) {
                let what =
                    "a record with a time that fits neither the record before nor the one after";
                let kind = DiagnosticKind::BatchDamaged;
                let bytes = self.source.format.version.record_bytes() as u64;
                // Its number is missing: it counts as lost by that, and has no count of rows.
                self.diagnostics
                    .push(Diagnostic::new(kind, offset, bytes, what));
            }
            if ended {
                return self.plausible.take();
            }
        }
    }
}

/// A record of this machine's kind that another one follows at once, if it has no payload; and what follows.
#[inline(always)]
fn plain_record(bytes: &[u8]) -> Option<(&[u8; RECORD_BYTES], &[u8])> {
    let (record, after) = bytes.split_first_chunk()?;
    let is_between = Format::NATIVE.begins(record) && Format::NATIVE.begins(after);
    is_between.then_some((record, after))
}

/// The format of the first record, or, if its first bytes are damaged, of the first one that is followed by
/// another.
fn first_format(bytes: &[u8]) -> Result<Format, OpenError> {
    let magic = *bytes.first_chunk().unwrap_or(&[0; 4]);
    let refused = match Format::of(magic) {
        Ok(format) => return Ok(format),
        // Another version, unless records of a known one follow: then this byte is damaged.
        Err(Some(found)) => OpenError::Version { found },
        Err(None) => OpenError::NotBlktrace,
    };
    let known = Format::ALL.into_iter();
    let found = known.filter_map(|format| Some((format.find_pair(bytes)?, format)));
    match found.min_by_key(|(at, _)| *at) {
        Some((_, format)) => Ok(format),
        None => Err(refused),
    }
}
