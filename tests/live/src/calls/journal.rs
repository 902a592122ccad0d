//! Commits of journals against jbd2's own counts, and data that commits write for other files.

use std::collections::BTreeMap;

use anyhow::Context;
use nestrace_trace::{Event, Kind};
use serde_json::Value;
use xtask::case::Case;

use super::scene::{OfDisk, Seen};

/// The transactions that `/proc/fs/jbd2` counted are those whose commits were recorded.
pub fn commits(case: &mut Case, seen: &Seen) -> anyhow::Result<()> {
    let mut looks: BTreeMap<&str, Vec<(f64, u64)>> = BTreeMap::new();
    for line in seen.journals.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [uptime, place, count, ..] = words.as_slice() else {
            anyhow::bail!("read {line} as a journal's counts");
        };
        let device = place
            .strip_prefix("/proc/fs/jbd2/")
            .and_then(|rest| rest.split('-').next())
            .with_context(|| format!("find the device in {place}"))?;
        let uptime = uptime.parse().context("read the guest's time")?;
        let count = count.parse().with_context(|| format!("read {line}"))?;
        looks.entry(device).or_default().push((uptime, count));
    }
    let side = seen.manifest.guest_sides.first();
    let side = side.context("find the guest's side")?;
    case.equal("journals", looks.len(), 4);
    for (device, looks) in looks {
        let (Some((from, before)), Some((to, after))) = (looks.first(), looks.last()) else {
            continue;
        };
        let disk = side.disks.iter().find(|disk| disk.name == device);
        let dev = disk.with_context(|| format!("find {device}"))?.dev;
        let ends = seen.events.iter().filter(|event| {
            let at = event.ts_ns as f64 / 1e9;
            // The guest's time is read to 10 ms, and nothing commits around either look.
            event.kind() == Some(Kind::JournalCommitEnd)
                && event.dev == dev
                && (from - 0.01..to + 0.02).contains(&at)
        });
        let ends = ends.count() as u64;
        case.figure(format!("{device}: {ends} commits"));
        case.equal(
            &format!("commits of {device} against jbd2's count"),
            ends,
            after - before,
        );
    }
    Ok(())
}

/// A commit in the guest's events.
struct Commit {
    tid: u32,
    start_ns: u64,
    end_ns: u64,
}

fn commits_of(events: &[Event], dev: u32) -> Vec<Commit> {
    let mut open: BTreeMap<u64, u64> = BTreeMap::new();
    let mut commits = Vec::new();
    for event in events.iter().filter(|event| event.dev == dev) {
        match event.kind() {
            Some(Kind::JournalCommitStart) => {
                open.insert(event.object, event.ts_ns);
            }
            Some(Kind::JournalCommitEnd) => {
                if let Some(start_ns) = open.remove(&event.object) {
                    commits.push(Commit {
                        tid: event.tid,
                        start_ns,
                        end_ns: event.ts_ns,
                    });
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
    case.holds(
        "others_data names only the stream and its program",
        others
            .iter()
            .all(|other| other["process"] == "streamer" && other["file"]["inode"] == stream),
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
