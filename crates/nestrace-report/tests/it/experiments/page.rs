//! `docs/experiments.md`: its parts that are written from the files of `fixtures/lab`, and the sentences around them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use nestrace_report::lab::{CellRun, Comparison, Metric, Published, Results, Row};

use super::{apart, percent, relative_word, spread, times};
use crate::lab::{RUNS, comparison, results};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments.md");

/// Plans that have all cells of a study; the others have some of them, for another purpose.
const STUDIES: [&str; 4] = ["ext3-ext4", "fast12", "image-format-cache-bus", "raw-qcow2"];

/// What ends a part.
const END: &str = "<!-- end -->";

/// The page, with one space between words.
pub struct Page(String);

impl Page {
    /// As it is.
    pub fn read() -> Self {
        Self(one_space(&whole()))
    }

    /// Fails unless the page says it, wherever its lines end.
    pub fn check(&self, sentences: &[String]) {
        let missing: Vec<_> = sentences
            .iter()
            .filter(|sentence| !self.0.contains(&one_space(sentence)))
            .collect();
        assert!(missing.is_empty(), "docs/experiments.md lacks {missing:#?}");
    }
}

fn whole() -> String {
    std::fs::read_to_string(PATH).expect("the page is there")
}

fn one_space(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Fails unless the part between `<!-- NAME -->` and the end is this text. With `UPDATE=1` it becomes that.
pub fn part(name: &str, text: &str) {
    /// Tests run side by side.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let page = whole();
    let begin = format!("<!-- {name} -->\n");
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("docs/experiments.md has no line <!-- {name} -->"));
    let (there, after) = rest.split_once(END).expect("a part has an end");
    let text = format!("\n{}\n\n", text.trim());
    if std::env::var_os("UPDATE").is_some() {
        let page = format!("{before}{begin}{text}{END}{after}");
        std::fs::write(PATH, page).expect("write the page");
    } else {
        assert_eq!(there, text, "UPDATE=1 writes {name} anew");
    }
}

#[test]
fn what_each_run_was_is_that_of_its_files() {
    for run in RUNS {
        let (comparison, results) = (comparison(run), results(run));
        let mut text = of_the_run(&comparison, &results);
        text.extend(comparison.statements.iter().map(|one| format!("- {one}")));
        if STUDIES.contains(&run) {
            text.push(String::new());
            text.extend(statements(&comparison.published));
        }
        part(run, &text.join("\n"));
    }
}

/// What runs it was, how they repeat, how true a modelled disk was, what the recordings have.
fn of_the_run(run: &Comparison, results: &Results) -> Vec<String> {
    let cells = results.cells.iter();
    let all: Vec<&CellRun> = cells
        .flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
        .collect();
    let (from, to, _) = times(all.iter().copied());
    let disk = run.run.modelled_disk.as_deref();
    let on = disk.map_or_else(String::new, |disk| format!(" on `{disk}`"));
    let n = run.rows.len();
    let mut text = vec![
        format!(
            "- {n} cells{on}, {} repetitions of each: {} runs from {from} to {to}.",
            run.run.repetitions,
            all.len()
        ),
        format!(
            "- {} cells lie within ±10 % over all repetitions.",
            repeats(&mut run.rows.iter())
        ),
    ];
    for by in ["workload", "host_fs"] {
        let word = |row: &Row| match by {
            "workload" => row.workload.clone(),
            axis => row.word(axis).to_owned(),
        };
        let words: BTreeSet<String> = run.rows.iter().map(word).collect();
        if (2..=8).contains(&words.len()) {
            let each = words.iter().map(|one| {
                let mut rows = run.rows.iter().filter(|row| word(row) == *one);
                format!("{} of {one}", repeats(&mut rows))
            });
            let each: Vec<String> = each.collect();
            text.push(format!("  - {}", each.join(", ")));
        }
    }
    let late = run.rows.iter().filter_map(|row| row.modelled.as_ref());
    let late: Vec<f64> = late.map(|late| late.mean_ns / 1e6).collect();
    if !late.is_empty() {
        let late = spread(late);
        text.push(format!(
            "- The disk completed requests {:.2} ms late on average (median over the cells; {:.2} ms in the worst).",
            late.median, late.max
        ));
    }
    let recordings: Vec<_> = run
        .rows
        .iter()
        .filter_map(|row| row.explanation.as_ref())
        .collect();
    if !recordings.is_empty() {
        let lost: u64 = recordings.iter().map(|one| one.lost).sum();
        // UPDATE=1 does not write that away.
        assert_eq!(lost, 0, "{}", run.run.plan);
        let linked = spread(recordings.iter().filter_map(|one| one.linked));
        let followed = if linked.min < 1.0 {
            format!("at least {} %", (linked.min * 1000.0).floor() / 10.0)
        } else {
            String::from("all")
        };
        text.push(format!(
            "- {} recordings lost {lost} events; {followed} of a guest's bios were followed to the device.",
            recordings.len()
        ));
    }
    text
}

/// `57 of 72`.
fn repeats(rows: &mut dyn Iterator<Item = &Row>) -> String {
    let rows: Vec<&Row> = rows.collect();
    let near = rows.iter().filter(|row| apart(&row.values) <= 0.1);
    format!("{} of {}", near.count(), rows.len())
}

/// Published statements beside ours; how sure our figures are is in the report.
fn statements(published: &[Published]) -> Vec<String> {
    let head = [
        "| statement | published | here | judgement |",
        "|---|---|---|---|",
    ];
    let rows = published.iter().map(|one| {
        let ours = one.ours.as_deref().expect("a study has all cells");
        let is_unsure = |end: &&&str| ours.contains(**end);
        let ours = match [", no overlap", ", within the spread"]
            .iter()
            .find(is_unsure)
        {
            Some(end) => format!("{})", ours.split(end).next().unwrap_or_default()),
            None => ours.to_owned(),
        };
        let published = one.published.split(" (").next().unwrap_or_default();
        let judgement = one.judgement.map_or("", |judgement| judgement.words());
        format!("| {} | {published} | {ours} | {judgement} |", one.what)
    });
    head.map(str::to_owned).into_iter().chain(rows).collect()
}

/// A table for each workload: the value on the bare device, then per cent of it.
pub fn guests_by_hosts(run: &Comparison, guests: &[&str], hosts: &[&str]) -> String {
    let mut text = String::new();
    for workload in run.workloads() {
        let rule = "---|".repeat(hosts.len() + 3);
        text += &format!(
            "#### {workload}\n\n| guest | bd | {} | median |\n|{rule}\n",
            hosts.join(" | ")
        );
        let row = |guest: &str, host: &str| {
            let mut under = run.rows.iter().filter(|row| row.workload == workload);
            let row =
                under.find(|row| row.word("guest_fs") == guest && row.word("host_fs") == host);
            row.unwrap_or_else(|| panic!("{guest} on {host}"))
        };
        let middle = |rows: Vec<&Row>| {
            let relative = rows.iter().filter_map(|row| Some(row.relative?.median));
            percent(spread(relative).median)
        };
        for guest in guests {
            let bare = row(guest, "bd");
            let value = bare.value.expect("it has a result").median;
            let value = match bare.metric {
                Metric::BytesPerSecond => format!("{:.1} MiB/s", value / f64::from(1 << 20)),
                _ => format!("{value:.0} op/s"),
            };
            let rows: Vec<&Row> = hosts.iter().map(|host| row(guest, host)).collect();
            let words: Vec<String> = rows.iter().map(|row| relative_word(row)).collect();
            text += &format!(
                "| {guest} | {value} | {} | {} |\n",
                words.join(" | "),
                middle(rows)
            );
        }
        let of_host = |host: &&str| middle(guests.iter().map(|guest| row(guest, host)).collect());
        let medians: Vec<String> = hosts.iter().map(of_host).collect();
        text += &format!("| median | | {} | |\n\n", medians.join(" | "));
    }
    text
}
