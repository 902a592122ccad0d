//! io_uring.

use std::io;
use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, opcode, squeue, types::Fd};

use crate::deed::OpenFile;
use crate::queue::{Piece, Queue};

/// A ring for one file.
pub struct Ring {
    ring: IoUring,
    fd: Fd,
}

impl Ring {
    /// With room for `depth` pieces in flight.
    pub fn new(file: &OpenFile, depth: usize) -> io::Result<Self> {
        let depth = u32::try_from(depth).map_err(io::Error::other)?;
        Ok(Self {
            ring: IoUring::new(depth)?,
            fd: Fd(file.file.as_raw_fd()),
        })
    }

    /// Submits `fsync` of the file and waits for its end.
    pub fn fsync(&mut self) -> io::Result<i64> {
        self.push(&opcode::Fsync::new(self.fd).build())?;
        Ok(self.next()?.1)
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: a piece's buffer stays until its end was taken, or the program ends; a sync has none.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)?;
        self.ring.submit()?;
        Ok(())
    }
}

impl Queue for Ring {
    fn submit(&mut self, piece: &Piece) -> io::Result<()> {
        let Piece { buffer, range, .. } = *piece;
        let bytes = u32::try_from(range.bytes).map_err(io::Error::other)?;
        let entry = if piece.writes {
            let write = opcode::Write::new(self.fd, buffer, bytes);
            write.offset(range.offset).build()
        } else {
            let read = opcode::Read::new(self.fd, buffer, bytes);
            read.offset(range.offset).build()
        };
        self.push(&entry.user_data(piece.number as u64))
    }

    fn next(&mut self) -> io::Result<(usize, i64)> {
        loop {
            if let Some(end) = self.ring.completion().next() {
                return Ok((end.user_data() as usize, i64::from(end.result())));
            }
            self.ring.submit_and_wait(1)?;
        }
    }
}
