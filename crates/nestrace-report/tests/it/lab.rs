//! What the lab's own runs say, from the facts in `fixtures/lab`: `docs/experiments.md` rests on it.

use std::path::PathBuf;

use nestrace_report::html;
use nestrace_report::lab::{
    Cell, CellRun, Comparison, Explanation, Failure, Outlier, Results, RunHeader, Verdict, csv,
    json, text,
};
use nestrace_trace::is_printable;

/// All of `fixtures/lab`.
pub const RUNS: [&str; 8] = [
    "control",
    "ext3-ext4",
    "fast12",
    "fast12-gains",
    "fast12-remedies",
    "image-format-cache-bus",
    "raw-qcow2",
    "reiserfs-jfs",
];

fn read(run: &str, file: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/lab");
    let path = folder.join(run).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn results(run: &str) -> Results {
    let header: RunHeader = serde_json::from_str(&read(run, "run.json")).unwrap();
    let cells = header.cells.iter();
    let cells: Vec<Cell> = cells
        .map(|id| serde_json::from_str(&read(run, &format!("{id}.json"))).unwrap())
        .collect();
    Results {
        header,
        cells,
        explanations: json::explanations(&read(run, "report.json")),
        ..Results::default()
    }
}

pub fn comparison(run: &str) -> Comparison {
    Comparison::new(&results(run))
}

/// Whether two tables agree; the last digit of a number depends on how it was read.
fn is_same(one: &str, other: &str) -> bool {
    let fields = |text: &str| {
        text.split([',', '\n', ' '])
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (one, other) = (fields(one), fields(other));
    let number = |text: &str| text.parse::<f64>().ok();
    one.len() == other.len()
        && one.iter().zip(&other).all(|(a, b)| {
            let near = |a: f64, b: f64| (a - b).abs() <= a.abs() * 1e-9;
            a == b || number(a).zip(number(b)).is_some_and(|(a, b)| near(a, b))
        })
}

/// `nestrace lab report fixtures/lab/RUN` writes them; the pages alone, `UPDATE=1 cargo test -p nestrace-report --test it`.
#[test]
fn reports_say_what_they_would_say_today() {
    for run in RUNS {
        let comparison = comparison(run);
        let page = html::lab::render(&comparison).unwrap();
        if std::env::var_os("UPDATE").is_some() {
            let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/lab");
            std::fs::write(format!("{lab}/{run}/report.html"), &page).unwrap();
            continue;
        }
        assert!(
            read(run, "report.html") == page,
            "{run}/report.html is an older one"
        );
        let (table, now) = (read(run, "report.csv"), csv::render(&comparison));
        assert!(is_same(&table, &now), "{run}/report.csv is an older one");
        let told: serde_json::Value = serde_json::from_str(&read(run, "report.json")).unwrap();
        let ids = |outliers: &[Outlier]| {
            outliers
                .iter()
                .map(|one| one.id.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(told["statements"], serde_json::json!(comparison.statements));
        assert_eq!(told["published"], serde_json::json!(comparison.published));
        let outliers = told["outliers"].as_array().unwrap().iter();
        let outliers: Vec<&str> = outliers.map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(outliers, ids(&comparison.outliers));
    }
}

#[test]
fn fast12_says_what_is_written_of_it() {
    let fast12 = comparison("fast12");
    assert_eq!(fast12.rows.len(), 7 * 6 * 5);
    assert!(fast12.missing.is_empty());
    let nested = || fast12.rows.iter().filter(|row| row.baseline.is_some());
    assert!(nested().all(|row| row.verdict != Verdict::NoResult && row.failures.is_empty()));
    let apart = nested().filter(|row| row.verdict != Verdict::NotApart);
    assert_eq!((apart.count(), nested().count()), (54, 175));
    // What nearly all guests have in common is reported.
    let said = |sentence: &str| {
        fast12
            .statements
            .iter()
            .any(|one| one.starts_with(sentence))
    };
    for sentence in [
        "randread: on xfs each of 7 guest file systems is faster than on the bare device in every repetition",
        "randwrite: on btrfs 6 of 7 guest file systems are faster than on the bare device in every repetition",
        "mailserver: on btrfs 6 of 7 guest file systems are slower than on the bare device in every repetition",
    ] {
        assert!(said(sentence), "{:#?}", fast12.statements);
    }
    // Copy-on-write multiplies what a mail server writes, but for jfs's, which syncs nothing; on other hosts nothing does.
    for row in nested().filter(|row| row.workload == "mailserver") {
        let is_copied = row.word("host_fs") == "btrfs" && row.word("guest_fs") != "jfs";
        let amplification = row.write_amplification.unwrap();
        assert_eq!(
            amplification > 1.5,
            is_copied,
            "{}: {amplification}",
            row.id
        );
    }
    let explained = fast12.outliers.iter().filter(|one| one.is_recorded);
    assert_eq!((fast12.outliers.len(), explained.count()), (37, 31));
}

#[test]
fn image_format_cache_bus_says_what_is_written_of_it() {
    let run = comparison("image-format-cache-bus");
    assert_eq!((run.rows.len(), run.missing.len()), (72, 0));
    assert!(run.rows.iter().all(|row| row.failures.is_empty()));
    // A guest whose disk has no volatile cache sends no flushes, and the host syncs in its place.
    let cells = results("image-format-cache-bus").cells;
    for cell in cells.iter().filter(|cell| cell.workload == "mailserver") {
        let is_through = cell.word("cache") == "writethrough";
        for run in &cell.runs {
            assert_eq!(run.guest.disk_flushes == 0, is_through, "{}", cell.id);
            assert!(run.host.disk_flushes > 90, "{}", cell.id);
        }
    }
}

#[test]
fn results_cannot_write_on_the_terminal() {
    let evil = "\x1b]0;x\x07\n\u{202e}";
    let mut run = comparison("fast12");
    for name in [&mut run.run.plan, &mut run.run.machine.qemu] {
        name.push_str(evil);
    }
    for row in &mut run.rows {
        row.workload.push_str(evil);
    }
    let text = text::render(&run);
    assert!(
        text.chars().all(|c| c == '\n' || is_printable(c)),
        "{text:?}"
    );
    assert!(text.contains("\nrandwrite\u{fffd}]0;x\u{fffd}\u{fffd}\u{fffd}\n"));
    assert!(
        text.contains("fast12\u{fffd}]0;x\u{fffd} \u{fffd}: "),
        "{text}"
    );
}

/// A plan with these cells, each with its axes; a baseline comes first.
fn small_run(record_seconds: u32, cells: &[&[(&str, &str)]]) -> Results {
    let cell = |(n, axes): (usize, &&[(&str, &str)])| Cell {
        id: format!("cell-{n}"),
        baseline: (n > 0).then(|| String::from("cell-0")),
        axes: axes
            .iter()
            .map(|(axis, word)| ((*axis).to_owned(), (*word).to_owned()))
            .collect(),
        workload: String::from("randwrite"),
        runs: vec![CellRun {
            value: 100.0,
            ..CellRun::default()
        }],
        ..Cell::default()
    };
    let cells: Vec<Cell> = cells.iter().enumerate().map(cell).collect();
    Results {
        header: RunHeader {
            repetitions: 1,
            record_seconds: Some(record_seconds),
            cells: cells.iter().map(|cell| cell.id.clone()).collect(),
            ..RunHeader::default()
        },
        cells,
        ..Results::default()
    }
}

fn page(results: &Results) -> String {
    html::lab::render(&Comparison::new(results)).unwrap()
}

#[test]
fn reasons_of_failures_come_first_and_every_line_is_there() {
    let axes: &[(&str, &str)] = &[("guest_fs", "ext4"), ("host_fs", "bd")];
    let mut results = small_run(0, &[axes; 210]);
    for cell in &mut results.cells {
        cell.runs.clear();
        cell.failures = vec![Failure {
            repetition: 1,
            message: String::from("no guest came up"),
            ..Failure::default()
        }];
    }
    let page = page(&results);
    let (_, missing) = page.split_once("<section id=\"missing\">").unwrap();
    let (seen, folded) = missing.split_once("<details><summary>340 more").unwrap();
    assert_eq!(seen.matches("<li>").count(), 80);
    assert!(seen.contains("<li>cell-0, repetition 1: no guest came up.</li>"));
    assert_eq!(folded.matches(": no result.</li>").count(), 210);
}

#[test]
fn recordings_are_told_of_where_there_are_any() {
    let cells: [&[(&str, &str)]; 2] = [
        &[("guest_fs", "xfs"), ("host_fs", "bd")],
        &[("guest_fs", "9p"), ("host_fs", "xfs")],
    ];
    let mut results = small_run(0, &cells);
    assert!(page(&results).contains("<p>Nothing: every cell has its repetitions.</p>"));
    results.header.record_seconds = Some(2);
    let explained = |results: &mut Results, n: usize| {
        let id = results.cells[n].id.clone();
        results.cells[n].recording = Some(format!("{id}.nest"));
        results.explanations.insert(id, Explanation::default());
    };
    explained(&mut results, 0);
    assert!(page(&results).contains(
        "Nothing: every cell has its repetitions; 1 of 2 were recorded (a folder over 9p has no disk to record), and no recording lost an event."
    ));
    explained(&mut results, 1);
    assert!(page(&results).contains(
        "Nothing: every cell has its repetitions and its recording, and no recording lost an event."
    ));
    // Nothing is known to be lost of one that was killed, and yet it is not whole.
    let id = results.cells[1].id.clone();
    let explanation = results.explanations.get_mut(&id).unwrap();
    explanation.missing = vec![String::from(
        "not closed: up to 0.5 s at the end are missing",
    )];
    let page = page(&results);
    assert!(!page.contains("no recording lost an event"));
    assert!(page.contains(&format!(
        "{id}: its recording is incomplete (not closed: up to 0.5 s"
    )));
}

#[test]
fn the_map_tells_cells_on_the_bare_device_apart() {
    let bare = |bus| [("guest_fs", "ext4"), ("host_fs", "bd"), ("bus", bus)];
    let mut results = small_run(0, &[&bare("ide"), &bare("virtio")]);
    for cell in &mut results.cells {
        cell.baseline = None;
    }
    let page = page(&results);
    assert!(page.contains("<tr><td>bd ide</td>"), "{page}");
    assert!(page.contains("<tr><td>bd virtio</td>"), "{page}");
}

#[test]
fn a_slower_cell_is_explained_by_what_its_baseline_has_not() {
    let run = comparison("fast12");
    let page = html::lab::render(&run).unwrap();
    let mut n_common = 0;
    for outlier in run.outliers.iter().filter(|one| one.is_recorded) {
        let (_, article) = page
            .split_once(&format!("id=\"cell-{}\">", outlier.id))
            .unwrap();
        let (article, _) = article.split_once("</article>").unwrap();
        let row = run.row(&outlier.id).unwrap();
        let told = row.explanation.iter().flat_map(|told| &told.findings);
        let own = told.filter(|finding| outlier.findings.contains(&finding.title));
        let expected = if outlier.relative < 1.0 {
            own.count()
        } else {
            0
        };
        let notes = article.matches("<p class=\"note\">").count();
        assert_eq!(notes, expected, "{}", outlier.id);
        let all = row.explanation.iter().flat_map(|told| &told.findings);
        let all = all.filter(|finding| finding.severity != "info");
        n_common += all.count() - expected;
    }
    // There are some that both have: else this would say nothing.
    assert!(n_common > 10, "{n_common}");
}

#[test]
fn what_nothing_explains_is_said_to_be_so() {
    let mut n_all = 0;
    for run in RUNS {
        let comparison = comparison(run);
        let told = text::render(&comparison);
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        let without = comparison
            .outliers
            .iter()
            .filter(|one| one.is_recorded && one.segment.is_none() && one.findings.is_empty());
        let n = told
            .matches("but nothing in the recordings explains it.")
            .count();
        assert_eq!(n, without.count(), "{run}");
        n_all += n;
        // A bare "72 % of its baseline." leaves the reader alone.
        for outlier in &comparison.outliers {
            let (_, sentence) = told.split_once(&format!("{}: ", outlier.id)).unwrap();
            let (_, rest) = sentence.split_once(" of its baseline. ").unwrap();
            let goes_on = [
                "In the recordings",
                "Found ",
                "The recorded runs",
                "This cell or its baseline was not recorded",
            ];
            assert!(
                goes_on.iter().any(|words| rest.starts_with(words)),
                "{rest:.80}"
            );
        }
    }
    // Else this would say nothing.
    assert!(n_all > 0);
}

#[test]
fn e3_has_what_its_study_printed_beside_each_test() {
    let axes: &[(&str, &str)] = &[("guest_fs", "ext4"), ("host_fs", "bd")];
    let mut results = small_run(0, &[axes]);
    let guest = &mut results.cells[0].runs[0].guest;
    guest.seconds = Some(2.0);
    (guest.cpu_user, guest.cpu_system, guest.cpu_iowait) = (0.25, 0.5, 0.125);
    (guest.disk_reads, guest.disk_writes) = (20, 10);
    (guest.disk_read_bytes, guest.disk_write_bytes) = (4 << 20, 2 << 20);
    (guest.paged_in_kib, guest.paged_out_kib) = (4096, 2048);
    guest.context_switches = 600;
    assert!(!page(&results).contains("<section id=\"system\">"));
    results.header.experiment = Some(String::from("E3"));
    let page = page(&results);
    let (_, table) = page.split_once("<section id=\"system\">").unwrap();
    let (_, row) = table.split_once("<tr><td>cell-0</td>").unwrap();
    let (row, _) = row.split_once("</tr>").unwrap();
    let cells: Vec<&str> = row
        .split("<td>")
        .filter_map(|cell| cell.trim_end().strip_suffix("</td>"))
        .collect();
    assert_eq!(
        cells[1..],
        [
            "25 %",
            "50 %",
            "12 %",
            "15/s",
            "10/s",
            "5/s",
            "2.00 MiB/s",
            "1.00 MiB/s",
            "2,048/s",
            "1,024/s",
            "300/s",
            "0 %"
        ]
    );
}
