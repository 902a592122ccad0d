//! Attaching to a USDT probe that QEMU skips until somebody counts: builds with SystemTap's backend
//! give each probe a semaphore, a 16-bit counter in the process. The kernel raises it for as long as a
//! perf event is open that names it (`ref_ctr_offset`, Linux 4.20), also if the recorder is killed.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io};

/// What the kernel calls its source of uprobes.
const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
/// `config` holds the semaphore's offset from this bit on (`format/ref_ctr_offset`: `config:32-63`).
const SEMAPHORE_SHIFT: u32 = 32;
/// `PERF_EVENT_IOC_SET_BPF`.
const SET_BPF: libc::Ioctl = 0x4004_2408;
/// `PERF_EVENT_IOC_ENABLE`.
const ENABLE: libc::Ioctl = 0x2400;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// The head of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER1`), with the names that a uprobe gives its parts.
#[repr(C)]
#[derive(Debug, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    uprobe_path: u64,
    probe_offset: u64,
}

/// Runs a loaded program at `offset` of the file, in one process, with the counter at `semaphore` raised.
/// Both are offsets in the file. The probe is gone when the descriptor is closed.
pub(super) fn attach(
    program: &impl AsFd,
    path: &Path,
    pid: u32,
    offset: u64,
    semaphore: u64,
) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let kind = fs::read_to_string(TYPE)?;
    let kind = kind.trim().parse().map_err(io::Error::other)?;
    let attr = Attr {
        kind,
        size: size_of::<Attr>() as u32,
        config: semaphore << SEMAPHORE_SHIFT,
        uprobe_path: path.as_ptr() as u64,
        probe_offset: offset,
        ..Attr::default()
    };
    let event = open(&attr, pid)?;
    control(&event, SET_BPF, program.as_fd().as_raw_fd())?;
    control(&event, ENABLE, 0)?;
    Ok(event)
}

fn open(attr: &Attr, pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let (any_cpu, no_group) = (-1 as libc::c_int, -1 as libc::c_int);
    // SAFETY: `attr` is a live `repr(C)` head of `perf_event_attr` with its own size in it, the path that it
    // points to outlives the call, and the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            pid,
            any_cpu,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    match RawFd::try_from(result) {
        // SAFETY: the call returned a new descriptor that has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn control(event: &OwnedFd, request: libc::Ioctl, value: RawFd) -> io::Result<()> {
    // SAFETY: both requests take an integer and touch no memory of this process.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request, value) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
