//! How a guest runs sysbench, whatever its test.

use super::workload::RESULT;

/// The program.
pub const PROGRAM: &str = "sysbench";

/// Shell that runs a command line of it. What goes wrong it says on stdout.
pub(super) fn run(command: &str) -> String {
    format!("{{ {command} > {RESULT} || {{ cat {RESULT} >&2; exit 1; }}; }}")
}

/// Shell that does `first`, then a run of `warm_up` seconds that do not count, then one of `seconds` that do; `timed`
/// gives the command line of a run of so many seconds.
pub(super) fn measure(
    first: String,
    warm_up: u32,
    seconds: u32,
    timed: impl Fn(u32) -> String,
) -> String {
    let warm_up = (warm_up > 0).then_some(warm_up);
    let runs = warm_up.into_iter().chain([seconds]);
    let runs = runs.map(|seconds| run(&timed(seconds)));
    let lines: Vec<String> = [first].into_iter().chain(runs).collect();
    lines.join(" &&\n")
}
