//! Calls that wait for space in XFS' log and in ext4's journal, against what ftrace says.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::Guest;
use nestrace_rig::recorder::{self, Recorder};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::case::Case;

use crate::context::LiveContext;
use crate::with_agents::recording::wait_live;

const PATIENCE: Duration = Duration::from_secs(90);
/// How far the sums may lie apart…
const APART: f64 = 0.01;
/// … and the two stamps of each wait: the probes of agent and ftrace lie around each other.
const APART_EACH_SECONDS: f64 = 0.0005;

/// A file system with a small log, and how to fill it.
#[derive(Debug)]
pub struct SmallLog {
    /// What the recording is called after.
    id: &'static str,
    /// The disk that is formatted anew.
    disk: &'static str,
    folder: &'static str,
    make: &'static str,
    /// Has ftrace record begins (`sleep`) and ends (`wake`) of waits.
    trace: &'static str,
    load: &'static str,
}

/// As small a log as mkfs.xfs makes. So many programs make files at once that their reservations are larger than the log.
pub const XFS: SmallLog = SmallLog {
    id: "log-space",
    disk: "writeback",
    folder: "/mnt/small-log",
    make: "load xfs; umount /mnt/writeback; \
        mkfs.xfs -q -f -K --unsupported -l size=1368b DEVICE; \
        mkdir -p FOLDER; mount -t xfs DEVICE FOLDER",
    trace: "for e in sleep wake; do echo ON > $T/events/xfs/xfs_log_grant_$e/enable; done",
    load: "for p in $(seq 24); do (mkdir $p; cd $p; for i in $(seq 80); do : > f$i; done) & done; wait",
};

/// As small a journal as mke2fs makes, and data goes through it. The kernel has ten places for the returns of a function, so
/// no more than eight programs wait at once.
pub const EXT4: SmallLog = SmallLog {
    id: "journal-space",
    disk: "journal",
    folder: "/mnt/small-journal",
    make: "umount /mnt/journal && mkfs.ext4 -q -F -b 1024 -J size=1 DEVICE && \
        mkdir -p FOLDER && mount -t ext4 -o data=journal DEVICE FOLDER",
    trace: "if [ ON = 1 ]; then \
            echo 'p:space/jbd2_sleep __jbd2_log_wait_for_space' >> $T/kprobe_events; \
            echo 'r64:space/jbd2_wake __jbd2_log_wait_for_space' >> $T/kprobe_events; \
        fi; \
        echo ON > $T/events/space/enable",
    load: "X=$(seq 3000); \
        for p in $(seq 8); do (for i in $(seq 120); do echo $X > f$p.$i; done) & done; wait",
};

const TRACE: &str = "T=/sys/kernel/tracing; [ -e $T/trace ] || mount -t tracefs tracefs $T; \
    echo mono > $T/trace_clock; echo 8192 > $T/buffer_size_kb; echo > $T/trace; ";
const SHELLS: &str = "grep -o -E '^ *sh-[0-9]+.*_(sleep|wake):' $T/trace";

impl SmallLog {
    fn script(&self) -> String {
        let trace = |on: &str| self.trace.replace("ON", on);
        let (on, off, load, folder) = (trace("1"), trace("0"), self.load, self.folder);
        format!("{TRACE} {on}; cd {folder}; {load}; {off}; {SHELLS}")
    }
}

/// What ftrace saw of the shells.
#[derive(Debug, Default)]
struct Waits {
    n: u64,
    seconds: f64,
}

/// The case.
pub fn check(
    ctx: &LiveContext,
    case: &mut Case,
    guest: &Guest,
    small: &SmallLog,
) -> anyhow::Result<()> {
    let device = guest.device_of(small.disk)?;
    let make = small.make.replace("DEVICE", &device);
    guest.run_ok(&make.replace("FOLDER", small.folder), PATIENCE)?;
    let bundle = ctx.bundle(small.id);
    let path = bundle.to_str().context("name the recording")?;
    let args = ["--guest", guest.name(), "-o", path];
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    wait_live(&mut recorder, &[guest.name()])?;
    let lines = guest.run_ok(&small.script(), PATIENCE)?.stdout;
    let end = recorder.stop(Signal::SIGINT, Duration::from_secs(30))?;
    anyhow::ensure!(
        end.status.code() == Some(0),
        "stop the recorder: {}",
        end.stderr
    );
    let kernel = waits(&lines)?;
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    let seconds = seconds_for_the_journal(&analysis, small.folder)?;
    case.figure(format!(
        "{} waits, {:.3} s by ftrace, {seconds:.3} s in calls",
        kernel.n, kernel.seconds
    ));
    case.holds("the log was full", kernel.n >= 50, &kernel.n.to_string());
    let apart = APART * kernel.seconds + APART_EACH_SECONDS * kernel.n as f64;
    case.holds(
        "calls wait for the journal as long as the kernel says that they wait for space",
        (seconds - kernel.seconds).abs() <= apart,
        &format!("{seconds:.3} s, ftrace {:.3} s", kernel.seconds),
    );
    ctx.discard(&bundle);
    Ok(())
}

/// Lines of ftrace: `sh-201 [001] ..... 8.407918: xfs_log_grant_sleep:`.
fn waits(lines: &str) -> anyhow::Result<Waits> {
    let mut asleep: BTreeMap<&str, f64> = BTreeMap::new();
    let mut waits = Waits::default();
    for line in lines.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [thread, .., time, event] = words[..] else {
            anyhow::bail!("read a line of ftrace: {line}");
        };
        let time: f64 = time
            .trim_end_matches(':')
            .parse()
            .context(line.to_owned())?;
        if event.ends_with("sleep:") {
            asleep.insert(thread, time);
        } else if let Some(from) = asleep.remove(thread) {
            waits.n += 1;
            waits.seconds += time - from;
        }
    }
    Ok(waits)
}

/// The row of all files that have none of their own.
const OTHERS: &str = "…";

/// The time that the shells' calls waited for the journal of this mount; no other process waits as long for another one.
fn seconds_for_the_journal(analysis: &Value, folder: &str) -> anyhow::Result<f64> {
    let rows = analysis["calls"].as_array().context("find calls[]")?;
    let its = rows.iter().filter(|row| {
        row["process"] == "sh" && row["file"]["mount"] == folder || row["process"] == OTHERS
    });
    let of_row = |row: &Value| {
        let segments = row["segments"].as_array().into_iter().flatten();
        let journal = segments
            .filter(|segment| segment["name"] == "guest_journal")
            .filter_map(|segment| segment["mean_ns"].as_f64())
            .sum::<f64>();
        journal * row["linked"].as_f64().unwrap_or_default() / 1e9
    };
    Ok(its.map(of_row).sum())
}
