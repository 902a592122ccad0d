//! The compiled probes, as committed in `ebpf/prebuilt/`, so that building nestrace needs no BPF
//! toolchain. `cargo xtask bpf` makes them, `cargo xtask bpf --check` proves that they are these sources.

/// The ELF object with all probes.
pub static PROBES: &[u8] = aya::include_bytes_aligned!("../../../ebpf/prebuilt/nestrace-probes.o");
