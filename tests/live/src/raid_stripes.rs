//! What RAID5 and RAID6 do to write: the blocks that they read for the parity of a partial stripe, and the parity. A guest of
//! Debian's kernel plays the host. The counts are the members' own (`/sys/block/*/stat`) and md's, which says in blktrace what
//! it reads; the time under the reads is what dm-delay adds to each read.

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use serde_json::Value;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::kernels::machine::{Machine, Role};
use super::kernels::recording::Recording;
use super::{Scenario, ground_truth};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "raid-stripes",
    about: "reads for parity and parity of RAID5 and RAID6, in a guest, against the members' counts and md's",
    run,
    alone: false,
};

const LEG: u64 = 24 << 20;
const ROLE: Role<'_> = Role {
    series: "6.1",
    disks: &[
        ("modify-0", LEG),
        ("modify-1", LEG),
        ("modify-2", LEG),
        ("modify-3", LEG),
        ("modify-4", LEG),
        ("rebuild-0", LEG),
        ("rebuild-1", LEG),
        ("rebuild-2", LEG),
        ("six-0", LEG),
        ("six-1", LEG),
        ("six-2", LEG),
        ("six-3", LEG),
        ("whole-0", LEG),
        ("whole-1", LEG),
        ("whole-2", LEG),
    ],
    scripts: &[
        ("setup.sh", include_str!("raid_stripes/setup.sh")),
        ("workload.sh", include_str!("raid_stripes/workload.sh")),
    ],
    programs: &["dmsetup"],
    modules: &["raid456"],
    extra_arguments: &[],
};

/// Arrays, how many members each has, and how md says that it reads.
const ARRAYS: [(&str, usize, Reads); 4] = [
    ("modify", 5, Reads::Modify),
    ("rebuild", 3, Reads::Rebuild),
    ("six", 4, Reads::Rebuild),
    ("whole", 3, Reads::None),
];
/// What dm-delay adds to each read of a member of `rebuild`.
const DELAY_NS: f64 = 5e6;

/// The blocks that a write of one block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// Its old data and parity.
    Modify,
    /// The other data of its stripe.
    Rebuild,
    /// None.
    None,
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let machine = Machine::boot(ctx, &ROLE)?;
    let recording = Recording::make(ctx, &machine)?;
    report.case("raid-stripes/counts", |case| {
        ground_truth::nothing_lost(case, recording.analysis())?;
        for (array, n_members, reads) in ARRAYS {
            counts(case, &machine, &recording, (array, n_members, reads))?;
        }
        Ok(())
    })?;
    report.case("raid-stripes/shares", |case| {
        for (array, _, reads) in ARRAYS {
            shares(case, &machine, &recording, (array, reads))?;
        }
        Ok(())
    })?;
    ctx.discard(recording.bundle());
    Ok(())
}

/// The members' own counts, and what md said that it reads.
fn counts(
    case: &mut Case,
    machine: &Machine,
    recording: &Recording,
    (array, n_members, reads): (&str, usize, Reads),
) -> anyhow::Result<()> {
    let device = machine.device(array)?;
    let on_array = recording.stat(&device.kernel_name)?;
    let on_members: Vec<BlockStat> = (0..n_members)
        .map(|n| recording.stat(&machine.device(&format!("{array}_{n}"))?.kernel_name))
        .collect::<anyhow::Result<_>>()?;
    let members =
        |sectors: fn(&BlockStat) -> u64| on_members.iter().map(sectors).sum::<u64>() * 512;
    let ours = entry(
        recording.analysis(),
        "devices",
        &[("side", "host"), ("name", &device.kernel_name)],
    )?;
    let n = |key: &str| number(ours, &format!("/stripes/{key}"));
    case.equal(
        &format!("{array}: bytes read for parity"),
        n("extra_read_bytes")?,
        members(|it| it.read_sectors) - on_array.read_sectors * 512,
    );
    case.equal(
        &format!("{array}: bytes of parity"),
        n("parity_write_bytes")?,
        members(|it| it.write_sectors) - on_array.write_sectors * 512,
    );
    let md = recording.messages(device.dev);
    case.holds(
        &format!("{array}: how md reads"),
        md.iter().all(|it| it.starts_with(reads.word())) && md.is_empty() == (reads == Reads::None),
        &format!("{md:?}"),
    );
    if reads == Reads::Rebuild {
        // raid5 rcw SECTOR BLOCKS-THAT-ARE-MISSING READS-NOW DELAYED
        let now = md
            .iter()
            .map(|it| it.split(' ').nth(4)?.parse::<u64>().ok());
        let now: Option<u64> = now.sum();
        let expected = now.with_context(|| format!("read what md says: {md:?}"))?;
        case.equal(
            &format!("{array}: reads by md's count"),
            n("extra_reads")?,
            expected,
        );
    }
    let (writes, partial) = (n("writes")?, n("partial_writes")?);
    case.holds(
        &format!("{array}: writes of partial stripes"),
        if reads == Reads::None {
            partial == 0 && writes > 0
        } else {
            partial * 2 > writes
        },
        &format!("{partial} of {writes}"),
    );
    case.figure(format!(
        "{array}: {writes} writes of stripes, {partial} partial, {} reads for them, {} writes of parity",
        n("extra_reads")?,
        n("parity_writes")?
    ));
    Ok(())
}

/// Every bio is followed, and the time under the reads is what they took.
fn shares(
    case: &mut Case,
    machine: &Machine,
    recording: &Recording,
    (array, reads): (&str, Reads),
) -> anyhow::Result<()> {
    let stack = entry(
        recording.analysis(),
        "stacks",
        &[("device", &machine.device(array)?.kernel_name)],
    )?;
    let (bios, followed) = (number(stack, "/bios")?, number(stack, "/followed")?);
    case.equal(&format!("{array}: bios followed"), followed, bios);
    case.holds(
        &format!("{array}: the parts add up"),
        stack["residual_share"] == 0.0,
        &stack["residual_share"].to_string(),
    );
    let float = |pointer: &str| stack.pointer(pointer).and_then(Value::as_f64);
    let share = float("/beside/read_modify_write_share").context("find the share of reads")?;
    let whole = float("/q2c_mean_ns").context("find the latency")?;
    case.holds(
        &format!("{array}: reads for parity are waited for"),
        (share > 0.0) == (reads != Reads::None),
        &share.to_string(),
    );
    case.figure(format!(
        "{array}: {followed} of {bios} followed, {:.0} % of {:.2} ms under reads",
        share * 100.0,
        whole / 1e6
    ));
    if array == "rebuild" {
        let layers = stack["segments"].as_array().into_iter().flatten();
        let layers = layers.flat_map(|it| it["layers"].as_array().into_iter().flatten());
        let delays = layers.filter(|it| it["kind"] == "delay");
        let delay_ns: f64 = delays.filter_map(|it| it["mean_ns"].as_f64()).sum();
        let under_ns = share * whole;
        case.holds(
            "rebuild: the delay of a read is under the reads",
            delay_ns >= DELAY_NS && under_ns >= DELAY_NS && under_ns < whole,
            &format!("dm-delay {delay_ns} ns, under reads {under_ns} ns of {whole} ns"),
        );
        case.figure(format!("dm-delay {:.2} ms", delay_ns / 1e6));
    }
    Ok(())
}

impl Reads {
    const fn word(self) -> &'static str {
        match self {
            Self::Modify => "raid5 rmw ",
            Self::Rebuild => "raid5 rcw ",
            Self::None => "nothing",
        }
    }
}
