//! What a recording says: counts, latencies, whose I/O it was.
//!
//! Sits above `nestrace-trace` (events and manifest) and below `nestrace-report`. Pure: it takes
//! events and gives values; it opens no file, reads no clock and no environment, and runs where
//! BPF does not exist. One pass in the order of time; memory holds what is in flight, not what has
//! passed.
//!
//! ```
//! use nestrace_analyzer::{Analyzer, Options};
//! use nestrace_trace::{Event, Kind, Manifest};
//!
//! let queue = Event { ts_ns: 1_000, kind: Kind::Queue as u8, object: 0xb10, bytes: 4096, ..Event::default() };
//! let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), [queue]);
//! assert_eq!(analysis.devices[0].counts.queued, Some(1));
//! ```
//!
//! Where things are: `block` follows bios and requests by identity, `file_io` QEMU's calls on image
//! files, `qemu` its accounting, `image` knows whose inode is whose, `overlap` estimates where
//! QEMU's time passes. Chains, clocks and findings will stand beside them: each layer already hands
//! over its beginnings and ends in one place ([`Analyzer::push`]).

mod aio_key;
pub mod analysis;
mod analyzer;
mod block;
mod depth;
mod device;
mod file_io;
pub mod histogram;
mod image;
mod overlap;
mod pointer;
mod qemu;
mod seek;
mod threads;
mod unlinked;
mod users;
pub mod verdict;

pub use analysis::Analysis;
pub use analyzer::{Analyzer, Options};
pub use histogram::{Dist, Histogram};
