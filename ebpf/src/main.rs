//! The probes of nestrace: they stamp, copy and filter, and never interpret.
//!
//! One object for kernels 5.15 to 7.3: offsets come in as read-only globals ([`layout`]), and the
//! verifier prunes the arms of fields that a kernel lacks. Probes of the block layer and of system calls are BTF
//! tracepoints (`tp_btf`), whose pointers the verifier follows by itself; everything else is a raw tracepoint, or
//! an entry probe of QEMU or btrfs, and copies with `bpf_probe_read_kernel`.
#![no_std]
#![no_main]
// `AtomicU64::fetch_add` is not offered for a target without compare-and-swap; the intrinsic is.
#![feature(core_intrinsics)]
#![allow(internal_features)]

mod block;
mod caller;
mod cpu;
mod done;
mod file_io;
mod flush_queue;
mod host_fs;
mod layout;
mod light;
mod log;
mod made_for;
mod owner;
mod plug;
mod preemption;
mod qemu;
mod ring;
mod second_program;
mod sums;
mod thread;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The probes may call helpers that the kernel reserves for GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
