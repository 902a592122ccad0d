//! Offers the kernel tiny programs and maps to learn whether it takes them. Nothing is attached, and
//! whatever was made is gone when its descriptor is closed.

use std::io;

use crate::bpf_call::{PROG_LOAD, ProgramAttr, bpf};

/// `enum bpf_cmd`.
const MAP_CREATE: libc::c_long = 0;

/// `enum bpf_map_type`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum MapType {
    Array = 2,
    RingBuffer = 27,
}

/// `enum bpf_prog_type`, with `enum bpf_attach_type` and the BTF number of the target where it needs them.
#[derive(Clone, Copy)]
pub(super) enum Program {
    Uprobe,
    RawTracepoint,
    BtfTracepoint { target: u32 },
    Fentry { target: u32 },
}

/// What the program does.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// `return 0`.
    Nothing,
    /// `bpf_probe_read_kernel(stack, 8, NULL); return 0`.
    ReadKernel,
}

/// The head of `union bpf_attr` for `BPF_MAP_CREATE`; the kernel takes what is left out as 0.
#[repr(C)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

const _: () = assert!(size_of::<MapAttr>() == 16);

/// `mov r0, 0`, `exit`: opcode and registers, offset, immediate value.
const RETURN_0: [u64; 2] = [0xb7, 0x95];
/// `mov r1, r10`, `add r1, -8`, `mov r2, 8`, `mov r3, 0`, `call 113` (`bpf_probe_read_kernel`).
const READ_KERNEL: [u64; 5] = [
    0xa1bf,
    immediate(-8) | 0x0107,
    immediate(8) | 0x02b7,
    0x03b7,
    immediate(113) | 0x85,
];

const fn immediate(value: i32) -> u64 {
    (value.cast_unsigned() as u64) << 32
}

/// Makes a map and drops it.
pub(super) fn create_map(map_type: MapType) -> io::Result<()> {
    let (key_size, value_size, max_entries) = match map_type {
        MapType::Array => (4, 4, 1),
        // One page, which is at most 64 KiB.
        MapType::RingBuffer => (0, 0, 1 << 16),
    };
    let attr = MapAttr {
        map_type: map_type as u32,
        key_size,
        value_size,
        max_entries,
    };
    bpf(MAP_CREATE, &attr).map(drop)
}

/// Loads a program and drops it.
pub(super) fn load_program(program: Program, body: Body) -> io::Result<()> {
    let instructions: Vec<u64> = match body {
        Body::Nothing => RETURN_0.to_vec(),
        Body::ReadKernel => [&READ_KERNEL[..], &RETURN_0].concat(),
    };
    let license = c"GPL";
    // BPF_PROG_TYPE_KPROBE, _RAW_TRACEPOINT, _TRACING; BPF_TRACE_RAW_TP, BPF_TRACE_FENTRY.
    let (prog_type, expected_attach_type, attach_btf_id) = match program {
        Program::Uprobe => (2, 0, 0),
        Program::RawTracepoint => (17, 0, 0),
        Program::BtfTracepoint { target } => (26, 23, target),
        Program::Fentry { target } => (26, 24, target),
    };
    let attr = ProgramAttr {
        prog_type,
        insn_cnt: u32::try_from(instructions.len()).unwrap_or_default(),
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type,
        attach_btf_id,
        ..ProgramAttr::default()
    };
    bpf(PROG_LOAD, &attr).map(drop)
}
