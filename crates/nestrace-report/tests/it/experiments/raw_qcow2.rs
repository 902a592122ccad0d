//! E2.

use super::{Page, apart, times};
use crate::lab::{comparison, results};

#[test]
fn what_is_said_of_e2_is_in_its_files() {
    let (run, results) = (comparison("raw-qcow2"), results("raw-qcow2"));
    let all = || {
        let cells = results.cells.iter();
        cells.flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
    };
    let (from, to, _) = times(all());
    let near = run.rows.iter().filter(|row| apart(&row.values) <= 0.1);
    let mut sentences = vec![
        format!(
            "{} cells on `hdd-7200`, 5 repetitions and a recording of each: {} runs from {from} to {to}",
            run.rows.len(),
            all().count()
        ),
        format!(
            "{} of {} cells lie within ±10 %",
            near.count(),
            run.rows.len()
        ),
    ];
    for one in run.published.iter().take(8) {
        let before = |text: &str, end: &str| text.split(end).next().unwrap_or_default().to_owned();
        sentences.push(format!(
            "| {} | {} | {}) | {} |",
            one.what,
            before(&one.published, " ("),
            before(one.ours.as_deref().unwrap_or_default(), ","),
            one.judgement.unwrap().words()
        ));
    }
    Page::read().check(&sentences);
}
