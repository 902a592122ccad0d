//! The kernel's own count of a block device's I/O: `/sys/block/DEV/stat`.

use std::io;
use std::path::{Path, PathBuf};

/// Counts since the device appeared. Sectors are 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names are those of Documentation/block/stat.rst"
)]
pub struct BlockStat {
    pub reads: u64,
    pub read_merges: u64,
    pub read_sectors: u64,
    pub writes: u64,
    pub write_merges: u64,
    pub write_sectors: u64,
    pub discards: u64,
    pub discard_merges: u64,
    pub discard_sectors: u64,
    pub flushes: u64,
}

/// The file cannot be read, or is not what the kernel writes.
#[derive(Debug, thiserror::Error)]
#[error("read {path}")]
pub struct BlockStatError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl BlockStat {
    /// Reads the counts of a device (`loop0`).
    ///
    /// # Errors
    /// There is no such device.
    pub fn read(device: &str) -> Result<Self, BlockStatError> {
        let path = Path::new("/sys/block").join(device).join("stat");
        let failed = |source| BlockStatError {
            path: path.clone(),
            source,
        };
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        Self::parse(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    /// Takes the counts from the file's text, which may be another machine's.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> = text
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let at = |index: usize| fields.get(index).copied();
        Some(Self {
            reads: at(0)?,
            read_merges: at(1)?,
            read_sectors: at(2)?,
            writes: at(4)?,
            write_merges: at(5)?,
            write_sectors: at(6)?,
            // Fields 11 to 14 came with 4.18, 15 and 16 with 5.5.
            discards: at(11).unwrap_or(0),
            discard_merges: at(12).unwrap_or(0),
            discard_sectors: at(13).unwrap_or(0),
            flushes: at(15).unwrap_or(0),
        })
    }

    /// Counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_merges: self.read_merges - earlier.read_merges,
            read_sectors: self.read_sectors - earlier.read_sectors,
            writes: self.writes - earlier.writes,
            write_merges: self.write_merges - earlier.write_merges,
            write_sectors: self.write_sectors - earlier.write_sectors,
            discards: self.discards - earlier.discards,
            discard_merges: self.discard_merges - earlier.discard_merges,
            discard_sectors: self.discard_sectors - earlier.discard_sectors,
            flushes: self.flushes - earlier.flushes,
        }
    }

    /// The same with nothing read.
    #[must_use]
    pub fn without_reads(&self) -> Self {
        Self {
            reads: 0,
            read_merges: 0,
            read_sectors: 0,
            ..*self
        }
    }

    /// Reads, writes and discards; empty flush bios are among the writes.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.discards
    }

    /// Merges of every kind.
    #[must_use]
    pub fn merges(&self) -> u64 {
        self.read_merges + self.write_merges + self.discard_merges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_puts_them() {
        let text = "  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let stat = BlockStat::parse(text).unwrap();
        assert_eq!((stat.reads, stat.read_merges, stat.read_sectors), (1, 2, 3));
        assert_eq!(
            (stat.writes, stat.write_merges, stat.write_sectors),
            (5, 6, 7)
        );
        assert_eq!(
            (stat.discards, stat.discard_merges, stat.discard_sectors),
            (12, 13, 14)
        );
        assert_eq!(stat.flushes, 16);
        assert_eq!((stat.operations(), stat.merges()), (18, 21));
        assert_eq!(BlockStat::parse("1 2 3"), None);
    }
}
