//! File I/O from the call to the file: system calls, native aio, io_uring, iomap's direct I/O, the
//! file systems' own sync, NFS, SMB. On a host it is that of the traced processes, in a guest that of everybody on
//! the chosen mounts ([`caller`](crate::caller)).

mod direct_io;
mod native_aio;
mod nfs;
mod path_call;
mod rpc;
mod smb;
mod sync;
mod system_call;
mod uring;

use aya_ebpf::{
    btf_maps::{Array, PerCpuArray},
    helpers::{
        bpf_probe_read_user,
        generated::{bpf_probe_read_kernel as probe_read_kernel, bpf_probe_read_user as probe_read_user},
    },
    macros::btf_map,
};
use nestrace_abi::{Owner, Source};

use crate::{
    layout::*,
    owner::{self, Inode},
    ring,
};

/// `struct pt_regs` of x86-64, whose layout is part of the kernel's user interface.
pub mod pt_regs {
    pub const R10: usize = 56;
    pub const R9: usize = 64;
    pub const R8: usize = 72;
    pub const DX: usize = 96;
    pub const SI: usize = 104;
    pub const DI: usize = 112;
    pub const ORIG_AX: usize = 120;
}

#[inline(always)]
pub fn copy_user<T: Copy + Default>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address and never faults.
    unsafe { bpf_probe_read_user(address as *const T) }.ok()
}

/// Parts of an iovec that are summed; longer ones count as one `walk` loss.
const VECTOR_PARTS: usize = 256;

/// An iovec as the user has it: address and length by turns.
type Vector = [u64; VECTOR_PARTS * 2];

/// Room to copy an iovec to. Probes of system calls run with preemption off, so one per processor.
#[btf_map]
static VECTOR: PerCpuArray<Vector, 1> = PerCpuArray::new();

/// Never written: what [`VECTOR`] is cleared from.
#[btf_map]
static ZEROES: Array<Vector, 1> = Array::new();

/// Sum of an iovec's lengths; 0 (and one `walk` loss) where it is too long to read.
///
/// Copied as a whole over zeroes and summed without a branch, because the verifier follows every
/// branch of every round.
#[inline(always)]
fn vector_bytes(address: u64, parts: u64) -> u64 {
    let (Some(vector), Some(zeroes)) = (VECTOR.get_ptr_mut(0), ZEROES.get_ptr(0)) else { return 0 };
    // SAFETY: both maps' values are whole vectors.
    unsafe { probe_read_kernel(vector.cast(), size_of::<Vector>() as u32, zeroes.cast()) };
    // Checked right before the copy: across a call the number lies on the stack, where 6.1's verifier
    // forgets what a comparison has shown.
    if parts > VECTOR_PARTS as u64 {
        ring::count_drop(Source::Walk);
        return 0;
    }
    // SAFETY: at most a whole vector is copied.
    unsafe { probe_read_user(vector.cast(), parts as u32 * 16, address as *const _) };
    let mut sum = 0;
    let mut part = 0;
    while part < VECTOR_PARTS {
        // SAFETY: `part * 2 + 1` is within the vector.
        sum += unsafe { core::ptr::read_volatile(vector.cast::<u64>().add(part * 2 + 1)) };
        part += 1;
    }
    sum
}

/// `iov_base` of an iovec's first part; 0 where it cannot be read.
#[inline(always)]
pub fn first_buffer(vector: u64) -> u64 {
    copy_user(vector).unwrap_or_default()
}

/// The `struct file` of a descriptor of the current process; 0 if there is none.
#[inline(always)]
fn open_file(descriptor: u64) -> u64 {
    if !has(&TASK_FILES) || !has(&FILES_FDT) || !has(&FDT_FD) {
        return 0;
    }
    let files: *const u8 = follow(current_task(), &TASK_FILES);
    if files.is_null() {
        return 0;
    }
    let table: *const u8 = follow(files, &FILES_FDT);
    if table.is_null() || (descriptor as u32) >= follow::<u32>(table, &FDT_MAX) {
        return 0;
    }
    let entries: u64 = follow(table, &FDT_FD);
    copy(entries + u64::from(descriptor as u32) * 8)
}

/// An open file: its inode, and its address; all 0 where there is none.
#[derive(Default)]
struct OpenFile {
    address: u64,
    inode: Inode,
}

impl OpenFile {
    /// The `struct file` at an address.
    #[inline(always)]
    fn at(address: u64) -> Self {
        Self { address, inode: owner::inode_of(address) }
    }

    /// Inode, device and open flags.
    #[inline(always)]
    fn owner(&self) -> Owner {
        let mut owner = Owner::default();
        if self.address != 0 {
            owner::describe_inode(&mut owner, &self.inode);
            owner.aux = copy_field(self.address, &FILE_FLAGS);
        }
        owner
    }
}
