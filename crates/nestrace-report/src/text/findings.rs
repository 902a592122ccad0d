//! What the rules found, most at stake first: what was seen, why, what to do.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Finding, Severity};

use super::colour::Colour;
use super::{Page, disk_name, only_guest};
use crate::table::wrap;
use crate::units::of;

/// Disks that one line names.
const MAX_DISKS: usize = 4;
/// Columns that explanation and advice are set in by.
const INDENT: &str = "      ";

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let found = &analysis.findings;
    let unjudged = unjudged(analysis);
    if found.is_empty() && unjudged.is_empty() {
        return;
    }
    page.section("What was found");
    if found.is_empty() {
        page.paragraph("No rule fired.");
    }
    let only = only_guest(analysis);
    for finding in found {
        one(finding, &subject(only, &finding.guest, &finding.disk), page);
    }
    unjudged.iter().for_each(|line| page.paragraph(line));
}

/// The disk, or the guest where that as a whole is meant.
fn subject(only: Option<&str>, guest: &str, disk: &str) -> String {
    match disk {
        "" => guest.to_owned(),
        disk => disk_name(only.map_or(guest, |_| ""), Some(disk)),
    }
}

/// How many rules could not judge which disks, by what they lack.
pub(crate) fn unjudged(analysis: &Analysis) -> Vec<String> {
    let only = only_guest(analysis);
    let mut of_disks: Vec<(&str, String, u64)> = Vec::new();
    for rule in &analysis.findings_unjudged {
        let disk = subject(only, &rule.guest, &rule.disk);
        let alike = |known: &&mut (&str, String, u64)| known.0 == rule.missing && known.1 == disk;
        match of_disks.iter_mut().find(alike) {
            Some((_, _, n)) => *n += 1,
            None => of_disks.push((rule.missing, disk, 1)),
        }
    }
    // Disks that lack the same share a line.
    let mut lines: Vec<(&str, u64, Vec<String>)> = Vec::new();
    for (missing, disk, n) in of_disks {
        let alike = |line: &&mut (&str, u64, Vec<String>)| (line.0, line.1) == (missing, n);
        match lines.iter_mut().find(alike) {
            Some((_, _, disks)) => disks.push(disk),
            None => lines.push((missing, n, vec![disk])),
        }
    }
    let line = |(missing, n, disks): (&str, u64, Vec<String>)| {
        let rules = of(n, "rule", "rules");
        format!("{rules} could not judge {}: {missing}.", names(&disks))
    };
    lines.into_iter().map(line).collect()
}

/// `a, b and 3 more`.
fn names(disks: &[String]) -> String {
    let (shown, others) = disks.split_at(disks.len().min(MAX_DISKS));
    match others.len() {
        0 => shown.join(", "),
        n => format!("{} and {n} more", shown.join(", ")),
    }
}

fn one(finding: &Finding, disk: &str, page: &mut Page) {
    let severity = match finding.severity {
        Severity::High => "high",
        Severity::Medium => "medium",
        Severity::Low => "low",
        _ => "info",
    };
    let text = format!("{disk}: {} ({severity}, {})", finding.title, finding.id);
    // The last word of it, which no break of the line can tear.
    let word = severity.rsplit(' ').next().unwrap_or(severity);
    page.marked_paragraph(&text, word, Colour::of_severity(finding.severity));
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
