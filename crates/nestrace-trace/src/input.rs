//! The bytes of a stream: takes whole messages from a `Read + Seek`, checks their checksums, and
//! finds the next good one after damage.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{self, Read, Seek, SeekFrom};

use arrow_ipc::{Message, Schema};

use crate::index::{Entry, read_up_to};
use crate::message::{self, CONTINUATION, PREFIX_LEN, Seal};

/// A stream and the message that was last read from it.
pub(crate) struct Input<R> {
    stream: R,
    position: u64,
    len: u64,
    /// Metadata and body.
    message: Vec<u8>,
    metadata_len: usize,
    /// Bytes that the search for a good message may still check. Without it, an input made of
    /// nothing but beginnings of messages would be read once for each of them.
    search_budget: u64,
}

/// Bytes that are searched at once.
const SEARCH_CHUNK: usize = 64 << 10;

/// What stands at a place of the stream.
#[derive(Debug)]
pub(crate) enum Walked {
    /// A message of so many bytes, which can be had by [`Input::message`].
    Message {
        /// Bytes of the message with its prefix.
        length: u64,
        /// Whether its own checksum holds.
        seal: Seal,
    },
    /// The marker that closes a stream.
    End,
    /// The beginning of a message that is longer than what is left.
    Short,
    /// No message.
    Nothing,
}

impl<R: Read + Seek> Input<R> {
    pub(crate) fn new(mut stream: R) -> io::Result<Self> {
        let len = stream.seek(SeekFrom::End(0))?;
        stream.seek(SeekFrom::Start(0))?;
        let search_budget = len.saturating_mul(4).saturating_add(message::MAX_MESSAGE);
        let (message, metadata_len) = (Vec::new(), 0);
        Ok(Self {
            stream,
            position: 0,
            len,
            message,
            metadata_len,
            search_budget,
        })
    }

    /// Bytes of the stream.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes of the message that was last read: its metadata (without the prefix) and its body.
    pub(crate) fn parts(&self) -> Option<(&[u8], &[u8])> {
        let (metadata, _) = self.message.split_at_checked(self.metadata_len)?;
        self.message().map(|(_, body)| (metadata, body))
    }

    /// The metadata and the body of the message that was last read.
    pub(crate) fn message(&self) -> Option<(Message<'_>, &[u8])> {
        let (metadata, body) = self.message.split_at_checked(self.metadata_len)?;
        let (message, body_len) = message::parse_metadata(metadata)?;
        Some((message, body.get(..usize::try_from(body_len).ok()?)?))
    }

    /// The message that was last read, if it is a schema.
    pub(crate) fn schema(&self) -> Option<Schema<'_>> {
        self.message()
            .and_then(|(message, _)| message.header_as_schema())
    }

    /// What the checksum in the message that was last read says.
    pub(crate) fn seal(&self) -> Seal {
        self.message
            .split_at_checked(self.metadata_len)
            .map_or(Seal::Absent, |(metadata, body)| {
                message::check_seal(metadata, body)
            })
    }

    /// Whether the stream begins like one, or ends before that is known.
    pub(crate) fn begins_a_message(&mut self) -> io::Result<bool> {
        self.seek(0)?;
        let mut bytes = [0; CONTINUATION.len()];
        let read = self.read(&mut bytes)?;
        Ok(bytes.get(..read) == CONTINUATION.get(..read))
    }

    /// Reads the message that `entry` describes, which lies within the stream; `false` if its
    /// checksum is wrong.
    pub(crate) fn read_checked(&mut self, entry: &Entry) -> io::Result<bool> {
        self.seek(entry.offset)?;
        let mut prefix = [0; PREFIX_LEN];
        if self.read(&mut prefix)? < PREFIX_LEN {
            return Ok(false);
        }
        let rest = entry.length.saturating_sub(PREFIX_LEN as u64);
        if !self.fill_message(0, rest)? {
            return Ok(false);
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&prefix);
        crc.update(&self.message);
        let metadata_len = message::metadata_len(prefix).and_then(|len| usize::try_from(len).ok());
        self.metadata_len = metadata_len.unwrap_or(0);
        Ok(crc.finalize() == entry.crc)
    }

    /// Reads what stands at `at`, which must end before `limit`.
    pub(crate) fn read_message(&mut self, at: u64, limit: u64) -> io::Result<Walked> {
        let room = limit.saturating_sub(at);
        let Some(room) = room.checked_sub(PREFIX_LEN as u64) else {
            return Ok(Walked::Short);
        };
        self.seek(at)?;
        let mut prefix = [0; PREFIX_LEN];
        if self.read(&mut prefix)? < PREFIX_LEN {
            return Ok(Walked::Short);
        }
        let metadata_len = match message::metadata_len(prefix) {
            None => return Ok(Walked::Nothing),
            Some(0) => return Ok(Walked::End),
            Some(len) if len > room => return Ok(Walked::Short),
            Some(len) => len,
        };
        if !self.fill_message(0, metadata_len)? {
            return Ok(Walked::Short);
        }
        self.metadata_len = self.message.len();
        let Some((_, body_len)) = message::parse_metadata(&self.message) else {
            return Ok(Walked::Nothing);
        };
        let length = metadata_len.saturating_add(body_len);
        if length > room || !self.fill_message(metadata_len, body_len)? {
            return Ok(Walked::Short);
        }
        let seal = self.seal();
        Ok(Walked::Message {
            length: length.saturating_add(PREFIX_LEN as u64),
            seal,
        })
    }

    /// Finds the first message from `from` on that carries a correct checksum and ends before
    /// `limit`; gives its place and length, and leaves it in [`Input::message`].
    pub(crate) fn find_sealed(&mut self, from: u64, limit: u64) -> io::Result<Option<(u64, u64)>> {
        // Every message's length is a multiple of 8, so each begins at one.
        let mut at = from.next_multiple_of(8);
        while let Some(candidate) = self.find_continuation(at, limit)? {
            let read = self.read_message(candidate, limit)?;
            if let Walked::Message {
                length,
                seal: Seal::Intact,
            } = read
            {
                return Ok(Some((candidate, length)));
            }
            let spent = (PREFIX_LEN as u64).saturating_add(self.message.len() as u64);
            self.search_budget = self.search_budget.saturating_sub(spent);
            if self.search_budget == 0 {
                break;
            }
            at = candidate.saturating_add(8);
        }
        Ok(None)
    }

    /// The next multiple of 8 where a message may begin.
    fn find_continuation(&mut self, from: u64, limit: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        let mut chunk = vec![0; SEARCH_CHUNK];
        while at < limit {
            self.seek(at)?;
            let read = self.read(&mut chunk)?;
            let words = chunk.get(..read).unwrap_or_default().chunks_exact(8);
            for (step, word) in (0u64..).zip(words) {
                let place = at.saturating_add(step.saturating_mul(8));
                if word.starts_with(&CONTINUATION) && place < limit {
                    return Ok(Some(place));
                }
            }
            if read < chunk.len() {
                break;
            }
            at = at.saturating_add(read as u64);
        }
        Ok(None)
    }

    /// Reads `len` bytes into the message, after its first `keep` bytes; `false` if the stream ends
    /// before. `len` is bounded by the format and by what the stream has, as its callers checked.
    fn fill_message(&mut self, keep: u64, len: u64) -> io::Result<bool> {
        let (Ok(keep), Ok(len)) = (usize::try_from(keep), usize::try_from(len)) else {
            return Ok(false);
        };
        self.message.resize(keep.saturating_add(len), 0);
        let Some(to) = self.message.get_mut(keep..) else {
            return Ok(false);
        };
        let read = read_up_to(&mut self.stream, to)?;
        self.position = self.position.saturating_add(read as u64);
        Ok(read == len)
    }

    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = read_up_to(&mut self.stream, to)?;
        self.position = self.position.saturating_add(read as u64);
        Ok(read)
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        if self.position != to {
            self.stream.seek(SeekFrom::Start(to))?;
            self.position = to;
        }
        Ok(())
    }
}
