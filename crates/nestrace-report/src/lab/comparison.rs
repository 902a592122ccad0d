//! Cells beside their baselines.
//!
//! A cell's value is the median of its repetitions; its spread is their smallest and largest value. It is
//! shown relative to the median of its baseline, which therefore is 100 %. A difference is reported only where
//! both were repeated and their values do not overlap.

use std::collections::BTreeMap;

use serde::Serialize;

use super::explanation::{CellFinding, Explanation, NOTABLE};
use super::published::{self, Published};
use super::results::{Cell, Counters, DiskLateness, Latency, Metric, RunHeader};
use super::spread::Spread;

/// Schema of [`Comparison`] as JSON.
pub const SCHEMA: &str = "nestrace-lab/1";

/// Everything that a run left, for a report.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// What is common.
    pub header: RunHeader,
    /// The cells that have a result.
    pub cells: Vec<Cell>,
    /// Cell → what its recording says.
    pub explanations: BTreeMap<String, Explanation>,
    /// Cell → its own report, a path relative to the folder of results.
    pub pages: BTreeMap<String, String>,
}

/// What a run says.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Comparison {
    /// Name and major version of this form: [`SCHEMA`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA)))]
    pub schema: &'static str,
    /// What is common.
    pub run: RunHeader,
    /// One for each cell, in the order of the plan.
    pub rows: Vec<Row>,
    /// Rows that differ notably from their baseline, the slowest first.
    pub outliers: Vec<Outlier>,
    /// What the figures carry, in sentences.
    pub statements: Vec<String>,
    /// The published figures of the experiment beside ours.
    pub published: Vec<Published>,
    /// Cells without any result.
    pub missing: Vec<String>,
}

/// One cell.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Row {
    /// The cell.
    pub id: String,
    /// What it is compared with; `null` for a baseline.
    pub baseline: Option<String>,
    /// Axis → word.
    pub axes: BTreeMap<String, String>,
    /// The workload.
    pub workload: String,
    /// Where it comes from, and what it leaves out of its model.
    pub workload_note: String,
    /// What is measured.
    pub metric: Metric,
    /// The values; `null` where no run succeeded.
    pub value: Option<Spread>,
    /// Each of them, in the order of the repetitions.
    pub values: Vec<f64>,
    /// Performance relative to the baseline's median: 1 is as fast, 2 twice as fast, whatever the metric.
    pub relative: Option<Spread>,
    /// What may be said.
    pub verdict: Verdict,
    /// Operation → latency of the repetition in the middle.
    pub latency: BTreeMap<String, Latency>,
    /// Mean latency of the operation that took most time, relative to the baseline's: of the workload, or of its disk in
    /// the recordings where the workload measures none.
    pub relative_latency: Option<f64>,
    /// What the guest's kernel counted in the repetition in the middle.
    pub guest: Counters,
    /// The same of the host's kernel; its disk is the device below the image.
    pub host: Counters,
    /// Bytes that the host's device wrote for each that the guest's disk did.
    pub write_amplification: Option<f64>,
    /// Performance of the recorded run relative to the median of the others. It has its own length and no warm-up, so
    /// that this is what recording costs only roughly.
    pub recorded_relative: Option<f64>,
    /// The recording beside the results.
    pub recording: Option<String>,
    /// Its report.
    pub page: Option<String>,
    /// What it says.
    pub explanation: Option<Explanation>,
    /// How far the modelled disk below was from its model in the repetition in which it was late most often; `null` where
    /// there is none.
    pub modelled: Option<DiskLateness>,
    /// What failed.
    pub failures: Vec<String>,
}

/// What may be said of a cell against its baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// It is what others are compared with.
    Baseline,
    /// Every repetition was slower than every one of the baseline.
    Slower,
    /// Every repetition was faster.
    Faster,
    /// The repetitions mix.
    NotApart,
    /// There are too few repetitions to tell.
    TooFew,
    /// It or its baseline has no result.
    NoResult,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::NotApart => "within the spread",
            Self::TooFew => "too few repetitions",
            Self::NoResult => "no result",
        }
    }
}

/// A cell that differs notably, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Outlier {
    /// The cell.
    pub id: String,
    /// Its performance relative to the baseline.
    pub relative: f64,
    /// The same of the recorded runs; `null` where one of the two has none.
    pub recorded: Option<f64>,
    /// Whether the recorded runs differ in the same way, half as much at least: else they explain nothing, and what
    /// follows is empty.
    pub is_recorded: bool,
    /// The segment of the path that grew most against the baseline's recording; of a cell that is faster, the one that
    /// shrank most. `null` where the guest's I/Os took as long as the baseline's.
    pub segment: Option<String>,
    /// By how much on average, nanoseconds; negative where it shrank.
    pub segment_more_ns: Option<f64>,
    /// Titles of its findings that its baseline has not; of a cell that is faster, the baseline's that it has not.
    pub findings: Vec<String>,
}

impl Comparison {
    /// Compares.
    #[must_use]
    pub fn new(results: &Results) -> Self {
        let cells: BTreeMap<&str, &Cell> = results
            .cells
            .iter()
            .map(|cell| (cell.id.as_str(), cell))
            .collect();
        let rows: Vec<Row> = results
            .cells
            .iter()
            .map(|cell| row(cell, &cells, results))
            .collect();
        let has_result =
            |id: &&String| rows.iter().any(|row| row.id == **id && row.value.is_some());
        let missing = results.header.cells.iter().filter(|id| !has_result(id));
        Self {
            schema: SCHEMA,
            run: results.header.clone(),
            outliers: outliers(&rows),
            statements: super::statements::of(&results.header, &rows),
            published: published::beside(results.header.experiment.as_deref(), &rows),
            missing: missing.cloned().collect(),
            rows,
        }
    }

    /// Workloads, in the order of the plan.
    #[must_use]
    pub fn workloads(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|row| row.workload.as_str()))
    }

    /// A row by its cell.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }
}

/// Each once, in the order in which they come.
pub(super) fn distinct<'r>(words: impl Iterator<Item = &'r str>) -> Vec<&'r str> {
    let mut known: Vec<&str> = Vec::new();
    for word in words {
        if !known.contains(&word) {
            known.push(word);
        }
    }
    known
}

impl Row {
    /// The word of an axis.
    #[must_use]
    pub fn word(&self, axis: &str) -> &str {
        self.axes.get(axis).map_or("", String::as_str)
    }

    /// Of the operation that took most time in all: the workload's own, or those of its disk, where the workload measures
    /// none and was recorded.
    #[must_use]
    pub fn main_latency(&self) -> Option<MainLatency<'_>> {
        let recorded = self.explanation.as_ref().map(|told| &told.latency);
        let (of, is_recorded) = match recorded {
            Some(recorded) if self.latency.is_empty() => (recorded, true),
            _ => (&self.latency, false),
        };
        let sum = |latency: &Latency| latency.mean_ns * latency.n as f64;
        let longest = of.iter().max_by(|(_, a), (_, b)| sum(a).total_cmp(&sum(b)));
        longest.map(|(operation, figures)| MainLatency {
            operation,
            figures,
            is_recorded,
        })
    }
}

/// The latency that stands for a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MainLatency<'r> {
    /// `read`, `write`, `request`, …
    pub operation: &'r str,
    /// Its figures.
    pub figures: &'r Latency,
    /// Of the guest's disk in the recorded run: a command measures none itself.
    pub is_recorded: bool,
}

impl MainLatency<'_> {
    /// What marks it in tables, if it is none of the workload's own.
    #[must_use]
    pub const fn mark(&self) -> &'static str {
        if self.is_recorded { "*" } else { "" }
    }

    /// What the mark means.
    pub const NOTE: &'static str =
        "* latency of the guest's disk in the recorded run: the workload does not measure its own";
}

fn values(cell: &Cell) -> Option<Spread> {
    Spread::of(cell.runs.iter().map(|run| run.value))
}

/// Values that are better when they are greater.
fn performance(cell: &Cell) -> Option<Spread> {
    Spread::of(
        cell.runs
            .iter()
            .map(|run| cell.metric.performance(run.value)),
    )
}

fn row(cell: &Cell, cells: &BTreeMap<&str, &Cell>, results: &Results) -> Row {
    let baseline = match &cell.baseline {
        Some(id) => cells.get(id.as_str()).copied(),
        None => Some(cell),
    };
    let own = performance(cell);
    let whole = baseline.and_then(performance);
    let relative = own
        .zip(whole)
        .and_then(|(own, whole)| own.relative_to(whole.median));
    let verdict = match (own, whole) {
        _ if cell.is_baseline() => Verdict::Baseline,
        (Some(own), Some(whole)) if own.is_apart_from(&whole) && own.median < whole.median => {
            Verdict::Slower
        }
        (Some(own), Some(whole)) if own.is_apart_from(&whole) => Verdict::Faster,
        (Some(own), Some(whole)) if own.n.min(whole.n) < super::spread::FEWEST_REPETITIONS => {
            Verdict::TooFew
        }
        (Some(_), Some(_)) => Verdict::NotApart,
        _ => Verdict::NoResult,
    };
    let middle = middle_run(cell);
    let mut row = Row {
        id: cell.id.clone(),
        baseline: cell.baseline.clone(),
        axes: cell.axes.clone(),
        workload: cell.workload.clone(),
        workload_note: cell.workload_note.clone(),
        metric: cell.metric,
        value: values(cell),
        values: cell.runs.iter().map(|run| run.value).collect(),
        relative,
        verdict,
        latency: middle.map(|run| run.latency.clone()).unwrap_or_default(),
        relative_latency: None,
        guest: middle.map(|run| run.guest).unwrap_or_default(),
        host: middle.map(|run| run.host).unwrap_or_default(),
        write_amplification: middle.and_then(|run| {
            let (guest, host) = (run.guest.disk_write_bytes, run.host.disk_write_bytes);
            (guest > 1 << 20).then(|| host as f64 / guest as f64)
        }),
        recorded_relative: own.zip(cell.recorded.as_ref()).and_then(|(own, run)| {
            let recorded = cell.metric.performance(run.value) / own.median;
            recorded.is_finite().then_some(recorded)
        }),
        recording: cell.recording.clone(),
        page: results.pages.get(&cell.id).cloned(),
        explanation: results.explanations.get(&cell.id).cloned(),
        modelled: cell
            .runs
            .iter()
            .filter_map(|run| run.modelled)
            .max_by(|a, b| a.late_share().total_cmp(&b.late_share())),
        failures: cell
            .failures
            .iter()
            .map(|failure| match failure.repetition {
                0 => format!("recorded run: {}", failure.message),
                n => format!("repetition {n}: {}", failure.message),
            })
            .collect(),
    };
    row.relative_latency = baseline.and_then(|baseline| {
        let own = row.main_latency()?;
        let whole = if own.is_recorded {
            &results.explanations.get(&baseline.id)?.latency
        } else {
            &middle_run(baseline)?.latency
        };
        let whole = whole.get(own.operation)?.mean_ns;
        (whole > 0.0).then(|| own.figures.mean_ns / whole)
    });
    row
}

/// The run whose value is the one in the middle.
fn middle_run(cell: &Cell) -> Option<&super::results::CellRun> {
    let mut runs: Vec<_> = cell.runs.iter().collect();
    runs.sort_by(|a, b| a.value.total_cmp(&b.value));
    runs.get(runs.len().saturating_sub(1) / 2).copied()
}

fn outliers(rows: &[Row]) -> Vec<Outlier> {
    let mut outliers: Vec<Outlier> = rows
        .iter()
        .filter(|row| matches!(row.verdict, Verdict::Slower | Verdict::Faster))
        .filter_map(|row| outlier(row, rows))
        .collect();
    outliers.sort_by(|a, b| a.relative.total_cmp(&b.relative));
    outliers
}

fn outlier(row: &Row, rows: &[Row]) -> Option<Outlier> {
    let relative = row.relative?.median;
    if (relative - 1.0).abs() < NOTABLE {
        return None;
    }
    let mut others = rows.iter();
    let baseline = others.find(|other| Some(&other.id) == row.baseline.as_ref())?;
    let recorded = row
        .recorded_relative
        .zip(baseline.recorded_relative)
        .map(|(own, before)| relative * own / before);
    let mut outlier = Outlier {
        id: row.id.clone(),
        relative,
        recorded,
        is_recorded: recorded.is_some_and(|recorded| agree(relative, recorded)),
        segment: None,
        segment_more_ns: None,
        findings: Vec::new(),
    };
    if outlier.is_recorded
        && let (Some(own), Some(before)) = (&row.explanation, &baseline.explanation)
    {
        let is_slower = relative < 1.0;
        let changed = own.changed_most(before, is_slower);
        outlier.segment = changed.map(|(name, _)| name.to_owned());
        outlier.segment_more_ns = changed.map(|(_, more)| more);
        let (slower, faster) = if is_slower {
            (own, before)
        } else {
            (before, own)
        };
        let is_new = |finding: &&CellFinding| {
            finding.severity != "info" && faster.findings.iter().all(|other| other.id != finding.id)
        };
        let findings = slower.findings.iter().filter(is_new);
        outlier.findings = findings.map(|finding| finding.title.clone()).collect();
    }
    Some(outlier)
}

/// Whether two relative performances differ from 1 in the same way, the second one half as much at least.
fn agree(timed: f64, recorded: f64) -> bool {
    let (timed, recorded) = (timed.ln(), recorded.ln());
    timed.signum() == recorded.signum() && recorded.abs() >= timed.abs() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::CellRun;

    #[test]
    fn a_command_is_told_by_the_latency_of_its_disk() {
        let latency = |mean_ns: f64| Latency {
            n: 10,
            mean_ns,
            p99_ns: 900,
            ..Latency::default()
        };
        let cell = |id: &str, own: Option<f64>, baseline: Option<&str>| Cell {
            id: id.to_owned(),
            baseline: baseline.map(str::to_owned),
            runs: vec![CellRun {
                value: 1.0,
                latency: own
                    .map(|ns| (String::from("write"), latency(ns)))
                    .into_iter()
                    .collect(),
                ..CellRun::default()
            }],
            ..Cell::default()
        };
        let recorded = |flush: f64| Explanation {
            latency: BTreeMap::from([
                (String::from("flush"), latency(flush)),
                (String::from("read"), latency(1.0)),
            ]),
            ..Explanation::default()
        };
        let results = |own: Option<f64>| Results {
            cells: vec![
                cell("bd", own, None),
                cell("ext4", own.map(|ns| ns * 3.0), Some("bd")),
            ],
            explanations: BTreeMap::from([
                (String::from("bd"), recorded(200.0)),
                (String::from("ext4"), recorded(500.0)),
            ]),
            ..Results::default()
        };
        let told = |own| {
            let comparison = Comparison::new(&results(own));
            let row = comparison.row("ext4").unwrap();
            let main = row.main_latency().unwrap();
            (
                main.operation.to_owned(),
                main.is_recorded,
                row.relative_latency,
            )
        };
        assert_eq!(told(None), (String::from("flush"), true, Some(2.5)));
        assert_eq!(told(Some(10.0)), (String::from("write"), false, Some(3.0)));
    }

    #[test]
    fn recordings_that_do_not_show_a_difference_do_not_explain_it() {
        for (timed, recorded, agrees) in [
            (0.5, 0.4, true),
            (0.5, 0.7, true),
            (0.5, 0.72, false),
            (0.5, 1.0, false),
            (0.73, 2.24, false),
            (2.0, 1.5, true),
            (2.0, 1.3, false),
            (2.0, 0.5, false),
            (0.5, 0.0, true),
            (0.5, f64::NAN, false),
        ] {
            assert_eq!(agree(timed, recorded), agrees, "{timed} {recorded}");
        }
    }
}
