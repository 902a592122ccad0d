//! `docs/experiments.md` against the files of `fixtures/lab`: each figure is computed, put into the page's words, and
//! looked up there. What the page marks as observed is carried by no file.

mod control;
mod ext3_ext4;
mod fast12;
mod image_format_cache_bus;
mod raw_qcow2;
mod reiserfs_jfs;
mod remedies;

use nestrace_report::lab::{
    Cell, CellRun, Comparison, Metric, Published, Results, Row, Spread, Verdict,
};

/// The page, with one space between words.
struct Page(String);

impl Page {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments.md");
        let text = std::fs::read_to_string(path).expect("the page is there");
        Self(one_space(&text))
    }

    /// Fails unless the page says it, wherever its lines end.
    fn check(&self, sentences: &[String]) {
        let missing: Vec<_> = sentences
            .iter()
            .filter(|sentence| !self.0.contains(&one_space(sentence)))
            .collect();
        assert!(missing.is_empty(), "docs/experiments.md lacks {missing:#?}");
    }
}

fn one_space(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

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

/// What runs on one disk it was, and how many cells repeat.
fn of_the_run(run: &Comparison, results: &Results, disk: &str, repetitions: usize) -> Vec<String> {
    let cells = results.cells.iter();
    let all: Vec<&CellRun> = cells
        .flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
        .collect();
    let (from, to, _) = times(all.iter().copied());
    let near = run.rows.iter().filter(|row| apart(&row.values) <= 0.1);
    let n = run.rows.len();
    vec![
        format!(
            "{n} cells on `{disk}`, {repetitions} repetitions and a recording of each: {} runs from {from} to {to}",
            all.len()
        ),
        format!("{} of {n} cells lie within ±10 %", near.count()),
    ]
}

/// What the recordings of a run have: events and bios.
fn of_the_recordings(run: &Comparison) -> String {
    let explanations = || run.rows.iter().filter_map(|row| row.explanation.as_ref());
    let lost: u64 = explanations().map(|one| one.lost).sum();
    assert_eq!(lost, 0);
    let linked = spread(explanations().filter_map(|one| one.linked));
    format!(
        "No recording lost an event, and {} % of the guests' bios were followed to the device",
        (linked.min * 1000.0).floor() / 10.0
    )
}

/// A row of a table of statements: the figures alone, without how sure they are.
fn of_statement(one: &Published) -> String {
    let ours = one.ours.as_deref().unwrap_or_default();
    let is_unsure = |end: &&&str| ours.contains(**end);
    let ours = match [", no overlap", ", within the spread"]
        .iter()
        .find(is_unsure)
    {
        Some(end) => format!("{})", ours.split(end).next().unwrap_or_default()),
        None => ours.to_owned(),
    };
    let published = one.published.split(" (").next().unwrap_or_default();
    let judgement = one.judgement.unwrap().words();
    format!("| {} | {published} | {ours} | {judgement} |", one.what)
}

/// First and last start, `01:13`, UTC, and how long it is between them.
fn times<'r>(runs: impl IntoIterator<Item = &'r CellRun>) -> (String, String, u64) {
    let starts = runs.into_iter().map(|run| run.started_unix_s);
    let starts: Vec<u64> = starts.collect();
    let clock = |seconds: u64| format!("{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60);
    let (first, last) = (starts.iter().min().unwrap(), starts.iter().max().unwrap());
    (clock(*first), clock(*last), last - first)
}
