//! E1's hosts that today's kernels lack.

use super::{Page, median, range, spread, times};
use crate::lab::results;

#[test]
fn what_is_said_of_three_cells_is_in_their_files() {
    let results = results("reiserfs-jfs");
    let runs = results
        .cells
        .iter()
        .flat_map(|cell| cell.runs.iter().chain(&cell.recorded));
    let (_, _, seconds) = times(runs.clone());
    let value = |host: &str| {
        let mut cells = results.cells.iter();
        let cell = cells.find(|cell| cell.word("host_fs") == host).unwrap();
        spread(cell.runs.iter().map(|run| run.value / 1024.0))
    };
    let bare = value("bd");
    let of_middle = [bare.min, bare.max].map(|value| value / median([bare.median]));
    Page::read().check(&[
        format!("{} runs of {} cells in {:.0} minutes", runs.count(), results.cells.len(), seconds as f64 / 60.0),
        format!("ext4 on jfs wrote {:.0} KiB/s at random, on reiserfs {:.0} KiB/s, on the bare device {:.0} KiB/s ({} % of it in its two runs)", value("jfs").median, value("reiserfs").median, bare.median, range(spread(of_middle))),
    ]);
}
