//! The report of a comparison: two recordings in one page that needs nothing else.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::compare::{Both, Comparison, Explanation, Metric, Verdict};

use super::figure;
use super::page::{Page, escape};
use crate::operation::many;
use crate::plots::{DrawError, Plot, compare as plots};
use crate::text::compare::sentences::{
    answer, device_title, disk_image, disk_title, ends_with_data, facts, of_finding, of_unmatched,
    rest,
};
use crate::text::compare::value::{self, Shown, difference, label, range, ratio, signed, verdict};

/// Disks and devices with tables and plots of their own.
const MOST: usize = 4;
/// Lines of a kind that are listed.
const MOST_LINES: usize = 40;

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
    let mut page = Page::new(&format!("{} against {}", of_a.path, of_b.path));
    page.raw("<header>");
    page.element(
        "h1",
        &format!("{} against {}", name(&of_a.path), name(&of_b.path)),
    );
    for (which, recording) in [("A", of_a), ("B", of_b)] {
        let text = format!("{which}: {} · {}", recording.path, facts(recording));
        page.element("p class=facts", &text);
    }
    page.raw("</header>");
    page.section("answer", "In short");
    let sentences = answer(comparison);
    sentences.iter().for_each(|it| page.element("p", it));
    page.end_section();
    list(
        "caveats",
        "Before you believe it",
        comparison.caveats.iter().map(|it| format!("{it}.")),
        &mut page,
    );
    let analyses = Both { a, b };
    for (number, pair) in comparison.disks.iter().take(MOST).enumerate() {
        page.section(&format!("disk-{number}"), &disk_title(pair));
        if let Some(image) = disk_image(pair) {
            page.element("p class=facts", &image);
        }
        figures(&plots::of_disk(pair, analyses), &mut page)?;
        metrics(&pair.metrics, &mut page);
        if let Some(note) = ends_with_data(pair) {
            page.element("p class=note", note);
        }
        explanations(&pair.explanations, &mut page);
        if !pair.findings.is_empty() {
            page.element("h3", "Findings that are not in both alike");
            page.raw("<ul>");
            pair.findings
                .iter()
                .for_each(|it| page.element("li", &of_finding(it)));
            page.raw("</ul>");
        }
        page.end_section();
    }
    for (number, pair) in comparison.devices.iter().take(MOST).enumerate() {
        page.section(&format!("device-{number}"), &device_title(pair));
        figures(&plots::of_device(pair, analyses), &mut page)?;
        metrics(&pair.metrics, &mut page);
        explanations(&pair.explanations, &mut page);
        page.end_section();
    }
    let left =
        comparison.disks.len().saturating_sub(MOST) + comparison.devices.len().saturating_sub(MOST);
    let unmatched = comparison.unmatched.iter().map(of_unmatched);
    let more = (left > 0)
        .then(|| format!("{left} more disks and devices are in both: see --format json."));
    list(
        "unmatched",
        "Not compared",
        unmatched.chain(more),
        &mut page,
    );
    page.section("method", "How to read it");
    rest(comparison).iter().for_each(|it| page.element("p", it));
    page.end_section();
    let command = format!("nestrace compare {} {} --format json", of_a.path, of_b.path);
    page.raw(&format!(
        "<footer><p>Every number: <code>{}</code></p></footer>",
        escape(&command)
    ));
    Ok(page.finish())
}

/// Of a path, the last part that tells something.
fn name(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit('/').next() {
        None | Some("") => "recording",
        Some(name) => name,
    }
}

fn list(id: &str, title: &str, lines: impl Iterator<Item = String>, page: &mut Page) {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return;
    }
    page.section(id, title);
    page.raw("<ul>");
    lines
        .iter()
        .take(MOST_LINES)
        .for_each(|it| page.element("li", it));
    page.raw("</ul>");
    if lines.len() > MOST_LINES {
        page.element(
            "p",
            &format!("{} more: see --format json.", lines.len() - MOST_LINES),
        );
    }
    page.end_section();
}

fn figures(plots: &[Plot], page: &mut Page) -> Result<(), DrawError> {
    plots.iter().try_for_each(|plot| figure::write(plot, page))
}

fn metrics(metrics: &[Metric], page: &mut Page) {
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
    page.table(&head, &rows(Shown::Text));
    page.raw("<details>");
    page.element("summary", "Every value");
    page.table(&head, &rows(Shown::Page));
    page.raw("</details>");
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

fn explanations(explanations: &[Explanation], page: &mut Page) {
    for explanation in explanations {
        page.raw("<details>");
        let title = format!(
            "Where the difference of {} lies ({})",
            many(explanation.operation),
            difference(&explanation.latency)
        );
        page.element("summary", &title);
        let head = ["part", "A", "B", "B − A", "of the difference", "says"];
        let rows: Vec<Vec<String>> = explanation
            .parts
            .iter()
            .map(|part| {
                let share = part.share_of_difference;
                vec![
                    label(&part.mean),
                    value::value("ns", part.mean.a),
                    value::value("ns", part.mean.b),
                    difference(&part.mean),
                    share.map_or_else(|| String::from("–"), signed),
                    said(&part.mean),
                ]
            })
            .collect();
        page.table(&head, &rows);
        page.raw("</details>");
    }
}
