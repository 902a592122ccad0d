//! Native aio, by the kernel's own system calls.

use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc::{
    self, SYS_io_destroy, SYS_io_getevents, SYS_io_setup, SYS_io_submit, c_long, c_ulong,
};

use crate::deed::OpenFile;
use crate::queue::{Piece, Queue};
use crate::wrong;

/// `IOCB_CMD_PREAD` and `IOCB_CMD_PWRITE` of `linux/aio_abi.h`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// `struct iocb` of x86-64.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

struct Context(c_ulong);

impl Context {
    fn new(depth: usize) -> io::Result<Self> {
        let mut context: c_ulong = 0;
        // SAFETY: the kernel writes one word to a variable that outlives the call.
        checked(unsafe { libc::syscall(SYS_io_setup, depth as c_long, &raw mut context) })?;
        Ok(Self(context))
    }

    fn submit(&self, iocb: &mut Iocb) -> io::Result<()> {
        let mut list = [std::ptr::from_mut(iocb)];
        // SAFETY: one control block, which the kernel copies; its buffer stays until its event was taken.
        checked(unsafe { libc::syscall(SYS_io_submit, self.0, 1_i64, list.as_mut_ptr()) })?;
        Ok(())
    }

    fn next(&self) -> io::Result<Event> {
        let mut event = Event::default();
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: room for one event, and the kernel writes no more than one.
        let got =
            unsafe { libc::syscall(SYS_io_getevents, self.0, 1_i64, 1_i64, &raw mut event, none) };
        checked(got)?;
        Ok(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is this process' own, and the call waits for what is in flight.
        unsafe { libc::syscall(SYS_io_destroy, self.0) };
    }
}

fn checked(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// A context with a control block for each piece: two in flight at one address have ends that cannot be distinguished.
pub struct Aio {
    fd: u32,
    context: Context,
    blocks: Vec<Iocb>,
}

impl Aio {
    /// For `count` pieces of a file, `depth` of them in flight.
    pub fn new(file: &OpenFile, count: usize, depth: usize) -> io::Result<Self> {
        Ok(Self {
            fd: file.file.as_raw_fd() as u32,
            context: Context::new(depth)?,
            blocks: vec![Iocb::default(); count],
        })
    }
}

impl Queue for Aio {
    fn submit(&mut self, piece: &Piece) -> io::Result<()> {
        let block = self.blocks.get_mut(piece.number);
        let block = block.ok_or_else(|| wrong("a piece too many"))?;
        *block = Iocb {
            data: piece.number as u64,
            opcode: if piece.writes { PWRITE } else { PREAD },
            fd: self.fd,
            buffer: piece.buffer as u64,
            bytes: piece.range.bytes as u64,
            offset: i64::try_from(piece.range.offset).map_err(io::Error::other)?,
            ..Iocb::default()
        };
        self.context.submit(block)
    }

    fn next(&mut self) -> io::Result<(usize, i64)> {
        let event = self.context.next()?;
        Ok((event.data as usize, event.result))
    }
}
