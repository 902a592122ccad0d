//! Histograms and values as heights of columns.

use nestrace_sums::histogram::{BUCKET_BITS, bucket_of};
use nestrace_sums::snapshot::LayerSums;

/// Columns of a histogram: 20 powers of two from 1,024 ns on, a column for each quarter of one.
pub const COLUMNS: usize = 80;
/// Buckets of a column.
const PER_COLUMN: usize = 1 << (BUCKET_BITS - 2);
/// Heights that a cell can show.
const EIGHTHS: u64 = 8;

/// Requests in each column. The first has what is shorter too, the last what is longer. With less room than [`COLUMNS`], a column
/// is twice as wide.
#[must_use]
pub fn histogram(sums: &LayerSums, width: usize) -> Vec<u64> {
    let per_column = per_column(width);
    let mut columns = vec![0; COLUMNS * PER_COLUMN / per_column];
    let last = columns.len().saturating_sub(1);
    for (bucket, n) in sums.buckets.iter().enumerate() {
        let column = (bucket.saturating_sub(1) / per_column).min(last);
        if let Some(column) = columns.get_mut(column) {
            *column += n;
        }
    }
    columns
}

fn per_column(width: usize) -> usize {
    match width >= COLUMNS {
        true => PER_COLUMN,
        false => 2 * PER_COLUMN,
    }
}

/// The line below a histogram: each label begins at its latency. With less room labels have no space before their unit, and
/// one that would touch the label before it is left out.
#[must_use]
pub fn axis(width: usize) -> String {
    let per_column = per_column(width);
    let end = COLUMNS * PER_COLUMN / per_column;
    let at = |ns: u64| bucket_of(ns).saturating_sub(1) / per_column;
    let labels = [
        ("1 µs", 0),
        ("10 µs", at(10_000)),
        ("100 µs", at(100_000)),
        ("1 ms", at(1_000_000)),
        ("10 ms", at(10_000_000)),
        ("100 ms", at(100_000_000)),
        ("1 s", end.saturating_sub("1 s".len())),
    ];
    let mut line = String::new();
    for (label, column) in labels {
        let label = match width >= COLUMNS {
            true => label.to_owned(),
            false => label.replace(' ', ""),
        };
        let used = line.chars().count();
        if used == 0 || column > used {
            line.push_str(&" ".repeat(column.saturating_sub(used)));
            line.push_str(&label);
        }
    }
    let used = line.chars().count();
    line.push_str(&" ".repeat(end.saturating_sub(used)));
    line
}

/// Heights in eighths of a cell for so many lines: the largest value fills them, and what is not 0 is seen.
#[must_use]
pub fn heights(values: &[u64], lines: u16) -> Vec<u64> {
    let full = u64::from(lines) * EIGHTHS;
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let height = |value: &u64| {
        let height = (u128::from(*value) * u128::from(full)).div_ceil(u128::from(most));
        u64::try_from(height).unwrap_or(full)
    };
    values.iter().map(height).collect()
}

/// What all lines together are high, in the eighths of [`heights`].
#[must_use]
pub fn full(lines: u16) -> u64 {
    u64::from(lines) * EIGHTHS
}

#[cfg(test)]
mod tests {
    use nestrace_sums::histogram::BUCKETS;

    use super::*;

    fn sums(latencies: &[u64]) -> LayerSums {
        let mut sums = LayerSums {
            buckets: vec![0; BUCKETS],
            ..LayerSums::default()
        };
        for ns in latencies {
            sums.buckets[bucket_of(*ns)] += 1;
        }
        sums
    }

    /// A label stands where its latency is drawn.
    #[test]
    fn latencies_stand_above_their_labels() {
        for width in [79, 80, 200] {
            let axis = axis(width);
            let n_columns = histogram(&sums(&[]), width).len();
            assert_eq!(axis.chars().count(), n_columns, "{axis}");
            assert!(n_columns <= width);
            for (label, ns) in [
                ("10 µs", 10_000),
                ("1 ms", 1_000_000),
                ("100 ms", 100_000_000),
            ] {
                let columns = histogram(&sums(&[ns]), width);
                let at = axis
                    .find(label)
                    .or(axis.find(&label.replace(' ', "")))
                    .unwrap();
                let at = axis[..at].chars().count();
                assert_eq!(columns[at], 1, "{label} at {width}: {columns:?}");
            }
        }
        let columns = histogram(&sums(&[1, 5_000_000_000, u64::MAX]), 80);
        assert_eq!((columns[0], columns[79]), (1, 2));
    }

    #[test]
    fn one_request_among_many_is_seen() {
        assert_eq!(heights(&[0, 1, 1_000_000], 4), [0, 1, 32]);
        assert_eq!(heights(&[0, 0], 4), [0, 0]);
        assert_eq!(heights(&[u64::MAX], 2), [16]);
    }
}
