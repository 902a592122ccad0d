//! The bpf system call for what aya has no way to ask: programs of an attach type of their own, links to several places.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// `BPF_PROG_LOAD` of `enum bpf_cmd`.
pub(crate) const PROG_LOAD: libc::c_long = 5;
/// `BPF_LINK_CREATE` of `enum bpf_cmd`.
pub(crate) const LINK_CREATE: libc::c_long = 28;

/// The head of `union bpf_attr` for `BPF_PROG_LOAD`, up to `attach_btf_id`; the kernel takes what is left out as 0.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ProgramAttr {
    pub prog_type: u32,
    pub insn_cnt: u32,
    pub insns: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_size: u32,
    pub log_buf: u64,
    pub kern_version: u32,
    pub prog_flags: u32,
    pub prog_name: [u8; 16],
    pub prog_ifindex: u32,
    pub expected_attach_type: u32,
    pub prog_btf_fd: u32,
    pub func_info_rec_size: u32,
    pub func_info: u64,
    pub func_info_cnt: u32,
    pub line_info_rec_size: u32,
    pub line_info: u64,
    pub line_info_cnt: u32,
    pub attach_btf_id: u32,
}

/// `union bpf_attr` for `BPF_LINK_CREATE` with `BPF_TRACE_UPROBE_MULTI`, up to `uprobe_multi.pid`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct UprobeMultiAttr {
    pub prog_fd: u32,
    pub target_fd: u32,
    pub attach_type: u32,
    pub flags: u32,
    pub path: u64,
    pub offsets: u64,
    pub ref_ctr_offsets: u64,
    pub cookies: u64,
    pub cnt: u32,
    pub multi_flags: u32,
    pub pid: u32,
    /// The structure is as long as its alignment asks for.
    pub padding: u32,
}

const _: () = assert!(size_of::<ProgramAttr>() == 112);
const _: () = assert!(core::mem::offset_of!(ProgramAttr, attach_btf_id) == 108);
const _: () = assert!(core::mem::offset_of!(UprobeMultiAttr, pid) == 56);

/// A command that returns a descriptor. The pointers in `attr` have to outlive the call, which only reads them.
pub(crate) fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is a live `repr(C)` head of `union bpf_attr` whose whole size is handed over, and
    // the pointers in it outlive the call; the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attr),
            size_of::<T>(),
        )
    };
    match RawFd::try_from(result) {
        // SAFETY: the commands used here return a new descriptor that has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the calling thread may look into a map whose descriptor it has. Kernels before 5.19 ask for `CAP_BPF` at every access
/// where `kernel.unprivileged_bpf_disabled` is set (c8644cd0efe7). Asked for a map that is not there.
#[must_use]
pub fn may_use_maps() -> bool {
    let attr = MapAttr {
        map_fd: u32::MAX,
        ..MapAttr::default()
    };
    let error = bpf(MAP_LOOKUP_ELEM, &attr).err();
    error.and_then(|error| error.raw_os_error()) == Some(libc::EBADF)
}

/// `BPF_MAP_LOOKUP_ELEM` of `enum bpf_cmd`.
const MAP_LOOKUP_ELEM: libc::c_long = 1;

/// `union bpf_attr` for commands on elements of maps.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}
