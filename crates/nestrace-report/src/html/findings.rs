//! What the rules found: title, explanation, evidence, advice.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Evidence, Finding, Severity};

use super::MOST_LINES;
use super::page::{Page, escape};
use crate::text::findings::unjudged;
use crate::units::{count, percent, size, time};

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let found = &analysis.findings;
    page.section("findings", "What was found");
    if found.is_empty() {
        page.element("p", "No rule fired.");
    }
    found
        .iter()
        .take(MOST_LINES)
        .for_each(|finding| one(finding, page));
    unjudged(analysis)
        .iter()
        .take(MOST_LINES)
        .for_each(|line| page.element("p class=note", line));
    page.end_section();
}

fn one(finding: &Finding, page: &mut Page) {
    let (class, word) = match finding.severity {
        Severity::High => ("high", "high"),
        Severity::Medium => ("medium", "medium"),
        Severity::Low => ("low", "low"),
        Severity::Info => ("info", "info"),
    };
    page.raw(&format!("<article class={class}>"));
    page.raw(&format!(
        "<h3>{} <span class=badge>{word}</span></h3>",
        escape(&finding.title)
    ));
    let whose = format!(
        "{}/{} · {} · {} at stake",
        finding.guest,
        finding.disk,
        finding.id,
        percent(finding.share)
    );
    page.element("p class=note", &whose);
    page.element("p", &finding.explanation);
    if !finding.advice.is_empty() {
        page.raw("<ul>");
        finding
            .advice
            .iter()
            .for_each(|advice| page.element("li", advice));
        page.raw("</ul>");
    }
    if !finding.evidence.is_empty() {
        page.raw("<details><summary>Evidence</summary><dl>");
        for (name, value) in &finding.evidence {
            page.element("dt", &plain_name(name));
            page.element("dd", &text(name, value));
        }
        page.raw("</dl></details>");
    }
    page.raw("</article>");
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
