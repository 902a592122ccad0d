//! The analyzer from outside: recordings as values, and what is said of them.
//!
//! One program: each would link everything anew.

mod absurd_sizes;
mod absurd_stamps;
mod batches;
mod block;
mod calls;
mod calls_one_by_one;
mod chains;
mod checkpoints;
mod compare;
mod data_path;
mod dataframe;
mod equal_bios;
mod file_io;
mod findings;
mod findings_of_bytes;
mod findings_of_devices;
mod findings_of_page_cache;
mod findings_of_streams;
mod flush;
mod hostile_guest;
mod images;
mod interrupted_guest;
mod lost_events;
mod machine_active;
mod notation;
mod one_device;
mod one_guest;
mod program_syncs;
mod qemu;
mod replugged_disks;
mod reuse_storm;
mod stack;
mod stacked;
mod stamps;
mod told_by_requests;
mod trace;
mod two_sides;
mod verdict;
