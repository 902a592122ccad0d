//! A guest bio that was followed to the host, or was not.

use crate::model::operation::Operation;
use crate::model::span::Span;
use crate::result::unlinked::UnlinkedReason;

/// A bio whose fate is known.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// Number of the bio in its session.
    pub bio: u64,
    /// Index into `GuestSide::disks`.
    pub device: u32,
    /// Number among the bios of its device; 0 unless numbers were asked for.
    pub number: u64,
    pub operation: Operation,
    pub empty_flush: bool,
    /// The guest marked it as metadata or as urgent (META, PRIO).
    pub marked_urgent: bool,
    /// Metadata or journal of the guest's file system that somebody waits for.
    pub of_file_system: bool,
    /// On the guest's clock. Without a link: what the guest alone knows.
    pub tree: Span,
    /// `None`: linked.
    pub unlinked: Option<UnlinkedReason>,
    /// Index into `Images::disks`, as far as linked.
    pub disk: Option<u32>,
    /// Clock at the first request that is linked.
    pub offset_ns: i64,
    /// Clock at each request where there are several: each tree below one is moved by its own.
    pub offsets_ns: Vec<i64>,
    /// The widest of its requests.
    pub bound_ns: u64,
    pub stretched: bool,
    pub ambiguous: bool,
}
