//! Bars of a layer in rows: what goes on at the same time is drawn one below the other.

use super::Bar;
use crate::units::count;

/// Rows of a layer.
pub(super) const MAX_ROWS: usize = 4;

/// Gives each bar a row in which it overlaps no other. What finds none is merged in the last row. Returns how many rows
/// there are.
pub(super) fn assign(bars: &mut Vec<Bar>) -> usize {
    bars.sort_by(|a, b| a.from.total_cmp(&b.from).then(b.to.total_cmp(&a.to)));
    let mut ends: Vec<f64> = Vec::new();
    let mut without: Vec<Bar> = Vec::new();
    let mut placed: Vec<Bar> = Vec::new();
    for mut bar in bars.drain(..) {
        let free = ends.iter().position(|end| *end <= bar.from);
        match free {
            Some(row) => bar.row = row,
            None if ends.len() < MAX_ROWS => {
                bar.row = ends.len();
                ends.push(f64::MIN);
            }
            None => {
                without.push(bar);
                continue;
            }
        }
        if let Some(end) = ends.get_mut(bar.row) {
            *end = bar.to;
        }
        placed.push(bar);
    }
    if !without.is_empty() {
        let last = MAX_ROWS - 1;
        let (of_last, others): (Vec<Bar>, Vec<Bar>) =
            placed.into_iter().partition(|bar| bar.row == last);
        placed = others;
        without.extend(of_last);
        placed.extend(merged(without, last));
        placed.sort_by(|a, b| a.from.total_cmp(&b.from));
    }
    *bars = placed;
    ends.len()
}

/// One bar for those that overlap.
fn merged(mut bars: Vec<Bar>, row: usize) -> Vec<Bar> {
    bars.sort_by(|a, b| a.from.total_cmp(&b.from));
    let mut all: Vec<Bar> = Vec::new();
    for bar in bars {
        match all.last_mut() {
            Some(group) if bar.from < group.to => {
                group.to = group.to.max(bar.to);
                group.own.extend(bar.own);
                group.is_shared &= bar.is_shared;
                group.n_merged += bar.n_merged;
            }
            _ => all.push(Bar { row, ..bar }),
        }
    }
    for group in all.iter_mut().filter(|group| group.n_merged > 1) {
        group.what = format!("{} more", count(group.n_merged as u64));
        group.detail.clear();
        group.own = union(std::mem::take(&mut group.own));
    }
    all
}

/// The same time without overlaps, in order.
pub(super) fn union(mut parts: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut all: Vec<(f64, f64)> = Vec::new();
    for (from, to) in parts {
        match all.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => all.push((from, to)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plots::Hue;

    fn bar(from: f64, to: f64) -> Bar {
        Bar {
            what: String::from("write"),
            detail: String::new(),
            from,
            to,
            own: vec![(from, to)],
            row: 0,
            hue: Hue::Device,
            is_shared: false,
            n_merged: 1,
        }
    }

    /// Rows and merged bars of intervals.
    fn check(intervals: &[(f64, f64)], n_rows: usize, n_bars: usize) {
        let mut bars: Vec<Bar> = intervals.iter().map(|(a, b)| bar(*a, *b)).collect();
        assert_eq!(assign(&mut bars), n_rows, "{intervals:?}");
        assert_eq!(bars.len(), n_bars, "{intervals:?}");
        let all: usize = bars.iter().map(|bar| bar.n_merged).sum();
        assert_eq!(all, intervals.len(), "nothing is left out");
        assert!(bars.is_sorted_by(|a, b| a.from <= b.from));
        for row in 0..n_rows {
            let of_row: Vec<&Bar> = bars.iter().filter(|bar| bar.row == row).collect();
            let apart = of_row.windows(2).all(|pair| pair[0].to <= pair[1].from);
            assert!(apart, "row {row}: {of_row:?}");
        }
    }

    #[test]
    fn bars_of_a_row_do_not_overlap_and_rows_are_bounded() {
        check(&[], 0, 0);
        check(&[(0.0, 1.0), (1.0, 2.0), (5.0, 5.0)], 1, 3);
        check(&[(0.0, 3.0), (1.0, 2.0), (2.0, 4.0)], 2, 3);
        let at_once: Vec<(f64, f64)> = (0..16).map(|n| (f64::from(n), 100.0)).collect();
        check(&at_once, MAX_ROWS, MAX_ROWS);
        let twice: Vec<(f64, f64)> = at_once
            .iter()
            .flat_map(|(a, b)| [(*a, *b), (*a + 200.0, *b + 200.0)])
            .collect();
        check(&twice, MAX_ROWS, 2 * MAX_ROWS);
    }

    #[test]
    fn what_is_merged_is_all_of_it() {
        let mut bars: Vec<Bar> = (0..8)
            .map(|n| bar(f64::from(n), 20.0 - f64::from(n)))
            .collect();
        assign(&mut bars);
        let rest = bars
            .iter()
            .find(|bar| bar.n_merged > 1)
            .expect("a merged bar");
        assert_eq!(
            (rest.what.as_str(), rest.from, rest.to),
            ("5 more", 3.0, 17.0)
        );
        assert_eq!(rest.own, [(3.0, 17.0)]);
    }
}
