//! Tables with a row for each device.

use nestrace_analyzer::Dist;
use nestrace_analyzer::analysis::{ActivePeriods, BlockAnalysis, BlockDevice, Q2d, Stats};

use super::{name, section};

/// Devices with more than whole requests recorded.
fn with_stats(blocks: &BlockAnalysis) -> impl Iterator<Item = (&BlockDevice, &Stats)> {
    let devices = blocks.devices.iter();
    devices.filter_map(|device| Some((device, device.device.stats.as_ref()?)))
}

/// What the merge table shows of a device, or of all.
#[derive(Clone, Copy, Default)]
struct Merges {
    queued: u64,
    issued: u64,
    sectors: Dist,
}

impl Merges {
    /// Bios, pieces of split ones and requests that were put back, against requests.
    fn of(device: &BlockDevice, stats: &Stats) -> Self {
        let counts = &device.device.counts;
        let of = |count: Option<u64>| count.unwrap_or(0);
        Self {
            queued: of(counts.queued) + of(counts.splits) + of(counts.requeues),
            issued: counts.issued,
            sectors: stats.request_sectors.completed,
        }
    }

    fn row(&self, out: &mut String, title: &str) {
        let ratio = (self.queued as f64 / self.issued as f64).max(1.0);
        out.push_str(&format!(
            "{title:>10} | {:8} {:8} {ratio:7.1} | {:8} {:8} {:8} {:8}\n",
            self.queued.max(self.issued),
            self.issued,
            self.sectors.min.unwrap_or(0),
            self.sectors.sum / self.issued,
            self.sectors.max.unwrap_or(0),
            self.sectors.sum
        ));
    }
}

pub(super) fn merges(out: &mut String, blocks: &BlockAnalysis) {
    const LINE: &str =
        "---------- | -------- -------- ------- | -------- -------- -------- --------\n";
    let head = |out: &mut String| {
        out.push_str(&format!(
            "{:>10} | {:>8} {:>8} {:>7} | {:>8} {:>8} {:>8} {:>8}\n",
            "DEV", "#Q", "#D", "Ratio", "BLKmin", "BLKavg", "BLKmax", "Total"
        ));
    };
    section(out, "Device Merge Information");
    head(out);
    out.push_str(LINE);
    let mut all = Merges::default();
    let mut rows = 0;
    for (device, stats) in with_stats(blocks) {
        let merges = Merges::of(device, stats);
        if merges.queued == 0 || merges.issued == 0 {
            continue;
        }
        merges.row(out, &name(device));
        rows += 1;
        all.queued += merges.queued.max(merges.issued);
        all.issued += merges.issued;
        all.sectors.sum += merges.sectors.sum;
        let least = [all.sectors.min, merges.sectors.min];
        all.sectors.min = least.into_iter().flatten().min();
        all.sectors.max = all.sectors.max.max(merges.sectors.max);
    }
    if rows > 1 {
        out.push_str(LINE);
        head(out);
        all.row(out, "TOTAL");
    }
    out.push('\n');
}

pub(super) fn plugs(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Plug Information");
    plugged(out, blocks);
    out.push_str(&format!(
        "{:>10} | {:>10}   {:>10}\n---------- | ----------   ----------\n",
        "DEV", "IOs/Unp", "IOs/Unp(to)"
    ));
    let (mut all, mut all_timer) = ((0, 0.0), (0, 0.0));
    for (device, stats) in with_stats(blocks) {
        let plug = &stats.plug;
        let each = plug.requests_per_unplug.unwrap_or(0.0);
        let each_timer = plug.requests_per_timer_unplug.unwrap_or(0.0);
        let title = name(device);
        out.push_str(&format!("{title:>10} | {each:10.1}   {each_timer:10.1}\n"));
        for (all, n, each) in [
            (&mut all, plug.unplugs, each),
            (&mut all_timer, plug.timer_unplugs, each_timer),
        ] {
            if each > 0.0 {
                all.0 += n;
                all.1 += n as f64 * each;
            }
        }
    }
    if all.0 + all_timer.0 > 0 {
        let mean = |(n, sum): (u64, f64)| if n > 0 { sum / n as f64 } else { 0.0 };
        out.push_str(&format!(
            "---------- | ----------   ----------\n{:>10} | {:>10}   {:>10}\n",
            "Overall", "IOs/Unp", "IOs/Unp(to)"
        ));
        let (mean, mean_timer) = (mean(all), mean(all_timer));
        out.push_str(&format!(
            "{:>10} | {mean:10.1}   {mean_timer:10.1}\n",
            "Average"
        ));
    }
    out.push('\n');
}

/// How often and how long queues were plugged.
fn plugged(out: &mut String, blocks: &BlockAnalysis) {
    const LINE: &str = "---------- | ---------- ----------  | ----------------\n";
    let head = |out: &mut String, title: &str| {
        out.push_str(&format!(
            "{title:>10} | {:>10} {:>10}  | % Time Q Plugged\n",
            "# Plugs", "# Timer Us"
        ));
    };
    head(out, "DEV");
    out.push_str(LINE);
    let (mut rows, mut sums, mut shares) = (0, (0, 0), 0.0);
    for (device, stats) in with_stats(blocks) {
        let plug = &stats.plug;
        let (by_thread, by_timer) = (plug.unplugs, plug.timer_unplugs);
        if by_thread + by_timer == 0 {
            continue;
        }
        let share = 100.0 * plug.plugged_share.unwrap_or(0.0);
        let title = name(device);
        out.push_str(&format!(
            "{title:>10} | {by_thread:10}({by_timer:10}) | {share:13.9}%\n"
        ));
        rows += 1;
        sums = (sums.0 + by_thread, sums.1 + by_timer);
        shares += share;
    }
    if rows > 1 {
        out.push_str(LINE);
        head(out, "Overall");
        out.push_str(&format!(
            "{:>10} | {:10}({:10}) | {:13.9}%\n",
            "Average",
            sums.0 / rows,
            sums.1 / rows,
            shares / rows as f64
        ));
    }
    out.push('\n');
}

pub(super) fn at_queue(out: &mut String, blocks: &BlockAnalysis) {
    const LINE: &str = "---------- | -------------\n";
    section(out, "Active Requests At Q Information");
    out.push_str(&format!("{:>10} | {:>13}\n{LINE}", "DEV", "Avg Reqs @ Q"));
    let (mut rows, mut n, mut sum) = (0, 0, 0.0);
    for (device, stats) in with_stats(blocks).filter(|(device, _)| !device.stacked) {
        if let Some(mean) = stats.at_queue.mean {
            out.push_str(&format!("{:>10} | {mean:13.1}\n", name(device)));
            rows += 1;
            n += stats.at_queue.n;
            sum += mean * stats.at_queue.n as f64;
        }
    }
    if rows > 1 {
        out.push_str(LINE);
        out.push_str(&format!("{:>10} | {:>13}\n", "Overall", "Avgs Reqs @ Q"));
        out.push_str(&format!("{:>10} | {:13.1}\n", "Average", sum / n as f64));
    }
    out.push('\n');
}

pub(super) fn active_periods(out: &mut String, blocks: &BlockAnalysis) {
    const LINE: &str = "---------- | ---------- ------------- ------------- ------\n";
    section(out, "I/O Active Period Information");
    out.push_str(&format!(
        "{:>10} | {:>10} {:>13} {:>13} {:>6}\n{LINE}",
        "DEV", "# Live", "Avg. Act", "Avg. !Act", "% Live"
    ));
    let row = |out: &mut String, title: &str, active: &ActivePeriods| {
        let seconds = |ns: Option<f64>| ns.unwrap_or(0.0) / 1e9;
        out.push_str(&format!(
            "{title:>10} | {:10} {:13.9} {:13.9} {:6.2}\n",
            active.n,
            seconds(active.mean_active_ns),
            seconds(active.mean_idle_ns),
            100.0 * active.active_share.unwrap_or(0.0)
        ));
    };
    for (device, stats) in with_stats(blocks) {
        row(out, &name(device), &stats.active);
    }
    out.push_str(LINE);
    row(out, "Total Sys", &blocks.active);
    out.push('\n');
}

pub(super) fn q2d(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Q2D Histogram");
    let limits: Vec<String> = Q2d::LIMITS_MS
        .iter()
        .map(|ms| match ms {
            1000 => String::from("< 1.0"),
            _ => format!("<.{ms:03}"),
        })
        .chain([String::from(">=1.0")])
        .collect();
    let line = "===== ".repeat(limits.len());
    // The space in front of the second line is btt's.
    out.push_str(&format!(
        "{:>10} | {}\n --------- | {line}\n",
        "DEV",
        limits.join(" ")
    ));
    let row = |out: &mut String, title: &str, below: &[u64]| {
        let n: u64 = below.iter().sum();
        out.push_str(&format!("{title:>10} | "));
        for count in below {
            out.push_str(&format!("{:5.1} ", 100.0 * *count as f64 / n as f64));
        }
        out.push('\n');
    };
    let mut all = [0; 10];
    for (device, stats) in with_stats(blocks).filter(|(_, stats)| stats.q2d.ns.n > 0) {
        let below = &stats.q2d.below_ms;
        row(out, &name(device), below);
        all.iter_mut().zip(below).for_each(|(all, n)| *all += n);
    }
    if all.iter().any(|n| *n > 0) {
        out.push_str(&format!("========== | {line}\n"));
        row(out, "AVG", &all);
        out.push('\n');
    }
}
