//! Commits of journals against jbd2's own counts, and data that commits write for other files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use nestrace_trace::{Event, Kind};
use serde_json::Value;
use xtask::case::Case;

use super::scene::{OfDisk, Seen};

/// `sub` of the phases: that waits for open handles, that flushes data, that writes the journal.
const LOCKING: u8 = 1;
const FLUSHING: u8 = 2;
const LOGGING: u8 = 3;
/// Of the average time of a commit and of its phases.
const NEAR: f64 = 0.05;
/// A time that the kernel reads from jiffies of 4 ms, at its begin and at its end, is off by so much (one deviation).
const OFF_MS: f64 = 1.64;

/// A look at a journal's own figures.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// The guest's time, seconds.
    at: f64,
    transactions: u64,
    average_us: f64,
}

impl Look {
    fn parse(line: &str) -> Option<(&str, Self)> {
        let mut words = line.split_whitespace();
        let mut next = || words.next();
        let at = next()?.parse().ok()?;
        let device = next()?.strip_prefix("/proc/fs/jbd2/")?.split('-').next()?;
        let look = Self {
            at,
            transactions: next()?.parse().ok()?,
            // Before the first commit there is none.
            average_us: next().unwrap_or("0").parse().ok()?,
        };
        Some((device, look))
    }
}

/// The transactions that `/proc/fs/jbd2` counted are those whose commits were recorded, and took as long.
pub fn commits(case: &mut Case, seen: &Seen) -> anyhow::Result<()> {
    let mut looks: BTreeMap<&str, Vec<Look>> = BTreeMap::new();
    for line in seen.journals.lines() {
        let look = Look::parse(line);
        let (device, look) = look.with_context(|| format!("read {line} as a journal's figures"))?;
        looks.entry(device).or_default().push(look);
    }
    let side = seen.manifest.guest_sides.first();
    let side = side.context("find the guest's side")?;
    case.equal("journals", looks.len(), n_journals(seen));
    for (device, looks) in looks {
        let (Some(before), Some(after)) = (looks.first(), looks.last()) else {
            continue;
        };
        let disk = side.disks.iter().find(|disk| disk.name == device);
        let dev = disk.with_context(|| format!("find {device}"))?.dev;
        // The guest's time is read to 10 ms, and nothing commits around either look.
        let between = |commit: &&Commit| {
            let at = commit.end_ns as f64 / 1e9;
            (before.at - 0.01..after.at + 0.02).contains(&at)
        };
        let all = commits_of(&seen.events, dev);
        let recorded: Vec<&Commit> = all.iter().filter(between).collect();
        case.equal(
            &format!("commits of {device} against jbd2's count"),
            recorded.len() as u64,
            after.transactions - before.transactions,
        );
        // jbd2 measures from the phase that flushes data, and each commit moves its average by a quarter
        // (jbd2_journal_commit_transaction() of 6.1).
        let average = recorded.iter().fold(before.average_us, |average, commit| {
            let took_us = (commit.end_ns - commit.flushing_ns) as f64 / 1000.0;
            if average == 0.0 {
                took_us
            } else {
                (took_us + 3.0 * average) / 4.0
            }
        });
        case.figure(format!(
            "{device}: {} commits, average {average:.0} µs, jbd2 {:.0} µs",
            recorded.len(),
            after.average_us
        ));
        case.holds(
            &format!("average commit of {device}"),
            (average - after.average_us).abs() <= NEAR * after.average_us,
            &format!("{average:.0} µs, jbd2 has {} µs", after.average_us),
        );
    }
    Ok(())
}

fn n_journals(seen: &Seen) -> usize {
    seen.disks.iter().filter(|it| it.disk.has_jbd2()).count()
}

/// What the kernel measured of a commit.
struct RunStats {
    dev: u32,
    transaction: u64,
    locked_ms: f64,
    flushing_ms: f64,
    logging_ms: f64,
}

impl RunStats {
    /// `… jbd2_run_stats: dev 254,0 tid 12 wait 0 request_delay 0 running 20 locked 0 flushing 4 logging 32 …`
    fn parse(line: &str) -> Option<Self> {
        let (_, text) = line.split_once("jbd2_run_stats:")?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let of = |name: &str| {
            let pair = words.chunks(2).find(|pair| pair[0] == name)?;
            pair.get(1).copied()
        };
        let (major, minor) = of("dev")?.split_once(',')?;
        let ms = |name: &str| of(name)?.parse::<f64>().ok();
        Some(Self {
            dev: major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?,
            transaction: of("tid")?.parse().ok()?,
            locked_ms: ms("locked")?,
            flushing_ms: ms("flushing")?,
            logging_ms: ms("logging")?,
        })
    }
}

/// A phase: its name, what the kernel measured, and what the events say, ns.
type Phase = (&'static str, fn(&RunStats) -> f64, fn(&Commit) -> u64);

/// The phases of commits take as long as the kernel itself measured: each commit is its own, by its number.
pub fn phases(case: &mut Case, seen: &Seen) -> anyhow::Result<()> {
    let mut measured = Vec::new();
    for line in seen.run_stats.lines() {
        let stats = RunStats::parse(line);
        measured.push(stats.with_context(|| format!("read {line} as a commit's figures"))?);
    }
    let devs: BTreeSet<u32> = measured.iter().map(|stats| stats.dev).collect();
    case.equal("journals", devs.len(), n_journals(seen));
    for dev in devs {
        let recorded = commits_of(&seen.events, dev);
        let pairs: Vec<(&RunStats, &Commit)> = measured
            .iter()
            .filter(|stats| stats.dev == dev)
            .filter_map(|stats| {
                let mut commits = recorded.iter();
                Some((stats, commits.find(|c| c.transaction == stats.transaction)?))
            })
            .collect();
        let n_measured = measured.iter().filter(|stats| stats.dev == dev).count();
        let name = format!("{}:{}", dev >> 20, dev & 0xf_ffff);
        case.equal(
            &format!("commits of {name} that the kernel measured"),
            pairs.len(),
            n_measured,
        );
        let all: [Phase; 3] = [
            (
                "locking",
                |s| s.locked_ms,
                |c| c.flushing_ns.saturating_sub(c.locking_ns),
            ),
            (
                "flushing",
                |s| s.flushing_ms,
                |c| c.logging_ns.saturating_sub(c.flushing_ns),
            ),
            (
                "logging",
                |s| s.logging_ms,
                |c| c.end_ns.saturating_sub(c.logging_ns),
            ),
        ];
        let n = pairs.len() as f64;
        for (phase, its, ours) in all {
            let its: f64 = pairs.iter().map(|(stats, _)| its(stats)).sum();
            let ours = pairs.iter().map(|(_, commit)| ours(commit) as f64 / 1e6);
            let ours: f64 = ours.sum();
            let text = format!(
                "{phase} of {name}: {:.2} ms, kernel {:.2}",
                ours / n,
                its / n
            );
            case.holds(
                &format!("mean time of {phase} of {name}"),
                (ours - its).abs() <= NEAR * its + 4.0 * OFF_MS * n.sqrt(),
                &text,
            );
            case.figure(text);
        }
    }
    Ok(())
}

/// A commit in the guest's events.
struct Commit {
    tid: u32,
    transaction: u64,
    start_ns: u64,
    locking_ns: u64,
    /// When it began to flush data.
    flushing_ns: u64,
    logging_ns: u64,
    end_ns: u64,
}

fn commits_of(events: &[Event], dev: u32) -> Vec<Commit> {
    let mut open: BTreeMap<u64, Commit> = BTreeMap::new();
    let mut commits = Vec::new();
    for event in events.iter().filter(|event| event.dev == dev) {
        match event.kind() {
            Some(Kind::JournalCommitStart) => {
                let commit = Commit {
                    tid: event.tid,
                    transaction: event.object,
                    start_ns: event.ts_ns,
                    locking_ns: event.ts_ns,
                    flushing_ns: event.ts_ns,
                    logging_ns: event.ts_ns,
                    end_ns: event.ts_ns,
                };
                open.insert(event.object, commit);
            }
            Some(Kind::JournalCommitPhase) => {
                if let Some(commit) = open.get_mut(&event.object) {
                    match event.sub {
                        LOCKING => commit.locking_ns = event.ts_ns,
                        FLUSHING => commit.flushing_ns = event.ts_ns,
                        LOGGING => commit.logging_ns = event.ts_ns,
                        _ => {}
                    }
                }
            }
            Some(Kind::JournalCommitEnd) => {
                if let Some(mut commit) = open.remove(&event.object) {
                    commit.end_ns = event.ts_ns;
                    commits.push(commit);
                }
            }
            _ => {}
        }
    }
    commits
}

/// The row of fsync names the program that streamed, its file, and the bytes of it that the commits carried.
pub fn others_data(case: &mut Case, seen: &Seen, disk: &OfDisk) -> anyhow::Result<()> {
    let stream = disk.stream.first().context("find the stream's log")?.inode;
    let commits = commits_of(&seen.events, disk.dev);
    let syncs: Vec<_> = disk.log.iter().filter(|line| line.op == "fsync").collect();
    let data: Vec<&Event> = seen
        .events
        .iter()
        .filter(|event| {
            event.kind() == Some(Kind::Queue) && event.dev == disk.dev && event.inode == stream
        })
        .collect();
    let (mut expected, mut waited) = (0_u64, 0_u64);
    for sync in &syncs {
        let ended =
            |commit: &&Commit| commit.end_ns > sync.begin_ns && commit.end_ns <= sync.end_ns;
        for commit in commits.iter().filter(ended) {
            waited += 1;
            let carried = data.iter().filter(|bio| {
                bio.tid == commit.tid && (commit.start_ns..commit.end_ns).contains(&bio.ts_ns)
            });
            expected += carried.map(|bio| bio.bytes).sum::<u64>();
        }
    }
    let inode = syncs.first().context("find a sync")?.inode;
    let mount = format!("/mnt/{}", disk.disk.id);
    let rows = seen.measured.analysis["calls"]
        .as_array()
        .context("find calls[]")?;
    let row = rows.iter().find(|row| {
        row["process"] == "call-writer"
            && row["op"] == "fsync"
            && row["file"]["inode"] == inode
            && row["file"]["mount"] == mount.as_str()
    });
    let row: &Value = row.context("find the row of fsync")?;
    let others = row["others_data"].as_array().context("find others_data")?;
    case.figure(format!(
        "{} syncs, {waited} commits, {} KiB of the stream, others_data_share {}",
        syncs.len(),
        expected / 1024,
        row["others_data_share"]
    ));
    let of_stream: u64 = others
        .iter()
        .filter(|other| other["file"]["inode"] == stream)
        .filter_map(|other| other["bytes"].as_u64())
        .sum();
    case.equal("bytes of the stream in others_data", of_stream, expected);
    // Also of a page that is written back while its write has not returned.
    let is_stream =
        |other: &Value| other["file"]["inode"] == stream && other["process"] == "streamer";
    case.holds(
        "others_data names only the stream, and its program",
        others.iter().all(is_stream),
        &row["others_data"].to_string(),
    );
    let ordered = disk.disk.id == "ordered";
    case.equal(
        "the commits carried data of the stream",
        expected > 0,
        ordered,
    );
    Ok(())
}

/// `sync-drags-others` names both programs, and as many bytes as the streaming program's log says were dirty at the last
/// commit; nothing where no commit writes data.
pub fn finding(case: &mut Case, seen: &Seen, disk: &OfDisk) -> anyhow::Result<()> {
    const RULE: &str = "sync-drags-others";
    let analysis = &seen.measured.analysis;
    let of_disk = |list: &str| {
        let entries = analysis[list].as_array().into_iter().flatten();
        let is_it = |it: &&Value| it["id"] == RULE && it["disk"] == disk.disk.id;
        entries.filter(is_it).cloned().collect::<Vec<Value>>()
    };
    case.equal("unjudged", of_disk("findings_unjudged").len(), 0);
    let found = of_disk("findings");
    let ordered = disk.disk.id == "ordered";
    case.equal("findings", found.len(), usize::from(ordered));
    let Some(evidence) = found.first().map(|finding| &finding["evidence"]) else {
        return Ok(());
    };
    for (key, expected) in [("program", "call-writer"), ("other_program", "streamer")] {
        let named = evidence[key].as_str().unwrap_or_default().to_owned();
        case.equal(key, named, expected.to_owned());
    }
    // What was written is dirty until a commit, but for what the guest writes back by itself.
    let syncs: Vec<_> = disk.log.iter().filter(|line| line.op == "fsync").collect();
    let commits = commits_of(&seen.events, disk.dev);
    let last = commits.iter().rfind(|commit| {
        let mut syncs = syncs.iter();
        syncs.any(|sync| commit.end_ns > sync.begin_ns && commit.end_ns <= sync.end_ns)
    });
    let last = last.context("find the last commit")?;
    let writes = || disk.stream.iter().filter(|line| line.op == "write");
    let before = writes().filter(|line| line.end_ns <= last.start_ns);
    let least: u64 = before.map(|line| line.bytes).sum();
    let stream = disk.stream.first().context("find the stream's log")?.inode;
    let of_stream = seen.events.iter().filter(|event| {
        event.kind() == Some(Kind::Queue) && event.dev == disk.dev && event.inode == stream
    });
    let by_itself = of_stream.filter(|bio| {
        let within = |commit: &Commit| (commit.start_ns..commit.end_ns).contains(&bio.ts_ns);
        let mut commits = commits.iter();
        !commits.any(|commit| bio.tid == commit.tid && within(commit))
    });
    let least = least.saturating_sub(by_itself.map(|bio| bio.bytes).sum());
    let begun = writes().filter(|line| line.begin_ns < last.end_ns);
    let most: u64 = begun.map(|line| line.bytes).sum();
    let bytes = evidence["others_bytes"]
        .as_u64()
        .context("find its bytes")?;
    case.holds(
        "bytes against the stream's own log",
        (least..=most).contains(&bytes),
        &format!("{bytes}, {least} to {most} were dirty"),
    );
    Ok(())
}
