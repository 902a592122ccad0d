//! Opens what lies on disk (a bundle of `nestrace record`, or what blktrace wrote) and says what it tells.
//!
//! ```no_run
//! let analysis = nestrace_bundle::analyze("vm1.nest", &nestrace_bundle::Options::default())?;
//! for disk in &analysis.chains {
//!     println!("{}: {} of {} bios followed", disk.guest_device, disk.linked, disk.guest_bios);
//! }
//! # Ok::<(), nestrace_bundle::Error>(())
//! ```
//!
//! [`analyze`] does what `nestrace analyze` does: maps of images, damage, streams that cannot be read, a capture by its base
//! name. Who wants the events themselves opens a [`bundle::Bundle`] or a [`capture::CaptureFiles`].

mod analyze;
pub mod bundle;
pub mod capture;
pub mod damage;
pub mod device_number;
mod error;
pub mod input_file;
pub mod open_files;
pub mod read_ahead;

pub use analyze::{
    Options, after_end, analyze, analyze_noting, check_capture_from, check_device, check_from,
    check_guest, nanoseconds, no_device,
};
pub use error::{Error, ErrorKind};

/// Who is told what is worth a note: damage, events out of order, a file that was probably not meant.
pub type Notes<'n> = dyn FnMut(&dyn std::fmt::Display) + 'n;
