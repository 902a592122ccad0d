//! The bios in the tree of each call against those that the script says it needs.

use std::collections::{BTreeMap, BTreeSet};

use nestrace_stamp::CallLine;
use xtask::case::Case;

use super::bios::{Bio, Bios};
use super::scene::OfDisk;
use super::script::Needs;
use super::trees::CallTree;
use crate::truth::stories::Span;

const PAGE: u64 = 4096;
/// Of the calls, at least this part has exactly its bios.
const RIGHT: f64 = 0.999;
/// Calls that are shown in full.
const SHOWN: usize = 6;

/// Calls of one mode.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    calls: u64,
    right: u64,
    /// Some bio is missing in the tree.
    missing: u64,
    /// A bio in the tree was not needed.
    wrong: u64,
    /// Followed to the host.
    linked: u64,
    bios: u64,
}

/// A call in the log and in the analysis.
pub struct Matched<'a> {
    /// In the log.
    pub line: &'a CallLine,
    /// In the analysis.
    pub call: &'a CallTree,
}

/// Finds the call of each line: of the same thread, operation and inode, within the times of the log.
pub fn matched<'a>(log: &'a [CallLine], calls: &[&'a CallTree]) -> Vec<Matched<'a>> {
    let mut found = Vec::new();
    let mut taken = BTreeSet::new();
    for line in log {
        let fits = |call: &CallTree| {
            let is_sync = line.bytes == 0;
            call.tid == line.tid
                && call.op == line.op
                && call.file.inode == Some(line.inode)
                && (is_sync || (call.offset, call.bytes) == (line.offset, line.bytes))
                && call.tree.ts_ns >= line.begin_ns
                && call.end_ns() <= line.end_ns
        };
        let next = calls
            .iter()
            .enumerate()
            .find(|(index, call)| !taken.contains(index) && fits(call));
        if let Some((index, call)) = next {
            taken.insert(index);
            found.push(Matched { line, call });
        }
    }
    found
}

/// What a call must have in its tree, and what it may have.
struct Expected {
    must: BTreeSet<usize>,
    may: BTreeSet<usize>,
}

/// Holds every call of a disk against its script.
pub fn check(case: &mut Case, disk: &OfDisk, bios: &Bios, matched: &[Matched<'_>]) {
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut shown = Vec::new();
    let mut stamps_wrong = 0_u64;
    for one in matched {
        let Some(step) = disk.script.steps.get(&one.line.step) else {
            continue;
        };
        let in_tree = in_tree(&one.call.tree, bios);
        let expected = expected(disk, bios, one, &step.needs);
        let missing: Vec<usize> = expected.must.difference(&in_tree).copied().collect();
        let wrong: Vec<usize> = in_tree.difference(&expected.may).copied().collect();
        let lacks = lacking_pages(disk, bios, one, &step.needs, &in_tree);
        stamps_wrong += u64::from(other_serial(bios, one, &in_tree));
        let tally = tallies.entry(step.mode).or_default();
        tally.calls += 1;
        tally.bios += in_tree.len() as u64;
        tally.linked += u64::from(one.call.linked);
        tally.missing += u64::from(!missing.is_empty() || !lacks.is_empty());
        tally.wrong += u64::from(!wrong.is_empty());
        let right = missing.is_empty() && wrong.is_empty() && lacks.is_empty();
        tally.right += u64::from(right);
        if !right && shown.len() < SHOWN {
            shown.push(describe(
                disk, bios, one, step.mode, &missing, &wrong, &lacks,
            ));
        }
    }
    let mut sum = Tally::default();
    for (mode, tally) in &tallies {
        let Tally {
            calls,
            right,
            missing,
            wrong,
            linked,
            bios,
        } = *tally;
        let mut text = format!("{mode} {right}/{calls} ({bios} bios)");
        for (n, what) in [
            (missing, "lack bios"),
            (wrong, "have others' bios"),
            (calls - linked, "not linked"),
        ] {
            if n > 0 {
                text += &format!(" {n} {what}");
            }
        }
        case.figure(text);
        sum.calls += calls;
        sum.right += right;
        sum.wrong += wrong;
        sum.linked += linked;
    }
    let shown = shown.join("\n        ");
    case.equal("calls with a bio that they did not need", sum.wrong, 0);
    case.equal("calls with the data of another write", stamps_wrong, 0);
    case.holds(
        "99.9 % of the calls have exactly their bios",
        sum.right as f64 >= RIGHT * sum.calls as f64,
        &format!("{} of {}\n        {shown}", sum.right, sum.calls),
    );
    case.holds(
        "99.9 % of the calls are linked to the host",
        sum.linked as f64 >= RIGHT * sum.calls as f64,
        &format!("{} of {}", sum.linked, sum.calls),
    );
}

/// Bios of a tree, by index.
fn in_tree(tree: &Span, bios: &Bios) -> BTreeSet<usize> {
    let spans = tree.of_layer("guest_bio");
    let found = spans
        .iter()
        .filter_map(|span| bios.at(span.ts_ns, span.bytes));
    found.collect()
}

fn pages_of(line: &CallLine) -> BTreeSet<u64> {
    (line.offset / PAGE..(line.offset + line.bytes).div_ceil(PAGE)).collect()
}

/// The number of a file in the stamps: the script opens `a` first, then the files of the threads.
fn number_of(disk: &OfDisk, file: &str) -> u64 {
    let further = match file {
        "b" => 1,
        "c" => 2,
        "d" => 3,
        _ => 0,
    };
    disk.first + further
}

fn expected(disk: &OfDisk, bios: &Bios, one: &Matched<'_>, needs: &Needs) -> Expected {
    let line = one.line;
    let number = number_of(disk, &line.file);
    let window = || bios.within(one.call.tree.ts_ns, one.call.end_ns());
    let range = pages_of(line);
    let is_data = |bio: &Bio| !bio.pages.is_empty();
    let must: BTreeSet<usize> = match needs {
        Needs::Cached => window()
            .filter(|index| {
                let bio = &bios.all[*index];
                bio.reads && bio.tid == line.tid && !is_data(bio)
            })
            .collect(),
        Needs::Alone(_) if line.op == "read" => window()
            .filter(|index| bios.all[*index].touches(number, &range) != Some(false))
            .collect(),
        Needs::Alone(_) => window().collect(),
        Needs::Range => window()
            .filter(|index| {
                let bio = &bios.all[*index];
                let by_stamp = bio.touches(number, &range);
                bio.reads == (line.op == "read")
                    && by_stamp.unwrap_or_else(|| {
                        bio.overwritten && bio.inode == line.inode && range.contains(&bio.seen_page)
                    })
            })
            .collect(),
        Needs::Beside(dirty) => window()
            .filter(|index| bios.all[*index].touches(number, dirty) == Some(true))
            .collect(),
    };
    let mut may = must.clone();
    if let Needs::Beside(_) = needs {
        // What it shares with other syncs: metadata that ended during it.
        let shared = bios.all.iter().enumerate().filter(|(_, bio)| {
            !is_data(bio) && bio.ended_ns > one.call.tree.ts_ns && bio.ended_ns <= one.call.end_ns()
        });
        may.extend(shared.map(|(index, _)| index));
        // Data that the commit writes first stands in the tree as others' data.
        let others = one.call.tree.of_layer("guest_journal");
        let others = others
            .iter()
            .flat_map(|journal| journal.of_layer("guest_bio"));
        may.extend(others.filter_map(|span| bios.at(span.ts_ns, span.bytes)));
    }
    if let Needs::Range = needs {
        // Metadata that it reads first.
        may.extend(window().filter(|index| {
            let bio = &bios.all[*index];
            bio.reads && bio.tid == line.tid && !is_data(bio) && !bio.overwritten
        }));
    }
    Expected { must, may }
}

/// Pages that the call has to move and that no bio of its tree carries.
fn lacking_pages(
    disk: &OfDisk,
    bios: &Bios,
    one: &Matched<'_>,
    needs: &Needs,
    in_tree: &BTreeSet<usize>,
) -> BTreeSet<u64> {
    let number = number_of(disk, &one.line.file);
    let wanted = match needs {
        Needs::Alone(dirty) | Needs::Beside(dirty) => dirty.clone(),
        Needs::Range => pages_of(one.line),
        Needs::Cached => BTreeSet::new(),
    };
    let mut lacking = wanted;
    for index in in_tree {
        let bio = &bios.all[*index];
        for page in bio.pages.iter().filter(|page| page.number == number) {
            lacking.remove(&page.page);
        }
        if bio.overwritten && bio.inode == one.line.inode {
            let pages = bio.bytes.div_ceil(PAGE);
            for page in bio.seen_page..bio.seen_page + pages {
                lacking.remove(&page);
            }
        }
    }
    lacking
}

/// Whether the tree of a write that waits for its own data has the data of another write of this range.
fn other_serial(bios: &Bios, one: &Matched<'_>, in_tree: &BTreeSet<usize>) -> bool {
    let line = one.line;
    let range = pages_of(line);
    let of_range =
        |bio: &&Bio| !bio.reads && bio.pages.iter().all(|page| range.contains(&page.page));
    let mut written = in_tree
        .iter()
        .map(|index| &bios.all[*index])
        .filter(of_range);
    line.serial != 0 && written.any(|bio| bio.pages.iter().any(|page| page.serial != line.serial))
}

fn describe(
    disk: &OfDisk,
    bios: &Bios,
    one: &Matched<'_>,
    mode: &str,
    missing: &[usize],
    wrong: &[usize],
    lacks: &BTreeSet<u64>,
) -> String {
    let begin = one.call.tree.ts_ns;
    let tell = |indices: &[usize]| -> String {
        let told = indices.iter().take(4).map(|index| {
            let bio = &bios.all[*index];
            format!(
                "[{} {}+{} tid {} owner {} inode {} page {} at {}..{} µs, {} pages{}]",
                if bio.reads { "R" } else { "W" },
                bio.offset,
                bio.bytes,
                bio.tid,
                bio.owner,
                bio.inode,
                bio.seen_page,
                (bio.queued_ns as i64 - begin as i64) / 1000,
                (bio.ended_ns as i64 - begin as i64) / 1000,
                bio.pages.len(),
                if bio.overwritten { ", overwritten" } else { "" },
            )
        });
        told.collect::<Vec<_>>().join(" ")
    };
    format!(
        "{} line {} ({mode}): {} {} {}+{} tid {} inode {} of {} µs lacks {} bios {}, has {} others' {}, lacks pages {lacks:?}",
        disk.disk.id,
        one.line.step,
        one.line.op,
        one.line.file,
        one.line.offset,
        one.line.bytes,
        one.line.tid,
        one.line.inode,
        one.call.latency_ns / 1000,
        missing.len(),
        tell(missing),
        wrong.len(),
        tell(wrong),
    )
}
