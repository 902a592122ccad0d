//! FAST'12's statements on nested file systems, and what the rows say of each.

use std::collections::BTreeMap;

use super::super::chance::{self, Comparisons};
use super::super::comparison::{Row, Verdict, distinct};
use super::super::spread::Spread;
use super::super::statements::percent;
use super::{Judgement, LEVEL, Published};

/// A loss that is called "heavy", and a gain or loss that is called one at all.
const NOTABLE: f64 = 0.1;
/// What may be heavily affected and still is "hardly affected" in all.
const FEW: f64 = 0.1;
/// What has to be heavily affected to be so in all.
const MANY: f64 = 1.0 / 3.0;
/// "Degradation up to 67 %".
const LARGEST: f64 = 0.67;
/// "Latency of I/O-sensitive loads up 10–30 %".
const LATENCY: f64 = 1.1;

type Told = Option<(String, Judgement)>;

/// What was published, and what the rows say.
pub(super) fn beside(rows: &[Row]) -> Vec<Published> {
    let compared: Vec<&Row> = rows
        .iter()
        .filter(|row| row.baseline.is_some() && row.relative.is_some())
        .collect();
    let waiting_for = |operations: &[&str]| -> Vec<&Row> {
        let main = |row: &&&Row| {
            let main = row.main_latency();
            main.is_some_and(|main| operations.contains(&main.operation))
        };
        compared.iter().filter(main).copied().collect()
    };
    let (reads, writes) = (
        waiting_for(&["read"]),
        waiting_for(&["write", "sync", "flush"]),
    );
    let sequential: Vec<&Row> = reads
        .iter()
        .filter(|row| row.workload.contains("seq"))
        .copied()
        .collect();
    let mut told = vec![
        ("largest degradation", "67 %", largest(&compared, rows)),
        (
            "workloads that mostly wait for reads",
            "hardly affected",
            affected(&reads, rows, hardly),
        ),
        (
            "sequential reads",
            "sometimes faster nested",
            sometimes_faster(&sequential, rows),
        ),
        (
            "workloads that mostly wait for writes and syncs",
            "heavily affected",
            affected(&writes, rows, heavily),
        ),
        (
            "mean latency relative to the bare device",
            "10–30 % more for loads that wait for I/O",
            latency(&compared),
        ),
        (
            "which host file system suits",
            "depends on the guest's, and the other way round",
            both_directions(&compared, rows),
        ),
    ];
    for (what, published, rule) in FINDINGS {
        told.push((what, published, found(&compared, rule)));
    }
    told.into_iter()
        .map(|(what, published, told)| Published {
            what: what.to_owned(),
            published: published.to_owned(),
            judgement: told.as_ref().map(|(_, judgement)| *judgement),
            ours: told.map(|(ours, _)| ours),
        })
        .collect()
}

fn n_slower(rows: &[&Row]) -> usize {
    let slower = rows.iter().filter(|row| row.verdict == Verdict::Slower);
    slower.count()
}

/// The largest of those that are slower, where there are more of them than equal cells would have.
fn largest(compared: &[&Row], all: &[Row]) -> Told {
    let comparisons = Comparisons::of(compared.iter().copied(), all);
    let (n, slower) = (comparisons.n(), n_slower(compared));
    if n == 0 {
        let none = String::from("too few repetitions to decide");
        return (!compared.is_empty()).then_some((none, Judgement::NotDecidable));
    }
    let expected = comparisons.expected() / 2.0;
    if slower == 0 || chance::slower_at_least(slower, compared, all) > LEVEL {
        let ours = format!(
            "none beyond chance: {slower} of {n} are slower, and {expected:.0} would be if all were equal"
        );
        return Some((ours, Judgement::NotDecidable));
    }
    let slower_ones = compared.iter().filter(|row| row.verdict == Verdict::Slower);
    let largest = slower_ones
        .filter_map(|row| row.relative)
        .map(|relative| 1.0 - relative.median)
        .max_by(f64::total_cmp)?;
    // Half as much by logarithm, as with every other figure.
    let is_as_much = (1.0 - largest).ln() * 2.0 <= (1.0 - LARGEST).ln();
    let ours = format!(
        "{}; {slower} of {n} are slower ({expected:.0} would be if all were equal)",
        percent(largest)
    );
    let judgement = if is_as_much {
        Judgement::Held
    } else {
        Judgement::Weaker
    };
    Some((ours, judgement))
}

/// How the rows are affected, and what that says by the part of them that lose a tenth or more in every repetition.
fn affected(compared: &[&Row], all: &[Row], judge: fn(f64) -> Judgement) -> Told {
    let medians = compared.iter().filter_map(|row| row.relative);
    let spread = Spread::of(medians.map(|one| one.median))?;
    let comparisons = Comparisons::of(compared.iter().copied(), all);
    let (n, expected) = (comparisons.n(), comparisons.expected() / 2.0);
    let heavy = compared.iter().filter(|row| {
        let relative = row.relative.map_or(1.0, |relative| relative.median);
        row.verdict == Verdict::Slower && relative <= 1.0 - NOTABLE
    });
    let heavy = heavy.count();
    let ours = format!(
        "{} to {} of the bare device, median {}; {} of {} are slower in every repetition, {heavy} of them by a tenth or more ({expected:.0} would be slower if all were equal)",
        percent(spread.min),
        percent(spread.max),
        percent(spread.median),
        n_slower(compared),
        compared.len()
    );
    let heavy = heavy as f64 / n.max(1) as f64;
    // Of few repetitions chance makes many slower.
    let by_chance = chance::slower_at_least(n_slower(compared), compared, all) > LEVEL;
    let judgement = if n == 0 || (by_chance && heavy > FEW) {
        Judgement::NotDecidable
    } else {
        judge(heavy)
    };
    Some((ours, judgement))
}

fn hardly(heavy: f64) -> Judgement {
    match heavy {
        heavy if heavy <= FEW => Judgement::Held,
        heavy if heavy < MANY => Judgement::Weaker,
        _ => Judgement::DidNotHold,
    }
}

fn heavily(heavy: f64) -> Judgement {
    match heavy {
        heavy if heavy >= MANY => Judgement::Held,
        heavy if heavy > FEW => Judgement::Weaker,
        _ => Judgement::DidNotHold,
    }
}

fn sometimes_faster(compared: &[&Row], all: &[Row]) -> Told {
    let comparisons = Comparisons::of(compared.iter().copied(), all);
    let (n, expected) = (comparisons.n(), comparisons.expected() / 2.0);
    let faster: Vec<&&Row> = compared
        .iter()
        .filter(|row| row.verdict == Verdict::Faster)
        .collect();
    let most = faster
        .iter()
        .filter_map(|row| row.relative)
        .map(|relative| relative.median)
        .max_by(f64::total_cmp);
    if n == 0 {
        return None;
    }
    let p = expected / n as f64;
    let is_sure = !faster.is_empty() && chance::at_least(faster.len(), n, p) <= LEVEL;
    let most = most.map_or_else(String::new, |most| format!(", up to {}", percent(most)));
    let ours = format!(
        "{} of {n} are faster in every repetition{most} ({expected:.0} would be if all were equal)",
        faster.len()
    );
    let judgement = if is_sure {
        Judgement::Held
    } else {
        Judgement::NotDecidable
    };
    Some((ours, judgement))
}

fn latency(compared: &[&Row]) -> Told {
    let spread = Spread::of(compared.iter().filter_map(|row| row.relative_latency))?;
    let ours = format!(
        "median {} of {} cells ({} to {})",
        percent(spread.median),
        spread.n,
        percent(spread.min),
        percent(spread.max)
    );
    let judgement = match spread.median {
        median if median >= LATENCY => Judgement::Held,
        median if median > 1.0 => Judgement::Weaker,
        _ => Judgement::DidNotHold,
    };
    Some((ours, judgement))
}

/// Pairs of host file systems where some guests run better on the one, and some on the other, relative to their bare
/// devices and in every repetition: more on either side than equal ones would have.
fn both_directions(compared: &[&Row], all: &[Row]) -> Told {
    let workloads = distinct(compared.iter().map(|row| row.workload.as_str()));
    let hosts = distinct(compared.iter().map(|row| row.word("host_fs")));
    let questions = workloads.len() * hosts.len() * hosts.len().saturating_sub(1) / 2;
    let mut n_pairs = 0;
    let mut found: Vec<(String, f64)> = Vec::new();
    for workload in &workloads {
        for (place, first) in hosts.iter().enumerate() {
            for second in &hosts[place + 1..] {
                let Some(pair) = Pair::of(compared, all, workload, [first, second]) else {
                    continue;
                };
                n_pairs += 1;
                let by_chance = pair.by_chance() * questions as f64;
                if by_chance <= LEVEL {
                    found.push((pair.sentence(workload, [first, second]), by_chance));
                }
            }
        }
    }
    if n_pairs == 0 {
        return None;
    }
    let clearest = found.iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
    Some(match clearest {
        Some((sentence, _)) => (
            format!(
                "{} of {n_pairs} pairs of host file systems under a workload suit different guests; {sentence}",
                found.len()
            ),
            Judgement::Held,
        ),
        None => (
            format!(
                "none of {n_pairs} pairs of host file systems suits different guests beyond chance"
            ),
            Judgement::NotDecidable,
        ),
    })
}

/// Two host file systems under one workload.
struct Pair<'r> {
    /// Guests that run better on the first, and on the second.
    better: [Vec<&'r str>; 2],
    n: usize,
    /// How likely a guest seems to run better on a given one of two equal ones, at most.
    p: f64,
}

impl<'r> Pair<'r> {
    fn of(compared: &[&'r Row], all: &[Row], workload: &str, hosts: [&str; 2]) -> Option<Self> {
        let mut of_guest: BTreeMap<&str, [Vec<&Row>; 2]> = BTreeMap::new();
        for row in compared.iter().filter(|row| row.workload == workload) {
            if let Some(place) = hosts.iter().position(|host| row.word("host_fs") == *host) {
                of_guest.entry(row.word("guest_fs")).or_default()[place].push(row);
            }
        }
        let mut pair = Self {
            better: [Vec::new(), Vec::new()],
            n: 0,
            p: 0.0,
        };
        for (guest, rows) in of_guest {
            // Of several cells of a guest none stands for it.
            let [[first], [second]] = rows.each_ref().map(Vec::as_slice) else {
                continue;
            };
            let (Some(a), Some(b)) = (first.relative, second.relative) else {
                continue;
            };
            let (Some((n, _)), Some((m, _))) = (
                chance::repetitions(first, all),
                chance::repetitions(second, all),
            ) else {
                continue;
            };
            pair.n += 1;
            pair.p = pair.p.max(chance::apart(n, m) / 2.0);
            if a.is_apart_from(&b) {
                pair.better[usize::from(b.median > a.median)].push(guest);
            }
        }
        (pair.n >= 2).then_some(pair)
    }

    /// How likely so many are on the smaller side if the side does not depend on the guest.
    fn by_chance(&self) -> f64 {
        let fewer = self.better[0].len().min(self.better[1].len());
        match fewer {
            0 => 1.0,
            fewer => chance::at_least(fewer, self.n, self.p),
        }
    }

    fn sentence(&self, workload: &str, hosts: [&str; 2]) -> String {
        let [first, second] = &self.better;
        format!(
            "{workload}: {} run better on {}, {} on {}",
            first.join(", "),
            hosts[0],
            second.join(", "),
            hosts[1]
        )
    }
}

/// Statements that the rules of the analysis look for in the recordings.
const FINDINGS: [(&str, &str, &str); 4] = [
    (
        "logging on images",
        "lowers performance",
        "journal-on-journal",
    ),
    (
        "data and metadata",
        "are not told apart by the host",
        "metadata-blind",
    ),
    (
        "a guest's block allocation",
        "is not guaranteed to be effective",
        "allocation-defeated",
    ),
    (
        "schedulers",
        "are not effective for all nestings",
        "scheduler-ineffective",
    ),
];

/// In how many recordings a rule fired. That it fired nowhere proves nothing.
fn found(compared: &[&Row], rule: &str) -> Told {
    let recorded = compared.iter().filter_map(|row| {
        let told = row.explanation.as_ref()?;
        Some((row.workload.as_str(), told))
    });
    let (mut n, mut of_workload) = (0, BTreeMap::<&str, usize>::new());
    for (workload, told) in recorded {
        n += 1;
        if told.findings.iter().any(|finding| finding.id == rule) {
            *of_workload.entry(workload).or_default() += 1;
        }
    }
    if n == 0 {
        return None;
    }
    let fired: usize = of_workload.values().sum();
    let where_it_is: Vec<String> = of_workload
        .iter()
        .map(|(workload, n)| format!("{n} of {workload}"))
        .collect();
    let of_which = match where_it_is.len() {
        0 => String::new(),
        _ => format!(": {}", where_it_is.join(", ")),
    };
    let judgement = match fired {
        0 => Judgement::NotDecidable,
        _ => Judgement::Held,
    };
    Some((
        format!("{rule} in {fired} of {n} recordings of nested cells{of_which}"),
        judgement,
    ))
}
