//! Rows as a table for a terminal.

use crate::interval::Latency;
use crate::rows::{Layer, Row};

/// Of latencies, what a column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The mean.
    Mean,
    /// The 99th percentile.
    P99,
}

/// Columns of a table, without the name: heading and width.
const COLUMNS: [(&str, usize); 11] = [
    ("r/s", 5),
    ("w/s", 5),
    ("f/s", 5),
    ("MiB/s", 6),
    ("guest", 7),
    ("qemu", 7),
    ("file_io", 7),
    ("queue", 7),
    ("device", 7),
    ("inflt", 5),
    ("oldest", 7),
];
/// What a column of names has at least.
const MIN_NAME: usize = 9;

/// The tables of disks and devices, for a terminal of this width. Names are others': the caller has made them printable.
///
/// A layer that no row has recorded has no column.
#[must_use]
pub fn tables(disks: &[Row], devices: &[Row], statistic: Statistic, width: usize) -> String {
    let mut text = String::new();
    for (title, rows) in [("guest disk", disks), ("device", devices)] {
        if !rows.is_empty() {
            text.push_str(&table(title, rows, statistic, width));
        }
    }
    text
}

fn table(title: &str, rows: &[Row], statistic: Statistic, width: usize) -> String {
    let is_shown = |column: usize| {
        let layer = column.checked_sub(4).and_then(|at| Layer::ALL.get(at));
        let is_recorded =
            |row: &Row, layer: Layer| row.layers.get(layer as usize).is_some_and(Option::is_some);
        layer.is_none_or(|layer| rows.iter().any(|row| is_recorded(row, *layer)))
    };
    let shown: Vec<usize> = (0..COLUMNS.len()).filter(|at| is_shown(*at)).collect();
    let widths: usize = shown
        .iter()
        .filter_map(|at| COLUMNS.get(*at))
        .map(|(_, width)| width + 1)
        .sum();
    let longest = rows.iter().map(|row| name(row).chars().count()).max();
    let longest = longest.unwrap_or(0).max(title.len()).max(MIN_NAME);
    let name_width = longest.min(width.saturating_sub(widths).max(MIN_NAME));
    let mut text = cut(title, name_width);
    for (heading, width) in shown.iter().filter_map(|at| COLUMNS.get(*at)) {
        text.push_str(&format!(" {heading:>width$}"));
    }
    text.push('\n');
    for row in rows {
        text.push_str(&cut(&name(row), name_width));
        let cells = cells(row, statistic);
        for at in &shown {
            if let (Some(cell), Some((_, width))) = (cells.get(*at), COLUMNS.get(*at)) {
                text.push_str(&format!(" {cell:>width$}"));
            }
        }
        text.push('\n');
    }
    text
}

/// The name of a row: `GUEST/DISK`, or a device's own. It is others': the caller makes it printable.
#[must_use]
pub fn name(row: &Row) -> String {
    match row.subject.guest.as_str() {
        "" => row.subject.name.clone(),
        guest => format!("{guest}/{}", row.subject.name),
    }
}

/// A name in just this width; one that is longer ends with `…`.
#[must_use]
pub fn cut(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return format!("{name:width$}");
    }
    let kept: String = name.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

fn cells(row: &Row, statistic: Statistic) -> [String; 11] {
    let [guest, qemu, file_io, host_queue, device] =
        Layer::ALL.map(|layer| latency(row.latency(layer), statistic));
    [
        rate(row.reads),
        rate(row.writes),
        rate(row.flushes),
        format!("{:.1}", row.bytes / f64::from(1 << 20)),
        guest,
        qemu,
        file_io,
        host_queue,
        device,
        row.in_flight.map_or("?".to_owned(), |n| n.to_string()),
        #[expect(clippy::cast_precision_loss)]
        row.oldest_ns.map_or_else(String::new, |ns| time(ns as f64)),
    ]
}

/// In five places: `9999`, `123k`.
#[must_use]
pub fn rate(rate: f64) -> String {
    if rate >= 10_000.0 {
        format!("{:.0}k", rate / 1000.0)
    } else {
        format!("{rate:.0}")
    }
}

/// `?` where the layer is not recorded, nothing where no request ended.
#[must_use]
pub fn latency(latency: Option<Latency>, statistic: Statistic) -> String {
    let Some(latency) = latency else {
        return "?".to_owned();
    };
    // Nanoseconds of a century need no more than 53 bits.
    #[expect(clippy::cast_precision_loss)]
    let ns = match statistic {
        Statistic::Mean => latency.mean,
        Statistic::P99 => latency.p99.map(|ns| ns as f64),
    };
    ns.map_or_else(String::new, time)
}

/// With three digits: `7.42 µs`, `182 µs`, `1.75 ms`.
#[must_use]
pub fn time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let (scale, unit) = units
        .into_iter()
        .find(|(scale, _)| ns >= *scale)
        .unwrap_or((1.0, "ns"));
    let value = ns / scale;
    let digits = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use nestrace_abi::histogram::{BUCKETS, bucket_of};

    use super::*;
    use crate::rows::Subject;
    use crate::snapshot::LayerSums;

    fn sums(ns: u64) -> Option<LayerSums> {
        let mut buckets = vec![0; BUCKETS];
        buckets[bucket_of(ns)] = 1;
        Some(LayerSums {
            n: 1,
            sum_ns: ns,
            max_ns: Some(ns),
            buckets,
        })
    }

    fn disk(guest: &str) -> Row {
        Row {
            subject: Subject {
                guest: guest.to_owned(),
                uuid: None,
                name: "vda".to_owned(),
            },
            reads: 1234.0,
            writes: 123_456.0,
            bytes: f64::from(5 << 20),
            layers: [None, sums(1_750_000), sums(182_400), None, sums(7_420)],
            in_flight: Some(3),
            oldest_ns: Some(41_000_000_000),
            ..Row::default()
        }
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let rows = [disk("vm1"), disk("a-guest-with-a-rather-long-name")];
        for width in [80, 200] {
            let text = tables(&rows, &[], Statistic::Mean, width);
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest.unwrap() <= width, "{width}:\n{text}");
        }
        let text = tables(&rows[..1], &[], Statistic::Mean, 80);
        let expected = "\
guest disk   r/s   w/s   f/s  MiB/s    qemu file_io  device inflt  oldest
vm1/vda     1234  123k     0    5.0 1.75 ms  182 µs 7.42 µs     3  41.0 s
";
        assert_eq!(text, expected);
    }
}
