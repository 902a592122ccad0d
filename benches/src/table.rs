//! Figures as the Markdown of `benches/RESULTS.md`.

use super::contestant::Contestant;
use super::figures::{Figures, Spread};
use super::phase::ProbeCost;

const HEAD: &str = "\
| recorder | IOPS | IOPS lost | p99 µs | CPU µs per I/O | added | its own process | events/s | lost | bytes/event | memory |
|---|---|---|---|---|---|---|---|---|---|---|
";

/// A table of one load.
pub fn markdown(figures: &[Figures]) -> String {
    let rows: String = figures.iter().map(row).collect();
    format!("{HEAD}{rows}")
}

fn row(figures: &Figures) -> String {
    let iops = format!("{:.1} k", figures.iops.median / 1e3);
    let name = figures.contestant.name();
    let (p99, cpu) = (figures.p99_us.median, figures.cpu_us.median);
    if figures.contestant == Contestant::Untraced {
        return format!("| {name} | {iops} | | {p99:.0} | {cpu:.2} | | | | | | |\n");
    }
    let cost = format!(
        "| {name} | {iops} | {} | {p99:.0} | {cpu:.2} | {} | {:.2} |",
        percent(figures.iops_lost),
        micros(figures.cpu_added_us),
        figures.own_us.median,
    );
    let Some(trace) = &figures.trace else {
        return format!("{cost} | | | |\n");
    };
    let lost = match trace.lost {
        0 => "0".to_owned(),
        lost => {
            let share = lost as f64 / (lost + trace.events) as f64;
            format!("{lost} ({:.1} %)", share * 100.0)
        }
    };
    format!(
        "{cost} {} | {lost} | {:.1} | {:.0} MiB |\n",
        rate(trace.events_per_s.median),
        trace.bytes_per_event.median,
        trace.peak_resident_bytes as f64 / f64::from(1 << 20),
    )
}

/// What the probes alone take.
pub fn probe_line(cost: &ProbeCost) -> String {
    format!(
        "Probes of {}: {:.2} µs per I/O in {:.1} runs, {:.0} ns each.",
        cost.contestant.name(),
        cost.us_per_io,
        cost.runs_per_io,
        cost.us_per_io * 1e3 / cost.runs_per_io
    )
}

fn rate(per_s: f64) -> String {
    format!("{:.0} k", per_s / 1e3)
}

fn percent(spread: Spread) -> String {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(|share| share * 100.0);
    format!("**{median:.1} %** ({min:.1} … {max:.1})")
}

fn micros(spread: Spread) -> String {
    format!(
        "**{:.2}** ({:.2} … {:.2})",
        spread.median, spread.min, spread.max
    )
}
