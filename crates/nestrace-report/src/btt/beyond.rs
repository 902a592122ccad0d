//! What btt does not print: the parts without a column, so that the row adds up, and percentiles.

use nestrace_analyzer::Dist;
use nestrace_analyzer::analysis::{BlockAnalysis, Path};

use super::{name, seconds, section};

pub(super) fn parts(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Parts of Q2C (not in btt)");
    let mut lines = Vec::new();
    for device in blocks.devices.iter().filter(|device| !device.stacked) {
        let Some(stats) = device.device.stats.as_ref() else {
            continue;
        };
        let path = &stats.path_ns;
        if path.q2c == 0 {
            continue;
        }
        let parts = columns(path);
        if lines.is_empty() {
            let titles = parts.map(|(title, _)| format!("{title:>9}")).join(" ");
            lines.push(format!("{:>10} | {titles} {:>9}", "DEV", "SUM"));
            lines.push(format!("---------- |{}", " ---------".repeat(9)));
        }
        let share = |sum: u64| format!("{:8.4}%", 100.0 * sum as f64 / path.q2c as f64);
        let shares = parts.map(|(_, sum)| share(sum)).join(" ");
        let sum = parts.iter().map(|(_, sum)| sum).sum();
        lines.push(format!("{:>10} | {shares} {}", name(device), share(sum)));
    }
    lines.iter().for_each(|line| *out += &format!("{line}\n"));
    out.push('\n');
}

/// Each bio along the way of its last piece.
fn columns(path: &Path) -> [(&'static str, u64); 8] {
    [
        ("Q2G", path.q2g),
        ("G2I", path.g2i),
        ("G2D", path.g2d),
        ("Q2M", path.q2m),
        ("M2D", path.m2d),
        ("I2D", path.i2d),
        ("Q2D", path.q2d),
        ("D2C", path.d2c),
    ]
}

pub(super) fn percentiles(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Percentiles (not in btt)");
    out.push_str(&format!(
        "{:>15} {:>13} {:>13} {:>13} {:>13}\n",
        "ALL", "50 %", "90 %", "99 %", "99.9 %"
    ));
    out.push_str("--------------- ------------- ------------- ------------- -------------\n");
    let (q2q, parts) = (Some(blocks.all.q2q), &blocks.all.parts);
    let rows: [(&str, Option<Dist>); 9] = [
        ("Q2Q", q2q),
        ("Q2G", parts.q2g),
        ("G2I", parts.g2i),
        ("G2D", parts.g2d),
        ("Q2M", parts.q2m),
        ("I2D", parts.i2d),
        ("M2D", parts.m2d),
        ("D2C", parts.d2c),
        ("Q2C", parts.q2c),
    ];
    for (title, dist) in rows {
        let Some(dist) = dist.filter(|dist| dist.n > 0) else {
            continue;
        };
        let values = [dist.p50, dist.p90, dist.p99, dist.p999];
        let values = values.map(|value| format!("{:>13}", seconds(value.unwrap_or(0))));
        out.push_str(&format!("{title:<15} {}\n", values.join(" ")));
    }
    out.push('\n');
}
