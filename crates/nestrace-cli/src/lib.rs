//! What the programs `nestrace`, `nestrace-lab` and `nestrace-fleet` share: exit codes and what is said on the way out
//! ([`exit`]), how the first starts the others ([`beside`]), their command lines ([`lab`], [`fleet`]), which it knows too, and
//! the file of a report ([`page_file`]).
//!
//! It opens no input.

pub mod beside;
pub mod exit;
pub mod fleet;
pub mod lab;
pub mod page_file;
