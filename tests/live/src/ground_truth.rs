//! Holds the analysis against what the kernel and QEMU counted by themselves.

use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::guest::Guest;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::qmp::DiskStats;
use serde_json::Value;
use xtask::case::Case;

use super::analysis::{entry, number};

/// One request of so many may have a completion that the kernel kept from the probes.
const MISSED_AT_MOST: u64 = 200;

/// The independent counts of one disk and the device under its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// `/sys/block/DEV/stat`.
    pub device: BlockStat,
    /// QMP `query-blockstats`.
    pub disk: DiskStats,
}

impl Counts {
    /// Counts now.
    pub fn take(guest: &Guest, disk: &str, host: &HostFs) -> anyhow::Result<Self> {
        Ok(Self {
            device: BlockStat::read(host.device())?,
            disk: guest.disk_stats(disk)?,
        })
    }

    /// Counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            device: self.device.since(&earlier.device),
            disk: self.disk.since(&earlier.disk),
        }
    }
}

/// Nothing was lost, refused at the core or cut.
pub fn nothing_lost(case: &mut Case, analysis: &Value) -> anyhow::Result<()> {
    case.equal("trace.lost", number(analysis, "/trace/lost")?, 0);
    case.holds(
        "trace.truncated",
        analysis["trace"]["truncated"] == false,
        "true, expected false",
    );
    case.figure(format!("{} events", number(analysis, "/trace/events")?));
    Ok(())
}

/// `devices[]` against `/sys/block/DEV/stat`, and its totals against each other.
pub fn device(
    case: &mut Case,
    analysis: &Value,
    name: &str,
    stat: &BlockStat,
) -> anyhow::Result<()> {
    case.figure(format!(
        "{name}: {} requests, {} merges, {} flushes, {} discards, {} + {} KiB",
        stat.operations(),
        stat.merges(),
        stat.flushes,
        stat.discards,
        stat.read_sectors / 2,
        stat.write_sectors / 2
    ));
    let device = entry(analysis, "devices", &[("side", "host"), ("name", name)])?;
    device_entry(case, device, stat)
}

/// An entry of `devices[]` against `/sys/block/DEV/stat` of the machine that has it, and its totals
/// against each other.
pub fn device_entry(case: &mut Case, device: &Value, stat: &BlockStat) -> anyhow::Result<()> {
    let missed = |key: &str| number(device, &format!("/check/missed/{key}"));
    let count = |key: &str| number(device, &format!("/counts/{key}"));
    let bytes = |key: &str| -> anyhow::Result<u64> {
        let missed = missed(&format!("bytes/{key}"))?;
        Ok(number(device, &format!("/bytes/{key}"))? + missed)
    };
    few_are_missed(case, device, stat)?;
    case.equal(
        "devices.completed + flushes against reads + writes + discards of stat",
        count("completed")? + missed("completed")? + count("flushes")?,
        stat.operations(),
    );
    case.equal(
        "devices.device_flushes",
        count("device_flushes")?,
        stat.flushes,
    );
    let discards = count("discards")? + missed("discards")?;
    case.equal("devices.discards", discards, stat.discards);
    let merges = count("back_merges")? + count("front_merges")? + count("request_merges")?;
    case.equal("devices: merges", merges, stat.merges());
    case.equal(
        "devices.bytes.read",
        bytes("read")?,
        stat.read_sectors * 512,
    );
    case.equal(
        "devices.bytes.write",
        bytes("write")?,
        stat.write_sectors * 512,
    );
    case.equal(
        "devices.bytes.discard",
        bytes("discard")?,
        stat.discard_sectors * 512,
    );
    totals(case, device)
}

/// Where the kernel kept completions from the probes in every try ([`super::measure`]), the analysis has
/// to know of each of them, and what it lacks for it: with that its counts are the kernel's again.
fn few_are_missed(case: &mut Case, device: &Value, stat: &BlockStat) -> anyhow::Result<()> {
    let missed = number(device, "/check/completions_missed")?;
    if missed > 0 {
        case.figure(format!(
            "{missed} completions not seen, all of them reported"
        ));
        let few = missed * MISSED_AT_MOST <= stat.operations();
        case.holds("check.completions_missed", few, &missed.to_string());
    }
    Ok(())
}

/// Q + X = G + M + F, bios walked at D, every bio ends once or was seen to have ended, no pointer
/// across its reuse.
fn totals(case: &mut Case, device: &Value) -> anyhow::Result<()> {
    let total = |key: &str| number(device, &format!("/check/{key}"));
    let began = total("queued")? + total("splits")?;
    let placed = total("get_requests")?
        + total("back_merges")?
        + total("front_merges")?
        + total("untraced_merges")?;
    case.equal("check: Q + X against G + M + F", began, placed);
    let with_data = began - total("empty_flushes")?;
    case.equal(
        "check: bios walked at D",
        total("walked_at_issue")?,
        with_data,
    );
    let whole = total("queued")? - total("empty_flushes")?;
    let unseen = total("reused_while_live")? + total("open_at_end")?;
    case.equal(
        "check: data bios that ended",
        total("ended")? + unseen,
        whole,
    );
    case.equal("check: lives of bio pointers", total("generations")?, began);
    case.equal("check.ended_twice", total("ended_twice")?, 0);
    if total("completions_missed")? == 0 {
        for key in ["reused_while_live", "reissued_while_live", "open_at_end"] {
            case.equal(&format!("check.{key}"), total(key)?, 0);
        }
    }
    Ok(())
}

/// `qemu[]` against QMP.
pub fn qemu(
    case: &mut Case,
    analysis: &Value,
    guest: &str,
    disk: &str,
    stats: &DiskStats,
) -> anyhow::Result<()> {
    case.figure(format!(
        "qemu: {} reads ({} merged), {} writes ({} merged), {} flushes, {} discards",
        stats.reads,
        stats.reads_merged,
        stats.writes,
        stats.writes_merged,
        stats.flushes,
        stats.discards
    ));
    let qemu = entry(analysis, "qemu", &[("guest", guest), ("disk", disk)])?;
    let pairs = [
        ("/reads", stats.reads),
        ("/writes", stats.writes),
        ("/flushes", stats.flushes),
        ("/discards", stats.discards),
        ("/merged_by_type/read", stats.reads_merged),
        ("/merged_by_type/write", stats.writes_merged),
        ("/merged_by_type/discard", stats.discards_merged),
        (
            "/merged",
            stats.reads_merged + stats.writes_merged + stats.discards_merged,
        ),
        ("/failed", stats.failed),
        ("/invalid", stats.invalid),
        ("/bytes/read", stats.read_bytes),
        ("/bytes/write", stats.write_bytes),
        ("/bytes/discard", stats.discard_bytes),
    ];
    for (pointer, expected) in pairs {
        case.equal(&format!("qemu{pointer}"), number(qemu, pointer)?, expected);
    }
    Ok(())
}
