//! Equal cells.

use super::{Page, apart, times};
use crate::lab::{comparison, results};

#[test]
fn what_is_said_of_equal_cells_is_in_their_files() {
    let (run, results) = (comparison("control"), results("control"));
    let runs = results.cells.iter().flat_map(|cell| &cell.runs);
    let (from, to, _) = times(runs.clone());
    let repeats = |workload: &str| {
        let rows = run
            .rows
            .iter()
            .filter(|row| row.workload.contains(workload));
        rows.filter(|row| apart(&row.values) <= 0.1).count()
    };
    assert_eq!(
        run.statements.last().unwrap(),
        "Of 36 pairs of cells that differ in nothing, 2 would be called different; 1.0 are expected by chance."
    );
    Page::read().check(&[
        format!("with nothing different between the two: {} runs from {from} to {to}. The report would call 2 of 36 pairs different; 1.0 are expected by chance", runs.count()),
        format!("{} of {} cells lie within ±10 % over all four repetitions (random reads {} of 24, random writes {}, mail servers {})", repeats(""), run.rows.len(), repeats("randread"), repeats("randwrite"), repeats("mailserver")),
    ]);
}
