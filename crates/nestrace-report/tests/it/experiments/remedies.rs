//! E1's largest effects with their causes removed.

use nestrace_report::lab::{Comparison, Row, Spread, Verdict};

use super::{Page, apart, has_finding, percent, range, relative_word, spread, times};
use crate::lab::{comparison, results};

const GUESTS: [&str; 7] = ["ext2", "ext3", "ext4", "reiserfs", "xfs", "jfs", "btrfs"];
/// Guests that lose on btrfs: all but jfs, which sends no flush.
const SLOWER: [&str; 6] = ["ext2", "ext3", "ext4", "reiserfs", "xfs", "btrfs"];
/// What follows `GUEST-on-`, in the order of the table.
const COLUMNS: [&str; 6] = [
    "btrfs-sparse",
    "btrfs-sparse-host-nodatacow",
    "btrfs-preallocated",
    BOTH,
    "ext2-sparse",
    "ext2-preallocated",
];
const BOTH: &str = "btrfs-preallocated-host-nodatacow";

fn row<'c>(run: &'c Comparison, guest: &str, column: &str) -> &'c Row {
    run.row(&format!("{guest}-on-{column}")).expect("a cell")
}

fn relative(row: &Row) -> f64 {
    row.relative.expect("it has a result").median
}

fn of(run: &Comparison, guests: &[&str], column: &str) -> Spread {
    spread(guests.iter().map(|guest| relative(row(run, guest, column))))
}

#[test]
fn every_row_of_the_table_is_that_of_its_cells() {
    let run = comparison("fast12-remedies");
    let lines = GUESTS.map(|guest| {
        let cells = COLUMNS.map(|column| relative_word(row(&run, guest, column)));
        format!("| {guest} | {} |", cells.join(" | "))
    });
    Page::read().check(&[lines.join("\n")]);
}

#[test]
fn what_is_said_of_the_remedies_is_in_their_files() {
    let (run, results) = (comparison("fast12-remedies"), results("fast12-remedies"));
    let all = || {
        let cells = results.cells.iter();
        cells.flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
    };
    let (from, to, _) = times(all());
    let repeats = run.rows.iter().filter(|row| apart(&row.values) <= 0.1);
    let fires = |id: &str| {
        let rows = SLOWER.map(|guest| row(&run, guest, BOTH));
        rows.iter().filter(|row| has_finding(row, id)).count()
    };
    let jfs = |column: &str| percent(relative(row(&run, "jfs", column)));
    Page::read().check(&[
        format!("{} cells on the same modelled disk, 4 repetitions of each and one that is recorded: {} runs from {from} to {to}. {} of {} cells lie within ±10 % over all repetitions", run.rows.len(), all().count(), repeats.count(), run.rows.len()),
        format!("mail servers run at {} % instead of {} %", range(of(&run, &GUESTS, "ext2-preallocated")), range(of(&run, &GUESTS, "ext2-sparse"))),
        format!("the six slower guests run at {} % instead of {} %", range(of(&run, &SLOWER, BOTH)), range(of(&run, &SLOWER, "btrfs-sparse"))),
        format!("`journal-on-journal` fires in {} of the 6 that remain slower, `flush-amplification` in all {}", fires("journal-on-journal"), fires("flush-amplification")),
        format!("that is ext2 with all blocks, {} %", range(of(&run, &GUESTS, "ext2-preallocated"))),
        format!("**jfs gains on btrfs** ({} %)", jfs("btrfs-sparse")),
        format!("as on the bare device ({} %)", jfs(BOTH)),
    ]);
}

#[test]
fn what_is_said_of_gains_is_in_their_files() {
    let (run, results) = (comparison("fast12-gains"), results("fast12-gains"));
    let all = || {
        let cells = results.cells.iter();
        cells.flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
    };
    let (from, to, _) = times(all());
    let but_btrfs = &GUESTS[..6];
    let faster = but_btrfs
        .iter()
        .map(|guest| row(&run, guest, "btrfs-sparse"));
    let faster = faster.filter(|row| row.verdict == Verdict::Faster);
    assert_eq!(faster.count(), 6);
    Page::read().check(&[
        format!("{} cells, {} runs from {from} to {to})", run.rows.len(), all().count()),
        format!("six guests run at {} % of the bare disk with `nodatacow` and all blocks, and at {} % without", range(of(&run, but_btrfs, BOTH)), range(of(&run, but_btrfs, "btrfs-sparse"))),
    ]);
}
