//! Native aio, by the kernel's own system calls.

use std::io;
use std::os::fd::AsRawFd as _;

use nestrace_stamp::Stamp;
use nix::libc::{
    self, SYS_io_destroy, SYS_io_getevents, SYS_io_setup, SYS_io_submit, c_long, c_ulong,
};

use crate::deed::{Buffer, Files, OpenFile, Range};
use crate::monotonic_ns;

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

/// A call that has completed.
pub struct Done {
    pub range: Range,
    pub serial: u64,
    pub result: i64,
    pub begin_ns: u64,
    pub end_ns: u64,
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

/// Moves `count` pieces in a row, `depth` of them in flight.
pub fn run(
    files: &Files,
    file: &OpenFile,
    writes: bool,
    first: Range,
    count: u64,
    depth: usize,
) -> io::Result<Vec<Done>> {
    let mut buffers: Vec<Buffer> = (0..count).map(|_| Buffer::new(first.bytes)).collect();
    // Each has a control block of its own: while two in flight have one address, nothing tells their ends apart.
    let mut blocks = vec![Iocb::default(); buffers.len()];
    let mut done: Vec<Done> = Vec::new();
    let context = Context::new(depth)?;
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
            blocks[submitted] = Iocb {
                data: submitted as u64,
                opcode: if writes { PWRITE } else { PREAD },
                fd: file.file.as_raw_fd() as u32,
                buffer: data.as_mut_ptr() as u64,
                bytes: range.bytes as u64,
                offset: i64::try_from(range.offset).map_err(io::Error::other)?,
                ..Iocb::default()
            };
            let begin_ns = monotonic_ns()?;
            context.submit(&mut blocks[submitted])?;
            done.push(Done {
                range,
                serial,
                result: 0,
                begin_ns,
                end_ns: 0,
            });
            submitted += 1;
        }
        let event = context.next()?;
        let end_ns = monotonic_ns()?;
        if let Some(call) = done.get_mut(event.data as usize) {
            call.result = event.result;
            call.end_ns = end_ns;
        }
        ended += 1;
    }
    Ok(done)
}
