//! `LOOP_GET_STATUS64`: which file a loop device really has. Its path in sysfs may lead elsewhere by
//! now (renamed, replaced, mounted over, in another mount namespace).

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// `struct loop_info64` of `<linux/loop.h>`.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    numbers_and_flags: [u32; 4],
    names: [u8; 128],
    key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232);

mod ioctl {
    #![allow(missing_docs, reason = "the macro takes no documentation")]
    use super::LoopInfo64;
    nix::ioctl_read_bad!(loop_get_status64, 0x4c05, LoopInfo64);
}

/// `st_dev` and inode of the file behind the loop device `name`; `None` where it cannot be asked. The kernel asks the file
/// system of the file, which may take for ever where another process or machine serves that.
#[must_use]
pub fn backing_identity(name: &str) -> Option<(u64, u64)> {
    let device = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(format!("/dev/{name}"))
        .ok()?;
    let mut info = LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        numbers_and_flags: [0; 4],
        names: [0; 128],
        key: [0; 32],
        init: [0; 2],
    };
    // SAFETY: the descriptor is open, and the kernel writes exactly one `loop_info64` into `info`,
    // whose layout is asserted above; every bit pattern is valid for its integers.
    unsafe { ioctl::loop_get_status64(device.as_raw_fd(), &mut info) }.ok()?;
    Some((info.device, info.inode))
}
