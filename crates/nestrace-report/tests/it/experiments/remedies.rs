//! E1's largest effects with their causes removed.

use nestrace_report::lab::{Comparison, Row, Spread, Verdict};

use super::{Page, has_finding, part, percent, range, relative_word, spread};
use crate::lab::comparison;

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
fn the_table_of_remedies_is_that_of_the_cells() {
    let run = comparison("fast12-remedies");
    let mut text = String::from(
        "| guest | btrfs | + `nodatacow` | + all blocks | + both | ext2 | + all blocks |\n|---|---|---|---|---|---|---|\n",
    );
    for guest in GUESTS {
        let cells = COLUMNS.map(|column| relative_word(row(&run, guest, column)));
        text += &format!("| {guest} | {} |\n", cells.join(" | "));
    }
    part("fast12-remedies table", &text);
}

#[test]
fn what_is_said_of_the_remedies_is_in_their_files() {
    let run = comparison("fast12-remedies");
    let fires = |id: &str| {
        let rows = SLOWER.map(|guest| row(&run, guest, BOTH));
        rows.iter().filter(|row| has_finding(row, id)).count()
    };
    let jfs = |column: &str| percent(relative(row(&run, "jfs", column)));
    Page::read().check(&[
        format!("mail servers run at {} % instead of {} %", range(of(&run, &GUESTS, "ext2-preallocated")), range(of(&run, &GUESTS, "ext2-sparse"))),
        format!("the six slower guests run at {} % instead of {} %", range(of(&run, &SLOWER, BOTH)), range(of(&run, &SLOWER, "btrfs-sparse"))),
        format!("`journal-on-journal` fires in {} of the 6 that remain slower, `flush-amplification` in all {}", fires("journal-on-journal"), fires("flush-amplification")),
        format!("that is ext2 with all blocks, {} %", range(of(&run, &GUESTS, "ext2-preallocated"))),
        format!("**jfs does not lose on btrfs** ({} %)", jfs("btrfs-sparse")),
        format!("as on the bare device, too ({} %)", jfs(BOTH)),
    ]);
}

#[test]
fn what_is_said_of_gains_is_in_their_files() {
    let run = comparison("fast12-gains");
    let but_btrfs = &GUESTS[..6];
    let faster = but_btrfs
        .iter()
        .map(|guest| row(&run, guest, "btrfs-sparse"));
    let faster = faster.filter(|row| row.verdict == Verdict::Faster);
    assert_eq!(faster.count(), 6);
    Page::read().check(&[
        format!("six guests run at {} % of the bare disk with `nodatacow` and all blocks, and at {} % without", range(of(&run, but_btrfs, BOTH)), range(of(&run, but_btrfs, "btrfs-sparse"))),
    ]);
}
