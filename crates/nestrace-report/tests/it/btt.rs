//! Every figure that btt prints of the captures in `fixtures/blktrace`, against ours.
//!
//! A figure is met if n is the same and values are within rounding. Where ours differs it stands in
//! `docs/btt.md`, under the heading that is named here, with both values.

use crate::captures;

use std::collections::BTreeMap;

use nestrace_analyzer::BlockOptions;
use nestrace_analyzer::analysis::Device;
use nestrace_report::btt::render;
use nestrace_trace::is_printable;

const PAGE: &str = include_str!("../../../../docs/btt.md");

/// Sections that are ours alone.
const BEYOND: [&str; 2] = ["Parts of Q2C (not in btt)", "Percentiles (not in btt)"];

/// The numbers of each row by section, table and row, with tabs between.
fn figures(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut figures = BTreeMap::new();
    let (mut section, mut table) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("==================== ") {
            section = title.trim_end_matches([' ', '=']).to_owned();
            continue;
        }
        if let Some(title) = line.strip_prefix("# ") {
            section = title.trim().to_owned();
            table.clear();
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let overall = ["NSEEKS", "IOs/Unp", "Plugs", "Reqs"];
        if words.contains(&"MIN")
            || words.first() == Some(&"DEV")
            || words.contains(&"Overall") && overall.iter().any(|title| words.contains(title))
        {
            table = words.join(" ");
        }
        if line.contains("---") || line.contains("=====") || words.is_empty() {
            continue;
        }
        // Device numbers hold blanks: names are what stands before the first wide gap or bar.
        let name = line.get(..line.find(['|']).unwrap_or(15)).unwrap_or(line);
        let rest = line.get(name.len()..).unwrap_or_default();
        let numbers = rest.split(|c: char| c.is_whitespace() || matches!(c, '|' | '(' | ')'));
        let numbers: Vec<String> = numbers
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        let key = format!("{section}\t{table}\t{}", name.trim());
        figures.entry(key).or_insert_with(Vec::new).extend(numbers);
    }
    figures
}

/// Whether two printed numbers are the same up to the last digit of the shorter one.
fn same(ours: &str, theirs: &str) -> bool {
    let number = |text: &str| text.trim_end_matches('%').parse::<f64>();
    let decimals = |text: &str| {
        let fraction = text.trim_end_matches('%').split('.').nth(1);
        fraction.map_or(0, str::len) as i32
    };
    match (number(ours), number(theirs)) {
        (Ok(a), Ok(b)) => {
            (a - b).abs() <= 1.01 * 10f64.powi(-decimals(theirs))
                && (decimals(theirs) > 0 || a == b)
        }
        _ => ours == theirs,
    }
}

/// Rows of `capture` that differ.
fn differing(capture: &str) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let ours = figures(&render(&captures::analyze(capture)));
    let theirs = figures(&captures::btt(capture));
    let extra = ours
        .keys()
        .filter(|key| !BEYOND.iter().any(|title| key.starts_with(title)))
        .filter(|key| !theirs.contains_key(*key))
        .collect::<Vec<_>>();
    assert!(extra.is_empty(), "not in btt's output: {extra:?}");
    let mut differing = BTreeMap::new();
    for (key, theirs) in theirs {
        let ours = ours
            .get(&key)
            .unwrap_or_else(|| panic!("{capture}: {key} is missing"));
        assert_eq!(ours.len(), theirs.len(), "{capture}: {key}");
        if !ours
            .iter()
            .zip(&theirs)
            .all(|(ours, theirs)| same(ours, theirs))
        {
            differing.insert(key, (ours.clone(), theirs));
        }
    }
    differing
}

#[test]
fn a_capture_without_splits_differs_in_the_median_alone() {
    let differing = differing("ext4-mail-none-scsi");
    let rows: Vec<&String> = differing.keys().collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (key, (ours, theirs)) in &differing {
        assert!(key.starts_with("Device D2D Seek Information"), "{key}");
        let medians = (ours[2].as_str(), theirs[2].as_str());
        assert_eq!(medians, ("216872", "0"), "{key}");
        let rest = |row: &[String]| [&row[..2], &row[3..]].concat();
        assert_eq!(rest(ours), rest(theirs), "{key}");
    }
    assert!(PAGE.contains("## The median of seeks") && PAGE.contains("216872"));
}

#[test]
fn a_capture_with_two_split_bios_differs_where_they_count() {
    let differing = differing("ext3-seqw-mq-ide");
    // The two bios are fio's and kworker's: neither jbd2's figures nor the rest are touched.
    let touched = |key: &str| {
        let (section, row) = (
            key.split('\t').next().unwrap(),
            key.rsplit('\t').next().unwrap(),
        );
        match section {
            "Per Process" => matches!(row, "fio" | "kworker"),
            "Per Device" | "All Devices" => ["G2I", "I2D", "D2C", "Q2C"]
                .iter()
                .any(|part| key.contains(part)),
            "Device Overhead" | "Device Merge Information" | "Q2D Histogram" => true,
            "Active Requests At Q Information" | "I/O Active Period Information" => true,
            _ => false,
        }
    };
    for (key, (ours, theirs)) in &differing {
        assert!(touched(key), "{key}: {ours:?} is not {theirs:?}");
    }
    // n: two bios more, where btt has one of each bio.
    let n = |part: &str| {
        let key = format!("All Devices\tALL MIN AVG MAX N\t{part}");
        let (ours, theirs) = &differing[&key];
        let last = |row: &[String]| row.last().unwrap().parse::<u64>().unwrap();
        (last(ours), last(theirs))
    };
    assert_eq!(
        [n("I2D"), n("D2C"), n("Q2C")],
        [(17, 15), (36, 34), (36, 34)]
    );
    assert_eq!(n("G2I"), (52, 52));
    assert!(PAGE.contains("## Bios that were split"));
    for (ours, _) in differing.values() {
        for number in ours
            .iter()
            .filter(|number| number.len() == 11 && number.contains('.'))
        {
            assert!(
                PAGE.contains(number.as_str()),
                "{number} is not in docs/btt.md"
            );
        }
    }
}

/// A row, our numbers and btt's.
type Row = (&'static str, &'static str, &'static str);

/// Examples of `docs/btt.md`: sections that differ, and rows of them.
const EXAMPLES: [(&str, &[&str], &[Row]); 10] = [
    (
        "stacked",
        &[
            "Device Q2Q Seek Information",
            "Device D2D Seek Information",
            "I/O Active Period Information",
        ],
        &[
            (
                "Per Device\tQ2Adm MIN AVG MAX N\t(253,  0)",
                "0.000003000 0.000005000 0.000007000 2",
                "0.000003000 0.000005000 0.000007000 2",
            ),
            (
                "Per Device\tQ2Cdm MIN AVG MAX N\t(253,  0)",
                "0.000062000 0.000062000 0.000062000 1",
                "0.000062000 0.000062000 0.000062000 1",
            ),
        ],
    ),
    (
        "split",
        &[
            "Per Process",
            "Per Device",
            "All Devices",
            "Device Overhead",
            "I/O Active Period Information",
        ],
        &[
            (
                "All Devices\tALL MIN AVG MAX N\tG2I",
                "0.000001000 0.000002667 0.000004000 3",
                "0.000001000 0.000002000 0.000003000 3",
            ),
            (
                "All Devices\tALL MIN AVG MAX N\tI2D",
                "0.000004000 0.000005500 0.000007000 2",
                "0.000007000 0.000007000 0.000007000 1",
            ),
            (
                "All Devices\tALL MIN AVG MAX N\tQ2C",
                "0.000050000 0.000055000 0.000060000 2",
                "0.000050000 0.000050000 0.000050000 1",
            ),
        ],
    ),
    (
        "same-sector",
        &[
            "Per Process",
            "Per Device",
            "All Devices",
            "Device Overhead",
            "Device Q2Q Seek Information",
            "Device D2D Seek Information",
            "I/O Active Period Information",
        ],
        &[
            (
                "All Devices\tALL MIN AVG MAX N\tD2C",
                "0.000037000 0.000044500 0.000052000 2",
                "0.000032000 0.000032000 0.000032000 1",
            ),
            (
                "All Devices\tALL MIN AVG MAX N\tQ2C",
                "0.000040000 0.000047500 0.000055000 2",
                "0.000035000 0.000035000 0.000035000 1",
            ),
        ],
    ),
    (
        "median",
        &["Device Q2Q Seek Information", "Device D2D Seek Information"],
        &[(
            "Device D2D Seek Information\tDEV | NSEEKS MEAN MEDIAN | MODE\t(  8,  0)",
            "4 1500.0 1000 0 1",
            "4 1500.0 0 0 1",
        )],
    ),
    (
        "covering",
        &["Device Q2Q Seek Information", "Device D2D Seek Information"],
        &[(
            "Device D2D Seek Information\tDEV | NSEEKS MEAN MEDIAN | MODE\t(  8,  0)",
            "2 50.0 0 0 1 100",
            "2 55.0 100 10 1 100",
        )],
    ),
    (
        "requeue",
        &[
            "Per Process",
            "Per Device",
            "All Devices",
            "Device Overhead",
            "I/O Active Period Information",
        ],
        &[
            (
                "All Devices\tALL MIN AVG MAX N\tG2I",
                "0.000001000 0.000001000 0.000001000 1",
                "0.000001000 0.000010000 0.000019000 2",
            ),
            (
                "All Devices\tALL MIN AVG MAX N\tI2D",
                "0.000028000 0.000028000 0.000028000 1",
                "0.000008000 0.000009000 0.000010000 2",
            ),
        ],
    ),
    (
        "partial",
        &[
            "Per Process",
            "Per Device",
            "All Devices",
            "Device Overhead",
            "I/O Active Period Information",
        ],
        &[],
    ),
    (
        "one-period",
        &["I/O Active Period Information"],
        &[(
            "I/O Active Period Information\tDEV | # Live Avg. Act Avg. !Act % Live\t(  8,  0)",
            "1 0.000040000 0.000000000 40.00",
            "1 0.000000000 0.000000000 100.00",
        )],
    ),
    ("no-insert", &["I/O Active Period Information"], &[]),
    (
        "virtio",
        &[
            "Per Process",
            "Per Device",
            "All Devices",
            "Device Overhead",
            "Active Requests At Q Information",
            "I/O Active Period Information",
        ],
        &[],
    ),
];

#[test]
fn examples_differ_where_the_page_says() {
    for (example, sections, rows) in EXAMPLES {
        let capture = format!("examples/{example}");
        let ours = figures(&render(&captures::analyze(&capture)));
        let theirs = figures(&captures::btt(&capture));
        let keys = ours.keys().chain(theirs.keys());
        for key in keys.filter(|key| !BEYOND.iter().any(|title| key.starts_with(title))) {
            let same_row = match (ours.get(key), theirs.get(key)) {
                (Some(ours), Some(theirs)) => {
                    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| same(a, b))
                }
                _ => false,
            };
            let section = key.split('\t').next().unwrap();
            assert!(same_row || sections.contains(&section), "{example}: {key}");
        }
        for (key, our_row, their_row) in rows {
            assert_eq!(ours[*key].join(" "), *our_row, "{example}: {key}");
            assert_eq!(theirs[*key].join(" "), *their_row, "{example}: {key}");
        }
        assert!(
            PAGE.contains(&format!("`examples/{example}`")),
            "{example} is not in docs/btt.md"
        );
    }
}

#[test]
fn events_with_a_cgroup_are_read() {
    let blocks = captures::analyze("examples/cgroup");
    assert_eq!(
        blocks.all.parts.q2c.map(|q2c| (q2c.n, q2c.mean)),
        Some((1, Some(100_000)))
    );
    let theirs = figures(&captures::btt("examples/cgroup"));
    assert!(!theirs.contains_key("All Devices\tALL MIN AVG MAX N\tQ2C"));
    assert!(PAGE.contains("`examples/cgroup`"));
}

/// Each scheduler, reads and writes of several sizes: the true median of seeks is all that differs.
#[test]
fn captures_of_every_scheduler_differ_in_the_median_alone() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        let differing = differing(&format!("schedulers/{scheduler}"));
        assert_eq!(differing.len(), 4, "{scheduler}: {differing:?}");
        for (key, (ours, theirs)) in &differing {
            assert!(key.contains("Seek Information"), "{scheduler}: {key}");
            let rest = |row: &[String]| [&row[..2], &row[3..]].concat();
            assert_eq!(rest(ours), rest(theirs), "{scheduler}: {key}");
            let told = format!("median {}", ours[2]);
            assert!(
                PAGE.contains(&told),
                "{told} of {scheduler} is not in docs/btt.md"
            );
        }
    }
}

/// btt loses most bios where many are split or lie at one sector; the load says how many there were.
#[test]
fn bios_that_btt_loses_are_counted_here() {
    let sections = [
        "Per Process",
        "Per Device",
        "All Devices",
        "Device Overhead",
        "Device Q2Q Seek Information",
        "Q2D Histogram",
        "I/O Active Period Information",
    ];
    for (capture, n_of_fio) in [("split", 100), ("storm", 300)] {
        let differing = differing(&format!("schedulers/{capture}"));
        for (key, rows) in &differing {
            let section = key.split('\t').next().unwrap();
            assert!(sections.contains(&section), "{capture}: {key}: {rows:?}");
        }
        for part in ["D2C", "Q2C"] {
            let (ours, theirs) = &differing[&format!("All Devices\tALL MIN AVG MAX N\t{part}")];
            let (ours, theirs) = (&ours[3], &theirs[3]);
            assert_eq!(*ours, n_of_fio.to_string(), "{capture}: {part}");
            let row = format!("| `schedulers/{capture}` | {part} | {theirs} | {ours} |");
            assert!(PAGE.contains(&row), "{row} is not in docs/btt.md");
        }
    }
}

#[test]
fn a_process_cannot_write_on_the_terminal() {
    let mut blocks = captures::analyze("ext4-mail-none-scsi");
    let lines = render(&blocks).lines().count();
    for process in &mut blocks.processes {
        process.name.insert_str(0, "\x1b]0;x\n");
    }
    let text = render(&blocks);
    assert!(
        text.chars().all(|c| c == '\n' || is_printable(c)),
        "{text:?}"
    );
    assert_eq!(text.lines().count(), lines);
    assert!(text.contains("\n\u{fffd}]0;x\u{fffd}fio "), "{text}");
    assert!(
        text.contains(" \u{fffd}]0;x\u{fffd}fio : q activity"),
        "{text}"
    );
}

#[test]
fn what_btt_has_does_not_depend_on_what_plots_are_made_of() {
    let with_figures = || {
        let mut options = BlockOptions::default();
        options.figures = true;
        options
    };
    for capture in ["ext4-mail-none-scsi", "ext3-seqw-mq-ide"] {
        let (lean, whole) = (
            captures::analyze(capture),
            captures::analyze_with(capture, with_figures()),
        );
        assert_eq!(render(&lean), render(&whole), "{capture}");
        for (lean, whole) in lean.devices.iter().zip(&whole.devices) {
            let (lean, whole) = (&lean.device, &whole.device);
            assert_eq!(lean.queue_depth, whole.queue_depth);
            assert!(lean.figures.addresses.is_empty() && !whole.figures.addresses.is_empty());
            let queued = |device: &Device| {
                let all = device.stats.as_ref().map(|stats| &stats.histograms.all);
                all.is_some_and(|all| all.read.is_some() || all.write.is_some())
            };
            assert_eq!((queued(lean), queued(whole)), (false, true));
        }
    }
}
