//! Opens and analyses recordings of `nestrace record` and captures of blktrace.
//!
//! ```no_run
//! let analysis = nestrace_bundle::analyze("vm1.nest", &nestrace_bundle::Options::default())?;
//! for disk in &analysis.chains {
//!     println!("{}: {} of {} bios followed", disk.guest_device, disk.linked, disk.guest_bios);
//! }
//! # Ok::<(), nestrace_bundle::Error>(())
//! ```
//!
//! [`analyze`] does what `nestrace analyze` does: image maps, damaged and unreadable streams, captures by their base
//! name. To read the events yourself, open a [`bundle::Bundle`] or [`capture::CaptureFiles`].

mod analyze;
pub mod bundle;
pub mod capture;
pub mod damage;
mod error;
pub mod input_file;
pub mod open_files;
pub mod read_ahead;

pub use analyze::{
    Options, after_end, analyze, analyze_noting, check_capture_from, check_device, check_from,
    check_guest, nanoseconds, no_device,
};
pub use error::{Error, ErrorKind};

/// Receives notes for the user: damage, events out of order, a file name that is probably a mistake.
pub type Notes<'n> = dyn FnMut(&dyn std::fmt::Display) + 'n;
