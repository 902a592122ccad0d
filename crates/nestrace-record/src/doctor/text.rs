//! The report for a person.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nestrace_kernel::plan::ProbePlan;
use nestrace_trace::printable_lines;

use super::checks::{AS_ROOT, Check, State};
use super::{DoctorReport, QemuReport};

pub(super) fn write(report: &DoctorReport) -> String {
    let mut text = String::new();
    let verdict = match &report.obstacle {
        None => "Recording works here.".to_owned(),
        Some(obstacle) => format!("Recording cannot work here: {obstacle}."),
    };
    let facts = &report.facts;
    line(
        &mut text,
        format_args!("{verdict}\n\nKernel {} ({})", facts.release, facts.arch),
    );
    for check in &report.checks {
        write_check(&mut text, check);
    }
    if report
        .checks
        .iter()
        .any(|check| check.how.as_deref() == Some(AS_ROOT))
    {
        line(&mut text, format_args!("  For the rest, run: {AS_ROOT}"));
    }
    line(
        &mut text,
        format_args!("\nTracepoints: {}", summary(&report.probes)),
    );
    write_refused(&mut text, &report.probes);
    if report.qemu.is_empty() {
        line(
            &mut text,
            format_args!("\nQEMU: not running, and not installed in a usual place"),
        );
    }
    for qemu in &report.qemu {
        write_qemu(&mut text, qemu);
    }
    text
}

fn write_check(text: &mut String, check: &Check) {
    let state = match check.state {
        State::Ok => "ok",
        State::Required => "NEEDED",
        State::Missing => "missing",
        State::NotNeeded => "-",
        State::Unknown => "unknown",
    };
    line(
        text,
        format_args!("  {state:<8}{:<44}{}", check.what, check.detail),
    );
    let is_lack = matches!(check.state, State::Required | State::Missing);
    if let Some(cost) = check.cost.as_ref().filter(|_| is_lack) {
        line(text, format_args!("          loses:  {cost}"));
    }
    if let Some(how) = check.how.as_ref().filter(|_| is_lack) {
        line(text, format_args!("          get it: {how}"));
    }
}

fn write_qemu(text: &mut String, qemu: &QemuReport) {
    let who = match (qemu.pid, &qemu.guest) {
        (Some(pid), Some(guest)) => format!("guest {guest} (pid {pid}, {})", qemu.path),
        (Some(pid), None) => format!("pid {pid} ({})", qemu.path),
        (None, _) => format!("{} (installed, not running)", qemu.path),
    };
    line(
        text,
        format_args!("\nQEMU {who}: {}", summary(&qemu.probes)),
    );
    if let Some(problem) = &qemu.problem {
        line(text, format_args!("  failed to {problem}"));
    } else {
        write_refused(text, &qemu.probes);
    }
}

fn summary(plan: &ProbePlan) -> String {
    let (n, all) = (plan.attach.len(), plan.attach.len() + plan.refused.len());
    format!("{n} of {all} can be attached")
}

/// Refusals of one reason are one entry; where that one refuses everything, the names say nothing and
/// the checks have said what it costs.
fn write_refused(text: &mut String, plan: &ProbePlan) {
    let mut by_reason: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for probe in &plan.refused {
        by_reason.entry(&probe.reason).or_default().push(probe);
    }
    let is_all = plan.attach.is_empty() && by_reason.len() == 1;
    for (reason, probes) in by_reason {
        if is_all {
            line(text, format_args!("  missing all: {reason}"));
            continue;
        }
        let names: Vec<_> = probes.iter().map(|probe| probe.program).collect();
        line(
            text,
            format_args!("  missing {}: {reason}", names.join(", ")),
        );
        let mut costs: Vec<_> = probes.iter().map(|probe| probe.cost.as_str()).collect();
        costs.dedup();
        for cost in costs {
            line(text, format_args!("          loses:  {cost}"));
        }
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", printable_lines(&line.to_string()));
}
