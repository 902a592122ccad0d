//! The report of a run of the lab: one page that needs nothing else but links to the cells' own reports.

mod layers;
mod system;

use maud::{Markup, html};

use super::figure::figures;
use super::page::{details, document, facts, list, note, paragraph, paragraphs, prose, section};
use crate::lab::extremes::Extremes;
use crate::lab::statements::percent;
use crate::lab::{
    CellFinding, Comparison, Counters, Judgement, MainLatency, Outlier, Published, Row, Spread,
    Verdict, text,
};
use crate::plots::{Chart, DrawError, Hue, Plot, Span, SpanRow, Spans, Unit};
use crate::units::{self, time};

/// Bars of a figure.
const MAX_BARS: usize = 40;
/// Outliers that are seen at once; the others are folded away.
const FIRST_OUTLIERS: usize = 24;
/// Lines of what is missing that are seen at once; the others are folded away.
const FIRST_LINES: usize = 80;
/// Axes whose words are no other's.
const SAYS_ITSELF: [&str; 6] = [
    "format",
    "cache",
    "aio",
    "bus",
    "preallocation",
    "placement",
];

/// The report.
///
/// # Errors
/// If a figure cannot be drawn.
///
/// ```
/// use nestrace_report::lab::{Comparison, Results};
/// let page = nestrace_report::html::lab::render(&Comparison::new(&Results::default())).unwrap();
/// assert!(page.starts_with("<!doctype html>"));
/// ```
pub fn render(comparison: &Comparison) -> Result<String, DrawError> {
    let run = &comparison.run;
    let answer = html! {
        (paragraphs(&comparison.statements))
        (note("Every run has a new file system in the guest and starts with empty page caches, except tests that read the same data again. Values are medians of the repetitions; the spread is from the smallest to the largest. A difference is reported only where the spreads do not overlap."))
    };
    let body = html! {
        header {
            h1 { (prose(&format!("Nested file systems: {}", run.plan))) }
            (paragraph(&run.about))
            (facts(&text::machine(comparison)))
        }
        (section("answer", "In short", &answer))
        @for workload in comparison.workloads() { (of_workload(comparison, workload)?) }
        (outliers(comparison))
        (published(comparison))
        (numbers(comparison))
        (system::counters(comparison))
        (missing(comparison))
        footer {
            p { "Every number: " code { "report.json" } " and " code { "report.csv" } " beside this page." }
        }
    };
    Ok(document(&format!("lab: {}", run.plan), &body))
}

fn of_workload(comparison: &Comparison, workload: &str) -> Result<Markup, DrawError> {
    let rows: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.workload == workload)
        .collect();
    let mut guests: Vec<&str> = Vec::new();
    for row in &rows {
        if !guests.contains(&row.word("guest_fs")) {
            guests.push(row.word("guest_fs"));
        }
    }
    let plots: Vec<Plot> = guests
        .into_iter()
        .filter_map(|guest| {
            let own = rows.iter().filter(|row| row.word("guest_fs") == guest);
            bars(workload, guest, &own.copied().collect::<Vec<_>>())
        })
        .collect();
    let of_layers = layers::plots(comparison, workload, &rows);
    let body = html! {
        @if let Some(row) = rows.first() { (note(&format!("{}.", row.workload_note))) }
        (heat_map(&rows))
        @if let Some(extremes) = Extremes::of(&rows) { (paragraphs(extremes.lines())) }
        (figures(&plots)?)
        @if !of_layers.is_empty() {
            (details("Latency, jumps, merges and queue wait", &figures(&of_layers)?))
        }
    };
    Ok(section(
        &format!("workload-{}", slug(workload)),
        workload,
        &body,
    ))
}

/// FAST'12's figure: a bar for each combination, the bare device first, with the spread at its end.
fn bars(workload: &str, guest: &str, rows: &[&Row]) -> Option<Plot> {
    let with_result: Vec<&&Row> = rows.iter().filter(|row| row.relative.is_some()).collect();
    let shown: Vec<SpanRow> = with_result
        .iter()
        .take(MAX_BARS)
        .filter_map(|row| Some(bar(row, row.relative?)))
        .collect();
    let cut = with_result.len().saturating_sub(shown.len());
    let more = if cut > 0 {
        format!(" {} more are in the table.", units::count(cut as u64))
    } else {
        String::new()
    };
    // A folder over 9p is compared with the file system below it.
    let base = if guest == "9p" {
        "the host's file system"
    } else {
        guest
    };
    (!shown.is_empty()).then(|| Plot {
        id: format!("relative-{}-{}", slug(workload), slug(guest)),
        subject: String::new(),
        question: format!("What does nesting cost {guest} under {workload}?"),
        note: format!(
            "Performance relative to {base} on the bare device (bd = 100 %). The strong bar ends at the smallest repetition, the pale bar at the largest; the line is the median.{more}"
        ),
        chart: Chart::Spans(Spans {
            unit: Unit::OfWhole,
            title: String::from("relative to the bare device"),
            keys: vec![
                (String::from("bare device"), Hue::Neutral, 1.0),
                (String::from("nested"), Hue::HostFs, 1.0),
                (String::from("spread"), Hue::HostFs, 0.4),
            ],
            rows: shown,
        }),
    })
}

fn bar(row: &Row, relative: Spread) -> SpanRow {
    let hue = match row.verdict {
        Verdict::Baseline => Hue::Neutral,
        _ => Hue::HostFs,
    };
    let span = |name: &str, from: f64, to: f64, tint: f64| Span {
        name: name.to_owned(),
        from,
        to,
        hue,
        tint,
    };
    // A line of the middle that is seen in both parts.
    let middle = Span {
        name: String::from("middle"),
        hue: Hue::Device,
        from: relative.median - relative.max * 0.002,
        to: relative.median + relative.max * 0.002,
        tint: 1.0,
    };
    SpanRow {
        label: row.id.clone(),
        detail: format!(
            "{} ({}) {}",
            percent(relative.median),
            text::spread(&relative),
            text::value(row.metric, row.value)
        ),
        spans: vec![
            span("least", 0.0, relative.min, 1.0),
            span("spread", relative.min, relative.max, 0.4),
            middle,
        ],
    }
}

/// Guest file systems by the stack below.
fn heat_map(rows: &[&Row]) -> Markup {
    let column_of = |row: &Row| column(row, rows);
    let mut columns: Vec<String> = Vec::new();
    let mut guests: Vec<&str> = Vec::new();
    for row in rows {
        let column = column_of(row);
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !guests.contains(&row.word("guest_fs")) {
            guests.push(row.word("guest_fs"));
        }
    }
    let cell = |guest: &str, column: &str| {
        let is = |row: &&&Row| row.word("guest_fs") == guest && column_of(row) == column;
        heat(rows.iter().find(is).copied())
    };
    // Guests are few, so they are the columns; the stacks are the rows.
    html! {
        div class="scroll" {
            table class="heat" {
                thead { tr { th { "stack below" } @for guest in &guests { th { (guest) } } } }
                tbody {
                    @for column in &columns {
                        tr {
                            td { (column) }
                            @for guest in &guests { (cell(guest, column)) }
                        }
                    }
                }
            }
        }
        (note("Per cent of the bare device. Red is slower, green is faster; a stronger colour is a larger difference. ≈: within the spread. ?: too few repetitions to decide."))
    }
}

/// The stack below a guest's file system, as far as it varies.
fn column(row: &Row, rows: &[&Row]) -> String {
    let of_image = ["format", "preallocation", "placement", "host_mount_options"];
    let varies = |axis: &&String| {
        // A baseline has no image.
        let has = |row: &&&Row| row.baseline.is_some() || !of_image.contains(&axis.as_str());
        let mut words = rows.iter().filter(has).map(|row| row.word(axis));
        let first = words.next();
        words.any(|word| Some(word) != first)
    };
    let mut parts = vec![row.word("host_fs").to_owned()];
    let is_bare = row.baseline.is_none();
    for axis in row.axes.keys().filter(varies) {
        let skip = ["guest_fs", "host_fs"].contains(&axis.as_str())
            || (is_bare && of_image.contains(&axis.as_str()));
        let word = row.word(axis);
        if skip || word.is_empty() {
            continue;
        }
        // Words of some axes are those of others: schedulers, mount options, read-ahead.
        parts.push(if SAYS_ITSELF.contains(&axis.as_str()) {
            word.to_owned()
        } else {
            format!("{axis}={word}")
        });
    }
    parts.join(" ")
}

fn heat(row: Option<&Row>) -> Markup {
    let Some((row, relative)) = row.and_then(|row| Some((row, row.relative?))) else {
        return html! { td { "–" } };
    };
    let is_sure = matches!(
        row.verdict,
        Verdict::Slower | Verdict::Faster | Verdict::Baseline
    );
    let away = relative.median - 1.0;
    let hue = if away < 0.0 { Hue::Device } else { Hue::HostFs };
    let strength = if is_sure {
        (away.abs() * 80.0).clamp(0.0, 60.0)
    } else {
        0.0
    };
    let mark = match row.verdict {
        Verdict::NotApart => "≈ ",
        Verdict::TooFew => "? ",
        _ => "",
    };
    let style = format!(
        "background:color-mix(in srgb,var({}) {strength:.0}%,transparent)",
        hue.variable()
    );
    html! { td style=(style) { (mark) (prose(&percent(relative.median))) } }
}

fn outliers(comparison: &Comparison) -> Markup {
    let outliers = &comparison.outliers;
    let (first, more) = outliers.split_at(outliers.len().min(FIRST_OUTLIERS));
    let articles =
        |outliers: &[Outlier]| html! { @for it in outliers { (one_outlier(comparison, it)) } };
    let body = html! {
        @if outliers.is_empty() {
            (paragraph("No combination differs from its bare device by a tenth or more in every repetition."))
        }
        (articles(first))
        @if !more.is_empty() {
            (details(&format!("{} more", more.len()), &articles(more)))
        }
    };
    section("outliers", "What differs, and why", &body)
}

fn one_outlier(comparison: &Comparison, outlier: &Outlier) -> Markup {
    let class = match outlier.relative {
        relative if relative < 0.5 => "high",
        relative if relative < 0.8 => "medium",
        _ => "low",
    };
    let row = comparison.row(&outlier.id);
    // What the baseline has too is no reason to be slower; of a faster cell the findings are the baseline's.
    let explanation = row.and_then(|row| row.explanation.as_ref());
    let told = explanation.iter().flat_map(|told| &told.findings);
    let reasons =
        told.filter(|finding| outlier.relative < 1.0 && outlier.findings.contains(&finding.title));
    html! {
        article class=(class) id={ "cell-" (outlier.id) } {
            h3 { (prose(&outlier.id)) }
            (paragraph(&text::outlier(outlier)))
            (notes(reasons))
            @if let Some(link) = row.and_then(|row| row.page.as_ref()) {
                p { a href=(link) { "The report of its recording" } }
            }
        }
    }
}

fn notes<'a>(findings: impl Iterator<Item = &'a CellFinding>) -> Markup {
    html! {
        @for finding in findings {
            @let share = units::percent(finding.share);
            (note(&format!("{} ({}, {share} at stake): {}", finding.title, finding.id, finding.explanation)))
        }
    }
}

fn published(comparison: &Comparison) -> Markup {
    if comparison.published.is_empty() {
        return Markup::default();
    }
    let words = |one: &Published| one.judgement.map_or("–", Judgement::words);
    let body = html! {
        div class="scroll" {
            table class="statements" {
                thead { tr { th { "statement" } th { "published" } th { "here" } th { "judgement" } } }
                tbody {
                    @for one in &comparison.published {
                        tr {
                            td { (one.what) }
                            td { (prose(&one.published)) }
                            td { (prose(one.ours.as_deref().unwrap_or("not in this run"))) }
                            td { (words(one)) }
                        }
                    }
                }
            }
        }
        (note("The published figures are for orientation: they come from other hardware, other kernels and other sizes. In translated guests (tcg), processor time weighs more than on hardware."))
    };
    section("published", "The published figures beside ours", &body)
}

/// Columns of the table of all numbers.
const HEAD: [&str; 17] = [
    "cell",
    "value",
    "of bd",
    "spread",
    "mean latency",
    "p99",
    "of bd's",
    "guest CPU",
    "host CPU",
    "disk busy",
    "guest's disk",
    "guest pages",
    "guest switches",
    "write ampl.",
    "recorded",
    "disk late",
    "verdict",
];

fn numbers(comparison: &Comparison) -> Markup {
    let mut latencies = comparison.rows.iter().filter_map(Row::main_latency);
    let body = html! {
        div class="scroll" {
            table class="numbers" {
                thead { tr { @for cell in HEAD { th { (cell) } } } }
                tbody {
                    @for row in &comparison.rows {
                        tr {
                            td {
                                @if let Some(link) = &row.page {
                                    a href=(link) { (row.id) }
                                } @else {
                                    (row.id)
                                }
                            }
                            @for cell in cells(row) { td { (prose(&cell)) } }
                        }
                    }
                }
            }
        }
        @if latencies.any(|latency| latency.is_recorded) {
            (note(&format!("{}.", MainLatency::NOTE)))
        }
        (note("CPU is user + system of all processors. The guest's disk is reads + writes, guest pages are KiB in + out. All counters run from the workload's start to its end, with its warm-up. “recorded” is the performance of the recorded run relative to the median of the repetitions. The recorded run is not one of them: it has another length and no warm-up, so this value shows the cost of recording only roughly. “disk late” is how much later than the model the completions of a modelled disk were on average; ! marks where more than one in a hundred was later than it may be."))
    };
    section("numbers", "Every cell in numbers", &body)
}

fn cells(row: &Row) -> Vec<String> {
    let dash = || String::from("–");
    let latency = row.main_latency();
    let cpu = |counters: &Counters| units::percent(counters.cpu_user + counters.cpu_system);
    vec![
        text::value(row.metric, row.value),
        row.relative
            .map_or_else(dash, |relative| percent(relative.median)),
        row.relative
            .map_or_else(dash, |relative| text::spread(&relative)),
        latency.map_or_else(dash, |main| {
            let mean = time(main.figures.mean_ns.round() as u64);
            format!("{mean} {}{}", main.operation, main.mark())
        }),
        latency.map_or_else(dash, |main| time(main.figures.p99_ns)),
        row.relative_latency.map_or_else(dash, percent),
        cpu(&row.guest),
        cpu(&row.host),
        units::percent(row.host.disk_utilisation),
        rates(&row.guest, |c| [c.disk_reads as f64, c.disk_writes as f64]),
        rates(&row.guest, |c| {
            [c.paged_in_kib as f64, c.paged_out_kib as f64]
        }),
        rates(&row.guest, |c| [c.context_switches as f64]),
        row.write_amplification
            .map_or_else(dash, |times| format!("×{times:.2}")),
        row.recorded_relative.map_or_else(dash, percent),
        row.modelled.map_or_else(dash, |late| {
            let mean = time(late.mean_ns.round() as u64);
            if late.kept_up {
                mean
            } else {
                format!("{mean} !")
            }
        }),
        row.verdict.words().to_owned(),
    ]
}

/// Counts per second of the time that was counted: `12 + 340 /s`.
fn rates<const N: usize>(counters: &Counters, of: fn(&Counters) -> [f64; N]) -> String {
    let Some(seconds) = counters.seconds.filter(|seconds| *seconds > 0.0) else {
        return String::from("–");
    };
    let rates = of(counters).map(|count| units::count((count / seconds).round() as u64));
    format!("{} /s", rates.join(" + "))
}

fn missing(comparison: &Comparison) -> Markup {
    let missing = text::missing(comparison);
    let (first, more) = missing.split_at(missing.len().min(FIRST_LINES));
    let lines = |lines: &[String]| list(lines.iter().map(|line| format!("{line}.")));
    let body = html! {
        @if missing.is_empty() { (paragraph(&text::nothing_missing(comparison))) }
        (lines(first))
        @if !more.is_empty() {
            (details(&format!("{} more", units::count(more.len() as u64)), &lines(more)))
        }
    };
    section("missing", "What is missing", &body)
}

/// Usable as an id.
fn slug(word: &str) -> String {
    word.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '-'
            }
        })
        .collect()
}
