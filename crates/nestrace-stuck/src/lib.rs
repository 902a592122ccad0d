//! What a guest's disks wait for, from one look at a host.
//!
//! `nestrace-record` looks (two samples of what the machine itself counts, with a pause between them) and gives [`facts`];
//! [`judge`] says for each guest what holds its I/O; [`text`] writes that for people. The same answer serializes to the JSON of
//! `nestrace stuck --json`. Pure: values in, values out.
//!
//! ```
//! use nestrace_stuck::{facts::{Facts, GuestFacts}, judge::judge};
//! let mut facts = Facts { interval_ns: 2_000_000_000, ..Facts::default() };
//! facts.guests.push(GuestFacts { name: "vm1".into(), run_state: Some("paused".into()), ..GuestFacts::default() });
//! let answer = judge(facts);
//! assert!(answer.guests[0].sentence.starts_with("vm1 is paused"));
//! ```

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod facts;
pub mod judge;
pub mod text;
mod words;
