//! When a disk of a known kind completes its requests: requests with times in, completion times out.
//!
//! It sits below everything that serves a disk: it moves no data, starts no thread and reads no clock. A caller hands in
//! each request with its time, asks when the next decision is due, and takes completions. For one seed, the same
//! requests at the same times give the same completions.
//!
//! [`parameters`] holds what a disk is made of: the built-in models, or a TOML file. A hard disk is a [`geometry`] with
//! a [`seek`] curve, a [`cache`] and a [`schedule`], which [`spindle`] puts together; [`raid10`] is several of them;
//! [`flash`] is a solid-state disk. [`predict`] runs a workload against a model and says what it will measure.
//! [`troubles`] says which requests fail, wait or are torn on command, and [`lateness`] counts how far a server was
//! from the model.
//!
//! ```
//! use nestrace_modelled_disk::{disk::Disk, parameters::Parameters, request::{DiskNs, Operation, Request}};
//!
//! # fn main() -> Result<(), nestrace_modelled_disk::parameters::ParametersError> {
//! let mut disk = Disk::new(&Parameters::built_in("hdd-7200")?, 1 << 30, 1)?;
//! let read = Request { id: 7, operation: Operation::Read, offset_bytes: 512 << 20, length_bytes: 4096 };
//! disk.submit(DiskNs(0), read);
//! let mut done = Vec::new();
//! disk.advance(DiskNs(100_000_000), &mut done);
//! assert_eq!(done[0].id, 7);
//! assert!(done[0].at > DiskNs(1_000_000));
//! # Ok(()) }
//! ```
//!
//! What it leaves out: errors and their retries, defects and spare sectors, thermal recalibration, power states, and
//! wear. A hard disk has one head; its tracks lie one after the other.

pub mod cache;
pub mod disk;
pub mod flash;
pub mod geometry;
pub mod lateness;
pub mod parameters;
pub mod predict;
pub mod raid10;
pub mod request;
pub mod schedule;
pub mod seek;
pub mod spindle;
mod split_mix;
pub mod troubles;
