//! `nestrace stuck`: one look at what guests and the host have in flight, as facts for [`nestrace_stuck::judge`].
//!
//! The finder (see [`crate::roles::finder`]) reads what processes and their owners make: threads, descriptors, monitors, and
//! beside them sysfs. Kernel stacks need `CAP_SYS_ADMIN`, which the finder does not keep; they are text of the kernel alone, so
//! the process that was started reads them ([`asleep`]).

pub mod asleep;
mod cgroup;
mod devices;
mod guest_sample;
mod images;
mod kernel_threads;
pub mod monitor;
pub mod rings;
mod sample;
pub mod servers;
pub mod threads;

use std::time::Duration;

use nestrace_stuck::facts::Facts;

use crate::guest::{DiscoverError, Selection};
use crate::roles::finder::in_flight_apart;

pub(crate) use sample::sample;

/// Looks twice at the chosen guests and the devices below them, `interval` apart.
///
/// # Errors
///
/// As [`crate::guest::discover`].
pub fn look(selection: &Selection, interval: Duration) -> Result<Facts, DiscoverError> {
    let mut facts = in_flight_apart(selection, interval)?;
    asleep::add(&mut facts);
    Ok(facts)
}
