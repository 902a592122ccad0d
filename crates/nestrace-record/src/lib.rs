//! The recorder: finds guests, plans and attaches probes, drains buffers, talks to agents, writes
//! bundles. The only crate that touches `/proc`, `/sys`, QMP and BPF on the host.

pub mod agent;
pub mod clock;
pub mod collect;
pub mod doctor;
pub mod guest;
pub mod probes;
pub mod qemu_symbols;
pub mod recording;
pub mod roles;
pub mod sandbox;
pub mod topology;
