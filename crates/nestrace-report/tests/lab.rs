//! What the lab's own runs say, from the facts in `fixtures/lab`: `docs/experiments.md` rests on it.

use std::path::PathBuf;

use nestrace_report::lab::{Cell, Comparison, Results, RunHeader, Verdict};

fn comparison(name: &str) -> Comparison {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/lab")
        .join(name);
    let read = |file: String| {
        let path = folder.join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let header: RunHeader = serde_json::from_str(&read(String::from("run.json"))).unwrap();
    let cells = header.cells.iter();
    let cells: Vec<Cell> = cells
        .map(|id| serde_json::from_str(&read(format!("{id}.json"))).unwrap())
        .collect();
    Comparison::new(&Results {
        header,
        cells,
        ..Results::default()
    })
}

#[test]
fn fast12_says_what_is_written_of_it() {
    let fast12 = comparison("fast12");
    assert_eq!(fast12.rows.len(), 7 * 6 * 5);
    assert!(fast12.missing.is_empty());
    let nested = || fast12.rows.iter().filter(|row| row.baseline.is_some());
    assert!(nested().all(|row| row.verdict != Verdict::NoResult && row.failures.is_empty()));
    // What single comparisons say is no more than chance.
    let apart = nested().filter(|row| row.verdict != Verdict::NotApart);
    assert_eq!((apart.count(), nested().count()), (62, 175));
    let has = |sentence: &str| fast12.statements.iter().any(|one| one == sentence);
    assert!(has(
        "Were all equal, chance would tell 58 of them apart: with 2 repetitions, one of 3."
    ));
    // What the guests agree in is.
    assert!(has(
        "randwrite: on btrfs each of 7 guest file systems is slower than on the bare device in every repetition, 30 % to 67 %."
    ));
    let each_of = |sentence: &&String| sentence.contains(": on ") && sentence.contains("each of");
    assert_eq!(fast12.statements.iter().filter(each_of).count(), 1);
}
