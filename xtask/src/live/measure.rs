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

use super::analysis::number;
use super::ground_truth::Counts;
use super::rig::LiveContext;
use crate::recorder::{self, Recorder};

/// How often a recording is tried again: because something wrote at one of its edges, or because the
/// kernel kept completions from the probes ("Loss" in ARCHITECTURE.md), which on some machines befalls
/// every third recording.
const TRIES: u32 = 6;
/// Up to how many lost events are taken for some that the kernel kept from the probes (its guard
/// against recursion), of which a recording has a few. The recorder counts them together with events that
/// found no room in a ring, and a recording does not tell them apart. But a ring that is full drops
/// events by the hundred until it is emptied, and the default rings never fill under these loads. So
/// more than this is want of room, a defect of the recorder that a further try must not hide. A drop of
/// fewer events is taken for the kernel's; it shows in the progress.
const SKIPPED_AT_MOST: u64 = 64;
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

/// What is watched while a recording is made, and how its independent counts are taken.
pub struct Observed<'a> {
    /// The guests, as `--guest` takes them.
    pub guests: Vec<&'a str>,
    /// The independent counts now.
    pub counts: &'a dyn Fn() -> anyhow::Result<Vec<Counts>>,
    /// Writes back what the host still holds.
    pub sync: &'a dyn Fn() -> anyhow::Result<()>,
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
    let mut guests: Vec<&str> = watched.iter().map(|disk| disk.guest.name()).collect();
    guests.dedup();
    let observed = Observed {
        guests,
        counts: &|| counts(watched),
        sync: &|| sync(watched),
    };
    measure_observed(ctx, &observed, work)
}

/// [`measure`] for guests and devices that the rig did not make.
///
/// A recording with events that the kernel did not show to the probes, counted or not, is made again
/// too; the last one is returned as it is. One that dropped events for want of room fails at once.
pub fn measure_observed(
    ctx: &LiveContext,
    observed: &Observed<'_>,
    work: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    for attempt in 1..=TRIES {
        let Some(measured) = measure_once(ctx, observed, &work)? else {
            ctx.progress.say(&format!(
                "something wrote at an edge of the recording (try {attempt})"
            ));
            continue;
        };
        let missed = completions_missed(&measured.analysis);
        let lost = number(&measured.analysis, "/trace/lost")?;
        if missed + lost == 0 || attempt == TRIES {
            return Ok(measured);
        }
        ctx.progress.say(&format!(
            "the kernel kept events from the probes, {missed} completions unseen and {lost} events \
             lost: recording again (try {attempt})"
        ));
        ctx.discard(&measured.bundle);
    }
    bail!("record with quiet edges: something wrote in each of {TRIES} tries")
}

/// Requests whose completion the kernel did not show to the probe, although no event was dropped, on
/// the devices that are held against independent counts: the loop devices under the images. The
/// machine's own disk beneath them is not.
fn completions_missed(analysis: &Value) -> u64 {
    let devices = analysis["devices"].as_array();
    devices
        .into_iter()
        .flatten()
        .filter(|device| {
            device["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("loop"))
        })
        .filter_map(|device| device.pointer("/check/completions_missed")?.as_u64())
        .sum()
}

/// No event was lost for want of room, as far as [`SKIPPED_AT_MOST`] tells.
fn nothing_dropped(analysis: &Value) -> anyhow::Result<()> {
    let lost = number(analysis, "/trace/lost")?;
    if lost > SKIPPED_AT_MOST {
        bail!(
            "record without drops: {lost} events were lost ({}), more than the kernel keeps from the \
             probes",
            analysis["trace"]["losses"]
        );
    }
    Ok(())
}

fn measure_once(
    ctx: &LiveContext,
    observed: &Observed<'_>,
    work: &impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Option<Measured>> {
    settle(observed)?;
    let first = observed.guests.first().context("choose a guest to watch")?;
    let bundle = ctx.bundle(first);
    let mut args: Vec<&str> = Vec::new();
    for &name in &observed.guests {
        args.extend(["--guest", name]);
    }
    args.extend(["-o", bundle.to_str().context("name the recording")?]);

    let before = (observed.counts)()?;
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    recorder.wait_live(LIVE)?;
    if (observed.counts)()? != before {
        return Ok(None);
    }
    work()?;
    settle(observed)?;
    let after = (observed.counts)()?;
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
    let at_end = (observed.counts)()?;
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    // Before anything that asks for a further try.
    nothing_dropped(&analysis)?;
    if at_end != after {
        return Ok(None);
    }
    let truth = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after.since(before))
        .collect();
    Ok(Some(Measured {
        analysis,
        truth,
        bundle,
    }))
}

/// Writes everything back and waits until no count moves any more.
fn settle(observed: &Observed<'_>) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    (observed.sync)()?;
    let mut last = (observed.counts)()?;
    let mut since = Instant::now();
    while since.elapsed() < QUIET {
        interrupt::check()?;
        thread::sleep(Duration::from_millis(50));
        let now = (observed.counts)()?;
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

fn sync(watched: &[Watched<'_>]) -> anyhow::Result<()> {
    watched
        .iter()
        .try_for_each(|disk| disk.host.sync().context("write back the host file system"))
}

fn counts(watched: &[Watched<'_>]) -> anyhow::Result<Vec<Counts>> {
    watched
        .iter()
        .map(|disk| Counts::take(disk.guest, disk.disk, disk.host))
        .collect()
}
