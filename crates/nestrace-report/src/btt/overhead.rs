//! Which share of Q2C each part has.

use nestrace_analyzer::Dist;
use nestrace_analyzer::analysis::BlockAnalysis;

use super::{name, section};

/// The columns of btt: G2D and M2D are in none.
const COLUMNS: [&str; 5] = ["Q2G", "G2I", "Q2M", "I2D", "D2C"];

const LINE: &str = "---------- | --------- --------- --------- --------- ---------\n";

fn row(out: &mut String, title: &str, sums: [u64; 5], q2c: u64) {
    let share = |sum: u64| format!("{:8.4}%", 100.0 * sum as f64 / q2c as f64);
    let shares = sums.map(share).join(" ");
    out.push_str(&format!("{title:>10} | {shares}\n"));
}

pub(super) fn overhead(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Device Overhead");
    let titles = COLUMNS.map(|title| format!("{title:>9}")).join(" ");
    out.push_str(&format!("{:>10} | {titles}\n{LINE}", "DEV"));
    let (mut all, mut all_q2c) = ([0; 5], 0);
    for device in &blocks.devices {
        let parts = &device.device.latency_ns.all;
        let sum = |dist: Option<Dist>| dist.map_or(0, |dist| dist.sum);
        let q2c = sum(parts.q2c);
        if device.stacked || q2c == 0 {
            continue;
        }
        let shown = [parts.q2g, parts.g2i, parts.q2m, parts.i2d, parts.d2c].map(sum);
        row(out, &name(device), shown, q2c);
        all.iter_mut().zip(shown).for_each(|(all, sum)| *all += sum);
        all_q2c += q2c;
    }
    if all_q2c > 0 {
        out.push_str(LINE);
        row(out, "Overall", all, all_q2c);
    }
    out.push('\n');
}
