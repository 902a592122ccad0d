//! Read-only globals that the collector fills before loading, and the few ways to read kernel memory.
//! Nearly all `unsafe` of the probes is here.

use aya_ebpf::{
    Global,
    helpers::{bpf_probe_read_kernel, generated::bpf_get_current_task_btf},
};
use nestrace_abi::layout::ABSENT;

macro_rules! declare_globals {
    ($($name:ident = $path:literal;)+) => {
        $(
            #[unsafe(no_mangle)]
            pub static $name: Global<u16> = Global::new(ABSENT);
        )+
    };
}
nestrace_abi::fields!(declare_globals);

macro_rules! globals {
    ($($name:ident: $type:ty = $value:expr;)+) => {
        $(
            #[unsafe(no_mangle)]
            pub static $name: Global<$type> = Global::new($value);
        )+
    };
}
globals! {
    FN_IOMAP_DIO_END_IO: u64 = 0;
    FN_BLKDEV_END_IO: u64 = 0;
    FN_BLKDEV_END_IO_ASYNC: u64 = 0;
    FN_AIO_COMPLETE: u64 = 0;
    FN_LOOP_COMPLETE: u64 = 0;
    FN_DM_IO_END: u64 = 0;
    FN_BCACHE_BACKING: u64 = 0;
    FN_BCACHE_READ: u64 = 0;
    FN_BCACHE_INSERT: u64 = 0;
    POOL_IOMAP_DIO_SIMPLE: u64 = 0;
    FN_IOMAP_DIO_SIMPLE_END_IO: u64 = 0;
    URING_COMPLETE_CQE: u8 = 0;
    ALL_DEVICES: u8 = 0;
    BY_MOUNT: u8 = 0;
    DONE_SLOTS: u32 = 0;
    SUMMING: u8 = 0;
    PG_HEAD_BIT: u8 = 0;
    RQF_FLUSH_SEQ_BIT: u8 = 4;
    URING_SUBMIT_ARG: u8 = 0;
    THROTTLE_PAUSE_ARG: u8 = 0;
    SMB_MESSAGE_ARG: u8 = 0;
    JIFFY_NS: u32 = 0;
    PREEMPTIBLE: u8 = 0;
    SWITCH_STATE: u8 = 0;
}

/// Whether this kernel has the field. The answer is a constant to the verifier.
#[inline(always)]
pub fn has(field: &Global<u16>) -> bool {
    field.load() != ABSENT
}

/// Reads a field through a pointer that the verifier tracks (an argument of a BTF tracepoint or a
/// pointer loaded from one). A bad address reads as 0: the kernel handles the fault.
#[inline(always)]
pub fn follow<T: Copy>(base: *const u8, field: &Global<u16>) -> T {
    load(base, field.load() as usize)
}

/// The same at an offset that is the same in every kernel, or within a field.
#[inline(always)]
pub fn load<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the verifier proves that `base` is a kernel structure and that the field at this
    // constant offset has this size; the load is an exception-handled one.
    unsafe { core::ptr::read_volatile(base.add(offset).cast::<T>()) }
}

/// The current thread, as a pointer that the verifier tracks.
#[inline(always)]
pub fn current_task() -> *const u8 {
    // SAFETY: no preconditions.
    unsafe { bpf_get_current_task_btf() }.cast()
}

/// The address of a structure as a number, less that of a global, which stays where it is: of one pointer that it follows
/// the verifier allows no arithmetic, and the difference of two is a number to it.
#[inline(always)]
pub fn number_of(structure: *const u8) -> u64 {
    (structure as u64).wrapping_sub((&raw const PREEMPTIBLE) as u64)
}

/// Copies a value from an arbitrary kernel address; 0 if it cannot be read.
#[inline(always)]
pub fn copy<T: Copy + Default>(address: u64) -> T {
    // SAFETY: the helper checks the address and never faults.
    unsafe { bpf_probe_read_kernel(address as *const T) }.unwrap_or_default()
}

/// Copies a field of the structure at an arbitrary kernel address; 0 if it cannot be read.
#[inline(always)]
pub fn copy_field<T: Copy + Default>(base: u64, field: &Global<u16>) -> T {
    copy(base.wrapping_add(field.load() as u64))
}

/// `N` words of a structure at an arbitrary kernel address: several fields for one call of the helper, which costs more
/// than the bytes do.
pub struct Window<'f, const N: usize> {
    base: u64,
    from: &'f Global<u16>,
    words: [u64; N],
}

impl<'f, const N: usize> Window<'f, N>
where
    [u64; N]: Default,
{
    /// What lies there from the field `from` on; zeroes if it cannot be read.
    #[inline(always)]
    pub fn copy(base: u64, from: &'f Global<u16>) -> Self {
        Self { base, from, words: copy_field(base, from) }
    }

    /// A field, as [`copy_field`] gives it, which is asked where the field lies outside.
    #[inline(always)]
    pub fn field<T: Copy + Default>(&self, field: &Global<u16>) -> T {
        let within = (field.load() as u64).wrapping_sub(self.from.load() as u64);
        if within > (size_of_val(&self.words) - size_of::<T>()) as u64 {
            return copy_field(self.base, field);
        }
        // SAFETY: the field ends within the words.
        unsafe { core::ptr::read_unaligned(self.words.as_ptr().cast::<u8>().add(within as usize).cast::<T>()) }
    }
}
