//! `nestrace stuck`: one look at what guests and the host have in flight, as facts for [`nestrace_stuck::judge`].
//!
//! The finder ([`crate::roles::finder::in_flight_apart`]) reads what processes and their owners make: threads, descriptors, monitors, and
//! beside them sysfs. Kernel stacks need `CAP_SYS_ADMIN`, which the finder does not keep; they are text of the kernel alone, so
//! the process that was started reads them ([`asleep`]).

pub mod asleep;
mod devices;
mod guest_sample;
mod images;
mod kernel_threads;
mod limits;
pub mod monitor;
pub mod rings;
mod sample;
pub mod servers;
pub mod threads;

pub(crate) use sample::sample;
