//! Writes that say in their own data which write they are.
//!
//! `stamp-writer` runs in a guest. Each 512-byte sector that it writes begins with the [`Stamp`] of
//! the write: where the sector belongs and the write's serial number. Whoever sees the data
//! anywhere below (in the image, in a system call of QEMU) then knows the write, without any clock
//! or offset. The writer's own log ([`Write`]) has a line for each.
//!
//! `call-writer` does the same to files, by calls of every kind; its log is made of [`CallLine`]s.

mod call;

use std::fmt;
use std::str::FromStr;

pub use call::{CallLine, NotACall, OFFSET_BITS};

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of an encoded stamp.
pub const STAMP_BYTES: usize = 24;

const MAGIC: [u8; 8] = *b"NSTSTAMP";

/// The first bytes of every sector of a stamped write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Byte offset of the sector on the disk.
    pub address: u64,
    /// The write, from 1.
    pub serial: u64,
}

impl Stamp {
    /// Stamps each sector of the data of a write at `address`; what is left of a sector is filled
    /// with the serial number.
    pub fn fill(data: &mut [u8], address: u64, serial: u64) {
        for (index, sector) in data.chunks_mut(SECTOR_BYTES).enumerate() {
            let address = address + (index * SECTOR_BYTES) as u64;
            let words = [MAGIC, address.to_le_bytes(), serial.to_le_bytes()];
            let filling = serial.to_le_bytes();
            let bytes = words.iter().flatten().chain(filling.iter().cycle());
            for (place, byte) in sector.iter_mut().zip(bytes) {
                *place = *byte;
            }
        }
    }

    /// The stamp at the front of a sector; `None` for other data.
    #[must_use]
    pub fn read(sector: &[u8]) -> Option<Self> {
        let word = |index: usize| -> Option<[u8; 8]> {
            sector.get(index * 8..index * 8 + 8)?.try_into().ok()
        };
        (word(0)? == MAGIC).then_some(Self {
            address: u64::from_le_bytes(word(1)?),
            serial: u64::from_le_bytes(word(2)?),
        })
    }
}

/// What a line of the log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deed {
    /// A stamped write.
    Write,
    /// fdatasync.
    Flush,
}

/// A line of the log: what one thread did, in the order of its deeds. Times are the guest's
/// `CLOCK_MONOTONIC` in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// From 1; 0 for a flush.
    pub serial: u64,
    /// Write or flush.
    pub deed: Deed,
    /// Thread.
    pub tid: u32,
    /// Byte offset on the disk.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Before the system call.
    pub submitted_ns: u64,
    /// After it.
    pub completed_ns: u64,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deed = match self.deed {
            Deed::Write => "write",
            Deed::Flush => "flush",
        };
        let Self {
            serial,
            tid,
            address,
            bytes,
            submitted_ns,
            completed_ns,
            ..
        } = self;
        write!(
            f,
            "{deed},{serial},{tid},{address},{bytes},{submitted_ns},{completed_ns}"
        )
    }
}

/// A line that is none of `stamp-writer`'s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read {0:?} as a line of stamp-writer's log")]
pub struct NotAWrite(pub String);

impl FromStr for Write {
    type Err = NotAWrite;

    fn from_str(line: &str) -> Result<Self, NotAWrite> {
        let words: Vec<&str> = line.trim().split(',').collect();
        let number = |index: usize| -> Option<u64> { words.get(index)?.parse().ok() };
        let deed = match words.first() {
            Some(&"write") => Some(Deed::Write),
            Some(&"flush") => Some(Deed::Flush),
            _ => None,
        };
        let parsed = || {
            Some(Self {
                deed: deed?,
                serial: number(1)?,
                tid: u32::try_from(number(2)?).ok()?,
                address: number(3)?,
                bytes: number(4)?,
                submitted_ns: number(5)?,
                completed_ns: number(6)?,
            })
        };
        parsed().ok_or_else(|| NotAWrite(line.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sector_says_where_it_belongs() {
        let mut data = vec![0_u8; 4096];
        Stamp::fill(&mut data, 8192, 77);
        for (index, sector) in data.chunks(SECTOR_BYTES).enumerate() {
            let address = 8192 + (index * SECTOR_BYTES) as u64;
            assert_eq!(
                Stamp::read(sector),
                Some(Stamp {
                    address,
                    serial: 77
                })
            );
        }
        assert_eq!(Stamp::read(&data[1..]), None);
        assert_eq!(Stamp::read(&data[..STAMP_BYTES - 1]), None);
    }

    #[test]
    fn a_line_is_read_back() {
        let write = Write {
            serial: 3,
            deed: Deed::Write,
            tid: 9,
            address: 4096,
            bytes: 512,
            submitted_ns: 10,
            completed_ns: 20,
        };
        assert_eq!(write.to_string().parse(), Ok(write));
        assert_eq!(
            "write,1,2".parse::<Write>(),
            Err(NotAWrite("write,1,2".into()))
        );
    }
}
