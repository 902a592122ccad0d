//! The bios in the tree of each call against those that the script says it needs.

use std::collections::{BTreeMap, BTreeSet};

use nestrace_stamp::CallLine;
use nestrace_trace::flags::OWNER_ANONYMOUS;
use xtask::case::Case;

use super::bios::{Bio, Bios, Page};
use super::scene::OfDisk;
use super::script::Needs;
use super::trees::CallTree;
use crate::truth::stories::Span;

const PAGE: u64 = 4096;
/// Of the bios that calls wait for, at most this part is not linked to the host.
const UNLINKED: f64 = 0.001;
/// Logs of XFS flush at once, by several hardware queues: the request of each queue distinguishes their flushes (docs/clock.md).
const AMBIGUOUS: &str = "ambiguous";
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
    /// Not a bio of a journal or log is in the tree of a sync that needs one.
    silent: u64,
    /// Followed to the host.
    linked: u64,
    bios: u64,
    /// Bios with the stamp of a write.
    stamped: u64,
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
            let is_sync = line.bytes == 0 || line.op == "msync";
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
    let (mut stamps_wrong, mut otherwise_linked) = (0_u64, 0_u64);
    let mut waited: BTreeSet<usize> = BTreeSet::new();
    for one in matched {
        let Some(step) = disk.script.steps.get(&one.line.step) else {
            continue;
        };
        let in_tree = in_tree(&one.call.tree, bios);
        let expected = expected(disk, bios, one, &step.needs);
        let missing: Vec<usize> = expected.must.difference(&in_tree).copied().collect();
        let wrong: Vec<usize> = in_tree.difference(&expected.may).copied().collect();
        let mut lacks = lacking_pages(disk, bios, one, &step.needs, &in_tree);
        lacks.retain(|page| !written_before(disk, bios, one, *page));
        let silent = is_silent(disk, bios, one, &step.needs, &in_tree);
        stamps_wrong += u64::from(other_serial(bios, one, &in_tree));
        let tally = tallies.entry(step.mode).or_default();
        tally.calls += 1;
        tally.bios += in_tree.len() as u64;
        let is_stamped = |index: &&usize| {
            let pages = &bios.all[**index].pages;
            pages.iter().any(|page| page.serial.is_some())
        };
        tally.stamped += in_tree.iter().filter(is_stamped).count() as u64;
        tally.linked += u64::from(one.call.linked);
        let all_linked = in_tree
            .iter()
            .all(|index| bios.all[*index].unlinked.is_none());
        otherwise_linked += u64::from(all_linked != one.call.linked);
        waited.extend(&in_tree);
        tally.missing += u64::from(!missing.is_empty() || !lacks.is_empty());
        tally.wrong += u64::from(!wrong.is_empty());
        tally.silent += u64::from(silent);
        let excused = !silent || !disk.disk.journal_is_known();
        // The kernel hands a request of a ring that would block to a worker of its own, and nothing says which request a
        // worker is on: its bios are the file system's own time, and must not be another call's.
        let by_worker = step.mode.contains("ring");
        let has_all = missing.is_empty() && lacks.is_empty() || by_worker;
        let right = has_all && wrong.is_empty() && excused;
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
            silent,
            linked,
            bios,
            stamped,
        } = *tally;
        let mut text = format!("{mode} {right}/{calls} ({bios} bios)");
        for (n, what) in [
            (missing, "lack bios"),
            (wrong, "have others' bios"),
            (silent, "lack a log"),
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
        sum.bios += bios;
        sum.stamped += stamped;
    }
    case.figure(format!(
        "{} bios of {} calls, {} by their stamps",
        sum.bios, sum.calls, sum.stamped
    ));
    let least = disk.disk.right();
    let shown = shown.join("\n        ");
    case.equal("calls with a bio that they did not need", sum.wrong, 0);
    case.equal("calls with the data of another write", stamps_wrong, 0);
    case.holds(
        &format!("{} % of the calls have exactly their bios", least * 100.0),
        sum.right as f64 >= least * sum.calls as f64,
        &format!("{} of {}\n        {shown}", sum.right, sum.calls),
    );
    case.equal(
        "calls that are not linked just as their bios",
        otherwise_linked,
        0,
    );
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for index in &waited {
        if let Some(reason) = &bios.all[*index].unlinked {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if !reasons.is_empty() {
        case.figure(format!("bios not linked: {reasons:?}"));
    }
    let ambiguous = reasons.remove(AMBIGUOUS).unwrap_or(0);
    let others: u64 = reasons.values().sum();
    let at_most = |n: u64, part: f64| n as f64 <= part * waited.len() as f64;
    case.holds(
        "the bios are linked to the host",
        ambiguous == 0 && at_most(others, UNLINKED),
        &format!("{ambiguous} of {} ambiguous, {reasons:?}", waited.len()),
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
    let file = (number_of(disk, &line.file), line.inode);
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
        // What is read ahead is needed as soon as a read wants one of its pages.
        Needs::Alone(_) if line.op == "read" => bios
            .ended_within(one.call.tree.ts_ns, one.call.end_ns())
            .filter(|index| {
                let bio = &bios.all[*index];
                match bio.touches(file, &range) {
                    Some(touches) => touches,
                    None => bio.queued_ns >= one.call.tree.ts_ns,
                }
            })
            .collect(),
        // Write-back of these pages that was under way is waited for too.
        Needs::Alone(dirty) => {
            let under_way = bios
                .ended_within(one.call.tree.ts_ns, one.call.end_ns())
                .filter(|index| {
                    let bio = &bios.all[*index];
                    !bio.reads && bio.touches(file, dirty) == Some(true)
                });
            let waited_for = |index: &usize| Some(bios.all[*index].tid) != disk.xfsaild;
            window().filter(waited_for).chain(under_way).collect()
        }
        Needs::Range => window()
            .filter(|index| {
                let bio = &bios.all[*index];
                bio.reads == (line.op == "read") && bio.touches(file, &range) == Some(true)
            })
            .collect(),
        Needs::Beside(dirty) => window()
            .filter(|index| bios.all[*index].touches(file, dirty) == Some(true))
            .collect(),
    };
    let mut may = must.clone();
    if let Needs::Beside(_) = needs {
        // What it shares with other syncs: metadata that ended during it.
        let shared = bios.ended_within(one.call.tree.ts_ns, one.call.end_ns());
        may.extend(shared.filter(|index| !is_data(&bios.all[*index])));
        // Data of an earlier commit that the file itself still has to write, in its own thread.
        if disk.disk.journals_data() {
            may.extend(window().filter(|index| {
                let bio = &bios.all[*index];
                !bio.reads && bio.tid == line.tid && bio.inode == line.inode
            }));
        }
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
            let is_own = bio.reads && bio.tid == line.tid && !is_data(bio);
            // The place of its data was written again; what it reads into a program's own memory is its direct read.
            is_own && (!bio.overwritten || bio.owner == OWNER_ANONYMOUS)
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
        for page in bio.seen_pages(one.line.inode).into_iter().flatten() {
            lacking.remove(&page);
        }
    }
    lacking
}

/// A sync of new pages beside others that has no metadata, journal or flush in its tree; where a super block tells of each
/// commit, one that has none of these that was written after it had begun.
fn is_silent(
    disk: &OfDisk,
    bios: &Bios,
    one: &Matched<'_>,
    needs: &Needs,
    in_tree: &BTreeSet<usize>,
) -> bool {
    let tells = |index: &usize| {
        let bio = &bios.all[*index];
        match disk.disk.super_block() {
            Some(place) => {
                let within = bio.offset <= place && place < bio.offset + bio.bytes;
                within && !bio.reads && bio.queued_ns >= one.call.tree.ts_ns
            }
            None => bio.pages.is_empty(),
        }
    };
    matches!(needs, Needs::Beside(dirty) if !dirty.is_empty()) && !in_tree.iter().any(tells)
}

/// Whether this page was written back between the call that changed it and this one.
fn written_before(disk: &OfDisk, bios: &Bios, one: &Matched<'_>, page: u64) -> bool {
    let changes = disk.log.iter().filter(|line| {
        line.op == "write"
            && line.inode == one.line.inode
            && line.end_ns <= one.line.begin_ns
            && pages_of(line).contains(&page)
    });
    let Some(changed_ns) = changes.map(|line| line.begin_ns).max() else {
        return false;
    };
    let file = (number_of(disk, &one.line.file), one.line.inode);
    bios.within(changed_ns, one.call.tree.ts_ns).any(|index| {
        let bio = &bios.all[index];
        !bio.reads && bio.touches(file, &BTreeSet::from([page])) == Some(true)
    })
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
    let is_other = |page: &Page| page.serial.is_some_and(|serial| serial != line.serial);
    line.serial != 0 && written.any(|bio| bio.pages.iter().any(is_other))
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
    let number = number_of(disk, &one.line.file);
    let carriers: Vec<usize> = (0..bios.all.len())
        .filter(|index| {
            let bio = &bios.all[*index];
            !lacks.is_empty() && bio.touches((number, one.line.inode), lacks) == Some(true)
        })
        .collect();
    format!(
        "{} line {} ({mode}): {} {} {}+{} tid {} inode {} of {} µs lacks {} bios {}, has {} others' {}, lacks pages {lacks:?} of {}",
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
        tell(&carriers),
    )
}
