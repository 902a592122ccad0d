//! Calls that wait for space in XFS' log, against what the kernel's own tracepoints say.

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

/// The disk that is formatted anew.
const DISK: &str = "writeback";
const FOLDER: &str = "/mnt/small-log";
const PATIENCE: Duration = Duration::from_secs(90);
/// How far the sums may lie apart: the probes of agent and ftrace lie around each other.
const APART: f64 = 0.03;

/// As small a log as mkfs.xfs makes.
const MAKE: &str = "load xfs; umount /mnt/writeback; \
    mkfs.xfs -q -f -K --unsupported -l size=1368b DEVICE; \
    mkdir -p FOLDER; mount -t xfs DEVICE FOLDER";

/// So many programs make files at once that their reservations are larger than the log.
const LOAD: &str = "T=/sys/kernel/tracing; [ -e $T/trace ] || mount -t tracefs tracefs $T; \
    echo mono > $T/trace_clock; echo 8192 > $T/buffer_size_kb; echo > $T/trace; \
    for e in sleep wake; do echo 1 > $T/events/xfs/xfs_log_grant_$e/enable; done; \
    cd FOLDER; \
    for p in $(seq 24); do (mkdir $p; cd $p; for i in $(seq 80); do : > f$i; done) & done; wait; \
    for e in sleep wake; do echo 0 > $T/events/xfs/xfs_log_grant_$e/enable; done; \
    grep -o -E '^ *sh-[0-9]+.*xfs_log_grant_(sleep|wake):' $T/trace";

/// What ftrace saw of the shells.
#[derive(Debug, Default)]
struct Waits {
    n: u64,
    seconds: f64,
}

/// The case.
pub fn check(ctx: &LiveContext, case: &mut Case, guest: &Guest) -> anyhow::Result<()> {
    let device = guest.device_of(DISK)?;
    let script = |text: &str| text.replace("DEVICE", &device).replace("FOLDER", FOLDER);
    guest.run_ok(&script(MAKE), PATIENCE)?;
    let bundle = ctx.bundle("log-space");
    let path = bundle.to_str().context("name the recording")?;
    let args = ["--guest", guest.name(), "-o", path];
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    wait_live(&mut recorder, &[guest.name()])?;
    let lines = guest.run_ok(&script(LOAD), PATIENCE)?.stdout;
    let end = recorder.stop(Signal::SIGINT, Duration::from_secs(30))?;
    anyhow::ensure!(
        end.status.code() == Some(0),
        "stop the recorder: {}",
        end.stderr
    );
    let kernel = waits(&lines)?;
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    let seconds = seconds_for_the_journal(&analysis)?;
    case.figure(format!(
        "{} waits, {:.3} s by ftrace, {seconds:.3} s in calls",
        kernel.n, kernel.seconds
    ));
    case.holds("the log was full", kernel.n >= 50, &kernel.n.to_string());
    case.holds(
        "calls wait for the journal as long as the kernel says that they wait for space",
        (seconds - kernel.seconds).abs() <= APART * kernel.seconds,
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

/// The time that the shells' calls waited for the journal of this mount.
fn seconds_for_the_journal(analysis: &Value) -> anyhow::Result<f64> {
    let rows = analysis["calls"].as_array().context("find calls[]")?;
    let its = rows
        .iter()
        .filter(|row| row["process"] == "sh" && row["file"]["mount"] == FOLDER);
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
