//! `findings[]` without their texts.

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::Severity;

/// A row for each rule that fired: `id`, `guest`, `disk`, `severity`, `title`, `share`. Explanation,
/// evidence and advice are in [`Analysis::findings`].
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn findings(analysis: &Analysis) -> PolarsResult<DataFrame> {
    table!(&analysis.findings, finding => {
        id: finding.id,
        guest: finding.guest.as_str(),
        disk: finding.disk.as_str(),
        severity: match finding.severity {
            Severity::Info => "info",
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        },
        title: finding.title.as_str(),
        share: finding.share,
    })
}
