//! The text of `nestrace compare`: the answer first, then what it rests on.

pub(crate) mod sentences;
pub(crate) mod value;

use nestrace_analyzer::compare::{
    CallPair, Comparison, DevicePair, DiskPair, Explanation, FindingPair, Metric, Part, Unit,
};

use super::{Page, TextOptions};
use crate::operation::many;
use crate::table::{Table, shorten};
use crate::units::count;
use sentences::{
    call_name, calls_left, device_title, disk_image, disk_title, ends_with_data, facts, of_finding,
    rest, why_no_calls,
};
use value::{Shown, difference, label, range, ratio, signed, value, verdict};

/// Disks and devices that are shown; `--format json` has all.
const MOST: usize = 8;
/// Parts of a latency that are shown have at least this of the difference.
const WORTH_A_LINE: f64 = 0.01;

/// The whole text, with a final newline.
///
/// ```
/// use nestrace_analyzer::{Analyzer, Options, compare::compare};
/// let analysis = Analyzer::analyze(&Default::default(), Options::default(), []);
/// let text = nestrace_report::text::compare::render(&compare(&analysis, &analysis), &Default::default());
/// assert!(text.contains("have nothing in common"));
/// ```
#[must_use]
pub fn render(comparison: &Comparison, options: &TextOptions) -> String {
    let mut page = Page {
        text: String::new(),
        options: *options,
    };
    for (name, recording) in [("A", &comparison.a), ("B", &comparison.b)] {
        let path = shorten(&recording.path, options.width.saturating_sub(3));
        page.line(&format!("{name}  {path}"));
        page.paragraph(&facts(recording));
    }
    page.section("In short");
    for sentence in sentences::answer(comparison) {
        page.paragraph(&sentence);
    }
    if !comparison.caveats.is_empty() {
        page.section("Caveats");
        for caveat in &comparison.caveats {
            page.paragraph(&format!("{caveat}."));
        }
    }
    comparison
        .disks
        .iter()
        .take(MOST)
        .for_each(|pair| disk(pair, &mut page));
    comparison
        .devices
        .iter()
        .take(MOST)
        .for_each(|pair| device(pair, &mut page));
    calls(comparison, &mut page);
    unmatched(comparison, &mut page);
    page.section("How to read it");
    rest(comparison)
        .iter()
        .for_each(|line| page.paragraph(line));
    page.text
}

fn disk(pair: &DiskPair, page: &mut Page) {
    page.section(&shorten(&disk_title(pair), page.options.width));
    if let Some(image) = disk_image(pair) {
        page.paragraph(&format!("({image})"));
    }
    metrics(&pair.metrics, page);
    if let Some(note) = ends_with_data(pair) {
        page.paragraph(&format!("({})", note.trim_end_matches('.')));
    }
    explanations(&pair.explanations, page);
    findings(&pair.findings, page);
}

/// Calls of the guests' programs, those with the most time first.
fn calls(comparison: &Comparison, page: &mut Page) {
    let title = "Calls of the guests' programs";
    if let Some(why) = why_no_calls(comparison) {
        page.section(title);
        return page.paragraph(&why);
    }
    let pairs = comparison.calls.as_deref().unwrap_or_default();
    if pairs.is_empty() {
        return;
    }
    page.section(title);
    let shown = pairs.len().min(MOST);
    for line in calls_left(comparison, shown) {
        page.paragraph(&line);
    }
    for pair in pairs.iter().take(MOST) {
        page.line("");
        page.paragraph(&format!(
            "{} ({} calls in A, {} in B):",
            call_name(pair),
            count(pair.n.a),
            count(pair.n.b)
        ));
        let mut table = Table::new(&["", "A", "B", "B ÷ A", "between", ""]);
        for metric in &pair.metrics {
            table.row(vec![
                value::part_of_calls(metric).to_owned(),
                value(metric.unit, metric.a),
                value(metric.unit, metric.b),
                ratio(metric.ratio),
                range(metric),
                verdict(metric.verdict).to_owned(),
            ]);
        }
        page.table(&table);
        call_explanation(pair, page);
    }
}

fn call_explanation(pair: &CallPair, page: &mut Page) {
    let explanation = pair.explanation.as_ref();
    let Some(explanation) = explanation.filter(|it| it.latency.verdict.differs()) else {
        return;
    };
    page.paragraph(&format!(
        "Where the difference lies ({}):",
        difference(&explanation.latency),
    ));
    page.table(&parts(&explanation.parts));
}

fn device(pair: &DevicePair, page: &mut Page) {
    page.section(&shorten(&device_title(pair), page.options.width));
    metrics(&pair.metrics, page);
    explanations(&pair.explanations, page);
}

/// The metrics that the page shows, in its order.
fn metrics(metrics: &[Metric], page: &mut Page) {
    let mut table = Table::new(&["", "A", "B", "B ÷ A", "between", ""]);
    for metric in value::shown(metrics, Shown::Text) {
        table.row(vec![
            label(metric),
            value(metric.unit, metric.a),
            value(metric.unit, metric.b),
            ratio(metric.ratio),
            range(metric),
            verdict(metric.verdict).to_owned(),
        ]);
    }
    if !table.is_empty() {
        page.table(&table);
    }
}

fn explanations(explanations: &[Explanation], page: &mut Page) {
    for explanation in explanations
        .iter()
        .filter(|it| it.latency.verdict.differs())
    {
        page.line("");
        page.paragraph(&format!(
            "Where the difference of {} lies ({}):",
            many(explanation.operation),
            difference(&explanation.latency),
        ));
        page.table(&parts(&explanation.parts));
    }
}

/// The parts of a latency, those with the most of the difference first.
fn parts(parts: &[Part]) -> Table {
    let mut table = Table::new(&["part", "A", "B", "B − A", "of it", ""]);
    let mut parts: Vec<_> = parts.iter().collect();
    let weight = |share: Option<f64>| share.unwrap_or(0.0).abs();
    parts.retain(|part| weight(part.share_of_difference) >= WORTH_A_LINE);
    parts.sort_by(|a, b| weight(b.share_of_difference).total_cmp(&weight(a.share_of_difference)));
    for part in parts {
        table.row(vec![
            label(&part.mean),
            value(Unit::Ns, part.mean.a),
            value(Unit::Ns, part.mean.b),
            difference(&part.mean),
            part.share_of_difference.map_or_else(String::new, signed),
            verdict(part.mean.verdict).to_owned(),
        ]);
    }
    table
}

fn findings(findings: &[FindingPair], page: &mut Page) {
    if findings.is_empty() {
        return;
    }
    page.line("");
    for finding in findings {
        page.paragraph(&of_finding(finding));
    }
}

fn unmatched(comparison: &Comparison, page: &mut Page) {
    let more = |n: usize| n.saturating_sub(MOST);
    let more = more(comparison.disks.len()) + more(comparison.devices.len());
    if comparison.unmatched.is_empty() && more == 0 {
        return;
    }
    page.section("Not compared");
    for one in comparison.unmatched.iter().take(MOST) {
        page.paragraph(&sentences::of_unmatched(one));
    }
    let more = more + comparison.unmatched.len().saturating_sub(MOST);
    if more > 0 {
        page.paragraph(&format!("{more} more: see --format json."));
    }
}
