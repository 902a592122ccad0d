//! A comparison for a terminal: 80 columns.

use std::collections::BTreeMap;

use nestrace_trace::printable;

use super::Comparison;
use super::comparison::{MainLatency, Outlier, Row};
use super::extremes::Extremes;
use super::results::Metric;
use super::spread::Spread;
use super::statements::percent;
use crate::table::{Table, wrap};
use crate::units::{self, time};

const WIDTH: usize = 80;

/// The text.
#[must_use]
pub fn render(comparison: &Comparison) -> String {
    let run = &comparison.run;
    let mut lines = wrap(&format!("{}: {}", run.plan, run.about), WIDTH, "");
    lines.extend(wrap(&machine(comparison), WIDTH, ""));
    lines.push(String::new());
    for statement in &comparison.statements {
        lines.extend(wrap(statement, WIDTH, ""));
    }
    for workload in comparison.workloads() {
        let rows = comparison
            .rows
            .iter()
            .filter(|row| row.workload == workload);
        lines.push(String::new());
        lines.push(workload.to_owned());
        let rows: Vec<&Row> = rows.collect();
        lines.extend(cells(&rows));
        let mut latencies = rows.iter().filter_map(|row| row.main_latency());
        if latencies.any(|latency| latency.is_recorded) {
            lines.extend(wrap(MainLatency::NOTE, WIDTH, "  "));
        }
        let extremes = Extremes::of(&rows).map_or_else(Vec::new, |extremes| extremes.lines());
        lines.extend(extremes.iter().flat_map(|line| wrap(line, WIDTH, "  ")));
    }
    section(
        &mut lines,
        "Outliers",
        comparison.outliers.iter().map(outlier),
    );
    let published = comparison.published.iter().map(|one| {
        let ours = one.ours.as_deref().unwrap_or("not in this run");
        let judgement = one
            .judgement
            .map_or_else(String::new, |judgement| format!(": {}", judgement.words()));
        format!(
            "{}: published {}; here {ours}{judgement}",
            one.what, one.published
        )
    });
    section(&mut lines, "Published figures", published);
    section(
        &mut lines,
        "What is missing",
        missing(comparison).into_iter(),
    );
    // A folder of results may come from anywhere.
    lines.iter().map(|line| printable(line) + "\n").collect()
}

fn section(lines: &mut Vec<String>, title: &str, entries: impl Iterator<Item = String>) {
    let mut entries = entries.peekable();
    if entries.peek().is_none() {
        return;
    }
    lines.push(String::new());
    lines.push(title.to_owned());
    for entry in entries {
        lines.extend(wrap(&entry, WIDTH, "  "));
    }
}

/// What it ran on, in a line.
pub(crate) fn machine(comparison: &Comparison) -> String {
    let machine = &comparison.run.machine;
    let inside = if machine.host_is_guest {
        " (itself inside a guest)"
    } else {
        ""
    };
    let disk = match &comparison.run.modelled_disk {
        Some(model) => format!(" with modelled disks ({model})"),
        None => String::new(),
    };
    format!(
        "Host {}{inside}{disk}, guests {} under {}, {}, {}, nestrace {}; {}, {} of memory; {} in randomised blocks (seed {}).",
        machine.host_kernel,
        machine.guest_kernel,
        machine.accelerator,
        machine.qemu,
        machine.fio,
        machine.nestrace,
        units::of(u64::from(machine.processors), "processor", "processors"),
        units::size(machine.memory_bytes),
        units::of(
            u64::from(comparison.run.repetitions),
            "repetition",
            "repetitions"
        ),
        comparison.run.seed,
    )
}

/// Names of cells that fit into a table beside their figures.
const LONGEST_NAME: usize = 18;

/// A row for each cell; a line under its name, where names are long: one that is cut says nothing.
fn cells(rows: &[&Row]) -> Vec<String> {
    let names: Vec<&str> = rows.iter().map(|row| name(row)).collect();
    if names.iter().all(|name| name.len() <= LONGEST_NAME) {
        return table(rows);
    }
    let figures = |row: &Row| {
        let mut parts = vec![value(row.metric, row.value)];
        if let Some(relative) = &row.relative {
            let median = percent(relative.median);
            parts.push(format!("{median} of bd ({})", spread(relative)));
        }
        parts.extend(mean_latency(row));
        parts.push(row.verdict.words().to_owned());
        format!("    {}", parts.join(", "))
    };
    let lines = rows.iter().zip(names);
    let lines = lines.flat_map(|(row, name)| [format!("  {name}"), figures(row)]);
    lines.collect()
}

/// A cell's name without its workload's, under which it stands.
pub(super) fn name(row: &Row) -> &str {
    let end = row.id.strip_suffix(row.workload.as_str());
    let name = end.and_then(|id| id.strip_suffix('-'));
    name.unwrap_or(&row.id)
}

fn table(rows: &[&Row]) -> Vec<String> {
    let mut table = Table::new(&["cell", "value", "of bd", "spread", "latency", "verdict"]);
    for row in rows {
        table.row(vec![
            name(row).to_owned(),
            value(row.metric, row.value),
            row.relative
                .map_or_else(dash, |relative| percent(relative.median)),
            row.relative.map_or_else(dash, |relative| spread(&relative)),
            mean_latency(row).unwrap_or_else(dash),
            row.verdict.words().to_owned(),
        ]);
    }
    table.lines(WIDTH)
}

fn mean_latency(row: &Row) -> Option<String> {
    let main = row.main_latency()?;
    let mean = time(main.figures.mean_ns.round() as u64);
    Some(format!("{mean}{}", main.mark()))
}

fn dash() -> String {
    String::from("–")
}

pub(crate) fn value(metric: Metric, value: Option<Spread>) -> String {
    value.map_or_else(dash, |value| metric.text(value.median))
}

/// `81–93 %`.
pub(crate) fn spread(relative: &Spread) -> String {
    format!("{:.0}–{}", relative.min * 100.0, percent(relative.max))
}

/// A sentence about an outlier.
pub(crate) fn outlier(outlier: &Outlier) -> String {
    let mut sentence = format!(
        "{}: {} of its baseline.",
        outlier.id,
        percent(outlier.relative)
    );
    let is_slower = outlier.relative < 1.0;
    if let Some(recorded) = outlier.recorded.filter(|_| !outlier.is_recorded) {
        let recorded = percent(recorded);
        sentence.push_str(&format!(
            " The recorded runs do not show this difference ({recorded}), so they do not explain it."
        ));
    }
    if let (Some(segment), Some(more)) = (&outlier.segment, outlier.segment_more_ns) {
        let (verb, word) = if is_slower {
            ("grew", "more")
        } else {
            ("shrank", "less")
        };
        let ns = time(more.abs().round() as u64);
        sentence.push_str(&format!(
            " In the recordings, `{segment}` {verb} most: {ns} {word} for each of the guest's I/Os."
        ));
    }
    if !outlier.findings.is_empty() {
        let found = outlier.findings.join("; ");
        let place = if is_slower {
            "in this cell and not in the baseline"
        } else {
            "in the baseline and not in this cell"
        };
        sentence.push_str(&format!(" Found {place}: {found}."));
    }
    sentence.push_str(unexplained(outlier));
    sentence
}

/// What is said where nothing explains an outlier, and this was not said before.
fn unexplained(outlier: &Outlier) -> &'static str {
    let is_explained = outlier.segment.is_some() || !outlier.findings.is_empty();
    match outlier.recorded {
        _ if is_explained => "",
        None => " This cell or its baseline was not recorded, so nothing explains the difference.",
        Some(_) if outlier.is_recorded => {
            " The recorded runs show the difference too, but nothing in the recordings explains it."
        }
        Some(_) => "",
    }
}

/// What failed, and what is not there.
pub(crate) fn missing(comparison: &Comparison) -> Vec<String> {
    let mut missing = Vec::new();
    // Reasons first: of many cells without a result not all lines are seen at once.
    for row in &comparison.rows {
        let failures = row.failures.iter();
        missing.extend(failures.map(|failure| format!("{}, {failure}", row.id)));
    }
    let without = comparison.missing.iter();
    missing.extend(without.map(|id| format!("{id}: no result")));
    missing.extend(unfinished(comparison));
    missing.extend(did_not_keep_up(&comparison.rows));
    for row in &comparison.rows {
        let Some(explanation) = &row.explanation else {
            continue;
        };
        if explanation.lost > 0 {
            let lost = units::of(explanation.lost, "event", "events");
            missing.push(format!("{}: its recording lost {lost}", row.id));
        }
        if !explanation.missing.is_empty() {
            let what = explanation.missing.join(", ");
            missing.push(format!("{}: its recording is incomplete ({what})", row.id));
        }
        if !explanation.ended_early.is_empty() {
            let why = &explanation.ended_early;
            missing.push(format!(
                "{}: its recording ended before its run did ({why})",
                row.id
            ));
        }
    }
    let excluded = comparison.run.excluded.iter();
    missing.extend(excluded.map(|one| format!("{}: left out, {}", one.what, one.reason)));
    missing
}

/// Where this machine was too slow for the modelled disk: in how many cells, and how it was where it was worst.
fn did_not_keep_up(rows: &[Row]) -> Option<String> {
    let late = |row: &&Row| row.modelled.is_some_and(|late| !late.kept_up);
    let n = rows.iter().filter(late).count();
    let latest = rows
        .iter()
        .filter(late)
        .filter_map(|row| Some((row, row.modelled?)));
    let (row, late) = latest.max_by(|(_, a), (_, b)| a.mean_ns.total_cmp(&b.mean_ns))?;
    Some(format!(
        "This machine did not keep up with the modelled disk in {n} of {} cells. At its latest, in {}, {} of {} completions \
         were more than {} late (mean of all {}, 99 % within {})",
        rows.len(),
        row.id,
        units::count(late.late),
        units::count(late.n),
        time(late.goal_ns),
        time(late.mean_ns.round() as u64),
        time(late.p99_ns)
    ))
}

/// What is said where nothing of it is. Not every cell has a recording that could be missing.
pub(crate) fn nothing_missing(comparison: &Comparison) -> String {
    let n = comparison.rows.len();
    let recorded = comparison.rows.iter().filter(|row| row.recording.is_some());
    let recordings = match recorded.count() {
        0 => String::new(),
        all if all == n => String::from(" and its recording, and no recording lost an event"),
        some => format!(
            "; {some} of {n} were recorded (a folder over 9p has no disk to record), and no recording lost an event"
        ),
    };
    format!("Nothing: every cell has its repetitions{recordings}.")
}

/// Names of a kind that are listed.
const MAX_NAMES: usize = 4;

/// Cells without all repetitions, without a recording, or whose recording says nothing: a line for each kind.
fn unfinished(comparison: &Comparison) -> Vec<String> {
    let rows = &comparison.rows;
    let planned = comparison.run.repetitions as usize;
    let with_result = || rows.iter().filter(|row| row.value.is_some());
    let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in with_result() {
        let n = row.value.map_or(0, |value| value.n);
        if n < planned {
            let what = format!("{n} of {planned} repetitions");
            kinds.entry(what).or_default().push(&row.id);
        }
        // A folder over 9p has no disk to record.
        let is_recorded = comparison.run.record_seconds != Some(0) && row.word("guest_fs") != "9p";
        let what = match (&row.recording, &row.explanation) {
            (Some(_), None) => "nothing was read from its recording",
            (None, _) if is_recorded => "no recording",
            _ => continue,
        };
        kinds.entry(what.to_owned()).or_default().push(&row.id);
    }
    let n = with_result().count();
    let line = |(what, ids): (String, Vec<&str>)| {
        if ids.len() == n && n > 1 {
            return format!("every cell: {what}");
        }
        let more = ids.len().saturating_sub(MAX_NAMES);
        let names = ids[..ids.len() - more].join(", ");
        match more {
            0 => format!("{names}: {what}"),
            more => format!("{names} and {more} more: {what}"),
        }
    };
    kinds.into_iter().map(line).collect()
}
