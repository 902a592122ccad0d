//! Sentences that the figures carry, and no others.

use std::collections::BTreeMap;

use super::axis_effects;
use super::comparison::{Row, Verdict, distinct};
use super::results::RunHeader;
use crate::units;

/// Bare devices that differ by more than this are told.
const EQUAL_BASES: f64 = 1.1;

pub(super) fn of(header: &RunHeader, rows: &[Row]) -> Vec<String> {
    let mut sentences = vec![told_apart(rows)];
    sentences.extend(by_chance(rows));
    let workloads = distinct(rows.iter().map(|row| row.workload.as_str()));
    let under = |workload: &str| -> Vec<&Row> {
        rows.iter().filter(|row| row.workload == workload).collect()
    };
    for workload in &workloads {
        sentences.extend(same_under_each_guest(workload, &under(workload)));
    }
    sentences.extend(axis_effects::of(rows));
    sentences.extend(bases(header));
    let n_guests = distinct(rows.iter().map(|row| row.word("guest_fs"))).len();
    let unlikely = UNLIKELY / (workloads.len() * n_guests).max(1) as f64;
    for workload in &workloads {
        let under = under(workload);
        for guest in distinct(under.iter().map(|row| row.word("guest_fs"))) {
            let own = under.iter().filter(|row| row.word("guest_fs") == guest);
            let nested = own.filter(|row| row.baseline.is_some());
            sentences.extend(best_and_worst(
                workload,
                guest,
                &nested.copied().collect::<Vec<_>>(),
                unlikely,
            ));
        }
    }
    sentences
}

fn told_apart(rows: &[Row]) -> String {
    let nested: Vec<&Row> = rows.iter().filter(|row| row.baseline.is_some()).collect();
    let n = |verdict: Verdict| nested.iter().filter(|row| row.verdict == verdict).count();
    let mut sentence = format!(
        "Of {}, {} slower than the bare device and {} faster in every repetition; {} within the spread",
        units::of(
            nested.len() as u64,
            "nested combination",
            "nested combinations"
        ),
        n(Verdict::Slower),
        n(Verdict::Faster),
        n(Verdict::NotApart),
    );
    let few = n(Verdict::TooFew);
    if few > 0 {
        sentence.push_str(&format!(", {few} with too few repetitions to tell"));
    }
    let none = n(Verdict::NoResult);
    if none > 0 {
        sentence.push_str(&format!(", {none} without a result"));
    }
    sentence.push('.');
    sentence
}

/// How many of equal cells would be told apart.
fn by_chance(rows: &[Row]) -> Option<String> {
    let n_of = |id: &str| {
        let row = rows.iter().find(|row| row.id == id)?;
        row.value.map(|value| value.n)
    };
    let kinds = [Verdict::Slower, Verdict::Faster, Verdict::NotApart];
    let compared = rows.iter().filter(|row| kinds.contains(&row.verdict));
    // The repetitions of each comparison, and how many there are of it.
    let mut comparisons: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for row in compared.clone() {
        let baseline = row.baseline.as_deref().and_then(n_of);
        if let (Some(value), Some(n)) = (row.value, baseline) {
            *comparisons.entry((value.n, n)).or_default() += 1;
        }
    }
    let n_apart = compared
        .filter(|row| row.verdict != Verdict::NotApart)
        .count();
    let expected: f64 = comparisons
        .iter()
        .map(|((own, other), n)| apart_by_chance(*own, *other) * *n as f64)
        .sum();
    if n_apart == 0 || expected < 0.5 {
        return None;
    }
    let mut sentence = format!("Were all equal, chance would tell {expected:.0} of them apart");
    if let ([(n, other)], true) = (
        comparisons.keys().copied().collect::<Vec<_>>().as_slice(),
        comparisons.keys().all(|(own, other)| own == other),
    ) {
        let one_of = (1.0 / apart_by_chance(*n, *other)).round();
        let repetitions = units::of(*n as u64, "repetition", "repetitions");
        sentence.push_str(&format!(": with {repetitions}, one of {one_of}"));
    }
    sentence.push('.');
    Some(sentence)
}

/// How likely it is that of `n` and `m` equal values none lies among the others': of all orders two do so.
fn apart_by_chance(n: usize, m: usize) -> f64 {
    let orders = (1..=n).fold(1.0, |orders, k| orders * (m + k) as f64 / k as f64);
    2.0 / orders
}

/// How likely it is at most that any two of equal cells lie apart.
pub(super) fn any_apart_by_chance<'r>(rows: impl Iterator<Item = &'r Row>) -> f64 {
    let n_of = |row: &Row| row.relative.map_or(0, |relative| relative.n);
    let all: Vec<usize> = rows.map(n_of).collect();
    let pairs = all
        .iter()
        .enumerate()
        .flat_map(|(place, n)| all[place + 1..].iter().map(|m| apart_by_chance(*n, *m)));
    pairs.sum()
}

/// Guest file systems that have to agree.
const FEWEST_GUESTS: usize = 4;

/// Host file systems on which every guest file system differs from the bare device in the same direction: what one
/// comparison does not show for its few repetitions, many that agree do.
fn same_under_each_guest(workload: &str, under: &[&Row]) -> Vec<String> {
    let nested = || under.iter().filter(|row| row.baseline.is_some());
    let guests = distinct(nested().map(|row| row.word("guest_fs")));
    let mut sentences = Vec::new();
    for host in distinct(nested().map(|row| row.word("host_fs"))) {
        let own: Vec<_> = nested().filter(|row| row.word("host_fs") == host).collect();
        let own_guests = distinct(own.iter().map(|row| row.word("guest_fs")));
        let Some(verdict) = own.first().map(|row| row.verdict) else {
            continue;
        };
        let is_told = matches!(verdict, Verdict::Slower | Verdict::Faster);
        let agree = own.iter().all(|row| row.verdict == verdict);
        // Of a guest there may be several cells; of one that was not reached there is none.
        let is_each = own_guests.len() == guests.len();
        if guests.len() < FEWEST_GUESTS || !is_each || !is_told || !agree {
            continue;
        }
        let medians = own.iter().filter_map(|row| row.relative);
        let (low, high) = medians.fold((f64::MAX, 0.0_f64), |(low, high), relative| {
            (low.min(relative.median), high.max(relative.median))
        });
        sentences.push(format!(
            "{workload}: on {host} each of {} guest file systems is {} than on the bare device in every repetition, {} to {}.",
            guests.len(),
            verdict.words(),
            percent(low),
            percent(high)
        ));
    }
    sentences
}

/// How likely any best and worst of equal cells may be told of a run.
pub(super) const UNLIKELY: f64 = 0.1;

/// The best and the worst, where no repetition of the one lies among the other's, and where that says something: of
/// many equal cells the extremes are nearly always apart.
fn best_and_worst(workload: &str, guest: &str, nested: &[&Row], unlikely: f64) -> Option<String> {
    let by_median = |a: &&&Row, b: &&&Row| {
        let median = |row: &Row| row.relative.map_or(f64::NAN, |relative| relative.median);
        median(a).total_cmp(&median(b))
    };
    let mut with_result: Vec<&&Row> = nested.iter().filter(|row| row.relative.is_some()).collect();
    with_result.sort_by(by_median);
    let (worst, best) = (with_result.first()?, with_result.last()?);
    let (low, high) = (worst.relative?, best.relative?);
    let name = |row: &Row| row.id.clone();
    let by_chance = any_apart_by_chance(with_result.iter().map(|row| **row));
    if with_result.len() < 2 || by_chance > unlikely || !low.is_apart_from(&high) {
        return None;
    }
    Some(format!(
        "{workload} in {guest}: best {} with {} of the bare device, worst {} with {}.",
        name(best),
        percent(high.median),
        name(worst),
        percent(low.median)
    ))
}

fn bases(header: &RunHeader) -> Option<String> {
    let rates = |of: fn(&super::results::Base) -> f64| {
        let rates = header.bases.iter().map(of).filter(|rate| *rate > 0.0);
        let (low, high) = rates.fold((f64::MAX, 0.0_f64), |(low, high), rate| {
            (low.min(rate), high.max(rate))
        });
        if high > 0.0 { high / low } else { 1.0 }
    };
    let (write, read) = (
        rates(|base| base.write_bytes_per_s),
        rates(|base| base.read_bytes_per_s),
    );
    if header.bases.len() < 2 {
        return None;
    }
    let factor = write.max(read);
    Some(if factor <= EQUAL_BASES {
        format!(
            "The bare devices were equally fast before anything was put on them: within a factor of {factor:.2}."
        )
    } else {
        format!(
            "The bare devices were not equally fast before anything was put on them: writing differs by a factor of {write:.2}, reading by {read:.2}. Smaller differences between host file systems may be theirs."
        )
    })
}

/// `87 %`, `130 %`.
pub(super) fn percent(relative: f64) -> String {
    format!("{:.0} %", relative * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::results::{Cell, CellRun, Metric};
    use super::super::{Comparison, Results};

    /// Cells of guests on hosts with their runs, and a baseline of 100, 101 and so on for each guest.
    fn statements<const N: usize>(nested: &[(&str, &str, [f64; N])]) -> Vec<String> {
        let cell = |guest: &str, host: &str, baseline: Option<String>, values: [f64; N]| Cell {
            id: format!("{guest}-on-{host}"),
            baseline,
            axes: [("guest_fs", guest), ("host_fs", host)]
                .map(|(axis, word)| (axis.to_owned(), word.to_owned()))
                .into(),
            workload: String::from("randwrite"),
            metric: Metric::BytesPerSecond,
            runs: values
                .map(|value| CellRun {
                    value,
                    ..CellRun::default()
                })
                .to_vec(),
            ..Cell::default()
        };
        let mut results = Results::default();
        for (guest, host, values) in nested {
            let base = format!("{guest}-on-bd");
            if results.cells.iter().all(|cell| cell.id != base) {
                let values = std::array::from_fn(|n| 100.0 + n as f64);
                results.cells.push(cell(guest, "bd", None, values));
            }
            results.cells.push(cell(guest, host, Some(base), *values));
        }
        Comparison::new(&results).statements
    }

    #[test]
    fn what_chance_would_tell_apart_is_said_beside_what_was() {
        let hosts = [("ext4", 50.0), ("xfs", 60.0), ("btrfs", 70.0)];
        let two = hosts.map(|(host, value)| ("ext4", host, [value, value + 1.0]));
        let told = statements(&two);
        assert_eq!(
            told[1],
            "Were all equal, chance would tell 1 of them apart: with 2 repetitions, one of 3."
        );
        // Of a baseline and its three cells the extremes of the three say nothing.
        assert!(told.iter().all(|sentence| !sentence.contains("best")));
        // With five of each it is one of 126: of three comparisons none.
        let five = hosts.map(|(host, value)| ("ext4", host, [value; 5]));
        let told = statements(&five);
        assert!(told.iter().all(|sentence| !sentence.contains("chance")));
        assert!(told.iter().any(|sentence| sentence.contains("best")));
    }

    #[test]
    fn a_host_that_is_slower_under_every_guest_is_told() {
        let mut cells = Vec::new();
        for (n, guest) in ["ext2", "ext3", "ext4", "xfs"].into_iter().enumerate() {
            let n = n as f64;
            cells.push((guest, "ext4", [99.0 + n, 101.0 + n]));
            cells.push((guest, "btrfs", [50.0 + n, 51.0 + n]));
        }
        let told = |cells: &[(&str, &str, [f64; 2])]| -> Vec<String> {
            let told = statements(cells).into_iter();
            told.filter(|sentence| sentence.contains("each of"))
                .collect()
        };
        assert_eq!(
            told(&cells),
            [
                "randwrite: on btrfs each of 4 guest file systems is slower than on the bare device in every repetition, 50 % to 53 %."
            ]
        );
        // Two formats of half the guests are as many cells as there are guests.
        let mut half = cells.clone();
        (half[5], half[7]) = (half[1], half[3]);
        assert!(told(&half).is_empty());
        // Too few guests, or one that disagrees.
        assert!(told(&cells[..6]).is_empty());
        cells[1].2 = [99.0, 102.0];
        assert!(told(&cells).is_empty());
    }
}
