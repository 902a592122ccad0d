//! When things were queued and completed: lines that can be plotted, a height for each owner.

use nestrace_analyzer::analysis::{Active, BlockAnalysis};

use super::process_name;

/// How high a stretch is drawn, and how far completions lie above queueing.
const HEIGHT: f64 = 0.4;
const COMPLETIONS: f64 = 0.5;

pub(super) fn stretches(out: &mut String, blocks: &BlockAnalysis) {
    let start_ns = blocks.start_ns;
    let mut base = 0.0;
    out.push_str("# Total System\n");
    if owner(out, "Total System", &blocks.activity, start_ns, base) {
        base += 1.0;
    }
    if blocks.devices.len() > 1 {
        out.push_str("# Per device\n");
        for device in &blocks.devices {
            let (major, minor) = device.number;
            let title = format!("{major},{minor}");
            if owner(out, &title, &device.activity, start_ns, base) {
                base += 1.0;
            }
        }
    }
    out.push_str("# Per process\n");
    for process in &blocks.processes {
        let name = process_name(process);
        owner(out, &name, &process.activity, start_ns, base);
        base += 1.0;
    }
}

/// Whether there is anything.
fn owner(out: &mut String, title: &str, active: &Active, start_ns: u64, base: f64) -> bool {
    if active.queued.is_empty() && active.completed.is_empty() {
        return false;
    }
    out.push_str(&format!("# {title:>16} : q activity\n"));
    lines(out, &active.queued, start_ns, base);
    out.push_str(&format!("\n# {title:>16} : c activity\n"));
    lines(out, &active.completed, start_ns, base + COMPLETIONS);
    out.push('\n');
    true
}

/// A box for each stretch: up at its beginning, down at its end.
fn lines(out: &mut String, stretches: &[(u64, u64)], start_ns: u64, base: f64) {
    let top = base + HEIGHT;
    for (from_ns, to_ns) in stretches {
        for (ns, height) in [(from_ns, base), (from_ns, top), (to_ns, top), (to_ns, base)] {
            let seconds = super::seconds(ns.saturating_sub(start_ns));
            out.push_str(&format!("{seconds:>13} {height:5.1}\n"));
        }
    }
}
