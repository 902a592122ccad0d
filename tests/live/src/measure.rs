//! One recording with quiet edges, between two looks at the independent counts.

use std::fmt::Debug;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::guest::Guest;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::interrupt;
use nestrace_rig::recorder::{self, Recorder};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::case::Case;

use super::analysis::number;
use super::context::LiveContext;
use super::ground_truth::{self, Counts};

/// How often a recording is tried because something wrote at one of its edges.
const EDGE_TRIES: usize = 6;
/// How often one is tried because the kernel kept completions from the probes
/// (docs/loss.md). That befalls every third recording on some machines, and more of those of guests
/// whose disks interrupt each other's completions (IDE beside virtio). The last one is taken with those,
/// and the analysis has to account for each of them.
const TRIES: usize = 10;
/// Up to so many lost events are taken for events that the kernel kept from the probes (its guard against
/// recursion); a recording has a few of them. The recorder counts them together with events that found no room
/// in a ring, so a recording cannot separate the two. But a full ring drops hundreds of events until it is
/// emptied, and the default rings never fill under these loads. So a larger loss means that a ring was full: a
/// defect of the recorder, which another try must not hide. A smaller loss is taken for the kernel's and is
/// printed with the progress.
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

impl<'a> Watched<'a> {
    /// The disks of one guest with these ids, each with what lies under it.
    pub fn of_guest(guest: &'a Guest, ids: &'a [String], hosts: &'a [HostFs]) -> Vec<Self> {
        let each = ids.iter().zip(hosts);
        each.map(|(disk, host)| Self { guest, disk, host })
            .collect()
    }
}

/// Independent counts that only grow.
pub trait Tally: PartialEq + Debug {
    /// What came since `earlier`.
    fn since(&self, earlier: &Self) -> Self;

    /// Whether nothing came since `earlier` but reads of the devices under the images: the recorder
    /// looks at qcow2 images before it is live and after it has stopped.
    fn is_at_rest_since(&self, earlier: &Self) -> bool;
}

impl Tally for Counts {
    fn since(&self, earlier: &Self) -> Self {
        Self::since(self, earlier)
    }

    fn is_at_rest_since(&self, earlier: &Self) -> bool {
        self.disk == earlier.disk && self.device.without_reads() == earlier.device.without_reads()
    }
}

/// [`Tally::is_at_rest_since`] of each; what moved is said.
fn are_at_rest_since<C: Tally>(ctx: &LiveContext, counts: &[C], earlier: &[C]) -> bool {
    let pairs = counts.iter().zip(earlier);
    let moved: Vec<_> = pairs
        .filter(|(now, earlier)| !now.is_at_rest_since(earlier))
        .collect();
    for (now, earlier) in &moved {
        ctx.progress.say(&format!("{earlier:?} became {now:?}"));
    }
    moved.is_empty() && counts.len() == earlier.len()
}

/// What one recording left.
#[derive(Debug)]
pub struct Measured<C = Counts> {
    /// The JSON of `analyze`.
    pub analysis: Value,
    /// The independent counts, one for each watched disk.
    pub truth: Vec<C>,
    /// The recording.
    pub bundle: PathBuf,
    /// Why it was made anew, once for each time.
    pub again: Vec<String>,
    /// From the recorder's start until every source was live, the loading of an agent that has just been
    /// started included.
    pub live_after: Duration,
}

impl<C> Measured<C> {
    /// Nothing was lost; how often it was recorded until then, and how soon it was live, are figures of the case.
    pub fn is_whole(&self, case: &mut Case) -> anyhow::Result<()> {
        let live_after = self.live_after.as_secs_f64();
        case.figure(format!("live after {live_after:.1} s"));
        if !self.again.is_empty() {
            case.figure(format!("recorded again for {}", self.again.join(" and ")));
        }
        ground_truth::nothing_lost(case, &self.analysis)
    }
}

/// What is watched while a recording is made, and how its independent counts are taken.
pub struct Observed<'a, C = Counts> {
    /// The guests, as `--guest` takes them.
    pub guests: Vec<&'a str>,
    /// The independent counts now.
    pub counts: &'a dyn Fn() -> anyhow::Result<Vec<C>>,
    /// Writes back what the host still holds.
    pub sync: &'a dyn Fn() -> anyhow::Result<()>,
    /// Comes back when the recorder says that it hears everything it is to hear.
    pub live: &'a dyn Fn(&mut Recorder) -> anyhow::Result<()>,
    /// Whether requests without a recorded end matter, for a device of the analysis.
    pub counts_on: fn(&Value) -> bool,
}

/// [`Observed::live`] of a recording on the host alone.
pub fn host_live(recorder: &mut Recorder) -> anyhow::Result<()> {
    Ok(recorder.wait_live(LIVE)?)
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
        live: &host_live,
        counts_on: under_an_image,
    };
    measure_observed(ctx, &observed, work)
}

/// [`measure`] for guests and devices that the rig did not make.
///
/// A recording with events that the kernel did not show to the probes, counted or not, is made again
/// too; the last one is returned as it is. One that dropped events for want of room fails at once.
pub fn measure_observed<C: Tally>(
    ctx: &LiveContext,
    observed: &Observed<'_, C>,
    work: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Measured<C>> {
    let mut again = Vec::new();
    let (mut edges, mut attempt) = (0, 0);
    while edges < EDGE_TRIES {
        let Some(mut measured) = measure_once(ctx, observed, &work)? else {
            edges += 1;
            ctx.progress.say(&format!(
                "something wrote at an edge of the recording (try {edges})"
            ));
            again.push("a write at its edge".to_owned());
            continue;
        };
        attempt += 1;
        let missed = ends_unseen(&measured.analysis, observed.counts_on);
        let lost = number(&measured.analysis, "/trace/lost")?;
        if missed + lost == 0 || attempt == TRIES {
            measured.again = again;
            return Ok(measured);
        }
        ctx.progress.say(&format!(
            "the kernel kept events from the probes, {missed} ends unseen and {lost} events lost: \
             recording again (try {attempt})"
        ));
        again.push(format!("{missed} unseen ends, {lost} lost events"));
        ctx.discard(&measured.bundle);
    }
    bail!("record with quiet edges: something wrote in {EDGE_TRIES} tries")
}

/// Requests whose completion the kernel did not show to the probe, although no event was dropped: known by the
/// next life of their address, or still open although nothing was on its way when the recording ended.
fn ends_unseen(analysis: &Value, counts_on: fn(&Value) -> bool) -> u64 {
    let devices = analysis["devices"].as_array();
    let checks = devices
        .into_iter()
        .flatten()
        .filter(|device| counts_on(device))
        .map(|device| &device["check"]);
    let unseen = |check: &Value| -> u64 {
        ["completions_missed", "open_at_end"]
            .iter()
            .filter_map(|key| check[*key].as_u64())
            .sum()
    };
    checks.map(unseen).sum()
}

/// [`Observed::counts_on`] for the devices that a recording of the host is held against: the loop
/// devices under the images. The machine's own disk below them is not.
pub fn under_an_image(device: &Value) -> bool {
    let name = device["name"].as_str();
    name.is_some_and(|name| name.starts_with("loop"))
}

/// [`Observed::counts_on`] for a guest's own devices.
pub fn in_a_guest(device: &Value) -> bool {
    device["side"] == "guest"
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

fn measure_once<C: Tally>(
    ctx: &LiveContext,
    observed: &Observed<'_, C>,
    work: &impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Option<Measured<C>>> {
    settle(observed)?;
    let first = observed.guests.first().context("choose a guest to watch")?;
    let bundle = ctx.bundle(first);
    let mut args: Vec<&str> = Vec::new();
    for &name in &observed.guests {
        args.extend(["--guest", name]);
    }
    args.extend(["-o", bundle.to_str().context("name the recording")?]);

    let at_start = (observed.counts)()?;
    let started = Instant::now();
    let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
    (observed.live)(&mut recorder)?;
    let live_after = started.elapsed();
    let before = (observed.counts)()?;
    if !are_at_rest_since(ctx, &before, &at_start) {
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
    if !are_at_rest_since(ctx, &at_end, &after) {
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
        again: Vec::new(),
        live_after,
    }))
}

/// Writes everything back and waits until no count moves any more.
fn settle<C: Tally>(observed: &Observed<'_, C>) -> anyhow::Result<()> {
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
