//! A group of live tests.

use xtask::case::Report;

use crate::context::LiveContext;

/// One group of live tests.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// For `--only`.
    pub name: &'static str,
    /// For `--list`.
    pub about: &'static str,
    /// Runs the group: each case is reported by itself. An error ends the group and counts as one
    /// failed case.
    pub run: fn(&LiveContext, &mut Report) -> anyhow::Result<()>,
    /// It measures: nothing may run beside it.
    pub alone: bool,
}
