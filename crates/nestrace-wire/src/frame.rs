//! Frames: the bytes around a message.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use crc32fast::Hasher;

use crate::{MAGIC, MAX_PAYLOAD, VERSION};

/// Bytes before a payload.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the longest frame.
pub const MAX_FRAME: usize = HEADER_BYTES + MAX_PAYLOAD;
/// While a reader looks for the first frame, longer ones are not waited for: the rest of one that
/// another session left in the port would hold up the answer behind it. Every message that may come
/// first is shorter.
const MAX_FIRST_PAYLOAD: usize = crate::MAX_JSON;
/// Bytes that the search for a first frame may check. Rubbish made of nothing but headers would
/// otherwise be read once for each of them.
const SEARCH_BUDGET: usize = 64 << 20;

/// Declares [`FrameKind`] once.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal,)+) => {
        /// What a frame carries. The numbers are the wire's: never reuse one.
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FrameKind { $($(#[doc = $doc])+ $name = $number,)+ }

        impl FrameKind {
            /// The kind of this number, or `None` for one of another release.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// Recorder: begin to record. JSON.
    Start = 1,
    /// Recorder: end the session. No payload.
    Stop = 2,
    /// Recorder: answer at once. Token and host's time, 8 bytes each.
    Ping = 3,
    /// Recorder: sum, and send the sums once a second. JSON.
    AskSums = 4,
    /// Agent: who it is and what the guest has. JSON.
    Hello = 0x101,
    /// Agent: the probes are attached. JSON.
    Live = 0x102,
    /// Agent: events that were lost so far. Source (4 bytes), total and guest's time (8 bytes each).
    Loss = 0x104,
    /// Agent: probes that it has not. JSON.
    Refused = 0x105,
    /// Agent: the answer to a ping. Token and guest's time, 8 bytes each.
    Pong = 0x106,
    /// Agent: a text for a person.
    Notice = 0x107,
    /// Agent: the last frame of a session. JSON.
    End = 0x108,
    /// Agent: bytes out of one of its kernel's buffers. The buffer's number (4 bytes), then they.
    Buffer = 0x109,
    /// Agent: everything that its kernel stamped before was in buffers that have been sent. Guest's time, 8 bytes.
    Until = 0x10a,
    /// Agent: in what comes up to the next Until, its kernel may have left events out. No payload.
    Incomplete = 0x10b,
    /// Agent: names of files. JSON.
    Files = 0x10c,
    /// Agent: what disks have done since the session began. JSON.
    Sums = 0x10d,
}

/// A whole frame with a correct checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Number of a [`FrameKind`], or one that this release does not know.
    pub kind: u16,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Why a session cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// No frame begins where one must.
    #[error("read a frame: it begins with {found:#010x} and not with `NSTR`")]
    Magic {
        /// What stands there.
        found: u32,
    },
    /// The other side speaks another version.
    #[error("read a frame: it has version {found}, this release speaks {VERSION}")]
    Version {
        /// Its version.
        found: u16,
    },
    /// It claims to be longer than any frame.
    #[error("read a frame: kind {kind:#x} claims {length} bytes, more than {MAX_PAYLOAD}")]
    Length {
        /// Its kind.
        kind: u16,
        /// What it claims.
        length: u32,
    },
    /// Its bytes were changed on the way.
    #[error("read a frame: kind {kind:#x} with {length} bytes has a wrong checksum")]
    Checksum {
        /// Its kind.
        kind: u16,
        /// Its length.
        length: u32,
    },
    /// Too much was read without a frame in it.
    #[error("find the first frame: {skipped} bytes held none")]
    NotFound {
        /// Bytes that were passed over.
        skipped: u64,
    },
}

/// Appends a frame to `to`. A payload that is too long is not encoded; `false` then.
pub fn encode_frame(kind: FrameKind, payload: &[u8], to: &mut Vec<u8>) -> bool {
    encode_frame_of(kind, &[payload], to)
}

/// The same of a payload in parts.
pub(super) fn encode_frame_of(kind: FrameKind, parts: &[&[u8]], to: &mut Vec<u8>) -> bool {
    let n_bytes = parts
        .iter()
        .fold(0_usize, |n, part| n.saturating_add(part.len()));
    let Some(length) = u32::try_from(n_bytes)
        .ok()
        .filter(|_| n_bytes <= MAX_PAYLOAD)
    else {
        return false;
    };
    let header = Header {
        version: VERSION,
        kind: kind as u16,
        length,
        crc: 0,
    };
    to.reserve(HEADER_BYTES.saturating_add(n_bytes));
    to.extend_from_slice(&MAGIC.to_le_bytes());
    to.extend_from_slice(&header.covered());
    to.extend_from_slice(&header.checksum(parts).to_le_bytes());
    for part in parts {
        to.extend_from_slice(part);
    }
    true
}

/// The fields behind the magic number.
#[derive(Clone, Copy)]
struct Header {
    version: u16,
    kind: u16,
    length: u32,
    crc: u32,
}

impl Header {
    /// The bytes that the checksum covers besides the payload.
    fn covered(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let fields = self
            .version
            .to_le_bytes()
            .into_iter()
            .chain(self.kind.to_le_bytes())
            .chain(self.length.to_le_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    fn checksum(self, payload: &[&[u8]]) -> u32 {
        let mut crc = Hasher::new();
        crc.update(&self.covered());
        for part in payload {
            crc.update(part);
        }
        crc.finalize()
    }

    /// Takes the header from the front of `bytes`; `None` if there are too few.
    fn parse(bytes: &[u8]) -> Option<Result<Self, FrameError>> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let crc = rest.first_chunk()?;
        let header = Self {
            version: u16::from_le_bytes(*version),
            kind: u16::from_le_bytes(*kind),
            length: u32::from_le_bytes(*length),
            crc: u32::from_le_bytes(*crc),
        };
        Some(header.check(u32::from_le_bytes(*magic)))
    }

    fn check(self, magic: u32) -> Result<Self, FrameError> {
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        if usize::try_from(self.length).is_ok_and(|length| length <= MAX_PAYLOAD) {
            return Ok(self);
        }
        Err(FrameError::Length {
            kind: self.kind,
            length: self.length,
        })
    }

    fn frame_bytes(self) -> usize {
        HEADER_BYTES.saturating_add(usize::try_from(self.length).unwrap_or(usize::MAX))
    }
}

/// What stands at the front of the bytes.
enum Front {
    /// A frame of so many bytes.
    Frame(Header),
    /// Its rest is still to come.
    Incomplete,
    Broken(FrameError),
}

fn look(bytes: &[u8]) -> Front {
    let header = match Header::parse(bytes) {
        None => return Front::Incomplete,
        Some(Err(error)) => return Front::Broken(error),
        Some(Ok(header)) => header,
    };
    let Some(payload) = bytes.get(HEADER_BYTES..header.frame_bytes()) else {
        return Front::Incomplete;
    };
    if header.checksum(&[payload]) != header.crc {
        return Front::Broken(FrameError::Checksum {
            kind: header.kind,
            length: header.length,
        });
    }
    // The header is the same in all versions, so one that is not ours is distinguished from damage.
    if header.version != VERSION {
        return Front::Broken(FrameError::Version {
            found: header.version,
        });
    }
    Front::Frame(header)
}

/// Finds frames in bytes that come in any portions. Holds at most [`MAX_FRAME`] bytes.
///
/// At first it looks for a frame and passes over what is none, because the port may still hold what
/// another session left in it (at most [`MAX_FRAME`] bytes are passed over). From the first frame on,
/// every byte must belong to one. [`Self::search`] begins anew.
#[derive(Debug)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Where the first byte stands that was not given out.
    start: usize,
    searching: bool,
    budget: usize,
    skipped: u64,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// Has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            searching: true,
            budget: SEARCH_BUDGET,
            skipped: 0,
        }
    }

    /// Takes bytes, as many as there is room for; gives how many. There is always room after
    /// [`Self::next_frame`] said `None`.
    #[must_use = "what was not taken must be fed again"]
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        if self.start > 0 {
            self.buffer.drain(..self.start.min(self.buffer.len()));
            self.start = 0;
        }
        let room = MAX_FRAME.saturating_sub(self.buffer.len());
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.buffer.extend_from_slice(taken);
        taken.len()
    }

    /// The next whole frame; `None` until more bytes were fed.
    ///
    /// # Errors
    /// [`FrameError`]: what follows cannot be understood, and the session is over.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let found = if self.searching {
            self.find_first()?
        } else {
            match look(self.waiting()) {
                Front::Frame(header) => Some(header),
                Front::Incomplete => None,
                Front::Broken(error) => return Err(error),
            }
        };
        let Some(header) = found else { return Ok(None) };
        let begin = self.start.saturating_add(HEADER_BYTES);
        let end = self.start.saturating_add(header.frame_bytes());
        self.start = end;
        let payload = self.buffer.get(begin..end).unwrap_or_default();
        Ok(Some(Frame {
            kind: header.kind,
            payload,
        }))
    }

    /// Looks for a first frame again, from the bytes on that were not given out.
    pub fn search(&mut self) {
        self.searching = true;
        self.budget = SEARCH_BUDGET;
        self.skipped = 0;
    }

    /// Bytes that were passed over before the first frame.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Bytes that wait for the rest of their frame.
    #[must_use]
    pub fn n_waiting(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Any whole frame counts, even one behind the beginning of another that is not whole.
    fn find_first(&mut self) -> Result<Option<Header>, FrameError> {
        let mut keep_from = None;
        let mut at = self.start;
        while let Some(rest) = self.buffer.get(at..).filter(|rest| !rest.is_empty()) {
            let front = first_front(rest);
            let checked = front.as_ref().map_or(0, |(_, checked)| *checked);
            self.budget = self.budget.saturating_sub(checked);
            match front {
                Some((Front::Frame(header), _)) => {
                    self.pass_to(at)?;
                    self.searching = false;
                    return Ok(Some(header));
                }
                Some((Front::Incomplete, _)) => keep_from = keep_from.or(Some(at)),
                Some((Front::Broken(error @ FrameError::Version { .. }), _)) => return Err(error),
                Some((Front::Broken(_), _)) | None => {}
            }
            at = at.saturating_add(1);
        }
        // A buffer that is full of the beginning of one frame will never hold the whole.
        let limit = self.buffer.len().saturating_sub(first_frame_bytes());
        self.pass_to(keep_from.unwrap_or(at).max(limit).max(self.start))?;
        Ok(None)
    }

    fn pass_to(&mut self, at: usize) -> Result<(), FrameError> {
        self.skipped = self
            .skipped
            .saturating_add(at.saturating_sub(self.start) as u64);
        self.start = at;
        if self.skipped > MAX_FRAME.saturating_mul(2) as u64 || self.budget == 0 {
            return Err(FrameError::NotFound {
                skipped: self.skipped,
            });
        }
        Ok(())
    }
}

const fn first_frame_bytes() -> usize {
    HEADER_BYTES.saturating_add(MAX_FIRST_PAYLOAD)
}

/// What may be a first frame at the front of `bytes`, and how many bytes were checked for it. `None`:
/// not even the magic number, as far as there are bytes.
fn first_front(bytes: &[u8]) -> Option<(Front, usize)> {
    let magic = MAGIC.to_le_bytes();
    let n = bytes.len().min(magic.len());
    if bytes.get(..n) != magic.get(..n) {
        return None;
    }
    match Header::parse(bytes) {
        Some(Ok(header)) if header.frame_bytes() > first_frame_bytes() => None,
        Some(Ok(header)) => {
            let whole = bytes.get(..header.frame_bytes());
            let checked = whole.map_or(HEADER_BYTES, <[u8]>::len);
            Some((look(bytes), checked))
        }
        _ => Some((look(bytes), HEADER_BYTES)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

    use proptest::prelude::*;

    use super::*;

    fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(encode_frame(kind, payload, &mut bytes));
        bytes
    }

    /// Feeds `bytes` in portions; kinds and payload lengths, and the error if there was one.
    fn read(
        reader: &mut FrameReader,
        mut bytes: &[u8],
        portion: usize,
    ) -> (Vec<(u16, usize)>, Option<FrameError>) {
        let mut seen = Vec::new();
        while !bytes.is_empty() {
            let taken = reader.feed(&bytes[..portion.min(bytes.len())]);
            assert!(taken > 0 || reader.n_waiting() > 0);
            bytes = &bytes[taken..];
            loop {
                match reader.next_frame() {
                    Ok(Some(frame)) => seen.push((frame.kind, frame.payload.len())),
                    Ok(None) => break,
                    Err(error) => return (seen, Some(error)),
                }
            }
            assert!(reader.buffer.len() <= MAX_FRAME);
        }
        (seen, None)
    }

    #[test]
    fn frames_come_back_in_any_portions() {
        let mut bytes = frame(FrameKind::Stop, &[]);
        bytes.extend(frame(FrameKind::Notice, b"a text"));
        bytes.extend(frame(FrameKind::Buffer, &vec![7; MAX_PAYLOAD]));
        for portion in [1, 7, 4096, bytes.len()] {
            let seen = read(&mut FrameReader::new(), &bytes, portion);
            let kinds = vec![(2, 0), (0x107, 6), (0x109, MAX_PAYLOAD)];
            assert_eq!(seen, (kinds, None), "portions of {portion}");
        }
        let mut too_long = Vec::new();
        let long = vec![0; MAX_PAYLOAD + 1];
        assert!(!encode_frame(FrameKind::Buffer, &long, &mut too_long) && too_long.is_empty());
    }

    #[test]
    fn damage_behind_the_first_frame_ends_the_session() {
        let stop = frame(FrameKind::Stop, &[]);
        let notice = frame(FrameKind::Notice, b"a text");
        for (at, value, expected) in [
            (0, b'X', FrameError::Magic { found: 0x5254_5358 }),
            (
                4,
                2,
                FrameError::Checksum {
                    kind: 0x107,
                    length: 6,
                },
            ),
            (
                6,
                8,
                FrameError::Checksum {
                    kind: 0x108,
                    length: 6,
                },
            ),
            (
                11,
                1,
                FrameError::Length {
                    kind: 0x107,
                    length: 0x0100_0006,
                },
            ),
            (
                20,
                b'!',
                FrameError::Checksum {
                    kind: 0x107,
                    length: 6,
                },
            ),
        ] {
            let mut bytes = [stop.clone(), notice.clone()].concat();
            bytes[stop.len() + at] = value;
            let (seen, error) = read(&mut FrameReader::new(), &bytes, 5);
            assert_eq!((seen, error), (vec![(2, 0)], Some(expected)), "byte {at}");
        }
    }

    #[test]
    fn a_first_frame_is_found_behind_what_another_session_left() {
        let hello = frame(FrameKind::Hello, b"{}");
        let batch = frame(FrameKind::Buffer, &vec![1; 300_000]);
        for left in [
            &b""[..],
            b"\0\0NSTRx",
            &batch[..20],
            &batch[..200_000],
            &batch[100..],
            &frame(FrameKind::Notice, b"cut")[..17],
            &b"NSTR".repeat(500),
        ] {
            let bytes = [left, &hello[..], &frame(FrameKind::Stop, &[])].concat();
            for portion in [13, 70_000] {
                let (seen, error) = read(&mut FrameReader::new(), &bytes, portion);
                assert_eq!((seen, error), (vec![(0x101, 2), (2, 0)], None));
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        let header = Header {
            version: 2,
            kind: 1,
            length: 2,
            crc: 0,
        };
        let mut bytes = b"??NSTR".to_vec();
        bytes.extend_from_slice(&header.covered());
        bytes.extend_from_slice(&header.checksum(&[b"{}"]).to_le_bytes());
        bytes.extend_from_slice(b"{}");
        let (_, error) = read(&mut FrameReader::new(), &bytes, 3);
        assert_eq!(error, Some(FrameError::Version { found: 2 }));
    }

    #[test]
    fn a_search_has_an_end() {
        let rubbish = vec![0; 3 * MAX_FRAME];
        let (_, error) = read(&mut FrameReader::new(), &rubbish, 1 << 16);
        assert!(matches!(error, Some(FrameError::NotFound { .. })));
        // Nothing but headers of frames that seem to be nearly whole.
        let mut headers = Vec::new();
        for _ in 0..20_000 {
            headers.extend_from_slice(&frame(FrameKind::Hello, &[0; 200_000])[..16]);
        }
        let (seen, error) = read(&mut FrameReader::new(), &headers.repeat(8), 1 << 16);
        assert!(seen.is_empty() && error.is_some());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_grow(
            bytes in prop::collection::vec(prop_oneof![Just(b'N'), Just(b'S'), Just(b'T'), Just(b'R'), Just(1), Just(0), any::<u8>()], 0..5000),
            portion in 1_usize..700,
        ) {
            let _ = read(&mut FrameReader::new(), &bytes, portion);
            let mut strict = FrameReader::new();
            let _ = read(&mut strict, &[frame(FrameKind::Stop, &[]), bytes].concat(), portion);
        }
    }
}
