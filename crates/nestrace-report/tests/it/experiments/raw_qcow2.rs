//! E2.

use super::{Page, of_statement, of_the_run};
use crate::lab::{comparison, results};

#[test]
fn what_is_said_of_e2_is_in_its_files() {
    let (run, results) = (comparison("raw-qcow2"), results("raw-qcow2"));
    let mut sentences = of_the_run(&run, &results, "hdd-7200", 5);
    sentences.extend(run.published.iter().take(8).map(of_statement));
    Page::read().check(&sentences);
}
