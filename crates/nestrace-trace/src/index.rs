//! The index beside a stream: where each message lies, its checksum, its rows and its span of time.
//!
//! A header of 16 bytes, then entries of 48 bytes, all integers little endian. It is only ever
//! appended to, an entry after the bytes that it describes; so whatever an entry describes was
//! written before it.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{self, Read};

/// The first eight bytes of an index.
pub const MAGIC: [u8; 8] = *b"NESTIDX\n";
/// Major version of the layout; readers refuse a newer one.
pub const MAJOR: u16 = 1;
/// Minor version of the layout.
pub const MINOR: u16 = 0;
/// Bytes of the header: [`MAGIC`], major, minor, bytes of an entry.
pub const HEADER_LEN: usize = 16;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 48;

/// What an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// The schema, the stream's first message.
    Schema,
    /// A batch of events.
    Batch,
    /// The marker that closes the stream.
    End,
    /// Something that a newer minor version added.
    Other(u32),
}

impl EntryKind {
    const fn number(self) -> u32 {
        match self {
            Self::Schema => 0,
            Self::Batch => 1,
            Self::End => 2,
            Self::Other(number) => number,
        }
    }

    const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Schema,
            1 => Self::Batch,
            2 => Self::End,
            _ => Self::Other(number),
        }
    }
}

/// One message of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Byte offset in the stream.
    pub offset: u64,
    /// Bytes of the whole message, its prefix and padding included.
    pub length: u64,
    /// Smallest `ts_ns` of the batch; 0 for other messages.
    pub first_ts_ns: u64,
    /// Largest `ts_ns` of the batch; 0 for other messages.
    pub last_ts_ns: u64,
    /// CRC-32 (IEEE) of those `length` bytes.
    pub crc: u32,
    /// Rows of the batch; 0 for other messages.
    pub rows: u32,
    /// What it is.
    pub kind: EntryKind,
}

/// The bytes of the header.
#[must_use]
pub fn header() -> [u8; HEADER_LEN] {
    let mut writer = Fields::default();
    writer.put(&MAGIC);
    writer.put(&MAJOR.to_le_bytes());
    writer.put(&MINOR.to_le_bytes());
    writer.put(&(ENTRY_LEN as u32).to_le_bytes());
    writer.finish()
}

impl Entry {
    /// The bytes of the entry; the last four are the CRC-32 of those before.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ENTRY_LEN] {
        let mut writer = Fields::default();
        for field in [self.offset, self.length, self.first_ts_ns, self.last_ts_ns] {
            writer.put(&field.to_le_bytes());
        }
        for field in [self.crc, self.rows, self.kind.number()] {
            writer.put(&field.to_le_bytes());
        }
        let crc = crc32fast::hash(&writer.bytes);
        writer.put(&crc.to_le_bytes());
        writer.finish()
    }

    /// Reads an entry back; `None` if its checksum does not hold.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (offset, rest) = take_u64(body)?;
        let (length, rest) = take_u64(rest)?;
        let (first_ts_ns, rest) = take_u64(rest)?;
        let (last_ts_ns, rest) = take_u64(rest)?;
        let (crc, rest) = take_u32(rest)?;
        let (rows, rest) = take_u32(rest)?;
        let (kind, _) = take_u32(rest)?;
        let kind = EntryKind::from_number(kind);
        Some(Self {
            offset,
            length,
            first_ts_ns,
            last_ts_ns,
            crc,
            rows,
            kind,
        })
    }
}

/// Collects the fields of a record of fixed size.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
}

impl Fields {
    fn put(&mut self, field: &[u8]) {
        self.bytes.extend_from_slice(field);
    }

    fn finish<const N: usize>(self) -> [u8; N] {
        let mut record = [0; N];
        for (to, from) in record.iter_mut().zip(self.bytes) {
            *to = from;
        }
        record
    }
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (field, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*field), rest))
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (field, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*field), rest))
}

/// Rows of all batches that an index describes: what a stream held that is gone. `None` where it is no index that this
/// release reads, or has no entry.
///
/// # Errors
/// If it cannot be read.
pub fn rows(index: impl Read) -> io::Result<Option<u64>> {
    let (mut index, header) = IndexReader::open(index)?;
    if header == Header::Unusable {
        return Ok(None);
    }
    let mut rows = None;
    loop {
        match index.next()? {
            Next::Entry(entry) => {
                rows = Some(u64::from(entry.rows).saturating_add(rows.unwrap_or(0)));
            }
            Next::Damaged(_) => {}
            Next::End => return Ok(rows),
        }
    }
}

/// What the header of an index says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// This release reads it.
    Usable,
    /// It is no index, or a damaged or newer one.
    Unusable,
}

/// Reads an index entry by entry.
pub(crate) struct IndexReader<I> {
    input: I,
    position: u64,
}

/// The next thing in an index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A whole entry.
    Entry(Entry),
    /// An entry whose checksum does not hold, at this offset in the index.
    Damaged(u64),
    /// Fewer bytes than an entry, or none, are left.
    End,
}

impl<I: Read> IndexReader<I> {
    /// Reads the header.
    pub(crate) fn open(mut input: I) -> io::Result<(Self, Header)> {
        let mut bytes = [0; HEADER_LEN];
        let read = read_up_to(&mut input, &mut bytes)?;
        let usable = read == HEADER_LEN && bytes == header_of_any_minor(&bytes);
        let header = if usable {
            Header::Usable
        } else {
            Header::Unusable
        };
        Ok((
            Self {
                input,
                position: HEADER_LEN as u64,
            },
            header,
        ))
    }

    /// Reads the next entry.
    pub(crate) fn next(&mut self) -> io::Result<Next> {
        let mut bytes = [0; ENTRY_LEN];
        if read_up_to(&mut self.input, &mut bytes)? < ENTRY_LEN {
            return Ok(Next::End);
        }
        let at = self.position;
        self.position = at.saturating_add(ENTRY_LEN as u64);
        Ok(Entry::from_bytes(&bytes).map_or(Next::Damaged(at), Next::Entry))
    }
}

/// This release's header with the minor version of `found`, which may be any.
fn header_of_any_minor(found: &[u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    let mut expected = header();
    if let (Some(to), Some(from)) = (expected.get_mut(10..12), found.get(10..12)) {
        to.copy_from_slice(from);
    }
    expected
}

/// Fills `bytes` as far as the input goes; gives how far.
///
/// # Errors
/// The input's.
pub fn read_up_to(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0usize;
    while let Some(rest) = bytes.get_mut(filled..)
        && !rest.is_empty()
    {
        match input.read(rest) {
            Ok(0) => break,
            Ok(n) => filled = filled.saturating_add(n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
