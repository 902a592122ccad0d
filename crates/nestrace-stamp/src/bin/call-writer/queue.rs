//! Pieces of I/O in flight, through a queue of the kernel.

use std::io;

use nestrace_stamp::Stamp;

use crate::deed::{Buffer, Files, OpenFile, Range};
use crate::monotonic_ns;

/// A read or write that is handed to the kernel.
pub struct Piece {
    /// Its number, which its end names.
    pub number: usize,
    pub writes: bool,
    pub buffer: *mut u8,
    pub range: Range,
}

/// Native aio or io_uring.
pub trait Queue {
    /// Hands a piece to the kernel. Its buffer stays until its end was taken, or the program ends.
    fn submit(&mut self, piece: &Piece) -> io::Result<()>;

    /// Waits for an end: the piece's number, and its result.
    fn next(&mut self) -> io::Result<(usize, i64)>;
}

/// A call that has completed.
pub struct Done {
    pub range: Range,
    pub serial: u64,
    pub result: i64,
    pub begin_ns: u64,
    pub end_ns: u64,
}

/// Moves `count` pieces in a row, `depth` of them in flight.
pub fn run(
    queue: impl Queue,
    (files, file): (&Files, &OpenFile),
    writes: bool,
    first: Range,
    (count, depth): (usize, usize),
) -> io::Result<Vec<Done>> {
    let mut buffers: Vec<Buffer> = (0..count).map(|_| Buffer::new(first.bytes)).collect();
    let mut done: Vec<Done> = Vec::new();
    // It is dropped before the buffers.
    let mut queue = queue;
    let (mut submitted, mut ended) = (0_usize, 0_usize);
    while ended < buffers.len() {
        while submitted < buffers.len() && submitted - ended < depth {
            let range = Range {
                offset: first.offset + (submitted * first.bytes) as u64,
                ..first
            };
            let data = buffers[submitted].data();
            let serial = if writes { files.serial() } else { 0 };
            if writes {
                Stamp::fill(data, file.address(range.offset), serial);
            }
            let piece = Piece {
                number: submitted,
                writes,
                buffer: data.as_mut_ptr(),
                range,
            };
            let begin_ns = monotonic_ns()?;
            queue.submit(&piece)?;
            done.push(Done {
                range,
                serial,
                result: 0,
                begin_ns,
                end_ns: 0,
            });
            submitted += 1;
        }
        let (number, result) = queue.next()?;
        let end_ns = monotonic_ns()?;
        if let Some(call) = done.get_mut(number) {
            call.result = result;
            call.end_ns = end_ns;
        }
        ended += 1;
    }
    Ok(done)
}
