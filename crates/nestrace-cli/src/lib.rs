//! What the programs `nestrace` and `nestrace-lab` share: exit codes and what is said on the way out ([`exit`]), and the command
//! line of the lab ([`lab`]), which both know.
//!
//! It writes to stdout and stderr and opens nothing.

pub mod exit;
pub mod lab;
