//! One recording with quiet edges, between two looks at the independent counts.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_lab::guest::Guest;
use nestrace_lab::host_fs::HostFs;
use nestrace_lab::interrupt;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::ground_truth::Counts;
use super::rig::LiveContext;
use crate::recorder::{self, Recorder};

/// How often a recording is tried again because something wrote at one of its edges.
const TRIES: u32 = 3;
/// The contract: recording has begun within 3 s; a loaded machine gets more before we give up.
const LIVE: Duration = Duration::from_secs(20);
/// How long the counts must stand still before an edge.
const QUIET: Duration = Duration::from_millis(400);

/// A disk and what lies under it.
#[derive(Clone, Copy, Debug)]
pub struct Watched<'a> {
    /// Its guest.
    pub guest: &'a Guest,
    /// Its id.
    pub disk: &'a str,
    /// The file system of its image.
    pub host: &'a HostFs,
}

/// What one recording left.
#[derive(Debug)]
pub struct Measured {
    /// The JSON of `analyze`.
    pub analysis: Value,
    /// The independent counts, one for each watched disk.
    pub truth: Vec<Counts>,
    /// The recording.
    pub bundle: PathBuf,
}

/// Records the guests of `watched` during `work` and analyzes the recording.
///
/// The counts are compared while the recorder comes up and while it goes down: when they move then,
/// an edge was not quiet and the recording says nothing; it is made again.
pub fn measure(
    ctx: &LiveContext,
    watched: &[Watched<'_>],
    work: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    for attempt in 1..=TRIES {
        if let Some(measured) = measure_once(ctx, watched, &work)? {
            return Ok(measured);
        }
        ctx.progress.say(&format!(
            "something wrote at an edge of the recording (try {attempt})"
        ));
    }
    bail!("record with quiet edges: something wrote in each of {TRIES} tries")
}

fn measure_once(
    ctx: &LiveContext,
    watched: &[Watched<'_>],
    work: &impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Option<Measured>> {
    settle(watched)?;
    let first = watched.first().context("choose a disk to watch")?;
    let bundle = ctx.bundle(first.guest.name());
    let mut args: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = watched.iter().map(|disk| disk.guest.name()).collect();
    names.dedup();
    for name in names {
        args.extend(["--guest", name]);
    }
    args.extend(["-o", bundle.to_str().context("name the recording")?]);

    let before = counts(watched)?;
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    recorder.wait_live(LIVE)?;
    if counts(watched)? != before {
        return Ok(None);
    }
    work()?;
    settle(watched)?;
    let after = counts(watched)?;
    let end = recorder.stop(Signal::SIGINT, Duration::from_secs(30))?;
    if end.status.code() != Some(0) {
        bail!("stop the recorder ({}): {}", end.status, end.stderr);
    }
    if end.took > Duration::from_secs(10) {
        bail!(
            "stop the recorder within 10 s: it took {:.1} s",
            end.took.as_secs_f64()
        );
    }
    if counts(watched)? != after {
        return Ok(None);
    }
    let truth = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after.since(before))
        .collect();
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    Ok(Some(Measured {
        analysis,
        truth,
        bundle,
    }))
}

/// Writes everything back and waits until no count moves any more.
pub fn settle(watched: &[Watched<'_>]) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    for disk in watched {
        disk.host
            .sync()
            .context("write back the host file system")?;
    }
    let mut last = counts(watched)?;
    let mut since = Instant::now();
    while since.elapsed() < QUIET {
        interrupt::check()?;
        thread::sleep(Duration::from_millis(50));
        let now = counts(watched)?;
        if now != last {
            last = now;
            since = Instant::now();
        }
        if Instant::now() > deadline {
            bail!("see the devices come to rest within 20 s");
        }
    }
    Ok(())
}

fn counts(watched: &[Watched<'_>]) -> anyhow::Result<Vec<Counts>> {
    watched
        .iter()
        .map(|disk| Counts::take(disk.guest, disk.disk, disk.host))
        .collect()
}
