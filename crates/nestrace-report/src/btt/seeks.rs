//! Distances between neighbours in time.
//!
//! btt counts the first I/O as a seek from sector 0, so that is added here to what `devices[]` has. The
//! median is the true one.

use std::collections::BTreeMap;

use nestrace_analyzer::analysis::{BlockAnalysis, BlockDevice, FirstSeek, Modes, Seek};

use super::{name, section};

/// Where the order of I/Os is looked at.
#[derive(Clone, Copy)]
pub(super) enum At {
    /// Q.
    Queue,
    /// D.
    Issue,
}

/// A device's seeks as btt counts them.
struct Seeks {
    n: u64,
    sum: u64,
    median: u64,
    modes: Modes,
}

impl Seeks {
    fn of(device: &BlockDevice, at: At) -> Option<Self> {
        let of_device = &device.device.seek_sectors;
        let (seek, first) = match at {
            At::Queue => (&of_device.q2q, device.first_seek.q2q),
            At::Issue => (&of_device.d2d, device.first_seek.d2d),
        };
        let (seek, first): (&Seek, FirstSeek) = (seek.as_ref()?, first?);
        Some(Self {
            n: seek.n + 1,
            sum: seek.sum + first.distance,
            median: first.median,
            modes: with_first(&seek.modes, first.distance),
        })
    }
}

/// The first distance may be the one that makes a mode.
fn with_first(modes: &Modes, first: u64) -> Modes {
    let mut modes = modes.clone();
    if modes.values.contains(&first) {
        modes.count += 1;
        modes.n = 1;
        modes.values = vec![first];
    } else if modes.count <= 1 {
        modes.count = 1;
        modes.n += 1;
        modes.values.push(first);
        modes.values.sort_unstable();
    }
    modes
}

const LINE: &str =
    "---------- | --------------- --------------- --------------- | ---------------\n";

fn head(out: &mut String, title: &str) {
    out.push_str(&format!(
        "{title:>10} | {:>15} {:>15} {:>15} | {:<15}\n",
        "NSEEKS", "MEAN", "MEDIAN", "MODE"
    ));
}

/// Says how many modes are not shown.
fn more(out: &mut String, n: u64) {
    out.push_str(&format!("\n{:63}...({n} more)\n", ""));
}

pub(super) fn seeks(out: &mut String, blocks: &BlockAnalysis, at: At) {
    section(
        out,
        match at {
            At::Queue => "Device Q2Q Seek Information",
            At::Issue => "Device D2D Seek Information",
        },
    );
    head(out, "DEV");
    out.push_str(LINE);
    let (mut n, mut sum, mut medians) = (0, 0, 0);
    let mut all_modes = BTreeMap::<u64, u64>::new();
    for device in &blocks.devices {
        let Some(seeks) = Seeks::of(device, at) else {
            continue;
        };
        let modes = &seeks.modes;
        let first = modes.values.first().copied().unwrap_or(0);
        out.push_str(&format!(
            "{:>10} | {:15} {:15.1} {:15} | {first}({})",
            name(device),
            seeks.n,
            seeks.sum as f64 / seeks.n as f64,
            seeks.median,
            modes.count
        ));
        match modes.n {
            3.. => more(out, modes.n - 1),
            _ => {
                let others = modes.values.iter().skip(1);
                others.for_each(|mode| out.push_str(&format!(" {mode}")));
                out.push('\n');
            }
        }
        n += seeks.n;
        sum += seeks.sum;
        medians += u128::from(seeks.n) * u128::from(seeks.median);
        for mode in &modes.values {
            *all_modes.entry(*mode).or_default() += modes.count;
        }
    }
    if n > 0 {
        out.push_str(LINE);
        head(out, "Overall");
        overall(out, (n, sum, medians), &all_modes);
    }
    out.push('\n');
}

/// Of all devices: the mean, the mean of the medians, and the most frequent of the modes.
fn overall(out: &mut String, (n, sum, medians): (u64, u64, u128), modes: &BTreeMap<u64, u64>) {
    let most = modes.values().copied().max().unwrap_or(0);
    let mut best = modes.iter().filter(|(_, count)| **count == most);
    let first = best.next().map_or(0, |(mode, _)| *mode);
    out.push_str(&format!(
        "{:>10} | {n:15} {:15.1} {:15} | {first}({most})",
        "Average",
        sum as f64 / n as f64,
        medians / u128::from(n)
    ));
    match best.count() {
        0 => {}
        others => more(out, others as u64),
    }
    out.push('\n');
}
