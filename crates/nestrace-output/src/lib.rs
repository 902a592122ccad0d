//! The folders that nestrace writes into: a bundle that has its name once it can be read, and directories that are held
//! open, so that no name is followed twice.
//!
//! Sits above `nestrace-trace`, which makes the bytes of a bundle, and below whatever writes one: the recorder, the agent
//! (into a file system of its guest) and the command (`import`, `repair`, results of the lab). It never reads a recording.
//!
//! ```
//! use nestrace_output::bundle_dir::{BundleDir, BundleError};
//! use nestrace_trace::{Event, Manifest};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let path = folder.path().join("a.nest");
//! let (mut dir, mut stream) = BundleDir::create(&path, false, &Manifest::default())?;
//! stream.push(&Event::default())?;
//! stream.finish()?;
//! dir.close(&Manifest::default())?;
//! // What is there is replaced only if that is asked for.
//! let again = BundleDir::create(&path, false, &Manifest::default());
//! assert!(matches!(again, Err(BundleError::Exists(_))));
//! # Ok(())
//! # }
//! ```

pub mod address_secret;
pub mod bundle_dir;
pub mod held_dir;
pub mod nocow;
mod reserve;
mod sudo;

pub use sudo::sudo_user;
