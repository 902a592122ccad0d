//! One recording by nestrace and by blktrace at the same time, brought out of the guest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nestrace_blktrace::{Notify, Reader, Trace};
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::recorder;
use nestrace_trace::{Event, Manifest, bundle};
use serde_json::Value;

use super::machine::Machine;
use crate::context::LiveContext;
use crate::direct_io_link::host_events;

/// How often a recording is made because one of the two recorders dropped an event, or something
/// wrote at an edge.
const TRIES: u32 = 3;
/// The workload takes 20 s on an idle machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// What both recorders left, and the kernel's own counts.
#[derive(Debug)]
pub struct Recording {
    bundle: PathBuf,
    manifest: Manifest,
    events: Vec<Event>,
    traces: Vec<Trace>,
    /// What drivers said in blktrace: device number and text.
    messages: Vec<(u32, String)>,
    analysis: Value,
    stats: BTreeMap<String, BlockStat>,
    /// From the start of nestrace to the start of its command.
    pub until_live: Duration,
}

impl Recording {
    /// Records the workload until neither of the two has dropped an event, with quiet edges.
    pub fn make(ctx: &LiveContext, machine: &Machine) -> anyhow::Result<Self> {
        for attempt in 1..=TRIES {
            ctx.progress.say("recording with nestrace and blktrace");
            let said = machine.run_script("record.sh", PATIENCE)?;
            let dropped = dropped_by_blktrace(&said)?;
            let recording = Self::fetch(ctx, machine, &said)?;
            let mut obstacles = recording.lost();
            obstacles.extend((dropped > 0).then(|| format!("blktrace dropped {dropped} events")));
            let moved = said.lines().filter(|line| line.starts_with("moved "));
            obstacles.extend(moved.map(|line| format!("at an edge, {line}")));
            if obstacles.is_empty() {
                return Ok(recording);
            }
            let obstacles = obstacles.join("; ");
            ctx.progress.say(&format!("try {attempt}: {obstacles}"));
            ctx.discard(&recording.bundle);
        }
        bail!("record without loss and with quiet edges: it failed in each of {TRIES} tries")
    }

    fn fetch(ctx: &LiveContext, machine: &Machine, said: &str) -> anyhow::Result<Self> {
        let folder = machine.fetch(ctx, "/tmp/recorded.tar")?;
        let bundle = folder.join("host.nest");
        let manifest = read_manifest(&bundle)?;
        let live_ns = manifest.live_mono_ns..=manifest.end_mono_ns;
        let mut traces = read_traces(&folder.join("blktrace"))?;
        // blktrace begins before nestrace and ends after it.
        let messages = traces.iter().filter_map(message).collect();
        traces.retain(|trace| trace.action().is_some() && live_ns.contains(&trace.time_ns));
        Ok(Self {
            events: host_events(&bundle)?,
            analysis: recorder::analyze(&ctx.nestrace, &bundle)?,
            stats: stats(said)?,
            until_live: until_live(said)?,
            bundle: folder,
            manifest,
            traces,
            messages,
        })
    }

    /// What nestrace lost, by source.
    fn lost(&self) -> Vec<String> {
        let losses = self.manifest.losses.iter().filter(|loss| loss.events > 0);
        losses
            .map(|loss| format!("nestrace lost {} of {}", loss.events, loss.source))
            .collect()
    }

    /// The folder with everything that was fetched.
    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// nestrace's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// nestrace's events in the order of time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// blktrace's records while nestrace was recording, in the order of time.
    pub fn traces(&self) -> &[Trace] {
        &self.traces
    }

    /// What the driver of a device said in blktrace, in the order of time.
    pub fn messages(&self, dev: u32) -> Vec<&str> {
        let its = self.messages.iter().filter(|(device, _)| *device == dev);
        its.map(|(_, text)| text.as_str()).collect()
    }

    /// The JSON of `analyze`.
    pub fn analysis(&self) -> &Value {
        &self.analysis
    }

    /// What the kernel counted for a device during the workload.
    pub fn stat(&self, device: &str) -> anyhow::Result<BlockStat> {
        self.stats
            .get(device)
            .copied()
            .with_context(|| format!("find the counts of {device}"))
    }
}

/// The text of a message, with the device.
fn message(trace: &Trace) -> Option<(u32, String)> {
    let text = (trace.notify() == Some(Notify::Message)).then_some(&trace.payload)?;
    let text = String::from_utf8_lossy(text);
    Some((trace.device, text.trim_end_matches('\0').to_owned()))
}

/// A bundle's manifest.
pub fn read_manifest(bundle: &Path) -> anyhow::Result<Manifest> {
    let path = bundle.join(bundle::MANIFEST);
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(Manifest::from_slice(&text)?.0)
}

/// The sum of `dropped DEVICE N`.
fn dropped_by_blktrace(said: &str) -> anyhow::Result<u64> {
    let mut n_devices = 0;
    let mut sum = 0;
    for line in said
        .lines()
        .filter_map(|line| line.strip_prefix("dropped "))
    {
        let (_, n) = line
            .split_once(' ')
            .with_context(|| format!("read {line:?}"))?;
        sum += n
            .trim()
            .parse::<u64>()
            .with_context(|| format!("read {line:?}"))?;
        n_devices += 1;
    }
    ensure!(
        n_devices > 0,
        "find blktrace's drops in what record.sh said: {said}"
    );
    Ok(sum)
}

/// `before DEVICE COUNTS…` and `after DEVICE COUNTS…`.
pub fn stats(said: &str) -> anyhow::Result<BTreeMap<String, BlockStat>> {
    let look = |when: &str| -> BTreeMap<String, BlockStat> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(when));
        let counts = lines.filter_map(|line| line.split_once(' '));
        counts
            .filter_map(|(device, counts)| Some((device.to_owned(), BlockStat::parse(counts)?)))
            .collect()
    };
    let before = look("before ");
    let mut after = look("after ");
    ensure!(
        before.len() == after.len() && !before.is_empty(),
        "find the counts in what record.sh said: {said}"
    );
    for (device, stat) in &mut after {
        *stat = stat.since(
            before
                .get(device)
                .with_context(|| format!("find the counts of {device} before"))?,
        );
    }
    Ok(after)
}

/// `started SECONDS SECONDS`: when nestrace was started, and when its command began.
fn until_live(said: &str) -> anyhow::Result<Duration> {
    let line = said.lines().find_map(|line| line.strip_prefix("started "));
    let (started, begun) = line
        .and_then(|line| line.split_once(' '))
        .context("find when the workload began")?;
    let seconds: f64 = begun.trim().parse::<f64>()? - started.parse::<f64>()?;
    Duration::try_from_secs_f64(seconds).context("read when the workload began")
}

/// Every file of every processor and device, merged in the order of time.
fn read_traces(folder: &Path) -> anyhow::Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for entry in folder
        .read_dir()
        .with_context(|| format!("read {}", folder.display()))?
    {
        let path = entry?.path();
        let name = || path.display().to_string();
        let file = File::open(&path).with_context(|| format!("open {}", name()))?;
        let mut reader = Reader::new(BufReader::new(file)).with_context(name)?;
        traces.extend(reader.by_ref());
        ensure!(
            reader.diagnostics().is_empty(),
            "read {}: {:?}",
            name(),
            reader.diagnostics()
        );
    }
    traces.sort_by_key(|trace| (trace.time_ns, trace.cpu, trace.sequence));
    Ok(traces)
}
