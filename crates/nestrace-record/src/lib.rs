//! The recorder: finds guests, has probes attached and drained, talks to agents, writes bundles.
//!
//! Sits above `nestrace-probes` (the probes themselves), `nestrace-wire` (what agents say) and `nestrace-output` (the folder of a
//! bundle), and below the command. On a host nothing else touches other processes, QMP or libvirt.

pub mod agent;
pub mod agent_address;
pub mod backends;
mod cgroup;
pub mod doctor;
pub mod flight;
pub mod guest;
pub mod image_maps;
mod io_pressure;
pub mod live;
pub mod qemu_binary;
mod qemu_probes;
pub mod qemu_symbols;
pub mod recording;
pub mod roles;
pub mod sandbox;
mod side_by_side;
mod stats_offset;
pub mod stuck;
pub mod topology;
