//! Sentences that the figures carry, and no others.

use std::collections::BTreeMap;

use super::axis_effects;
use super::chance::{self, Comparisons};
use super::comparison::{Row, Verdict, distinct};
use super::results::RunHeader;
use super::spread::Spread;
use crate::units;

/// Bare devices that differ by more than this are reported.
const EQUAL_BASES: f64 = 1.1;

pub(super) fn of(header: &RunHeader, rows: &[Row]) -> Vec<String> {
    let mut sentences = vec![told_apart(rows)];
    sentences.extend(by_chance(rows));
    let workloads = distinct(rows.iter().map(|row| row.workload.as_str()));
    sentences.extend(same_under_guests(rows));
    sentences.extend(copies(rows));
    sentences.extend(axis_effects::of(rows));
    sentences.extend(bases(header));
    let n_guests = distinct(rows.iter().map(|row| row.word("guest_fs"))).len();
    let unlikely = UNLIKELY / (workloads.len() * n_guests).max(1) as f64;
    for workload in &workloads {
        let under = rows.iter().filter(|row| row.workload == **workload);
        let under: Vec<&Row> = under.collect();
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
        sentence.push_str(&format!(", {few} with too few repetitions to decide"));
    }
    let none = n(Verdict::NoResult);
    if none > 0 {
        sentence.push_str(&format!(", {none} without a result"));
    }
    sentence.push('.');
    sentence
}

/// How many equal cells would seem to differ by chance.
fn by_chance(rows: &[Row]) -> Option<String> {
    let told = [Verdict::Slower, Verdict::Faster];
    let n_apart = rows.iter().filter(|row| told.contains(&row.verdict));
    let comparisons = Comparisons::of(rows, rows);
    let expected = comparisons.expected();
    if n_apart.count() == 0 || expected < 0.5 {
        return None;
    }
    let mut sentence = format!(
        "If all were equal, {:.0} of them would still differ by chance",
        expected.round()
    );
    if let Some(n) = comparisons.repetitions() {
        let one_of = (1.0 / chance::apart(n, n)).round();
        let repetitions = units::of(n as u64, "repetition", "repetitions");
        sentence.push_str(&format!(": with {repetitions}, 1 in {one_of}"));
    }
    sentence.push('.');
    Some(sentence)
}

/// How many pairs of copies, which are equal, would be called different.
fn copies(rows: &[Row]) -> Option<String> {
    const AXIS: &str = "copy";
    type Cell<'r> = (&'r str, Vec<(&'r str, &'r str)>);
    let mut of_cell: BTreeMap<Cell<'_>, Vec<Spread>> = BTreeMap::new();
    for row in rows {
        let others = row.axes.iter().filter(|(axis, _)| *axis != AXIS);
        let others = others.map(|(axis, word)| (axis.as_str(), word.as_str()));
        let copies = of_cell.entry((&row.workload, others.collect()));
        copies.or_default().extend(row.value);
    }
    let (mut n, mut apart, mut expected) = (0, 0, 0.0);
    for copies in of_cell.values() {
        for (place, one) in copies.iter().enumerate() {
            for other in &copies[place + 1..] {
                n += 1;
                apart += usize::from(one.is_apart_from(other));
                expected += chance::apart(one.n, other.n);
            }
        }
    }
    (n > 0).then(|| {
        format!(
            "Of {} that differ in nothing, {apart} would be called different; {expected:.1} are expected by chance.",
            units::of(n, "pair of cells", "pairs of cells")
        )
    })
}

/// How likely it is at most that any two of equal cells lie apart.
pub(super) fn any_apart_by_chance<'r>(rows: impl Iterator<Item = &'r Row>) -> f64 {
    let rows: Vec<&Row> = rows.collect();
    // Divided by different baselines, equal cells lie apart as these do.
    if rows
        .windows(2)
        .any(|two| two[0].baseline != two[1].baseline)
    {
        return 1.0;
    }
    let n_of = |row: &&Row| row.relative.map_or(0, |relative| relative.n);
    let all: Vec<usize> = rows.iter().map(n_of).collect();
    let pairs = all
        .iter()
        .enumerate()
        .flat_map(|(place, n)| all[place + 1..].iter().map(|m| chance::apart(*n, *m)));
    pairs.sum()
}

/// Guest file systems that there have to be.
const FEWEST_GUESTS: usize = 4;
/// How likely any false sentence on them may be in a run.
const LEVEL: f64 = 0.05;

/// Host file systems on which more guest file systems differ from the bare device in the same direction than chance would
/// have it under any workload: what one comparison does not show for its few repetitions, many that agree do.
fn same_under_guests(rows: &[Row]) -> Vec<String> {
    let nested = || rows.iter().filter(|row| row.baseline.is_some());
    let workloads = distinct(nested().map(|row| row.workload.as_str()));
    let hosts = distinct(nested().map(|row| row.word("host_fs")));
    let questions = 2 * workloads.len() * hosts.len();
    let mut sentences = Vec::new();
    for workload in &workloads {
        let under: Vec<&Row> = nested().filter(|row| row.workload == *workload).collect();
        let guests = distinct(under.iter().map(|row| row.word("guest_fs")));
        for host in &hosts {
            let own = under.iter().filter(|row| row.word("host_fs") == *host);
            let own: Vec<&Row> = own.copied().collect();
            // Of one that was not reached there is none.
            if guests.len() < FEWEST_GUESTS
                || distinct(own.iter().map(|row| row.word("guest_fs"))).len() < guests.len()
            {
                continue;
            }
            for verdict in [Verdict::Slower, Verdict::Faster] {
                let agreement = Agreement::of(&own, &guests, verdict, rows);
                if agreement.by_chance() * questions as f64 <= LEVEL {
                    sentences.push(agreement.sentence(workload, host));
                }
            }
        }
    }
    sentences
}

/// Guest file systems with the same verdict for every cell on one host file system. A guest may have several cells.
struct Agreement<'r> {
    verdict: Verdict,
    n_guests: usize,
    guests: Vec<&'r str>,
    cells: Vec<&'r Row>,
    /// Baselines, and those all of whose cells agree: a folder that is passed through shares another guest's.
    n_baselines: usize,
    n_agree: usize,
    /// How likely a cell has it if it is equal to its baseline, at most.
    p: f64,
}

impl<'r> Agreement<'r> {
    fn of(own: &[&'r Row], guests: &[&'r str], verdict: Verdict, all: &[Row]) -> Self {
        let of_guest = |guest: &str| -> Vec<&'r Row> {
            let cells = own.iter().filter(|row| row.word("guest_fs") == guest);
            cells.copied().collect()
        };
        let agrees = |guest: &&str| of_guest(guest).iter().all(|row| row.verdict == verdict);
        let agree: Vec<&str> = guests.iter().copied().filter(agrees).collect();
        let chances = own.iter().filter_map(|row| {
            let (own, baseline) = chance::repetitions(row, all)?;
            Some(chance::apart(own, baseline) / 2.0)
        });
        let baselines = distinct(own.iter().filter_map(|row| row.baseline.as_deref()));
        let all_agree = |id: &&&str| {
            let mut cells = own
                .iter()
                .filter(|row| row.baseline.as_deref() == Some(**id));
            cells.all(|row| row.verdict == verdict)
        };
        Self {
            verdict,
            n_baselines: baselines.len(),
            n_agree: baselines.iter().filter(all_agree).count(),
            n_guests: guests.len(),
            cells: agree.iter().flat_map(|guest| of_guest(guest)).collect(),
            guests: agree,
            p: chances.fold(0.0, f64::max),
        }
    }

    /// How likely so many agree if all are equal to their baselines.
    fn by_chance(&self) -> f64 {
        chance::at_least(self.n_agree, self.n_baselines, self.p)
    }

    fn sentence(&self, workload: &str, host: &str) -> String {
        let medians = self.cells.iter().filter_map(|row| row.relative);
        let (low, high) = medians.fold((f64::MAX, 0.0_f64), |(low, high), relative| {
            (low.min(relative.median), high.max(relative.median))
        });
        let guests = match (self.guests.len(), self.n_guests) {
            (n, all) if n == all => format!("each of {n} guest file systems is"),
            (n, all) => format!("{n} of {all} guest file systems are"),
        };
        format!(
            "{workload}: on {host} {guests} {} than on the bare device in every repetition: {} to {} of its performance.",
            self.verdict.words(),
            percent(low),
            percent(high)
        )
    }
}

/// Limit of the probability that a run of equal cells reports a best and a worst one.
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
            "Empty devices like those of this run were equally fast, within a factor of {factor:.2}."
        )
    } else {
        format!(
            "Empty devices like those of this run were not equally fast: writing differs by a factor of {write:.2}, reading by {read:.2}. Smaller differences between host file systems may come from their devices."
        )
    })
}

/// `87 %`, `130 %`.
pub(crate) fn percent(relative: f64) -> String {
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
            runs: CellRun::of_values(&values),
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
            "If all were equal, 1 of them would still differ by chance: with 2 repetitions, 1 in 3."
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
    fn copies_of_a_cell_say_how_often_equal_ones_are_called_different() {
        let cell = |copy: &str, host: &str, first: f64| Cell {
            id: format!("{host}-{copy}"),
            axes: [("host_fs", host), ("copy", copy)]
                .map(|(axis, word)| (axis.to_owned(), word.to_owned()))
                .into(),
            workload: String::from("randwrite"),
            metric: Metric::BytesPerSecond,
            runs: CellRun::of_values(&[first, first + 2.0, first + 3.0, first + 4.0]),
            ..Cell::default()
        };
        let mut results = Results::default();
        for (copy, host, first) in [
            ("1", "bd", 10.0),
            ("2", "bd", 11.0),
            ("1", "xfs", 10.0),
            ("2", "xfs", 20.0),
        ] {
            results.cells.push(cell(copy, host, first));
        }
        let told = Comparison::new(&results).statements;
        let sentence = "Of 2 pairs of cells that differ in nothing, 1 would be called different; 0.1 are expected by chance.";
        assert!(told.iter().any(|said| said == sentence), "{told:#?}");
        results.cells.truncate(1);
        let told = Comparison::new(&results).statements;
        assert!(told.iter().all(|said| !said.contains("differ in nothing")));
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
            told.filter(|sentence| sentence.contains(" guest file systems "))
                .collect()
        };
        assert_eq!(
            told(&cells),
            [
                "randwrite: on btrfs each of 4 guest file systems is slower than on the bare device in every repetition: 50 % to 53 % of its performance."
            ]
        );
        // Chance makes three of four agree once in a dozen such runs.
        let mut three = cells.clone();
        three[1].2 = [99.0, 102.0];
        assert!(told(&three).is_empty());
        // Two formats of half the guests are as many cells as there are guests.
        let mut half = cells.clone();
        (half[5], half[7]) = (half[1], half[3]);
        assert!(told(&half).is_empty());
        // Too few guests.
        assert!(told(&cells[..6]).is_empty());
        // Six of seven are more than chance has, four are not.
        for guest in ["jfs", "btrfs", "reiserfs"] {
            cells.push((guest, "ext4", [99.0, 101.0]));
            cells.push((guest, "btrfs", [60.0, 61.0]));
        }
        cells[1].2 = [99.0, 102.0];
        assert_eq!(
            told(&cells),
            [
                "randwrite: on btrfs 6 of 7 guest file systems are slower than on the bare device in every repetition: 51 % to 60 % of its performance."
            ]
        );
        cells[3].2 = [99.0, 102.0];
        cells[5].2 = [99.0, 102.0];
        assert!(told(&cells).is_empty());
    }
}
