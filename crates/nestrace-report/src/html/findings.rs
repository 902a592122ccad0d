//! What the rules found: title, explanation, evidence, advice.

use maud::{Markup, html};
use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Evidence, Finding, Severity};

use super::MAX_LINES;
use super::page::{list, note, paragraph, prose, section};
use crate::text::findings::unjudged;
use crate::units::{count, percent, size, time};

pub(super) fn findings(analysis: &Analysis) -> Markup {
    let found = &analysis.findings;
    let body = html! {
        @if found.is_empty() { (paragraph("No rule fired.")) }
        @for finding in found.iter().take(MAX_LINES) { (one(finding)) }
        @for line in unjudged(analysis).iter().take(MAX_LINES) { (note(line)) }
    };
    section("findings", "What was found", &body)
}

fn one(finding: &Finding) -> Markup {
    let (class, word) = match finding.severity {
        Severity::High => ("high", "high"),
        Severity::Medium => ("medium", "medium"),
        Severity::Low => ("low", "low"),
        _ => ("info", "info"),
    };
    let disk = match finding.disk.as_str() {
        "" => String::new(),
        disk => format!("/{disk}"),
    };
    let whose = format!(
        "{}{disk} · {} · {} at stake",
        finding.guest,
        finding.id,
        percent(finding.share)
    );
    html! {
        article class=(class) {
            h3 { (finding.title) " " span class="badge" { (word) } }
            (note(&whose))
            (paragraph(&finding.explanation))
            (list(&finding.advice))
            @if !finding.evidence.is_empty() {
                details {
                    summary { "Evidence" }
                    dl {
                        @for (name, value) in &finding.evidence {
                            dt { (prose(&plain_name(name))) }
                            dd { (prose(&text(name, value))) }
                        }
                    }
                }
            }
        }
    }
}

/// `host_bytes` is `host`: the value has its unit.
fn plain_name(name: &str) -> String {
    let name = ["_ns", "_bytes", "_share"]
        .iter()
        .find_map(|unit| name.strip_suffix(unit))
        .unwrap_or(name);
    name.replace('_', " ")
}

fn text(name: &str, value: &Evidence) -> String {
    match value {
        Evidence::Whole(n) if name.ends_with("_ns") => time(*n),
        Evidence::Whole(n) if name.ends_with("bytes") => size(*n),
        Evidence::Whole(n) => count(*n),
        Evidence::Real(share) if name.ends_with("share") => percent(*share),
        Evidence::Real(ns) if name.ends_with("_ns") => time(ns.max(0.0).round() as u64),
        Evidence::Real(value) => format!("{value:.2}"),
        Evidence::Word(word) => word.clone(),
        _ => String::from("–"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_has_its_unit() {
        for (name, value, expected) in [
            (
                "device_ns",
                Evidence::Whole(1_500_000),
                ("device", "1.50 ms"),
            ),
            ("host_bytes", Evidence::Whole(4096), ("host", "4.00 KiB")),
            ("journal_share", Evidence::Real(0.25), ("journal", "25 %")),
            ("cache_mode", Evidence::from("none"), ("cache mode", "none")),
        ] {
            assert_eq!(
                (plain_name(name).as_str(), text(name, &value).as_str()),
                expected
            );
        }
    }
}
