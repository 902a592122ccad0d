//! What the rules found, most at stake first: what was seen, why, what to do.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Finding, Severity};

use super::{Page, disk_name, only_guest};
use crate::table::wrap;
use crate::units::of;

/// Columns that explanation and advice are set in by.
const INDENT: &str = "      ";

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let (found, unjudged) = (&analysis.findings, &analysis.findings_unjudged);
    if found.is_empty() {
        return;
    }
    page.section("What was found");
    let only = only_guest(analysis);
    for finding in found {
        let guest = only.map_or(finding.guest.as_str(), |_| "");
        one(finding, &disk_name(guest, Some(&finding.disk)), page);
    }
    if !unjudged.is_empty() {
        let rules = of(unjudged.len() as u64, "rule", "rules");
        page.paragraph(&format!(
            "{rules} could not judge: {}.",
            unjudged[0].missing
        ));
    }
}

fn one(finding: &Finding, disk: &str, page: &mut Page) {
    let severity = match finding.severity {
        Severity::High => "high",
        Severity::Medium => "medium",
        Severity::Low => "low",
        Severity::Info => "to know",
    };
    page.paragraph(&format!(
        "{disk}: {} ({severity}, {})",
        finding.title, finding.id
    ));
    let width = page.options.width;
    let mut indented = |text: &str| {
        for line in wrap(text, width, INDENT) {
            page.line(&line);
        }
    };
    indented(&finding.explanation);
    for advice in &finding.advice {
        indented(&format!("→ {advice}"));
    }
}
