//! A fleet's report for a terminal: 80 columns.

use nestrace_trace::printable;

use super::report::{FleetFinding, FleetReport};
use super::statements;
use crate::table::{Table, wrap};
use crate::units::{count, percent, time};

const WIDTH: usize = 80;
/// Findings with their advice.
const FIRST_ADVICE: usize = 5;
/// Rows of a table; all of them are in the JSON form.
const FIRST_ROWS: usize = 10;

/// The text.
#[must_use]
pub fn render(report: &FleetReport) -> String {
    let mut lines = wrap(
        &format!("{}: {}", report.data_set, statements::facts(report)),
        WIDTH,
        "",
    );
    lines.push(String::new());
    for line in statements::answer(report) {
        lines.extend(wrap(&line, WIDTH, ""));
    }
    section(
        &mut lines,
        "What would help most disks",
        &findings(report),
        Some(statements::OF_FINDINGS),
    );
    section(
        &mut lines,
        "Slower than their peers",
        &sentences(report.outliers.iter().map(statements::outlier)),
        Some(&statements::of_outliers()),
    );
    section(
        &mut lines,
        "What became slower",
        &sentences(report.changes.slower.iter().map(statements::slower)),
        Some(statements::OF_CHANGES),
    );
    section(
        &mut lines,
        "The worst disks",
        &lines_of(&worst_table(report, FIRST_ROWS)),
        Some(statements::OF_WORST),
    );
    section(
        &mut lines,
        "By what disks run on",
        &lines_of(&kinds_table(report, FIRST_ROWS)),
        Some(statements::OF_KINDS),
    );
    section(&mut lines, "Where the time goes", &segments(report), None);
    section(
        &mut lines,
        "Hosts that make guests wait",
        &lines_of(&hosts_table(report, FIRST_ROWS)),
        Some(statements::OF_HOSTS),
    );
    section(
        &mut lines,
        "What is missing",
        &sentences(statements::missing(report)),
        None,
    );
    // Names come from many hosts.
    lines.iter().map(|line| printable(line) + "\n").collect()
}

/// Nothing where there are no lines.
fn section(lines: &mut Vec<String>, title: &str, body: &[String], remark: Option<&str>) {
    if body.is_empty() {
        return;
    }
    lines.push(String::new());
    lines.push(title.to_owned());
    lines.extend(body.iter().cloned());
    if let Some(remark) = remark {
        lines.extend(wrap(remark, WIDTH, "  "));
    }
}

fn sentences(all: impl IntoIterator<Item = String>) -> Vec<String> {
    let all: Vec<String> = all.into_iter().collect();
    let first = all.iter().take(FIRST_ROWS);
    let mut lines: Vec<String> = first.flat_map(|one| wrap(one, WIDTH, "  ")).collect();
    if all.len() > FIRST_ROWS {
        lines.push(format!(
            "  {} more: see --format json",
            all.len() - FIRST_ROWS
        ));
    }
    lines
}

/// The lines of a table, if it has rows.
fn lines_of(table: &Table) -> Vec<String> {
    if table.is_empty() {
        Vec::new()
    } else {
        table.lines(WIDTH)
    }
}

/// What to do, and then how much there is of each.
fn findings(report: &FleetReport) -> Vec<String> {
    let mut helpful: Vec<&FleetFinding> = Vec::new();
    for one in report.findings.iter().filter(|one| statements::helps(one)) {
        // A rule is of several severities.
        if helpful.iter().all(|other| other.id != one.id) {
            helpful.push(one);
        }
    }
    let advice = helpful.into_iter().take(FIRST_ADVICE);
    let advice = advice.map(|one| format!("{}: {}", one.id, one.advice.join(" ")));
    let mut lines: Vec<String> = advice.flat_map(|line| wrap(&line, WIDTH, "  ")).collect();
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines.extend(lines_of(&findings_table(report, FIRST_ROWS)));
    lines
}

/// The findings as a table.
pub(crate) fn findings_table(report: &FleetReport, rows: usize) -> Table {
    let mut table = Table::new(&[
        "finding", "severity", "disks", "of all", "explains", "waited",
    ]);
    for one in report.findings.iter().take(rows) {
        table.row(vec![
            one.id.clone(),
            one.severity.clone(),
            count(one.disks),
            percent(one.share),
            one.time_share.map_or_else(|| String::from("–"), percent),
            one.waited_ns
                .map_or_else(|| String::from("–"), |ns| time(ns.max(0.0) as u64)),
        ]);
    }
    table
}

/// The worst disks as a table.
pub(crate) fn worst_table(report: &FleetReport, rows: usize) -> Table {
    let mut table = Table::new(&["disk", "op", "n", "mean", "p50", "p99", "p99.9"]);
    for one in report.worst_disks.iter().take(rows) {
        table.row(vec![
            format!("{}/{}/{}", one.host, one.guest, one.device),
            one.op.clone(),
            count(one.n),
            time(one.mean_ns as u64),
            time(one.p50_ns),
            time(one.p99_ns),
            time(one.p999_ns),
        ]);
    }
    table
}

/// The kinds of disks as a table.
pub(crate) fn kinds_table(report: &FleetReport, rows: usize) -> Table {
    let mut table = Table::new(&[
        "host kernel",
        "QEMU",
        "host fs",
        "cache",
        "bus",
        "op",
        "disks",
        "mean",
    ]);
    for one in report.kinds.iter().take(rows) {
        let kind = &one.kind;
        table.row(vec![
            kind.host_kernel.clone(),
            kind.qemu_version.clone(),
            kind.host_fs.clone(),
            kind.cache.clone(),
            kind.bus.clone(),
            one.op.clone(),
            count(one.disks),
            time(one.mean_ns as u64),
        ]);
    }
    table
}

fn segments(report: &FleetReport) -> Vec<String> {
    let mut table = Table::new(&["segment", "time", "share"]);
    for one in report.segments.iter().filter(|one| one.ns > 0) {
        table.row(vec![
            statements::segment(one),
            time(one.ns),
            percent(one.share),
        ]);
    }
    lines_of(&table)
}

/// The hosts as a table.
pub(crate) fn hosts_table(report: &FleetReport, rows: usize) -> Table {
    let mut table = Table::new(&[
        "host",
        "disks",
        "n",
        "waited",
        "on the host",
        "share",
        "amplification",
    ]);
    for one in report.noisy_hosts.iter().take(rows) {
        table.row(vec![
            one.host.clone(),
            count(one.disks),
            count(one.n),
            time(one.sum_ns),
            time(one.host_ns),
            percent(one.host_share),
            one.amplification
                .map_or_else(|| String::from("–"), |ratio| format!("{ratio:.2}")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::{DiskWait, LeftOut};
    use super::*;

    #[test]
    fn names_of_hosts_are_printable_and_lines_short() {
        let mut report = FleetReport {
            data_set: String::from("set"),
            recordings: 2,
            ..FleetReport::default()
        };
        report.worst_disks.push(DiskWait {
            host: format!("evil\u{1b}[31m{}", "x".repeat(100)),
            guest: String::from("vm"),
            device: String::from("vda"),
            op: String::from("read"),
            n: 5,
            p99_ns: 1_000_000,
            ..DiskWait::default()
        });
        report.n_left_out = 1;
        report.left_out.push(LeftOut {
            file: String::from("disks/a"),
            reason: String::from("is cut"),
        });
        let text = render(&report);
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.contains("disks/a: is cut"), "{text}");
        let tables = text.lines().filter(|line| line.starts_with("  "));
        assert!(tables.map(|line| line.chars().count()).max() <= Some(WIDTH));
    }
}
