//! The report of a comparison: two recordings in one page that needs nothing else.

use maud::{Markup, html};
use nestrace_analyzer::Analysis;
use nestrace_analyzer::compare::{
    Both, CallPair, Comparison, DevicePair, DiskPair, Explanation, Metric, Part, Unit, Verdict,
};

use super::figure::figures;
use super::name;
use super::page::{self, details, document, footer, note, paragraphs, prose, section, table};
use crate::operation::many;
use crate::plots::{DrawError, compare as plots};
use crate::text::compare::sentences::{
    answer, call_name, calls_left, device_title, disk_image, disk_title, ends_with_data, facts,
    of_finding, of_unmatched, rest, why_no_calls,
};
use crate::text::compare::value::{self, Shown, difference, label, range, ratio, signed, verdict};
use crate::units::count;

/// Disks and devices with tables and plots of their own.
const MOST: usize = 4;
/// Lines of a kind that are listed.
const MAX_LINES: usize = 40;

/// The report of `comparison`; `a` and `b` are what was compared.
///
/// # Errors
/// If a plot cannot be drawn.
///
/// ```
/// use nestrace_analyzer::{Analyzer, Options, compare::compare};
/// let analysis = Analyzer::analyze(&Default::default(), Options::default(), []);
/// let comparison = compare(&analysis, &analysis);
/// let report = nestrace_report::html::compare::render(&comparison, &analysis, &analysis).unwrap();
/// assert!(report.starts_with("<!doctype html>"));
/// ```
pub fn render(comparison: &Comparison, a: &Analysis, b: &Analysis) -> Result<String, DrawError> {
    let (of_a, of_b) = (&comparison.a, &comparison.b);
    let analyses = Both { a, b };
    let (disks, devices) = (&comparison.disks, &comparison.devices);
    let left = disks.len().saturating_sub(MOST) + devices.len().saturating_sub(MOST);
    let more = (left > 0)
        .then(|| format!("{left} more disks and devices are in both: see --format json."));
    let unmatched = comparison.unmatched.iter().map(of_unmatched);
    let unmatched: Vec<String> = unmatched.chain(more).collect();
    let caveats: Vec<String> = comparison
        .caveats
        .iter()
        .map(|it| format!("{it}."))
        .collect();
    let body = html! {
        header {
            h1 { (prose(&format!("{} against {}", name(&of_a.path), name(&of_b.path)))) }
            @for (which, recording) in [("A", of_a), ("B", of_b)] {
                (page::facts(&format!("{which}: {} · {}", recording.path, facts(recording))))
            }
        }
        (section("answer", "In short", &paragraphs(answer(comparison))))
        (list("caveats", "Caveats", &caveats))
        @for (number, pair) in disks.iter().take(MOST).enumerate() {
            (section(&format!("disk-{number}"), &disk_title(pair), &disk(pair, analyses)?))
        }
        @for (number, pair) in devices.iter().take(MOST).enumerate() {
            (section(&format!("device-{number}"), &device_title(pair), &device(pair, analyses)?))
        }
        (calls(comparison))
        (list("unmatched", "Not compared", &unmatched))
        (section("method", "How to read it", &paragraphs(rest(comparison))))
        (footer(&format!("nestrace compare {} {} --format json", of_a.path, of_b.path)))
    };
    let title = format!("{} against {}", of_a.path, of_b.path);
    Ok(document(&title, &body))
}

fn disk(pair: &DiskPair, analyses: Both<&Analysis>) -> Result<Markup, DrawError> {
    let figures = figures(&plots::of_disk(pair, analyses))?;
    Ok(html! {
        @if let Some(image) = disk_image(pair) { (page::facts(&image)) }
        (figures)
        (metrics(&pair.metrics))
        @if let Some(data) = ends_with_data(pair) { (note(data)) }
        (explanations(&pair.explanations))
        @if !pair.findings.is_empty() {
            h3 { "Findings that differ" }
            (page::list(pair.findings.iter().map(of_finding)))
        }
    })
}

fn device(pair: &DevicePair, analyses: Both<&Analysis>) -> Result<Markup, DrawError> {
    let figures = figures(&plots::of_device(pair, analyses))?;
    Ok(html! {
        (figures)
        (metrics(&pair.metrics))
        (explanations(&pair.explanations))
    })
}

/// Calls of the guests' programs, those with the most time first.
fn calls(comparison: &Comparison) -> Markup {
    let title = "Calls of the guests' programs";
    if let Some(why) = why_no_calls(comparison) {
        return section("calls", title, &note(&why));
    }
    let pairs = comparison.calls.as_deref().unwrap_or_default();
    if pairs.is_empty() {
        return Markup::default();
    }
    let head = [
        "calls", "n in A", "n in B", "", "A", "B", "B ÷ A", "between", "says",
    ];
    let row = |pair: &CallPair, metric: &Metric| {
        vec![
            call_name(pair),
            count(pair.n.a),
            count(pair.n.b),
            value::part_of_calls(metric).to_owned(),
            value::value(metric.unit, metric.a),
            value::value(metric.unit, metric.b),
            ratio(metric.ratio),
            range(metric),
            said(metric),
        ]
    };
    let rows = |name: &str| -> Vec<Vec<String>> {
        let rows = pairs.iter().flat_map(|pair| {
            let wanted = pair.metrics.iter().filter(|metric| metric.name == name);
            wanted.map(|metric| row(pair, metric))
        });
        rows.collect()
    };
    let body = html! {
        (table(&head, &rows("latency_mean")))
        (details("99th percentiles", &table(&head, &rows("latency_p99"))))
        @for pair in pairs {
            @if let Some(explanation) = &pair.explanation {
                (parts(&call_name(pair), &explanation.latency, &explanation.parts))
            }
        }
        (page::list(calls_left(comparison, pairs.len()).iter()))
    };
    section("calls", title, &body)
}

fn list(id: &str, title: &str, lines: &[String]) -> Markup {
    if lines.is_empty() {
        return Markup::default();
    }
    let body = html! {
        (page::list(lines.iter().take(MAX_LINES)))
        (page::more(lines.len(), MAX_LINES))
    };
    section(id, title, &body)
}

fn metrics(metrics: &[Metric]) -> Markup {
    let head = ["", "A", "B", "B ÷ A", "between", "says"];
    let row = |metric: &&Metric| {
        vec![
            label(metric),
            value::value(metric.unit, metric.a),
            value::value(metric.unit, metric.b),
            ratio(metric.ratio),
            range(metric),
            said(metric),
        ]
    };
    let rows = |place: Shown| {
        value::shown(metrics, place)
            .iter()
            .map(row)
            .collect::<Vec<_>>()
    };
    html! {
        (table(&head, &rows(Shown::Text)))
        (details("Every value", &table(&head, &rows(Shown::Page))))
    }
}

/// The verdict, with an arrow that is seen from afar.
fn said(metric: &Metric) -> String {
    let arrow = match metric.verdict {
        Verdict::Higher => "▲ ",
        Verdict::Lower => "▼ ",
        _ => "",
    };
    format!("{arrow}{}", verdict(metric.verdict))
}

fn explanations(explanations: &[Explanation]) -> Markup {
    html! { @for explanation in explanations { (one_explanation(explanation)) } }
}

fn one_explanation(explanation: &Explanation) -> Markup {
    let operations = many(explanation.operation);
    parts(operations, &explanation.latency, &explanation.parts)
}

/// The parts of a latency.
fn parts(what: &str, latency: &Metric, parts: &[Part]) -> Markup {
    let title = format!(
        "Where the difference of {what} lies ({})",
        difference(latency)
    );
    let head = ["part", "A", "B", "B − A", "of the difference", "says"];
    let rows: Vec<Vec<String>> = parts
        .iter()
        .map(|part| {
            let share = part.share_of_difference;
            vec![
                label(&part.mean),
                value::value(Unit::Ns, part.mean.a),
                value::value(Unit::Ns, part.mean.b),
                difference(&part.mean),
                share.map_or_else(|| String::from("–"), signed),
                said(&part.mean),
            ]
        })
        .collect();
    details(&title, &table(&head, &rows))
}
