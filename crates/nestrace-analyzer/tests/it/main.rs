//! The analyzer from outside: recordings as values, and what is said of them.
//!
//! One program: each would link everything anew.

mod absurd_sizes;
mod absurd_stamps;
mod alike_disks;
mod batches;
mod bent_clocks;
mod block;
mod calls;
mod chains;
mod clock;
mod clock_world;
mod compare;
mod data_path;
mod dataframe;
mod equal_bios;
mod file_io;
mod findings;
mod findings_of_bytes;
mod findings_of_devices;
mod findings_of_streams;
mod flush;
mod hostile_guest;
mod images;
mod interrupted_guest;
mod lost_events;
mod machine_active;
mod memory_identity;
mod notation;
mod one_device;
mod one_guest;
mod program_syncs;
mod qemu;
mod replugged_disks;
mod reuse_storm;
mod same_sector;
mod stack;
mod stacked;
mod told_by_requests;
mod trace;
mod two_sides;
mod verdict;
