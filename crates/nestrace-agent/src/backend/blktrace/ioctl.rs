//! blktrace's ioctls (`include/uapi/linux/fs.h`, `blktrace_api.h`), as they are since 2.6.17.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

/// `struct blk_user_trace_setup`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Setup {
    /// Answer: the folder's name in debugfs.
    name: [u8; 32],
    action_mask: u16,
    /// Bytes of a relay sub-buffer.
    buffer_bytes: u32,
    /// Sub-buffers of a processor.
    n_buffers: u32,
    start_lba: u64,
    end_lba: u64,
    pid: u32,
}

const _: () = assert!(size_of::<Setup>() == 72);

mod raw {
    use super::Setup;

    nix::ioctl_readwrite!(setup, 0x12, 115, Setup);
    nix::ioctl_none!(start, 0x12, 116);
    nix::ioctl_none!(stop, 0x12, 117);
    nix::ioctl_none!(teardown, 0x12, 118);
}

/// The last sector that is recorded. Left to the kernel it is the disk's last, and before Linux 4.11 the device's
/// flush requests lie at sector −1 (`blk_rq_init()`, `act_log_check()`): none of them would be recorded.
const EVERYWHERE: u64 = u64::MAX;

/// Prepares a trace of a disk, of events in one of these categories
/// ([`category`](nestrace_trace::blktrace::category)); gives the name of its folder in debugfs.
pub fn setup(
    disk: &File,
    categories: u16,
    buffer_bytes: u32,
    n_buffers: u32,
) -> Result<String, Errno> {
    let mut setup = Setup {
        action_mask: categories,
        buffer_bytes,
        n_buffers,
        end_lba: EVERYWHERE,
        ..Setup::default()
    };
    // SAFETY: the structure is the kernel's (its size is asserted above) and lives through the call.
    unsafe { raw::setup(disk.as_raw_fd(), &raw mut setup) }?;
    let name = setup.name.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// Begins to record.
pub fn start(disk: &File) -> Result<(), Errno> {
    // SAFETY: the request has no argument.
    unsafe { raw::start(disk.as_raw_fd()) }.map(drop)
}

/// Ends recording; what was recorded can still be read.
pub fn stop(disk: &File) -> Result<(), Errno> {
    // SAFETY: the request has no argument.
    unsafe { raw::stop(disk.as_raw_fd()) }.map(drop)
}

/// Removes the trace and its files.
pub fn teardown(disk: &File) -> Result<(), Errno> {
    // SAFETY: the request has no argument.
    unsafe { raw::teardown(disk.as_raw_fd()) }.map(drop)
}
