//! Sentences that the figures carry, and no others.

use super::comparison::{Row, Verdict, distinct};
use super::results::RunHeader;
use crate::units;

/// Bare devices that differ by more than this are told.
const EQUAL_BASES: f64 = 1.1;

pub(super) fn of(header: &RunHeader, rows: &[Row]) -> Vec<String> {
    let mut sentences = vec![told_apart(rows)];
    for workload in distinct(rows.iter().map(|row| row.workload.as_str())) {
        let under: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).collect();
        for guest in distinct(under.iter().map(|row| row.word("guest_fs"))) {
            let own = under.iter().filter(|row| row.word("guest_fs") == guest);
            let nested = own.filter(|row| row.baseline.is_some());
            sentences.extend(best_and_worst(
                workload,
                guest,
                &nested.copied().collect::<Vec<_>>(),
            ));
        }
    }
    sentences.extend(bases(header));
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

/// The best and the worst, where no repetition of the one lies among the other's.
fn best_and_worst(workload: &str, guest: &str, nested: &[&Row]) -> Option<String> {
    let by_median = |a: &&&Row, b: &&&Row| {
        let median = |row: &Row| row.relative.map_or(f64::NAN, |relative| relative.median);
        median(a).total_cmp(&median(b))
    };
    let mut with_result: Vec<&&Row> = nested.iter().filter(|row| row.relative.is_some()).collect();
    with_result.sort_by(by_median);
    let (worst, best) = (with_result.first()?, with_result.last()?);
    let (low, high) = (worst.relative?, best.relative?);
    let name = |row: &Row| row.id.clone();
    if with_result.len() < 2 || !low.is_apart_from(&high) {
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
