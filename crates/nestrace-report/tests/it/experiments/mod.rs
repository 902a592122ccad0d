//! `docs/experiments.md` against the files of `fixtures/lab`: each figure is computed, put into the page's words, and
//! looked up there. What the page marks as observed is carried by no file.

mod ext3_ext4;
mod fast12;
mod image_format_cache_bus;
mod page;
mod reiserfs_jfs;
mod remedies;

use nestrace_report::lab::{Cell, CellRun, Metric, Row, Spread, Verdict};
use page::{Page, part};

/// In per cent, without the sign.
fn percent(ratio: f64) -> String {
    format!("{:.0}", ratio * 100.0)
}

/// `37 to 69`, in per cent.
fn range(of: Spread) -> String {
    format!("{} to {}", percent(of.min), percent(of.max))
}

fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    let values: Vec<f64> = values.into_iter().collect();
    Spread::of(values).expect("there are values")
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    spread(values).median
}

/// Half of how far repetitions lie apart, as a share of the one in the middle.
fn apart(values: &[f64]) -> f64 {
    let of = spread(values.iter().copied());
    (of.max - of.min) / of.median / 2.0
}

/// Of a cell relative to its baseline, as the tables have it: `57 −`.
fn relative_word(row: &Row) -> String {
    let mark = match row.verdict {
        Verdict::Slower => " −",
        Verdict::Faster => " +",
        _ => "",
    };
    let relative = row.relative.expect("it has a result");
    format!("{}{mark}", percent(relative.median))
}

fn has_finding(row: &Row, id: &str) -> bool {
    let told = row.explanation.iter().flat_map(|told| &told.findings);
    told.into_iter().any(|finding| finding.id == id)
}

/// Milliseconds of a part of the path.
fn segment_ms(row: &Row, name: &str) -> f64 {
    let told = row.explanation.as_ref().expect("it was recorded");
    let mut segments = told.segments.iter();
    let segment = segments.find(|segment| segment.name == name);
    segment.map_or(0.0, |segment| segment.mean_ns / 1e6)
}

/// Better when it is greater.
fn performance(cell: &Cell) -> f64 {
    let value = median(cell.runs.iter().map(|run| run.value));
    match cell.metric {
        Metric::Seconds => 1.0 / value,
        _ => value,
    }
}

/// First and last start, `01:13`, UTC, and how long it is between them.
fn times<'r>(runs: impl IntoIterator<Item = &'r CellRun>) -> (String, String, u64) {
    let starts = runs.into_iter().map(|run| run.started_unix_s);
    let starts: Vec<u64> = starts.collect();
    let clock = |seconds: u64| format!("{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60);
    let (first, last) = (starts.iter().min().unwrap(), starts.iter().max().unwrap());
    (clock(*first), clock(*last), last - first)
}
