//! Ended calls that wait for the links of their bios, and the bios that they and commits hold.

use super::journal_wait::JournalWait;
use crate::model::call::{Call, Caller, FileId};
use crate::model::span::{BioClock, Span};

/// A bio that has ended.
#[derive(Debug)]
pub(super) struct Bio {
    /// `None` until its links are decided.
    pub tree: Option<Span>,
    pub linked: bool,
    pub clock: BioClock,
    /// Pending calls that wait for that.
    pub waiting: Vec<u64>,
    /// Calls and commits that hold it.
    pub holders: u32,
    pub bytes: u64,
    /// It counts for a row already.
    pub counted: bool,
    /// The file whose data it carries.
    pub data_of: Option<FileId>,
    pub in_commit: bool,
    pub cause: Cause,
}

/// What brought a bio about, should no call wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// The call that made its pages dirty, with its program, and how long ago.
    pub writer: Option<(Caller, u32, u64)>,
    /// The call in which it was queued.
    pub carrier: Option<Caller>,
    pub bytes: u64,
}

/// An ended call whose bios are not all decided.
#[derive(Debug)]
pub(super) struct Pending {
    pub call: Call,
    /// Its commits, each with the numbers of its bios.
    pub commits: Vec<HeldCommit>,
    pub wait: JournalWait,
    /// Bios that are not decided.
    pub open: usize,
}

/// A commit that a call waited for.
#[derive(Debug)]
pub(super) struct HeldCommit {
    pub start_ns: u64,
    pub end_ns: u64,
    pub bios: Vec<u64>,
}

/// Numbers of all bios that a call waited for, its commits' among them.
pub(super) fn bio_ids(pending: &Pending) -> impl Iterator<Item = u64> + '_ {
    let own = pending.call.bios.iter().map(|bio| bio.id);
    let of_commits = pending.commits.iter().flat_map(|commit| &commit.bios);
    own.chain(of_commits.copied())
}
