//! Experiments on nested file systems: [`plan`] reads what is to be compared, [`experiment`] runs it on the guests and
//! host file systems of `nestrace-rig`.
//!
//! Constraints:
//! - Everything that it makes has an owner, and dropping the owner removes it, after an error, a
//!   panic or Ctrl-C too.
//! - Two runs on one machine never meet.
//! - Nothing is installed unless it is asked for.

pub mod experiment;
pub mod host_scheduler;
pub mod other_lab;
pub mod plan;
pub mod regular_file;
