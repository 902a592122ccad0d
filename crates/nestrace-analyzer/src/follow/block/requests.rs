//! The requests of one machine.

use super::IN_FLIGHT;
use super::issue::{LastIssue, Request};
use crate::model::places::Places;
use crate::model::pointer::PointerMap;
use crate::model::spare::Spare;

/// Requests from I or D to their last C, by address.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub live: Places<Box<Request>, { IN_FLIGHT }>,
    pub spare: Spare<Request>,
    /// By processor; for the order of requests, where spans are wanted.
    pub last_issues: PointerMap<u16, LastIssue>,
}
