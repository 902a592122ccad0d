//! The report of many recordings: one page that needs nothing else.

use maud::{Markup, html};

use super::figure::figures;
use super::page::{
    details, document, facts, footer, list, note, paragraph, paragraphs, prose, section, table,
};
use crate::fleet::{FleetReport, MAX_FINDINGS, MAX_ROWS, statements, text};
use crate::plots::{Chart, DrawError, Hue, Plot, Span, SpanRow, Spans, Unit, segment_hue};
use crate::table::Table;
use crate::units::{of, percent, time};

/// Sentences that are seen at once; the others are folded away.
const FIRST_LINES: usize = 12;
/// Bars of a figure.
const MAX_BARS: usize = 15;

/// The report.
///
/// # Errors
/// If a figure cannot be drawn.
///
/// ```
/// use nestrace_report::fleet::FleetReport;
/// let page = nestrace_report::html::fleet::render(&FleetReport::default()).unwrap();
/// assert!(page.starts_with("<!doctype html>"));
/// ```
pub fn render(report: &FleetReport) -> Result<String, DrawError> {
    let body = html! {
        header {
            h1 { (prose(&of(report.recordings, "recording", "recordings"))) }
            (facts(&statements::facts(report)))
        }
        (section("answer", "In short", &paragraphs(statements::answer(report))))
        (findings(report)?)
        (folding("outliers", "Slower than their peers", &all(&report.outliers, statements::outlier), &statements::of_outliers()))
        (folding("changes", "What became slower", &all(&report.changes.slower, statements::slower), statements::OF_CHANGES))
        (worst(report)?)
        (segments(report)?)
        (tabular("kinds", "By what disks run on", &text::kinds_table(report, MAX_ROWS), statements::OF_KINDS))
        (tabular("hosts", "Hosts that make guests wait", &text::hosts_table(report, MAX_ROWS), statements::OF_HOSTS))
        (missing(report))
        (footer(&format!("nestrace fleet report {} --format json", report.data_set)))
    };
    Ok(document(&format!("fleet: {}", report.data_set), &body))
}

fn all<T>(rows: &[T], line: impl Fn(&T) -> String) -> Vec<String> {
    rows.iter().map(line).collect()
}

/// A list, the tail of it folded away.
fn folding(id: &str, title: &str, lines: &[String], remark: &str) -> Markup {
    let (first, rest) = lines.split_at(lines.len().min(FIRST_LINES));
    let body = html! {
        @if first.is_empty() { (paragraph("None.")) }
        (list(first))
        @if !rest.is_empty() { (details(&format!("{} more", rest.len()), &list(rest))) }
        (note(remark))
    };
    section(id, title, &body)
}

fn tabular(id: &str, title: &str, rows: &Table, remark: &str) -> Markup {
    if rows.is_empty() {
        return Markup::default();
    }
    let body = html! {
        (table(rows.header(), rows.rows()))
        (note(remark))
    };
    section(id, title, &body)
}

fn findings(report: &FleetReport) -> Result<Markup, DrawError> {
    let helpful = || {
        let findings = report.findings.iter();
        findings.filter(|one| statements::helps(one)).take(MAX_BARS)
    };
    let bars = helpful().map(|one| SpanRow {
        label: format!("{} ({})", one.id, one.severity),
        detail: format!("{} of disks", percent(one.share)),
        spans: vec![span(&one.severity, one.share, Hue::Neutral)],
    });
    let rows: Vec<SpanRow> = bars.collect();
    let plots = plot(
        "findings",
        "Which findings do most disks have?",
        "A disk has a finding if its rule fired in one of the disk's recordings.",
        Unit::OfWhole,
        rows,
    );
    let body = html! {
        @if report.findings.is_empty() { (paragraph("No rule fired.")) }
        (figures(&plots)?)
        @for one in helpful() {
            article class=(class_of(&one.severity)) {
                h3 { (one.id) " " span class="badge" { (one.severity) } }
                (note(&format!(
                    "{} in {}{}",
                    of(one.disks, "disk", "disks"),
                    of(one.recordings, "recording", "recordings"),
                    one.waited_ns.map_or_else(String::new, |ns| format!(" · explains {} of waiting", time(ns.max(0.0) as u64)))
                )))
                (list(&one.advice))
            }
        }
        @let rows = text::findings_table(report, MAX_FINDINGS);
        @if !rows.is_empty() {
            (details("All findings", &table(rows.header(), rows.rows())))
            (note(statements::OF_FINDINGS))
        }
    };
    Ok(section("findings", "What would help most disks", &body))
}

/// Known words only: others come from a file.
fn class_of(severity: &str) -> &'static str {
    match severity {
        "high" => "high",
        "medium" => "medium",
        "low" => "low",
        _ => "info",
    }
}

fn worst(report: &FleetReport) -> Result<Markup, DrawError> {
    let shown = &report.worst_disks[..report.worst_disks.len().min(MAX_BARS)];
    let bars = shown.iter().map(|one| SpanRow {
        label: format!(
            "{} in {} on {}, {}",
            one.device, one.guest, one.host, one.op
        ),
        detail: format!("p50 {}, p99 {}", time(one.p50_ns), time(one.p99_ns)),
        spans: vec![
            span("p50", one.p50_ns as f64, Hue::Guest),
            Span {
                from: one.p50_ns as f64,
                tint: 0.4,
                ..span("p99", one.p99_ns as f64, Hue::Guest)
            },
        ],
    });
    let plots = plot(
        "worst",
        "Which disks have the longest latencies?",
        "The strong bar ends at the median, the pale one at the 99th percentile.",
        Unit::Nanoseconds,
        bars.collect(),
    );
    let rows = text::worst_table(report, MAX_ROWS);
    let body = html! {
        @if rows.is_empty() { (paragraph("No guest was recorded from inside.")) }
        (figures(&plots)?)
        @if !rows.is_empty() { (details("The worst disks in numbers", &table(rows.header(), rows.rows()))) }
        (note(statements::OF_WORST))
    };
    Ok(section("worst", "The worst disks", &body))
}

fn segments(report: &FleetReport) -> Result<Markup, DrawError> {
    let shown = report.segments.iter().filter(|one| one.ns > 0);
    let bars = shown.map(|one| SpanRow {
        label: statements::segment(one),
        detail: format!("{} ({})", percent(one.share), time(one.ns)),
        spans: vec![span(&one.segment, one.share, segment_hue(&one.segment))],
    });
    let plots = plot(
        "segments",
        "Where does the time of data requests go?",
        "Sums over all requests that were followed to the host.",
        Unit::OfWhole,
        bars.collect(),
    );
    if plots.is_empty() {
        return Ok(Markup::default());
    }
    Ok(section(
        "segments",
        "Where the time goes",
        &figures(&plots)?,
    ))
}

fn missing(report: &FleetReport) -> Markup {
    let lines = statements::missing(report);
    let body = html! {
        @if lines.is_empty() { (paragraph("Nothing: no recording lost events, every file could be read.")) }
        (list(lines.iter().take(MAX_ROWS).map(|line| format!("{line}."))))
    };
    section("missing", "What is missing", &body)
}

fn span(name: &str, to: f64, hue: Hue) -> Span {
    Span {
        name: name.to_owned(),
        from: 0.0,
        to,
        hue,
        tint: 1.0,
    }
}

/// Nothing where there are no rows.
fn plot(id: &str, question: &str, note: &str, unit: Unit, rows: Vec<SpanRow>) -> Vec<Plot> {
    if rows.is_empty() {
        return Vec::new();
    }
    vec![Plot {
        id: id.to_owned(),
        subject: String::new(),
        question: question.to_owned(),
        note: note.to_owned(),
        chart: Chart::Spans(Spans {
            unit,
            title: String::new(),
            keys: Vec::new(),
            rows,
        }),
    }]
}
