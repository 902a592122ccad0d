//! Findings that are in one recording only, or much stronger in one.

use crate::result::analysis::{Analysis, Finding};

use super::comparison::{Both, DiskName, FindingPair, FoundIn};

/// A share this much larger …
const STRONGER_BY: f64 = 0.1;
/// … and this many times as large is another finding.
const STRONGER_TIMES: f64 = 1.5;

/// Of a disk: the strongest first.
pub(super) fn of_disk(analyses: Both<&Analysis>, names: Both<&DiskName>) -> Vec<FindingPair> {
    let of = |analysis: &'_ Analysis, name: &DiskName| -> Vec<Finding> {
        let found = analysis.findings.iter();
        let own = found.filter(|it| it.guest == name.guest && it.disk == name.disk);
        own.cloned().collect()
    };
    let (found_a, found_b) = (of(analyses.a, names.a), of(analyses.b, names.b));
    let mut ids: Vec<&'static str> = Vec::new();
    for finding in found_a.iter().chain(&found_b) {
        if !ids.contains(&finding.id) {
            ids.push(finding.id);
        }
    }
    let strongest = |found: &[Finding], id: &str| -> Option<Finding> {
        let same = found.iter().filter(|finding| finding.id == id);
        same.max_by(|a, b| a.share.total_cmp(&b.share)).cloned()
    };
    let mut pairs: Vec<FindingPair> = ids
        .into_iter()
        .filter_map(|id| {
            let both = (strongest(&found_a, id), strongest(&found_b, id));
            match both {
                (Some(a), None) => {
                    let missing = unjudged(analyses.b, names.b, id);
                    Some(pair(&a, Some(a.share), None, FoundIn::OnlyA, missing))
                }
                (None, Some(b)) => {
                    let missing = unjudged(analyses.a, names.a, id);
                    Some(pair(&b, None, Some(b.share), FoundIn::OnlyB, missing))
                }
                (Some(a), Some(b)) if stronger(a.share, b.share) => Some(pair(
                    &a,
                    Some(a.share),
                    Some(b.share),
                    FoundIn::StrongerA,
                    None,
                )),
                (Some(a), Some(b)) if stronger(b.share, a.share) => Some(pair(
                    &b,
                    Some(a.share),
                    Some(b.share),
                    FoundIn::StrongerB,
                    None,
                )),
                _ => None,
            }
        })
        .collect();
    let gap = |it: &FindingPair| (it.a.unwrap_or(0.0) - it.b.unwrap_or(0.0)).abs();
    pairs.sort_by(|a, b| gap(b).total_cmp(&gap(a)));
    pairs
}

fn stronger(share: f64, other: f64) -> bool {
    share - other >= STRONGER_BY && share >= other * STRONGER_TIMES
}

fn pair(
    of: &Finding,
    a: Option<f64>,
    b: Option<f64>,
    kind: FoundIn,
    unjudged: Option<&'static str>,
) -> FindingPair {
    FindingPair {
        id: of.id,
        title: of.title.clone(),
        a,
        b,
        kind,
        severity: of.severity,
        unjudged,
    }
}

/// What the rule lacked there.
fn unjudged(analysis: &Analysis, name: &DiskName, id: &str) -> Option<&'static str> {
    let rules = analysis.findings_unjudged.iter();
    let mut same = rules.filter(|it| it.id == id && it.guest == name.guest && it.disk == name.disk);
    same.next().map(|it| it.missing)
}
