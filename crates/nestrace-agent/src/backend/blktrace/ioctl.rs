//! blktrace's ioctls (`include/uapi/linux/fs.h`, `blktrace_api.h`), as they are since 2.6.17, and the one that asks for
//! records of version 8 since 6.19.

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

/// `struct blk_user_trace_setup2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Setup2 {
    /// As in [`Setup`].
    name: [u8; 64],
    action_mask: u64,
    buffer_bytes: u32,
    n_buffers: u32,
    start_lba: u64,
    end_lba: u64,
    pid: u32,
    flags: u32,
    reserved: [u64; 11],
}

const _: () = assert!(size_of::<Setup2>() == 192);

mod raw {
    use super::{Setup, Setup2};

    nix::ioctl_readwrite!(setup, 0x12, 115, Setup);
    nix::ioctl_readwrite!(setup2, 0x12, 142, Setup2);
    nix::ioctl_none!(start, 0x12, 116);
    nix::ioctl_none!(stop, 0x12, 117);
    nix::ioctl_none!(teardown, 0x12, 118);
}

/// The last sector that is recorded. Left to the kernel it is the disk's last, and before Linux 4.11 the device's
/// flush requests lie at sector −1 (`blk_rq_init()`, `act_log_check()`): none of them would be recorded.
const EVERYWHERE: u64 = u64::MAX;

/// Prepares a trace of a disk, of events in one of these categories
/// ([`category`](nestrace_blktrace::category)); gives the name of its folder in debugfs.
///
/// Records are of version 8 where the kernel has it: of version 7 it leaves out every event with FUA since 6.19 (it compares
/// all bits of the categories with that of the last one, `BLK_TC_END_V1`, to find operations on zones).
pub fn setup(
    disk: &File,
    categories: u16,
    buffer_bytes: u32,
    n_buffers: u32,
) -> Result<String, Errno> {
    match setup_v8(disk, categories, buffer_bytes, n_buffers) {
        // Not known to the block layer, nor to the disk's driver.
        Err(Errno::ENOTTY | Errno::EINVAL) => setup_v7(disk, categories, buffer_bytes, n_buffers),
        result => result,
    }
}

fn setup_v8(
    disk: &File,
    categories: u16,
    buffer_bytes: u32,
    n_buffers: u32,
) -> Result<String, Errno> {
    let mut setup = Setup2 {
        name: [0; 64],
        // All operations on zones have a category of these, too.
        action_mask: u64::from(categories),
        buffer_bytes,
        n_buffers,
        start_lba: 0,
        end_lba: EVERYWHERE,
        pid: 0,
        flags: 0,
        reserved: [0; 11],
    };
    // SAFETY: the structure is the kernel's (its size is asserted above) and lives through the call.
    unsafe { raw::setup2(disk.as_raw_fd(), &raw mut setup) }?;
    Ok(folder_name(&setup.name))
}

/// The part before the first zero.
fn folder_name(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

fn setup_v7(
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
    Ok(folder_name(&setup.name))
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
