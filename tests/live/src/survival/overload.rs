//! Rings that are far too small: what was dropped is counted exactly, source by source.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_trace::{Kind, Source};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::case::Case;

use crate::analysis::number;
use crate::stage::{DISK, Ended, LIVE, Stage, events_so_far};

/// What both recordings have to agree on. Thread names are sent once per recording, and walks are
/// no events.
const COMPARED: [Source; 4] = [Source::Block, Source::File, Source::HostFs, Source::Qemu];
/// How often an edge may be disturbed.
const TRIES: u32 = 3;

/// The two recordings of one load.
struct Pair {
    big: Ended,
    small: Ended,
    /// Probes that the kernel skipped of both, by its own count. Each may have been an event of another
    /// device or process, so the recorder can only count them as if they were lost.
    skipped: u64,
}

/// Two recorders side by side, one with rings that hold everything and one with rings of a page:
/// what the small one wrote and lost is what the big one wrote.
pub fn exact_losses(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.rest()?;
    for _ in 0..TRIES {
        if let Some(pair) = side_by_side(stage)? {
            return compare(stage, case, &pair);
        }
    }
    anyhow::bail!("record with quiet edges in {TRIES} tries");
}

/// The small recording lies within the big one; `None` if something was written between their edges.
fn side_by_side(stage: &Stage<'_>) -> anyhow::Result<Option<Pair>> {
    stage.settle()?;
    let count = || BlockStat::read(stage.host.device());
    let before = count()?;
    let big = stage.record(&["--ring-size", "16M"])?;
    let small = stage.record(&["--ring-size", "4K", "--strict"])?;
    let quiet_before = count()? == before;
    let device = stage.guest.device_of(DISK)?;
    let load = format!(
        "fio --name=storm --filename={device} --rw=randrw --bs=4k --direct=1 --ioengine=libaio \
         --iodepth=32 --size=48m --io_size=24m --fsync=64 --output=/dev/null"
    );
    stage.guest.run_ok(&load, Duration::from_secs(90))?;
    stage.settle()?;
    let after = count()?;
    let skipped = skipped_probes(small.recorder.pid())? + skipped_probes(big.recorder.pid())?;
    let small = small.stop(Signal::SIGINT)?;
    let big = big.stop(Signal::SIGINT)?;
    let quiet = quiet_before && count()? == after;
    Ok(quiet.then_some(Pair {
        big,
        small,
        skipped,
    }))
}

/// The kernel's count over all programs of a recorder.
fn skipped_probes(pid: u32) -> anyhow::Result<u64> {
    let mut skipped = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).context("list the recorder's files")? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let misses = text.lines().find_map(|line| {
            line.strip_prefix("recursion_misses:")?
                .trim()
                .parse::<u64>()
                .ok()
        });
        skipped += misses.unwrap_or(0);
    }
    Ok(skipped)
}

fn compare(stage: &Stage<'_>, case: &mut Case, pair: &Pair) -> anyhow::Result<()> {
    let Pair {
        big,
        small,
        skipped,
    } = pair;
    case.holds(
        "--strict: exit code 5",
        small.end.status.code() == Some(5),
        &format!("{}: {}", small.end.status, small.end.stderr),
    );
    let whole = stage.analysis(&big.bundle)?;
    let lost = number(&whole, "/trace/lost")?;
    case.holds(
        "lost with big rings",
        lost <= *skipped,
        &format!("{lost}, skipped {skipped}"),
    );
    case.figure(format!("{skipped} probes skipped"));
    let torn = stage.analysis(&small.bundle)?;
    let expected = by_source(&big.bundle)?;
    let written = by_source(&small.bundle)?;
    let mut total = 0;
    for source in COMPARED {
        let lost = lost_of(&torn, source);
        let of = |counts: &BTreeMap<Source, u64>| counts.get(&source).copied().unwrap_or(0);
        let name = source.name();
        // Equal to the event where the kernel skipped no probe.
        let bounds = of(&expected)..=of(&expected) + skipped;
        let sum = of(&written) + lost;
        case.holds(
            &format!("{name}: written + lost"),
            bounds.contains(&sum),
            &format!("{sum}, expected {bounds:?}"),
        );
        case.figure(format!(
            "{name}: {} + {lost} lost = {}",
            of(&written),
            of(&expected)
        ));
        total += lost;
    }
    // When threads ran is not the same in each of the two recordings.
    total += lost_of(&torn, Source::Meta) + lost_of(&torn, Source::Cpu);
    case.equal("trace.lost", number(&torn, "/trace/lost")?, total);
    case.holds(
        "block events were lost",
        lost_of(&torn, Source::Block) > 0,
        "none",
    );
    told_beside_numbers(stage, case, &small.bundle, &torn)?;
    stage.ctx.discard(&big.bundle);
    stage.ctx.discard(&small.bundle);
    Ok(())
}

/// The report says what was lost, per source, and what that does to the numbers.
fn told_beside_numbers(
    stage: &Stage<'_>,
    case: &mut Case,
    bundle: &Path,
    analysis: &Value,
) -> anyhow::Result<()> {
    let text = stage.text(bundle)?;
    case.holds("the head of the text says it", text.contains("LOST"), &text);
    for source in COMPARED
        .iter()
        .filter(|source| lost_of(analysis, **source) > 0)
    {
        let line = format!("of source {} lost", source.name());
        case.holds(
            &format!("the text says {line:?}"),
            text.contains(&line),
            &text,
        );
    }
    let path = bundle.to_str().context("name the recording")?;
    let strict = stage.nestrace(&["analyze", "--strict", path])?;
    case.equal("analyze --strict", strict.code.unwrap_or(-1), 5);
    Ok(())
}

fn lost_of(analysis: &Value, source: Source) -> u64 {
    let losses = analysis["trace"]["losses"].as_array();
    losses
        .into_iter()
        .flatten()
        .filter(|loss| loss["source"] == source.name())
        .filter_map(|loss| loss["events"].as_u64())
        .sum()
}

fn by_source(bundle: &Path) -> anyhow::Result<BTreeMap<Source, u64>> {
    let mut counts = BTreeMap::new();
    for kind in events_so_far(bundle)?
        .iter()
        .filter_map(|event| event.kind())
    {
        if kind != Kind::Loss {
            *counts.entry(kind.source()).or_insert(0) += 1;
        }
    }
    Ok(counts)
}

/// Losses alone do not make a recording fail, and `--strict` finds nothing where nothing was lost.
pub fn strict(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let torn = stage
        .record(&["--ring-size", "4K", "--duration", "1"])?
        .wait(LIVE)?;
    case.equal(
        "exit code without --strict",
        torn.end.status.code().unwrap_or(-1),
        0,
    );
    let lost = number(&stage.analysis(&torn.bundle)?, "/trace/lost")?;
    case.holds("events were lost", lost > 0, "none");
    case.figure(format!("{lost} lost"));
    let whole = stage.record(&["--strict", "--duration", "1"])?.wait(LIVE)?;
    case.equal(
        "exit code with --strict",
        whole.end.status.code().unwrap_or(-1),
        0,
    );
    let lost = number(&stage.analysis(&whole.bundle)?, "/trace/lost")?;
    case.equal("lost with rings of the usual size", lost, 0);
    stage.ctx.discard(&torn.bundle);
    stage.ctx.discard(&whole.bundle);
    Ok(())
}
