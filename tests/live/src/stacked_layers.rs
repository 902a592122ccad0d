//! Where the time of a bio goes in devices that stand on each other, down to the lowest ones. A guest of Debian's kernel plays
//! the host: ext4 on a linear volume, on dm-crypt, on a mirror of md with one leg that dm-delay slows down by
//! 5 ms; RAID5 with partial stripes; a thin volume; stripes, a mirror and a cache of dm; a disk behind bcache; loop devices
//! over files of XFS.

use anyhow::Context;
use nestrace_rig::packages;
use serde_json::Value;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::kernels::machine::{Machine, Role};
use super::kernels::recording::Recording;
use super::{Scenario, ground_truth};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "stacked-layers",
    about: "time in dm, md and loop devices, layer by layer down to the lowest device, in a guest",
    run,
    alone: false,
};

const ROLE: Role<'_> = Role {
    series: "6.1",
    disks: &[
        ("leg-a", 160 << 20),
        ("leg-b", 160 << 20),
        ("r5-a", 48 << 20),
        ("r5-b", 48 << 20),
        ("r5-c", 48 << 20),
        // mkfs.xfs wants 300 MB.
        ("files", 384 << 20),
        ("thin-meta", 8 << 20),
        ("thin-data", 64 << 20),
        ("half-a", 32 << 20),
        ("half-b", 32 << 20),
        ("origin", 32 << 20),
        ("fast", 16 << 20),
        ("fast-meta", 8 << 20),
        ("backing", 48 << 20),
        // The kernel wants 513 buckets at least.
        ("cache", 96 << 20),
    ],
    scripts: &[
        ("setup.sh", include_str!("stacked_layers/setup.sh")),
        ("workload.sh", include_str!("stacked_layers/workload.sh")),
    ],
    programs: &["dmsetup", "make-bcache"],
    modules: &[
        "dm_crypt",
        "xts",
        "ecb",
        "raid456",
        "dm_thin_pool",
        "bcache",
        "dm_mirror",
        "dm_cache",
        "dm_cache_smq",
    ],
    extra_arguments: &[],
};

/// What dm-delay adds to each write on one leg.
const DELAY_NS: f64 = 5e6;
/// The uppermost devices, by their names in `setup.sh`: what each is made by, and the kinds of the layers that its writes
/// pass.
const STACKS: [(&str, &str, &[&str]); 9] = [
    ("linear", "linear", &["linear", "crypt", "raid1", "delay"]),
    ("parity", "raid5", &["raid5"]),
    ("thin", "thin", &["thin"]),
    ("striped", "striped", &["striped"]),
    ("copies", "mirror", &["mirror"]),
    ("cached_dm", "cache", &["cache"]),
    ("behind", "bcache", &["bcache"]),
    ("direct", "loop", &["loop"]),
    ("cached", "loop", &["loop"]),
];
/// Devices of drivers that count each bio, and the disks at the bottom.
const COUNTED: [&str; 25] = [
    "linear",
    "crypt",
    "delay",
    "leg_a",
    "leg_b",
    "r5_a",
    "r5_b",
    "r5_c",
    "thin",
    "thin_meta",
    "thin_data",
    "striped",
    "copies",
    "half_a",
    "half_b",
    "cached_dm",
    "origin",
    "fast",
    "fast_meta",
    "behind",
    "backing",
    "cache",
    "direct",
    "cached",
    "files",
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    packages::install_programs(&[("make-bcache", "bcache-tools")], |line| {
        ctx.progress.say(line);
    })?;
    let machine = Machine::boot(ctx, &ROLE)?;
    let recording = Recording::make(ctx, &machine)?;
    let analysis = recording.analysis();
    report.case("stacked-layers/sums", |case| {
        ground_truth::nothing_lost(case, analysis)?;
        for (name, kind, layers) in STACKS {
            sums(case, stack(analysis, &machine, name)?, (name, kind, layers))?;
        }
        Ok(())
    })?;
    report.case("stacked-layers/delay", |case| {
        delay(case, stack(analysis, &machine, "linear")?, "linear")?;
        Ok(())
    })?;
    report.case("stacked-layers/allocation", |case| {
        let stack = stack(analysis, &machine, "thin")?;
        let share = stack["beside"]["metadata_share"].as_f64();
        let share = share.context("find the share of metadata")?;
        case.holds(
            "writes wait for thin's metadata",
            share > 0.0,
            &share.to_string(),
        );
        case.figure(format!("thin's metadata: {:.0} %", share * 100.0));
        Ok(())
    })?;
    report.case("stacked-layers/counts", |case| {
        for name in COUNTED {
            counts(case, &machine, &recording, name)?;
        }
        Ok(())
    })?;
    ctx.discard(recording.bundle());
    Ok(())
}

fn stack<'a>(analysis: &'a Value, machine: &Machine, name: &str) -> anyhow::Result<&'a Value> {
    entry(
        analysis,
        "stacks",
        &[("device", &machine.device(name)?.kernel_name)],
    )
}

/// The segments of an operation.
fn segments<'a>(stack: &'a Value, op: &str) -> impl Iterator<Item = &'a Value> {
    stack["by_op"][op].as_array().into_iter().flatten()
}

fn mean(segments: &Value) -> f64 {
    segments["mean_ns"].as_f64().unwrap_or(0.0)
}

/// Mean own time of the layers of a kind.
fn of_kind(stack: &Value, op: &str, kind: &str) -> f64 {
    let layers = segments(stack, op).flat_map(|it| it["layers"].as_array().into_iter().flatten());
    layers.filter(|layer| layer["kind"] == kind).map(mean).sum()
}

/// Own times and the lowest devices' add up to the bio's, each layer has its name, and bios were followed.
fn sums(
    case: &mut Case,
    stack: &Value,
    (name, kind, layers): (&str, &str, &[&str]),
) -> anyhow::Result<()> {
    let (bios, followed) = (number(stack, "/bios")?, number(stack, "/followed")?);
    let whole = stack["q2c_mean_ns"].as_f64().context("find a mean")?;
    let parts: f64 = stack["segments"]
        .as_array()
        .into_iter()
        .flatten()
        .map(mean)
        .sum();
    case.holds(
        &format!("{name}: the parts add up"),
        (parts - whole).abs() < 1.0 && stack["residual_share"] == 0.0,
        &format!("{parts} of {whole}, residual {}", stack["residual_share"]),
    );
    case.holds(
        &format!("{name}: what it is made by"),
        stack["kind"] == kind,
        &stack["kind"].to_string(),
    );
    for layer in layers {
        let own = of_kind(stack, "write", layer);
        case.holds(
            &format!("{name}: writes pass {layer}"),
            own > 0.0,
            "no time",
        );
    }
    let expected = match name {
        // Through the page cache a write ends there; a read of what was never written needs no device.
        "cached" => 1,
        // A volume's I/O that could be another bio's is not linked.
        "thin" => bios * 9 / 10,
        _ => bios,
    };
    case.holds(
        &format!("{name}: bios followed to the lowest device"),
        followed >= expected,
        &format!("{followed} of {bios}"),
    );
    case.figure(format!(
        "{name}: {followed} of {bios} followed, {:.2} ms",
        whole / 1e6
    ));
    Ok(())
}

/// The slow leg's delay is in its own layer and nowhere else.
fn delay(case: &mut Case, stack: &Value, name: &str) -> anyhow::Result<()> {
    let writes = number(&stack["by_op"]["write"][0], "/mean_ns").is_ok()
        || !stack["by_op"]["write"].is_null();
    case.holds(&format!("{name}: writes"), writes, "none");
    let slow = of_kind(stack, "write", "delay");
    case.holds(
        &format!("{name}: the delay is dm-delay's own time"),
        slow >= DELAY_NS,
        &format!("{slow} ns"),
    );
    for kind in ["raid1", "crypt", "linear"] {
        let own = of_kind(stack, "write", kind);
        case.holds(
            &format!("{name}: none of it is {kind}'s"),
            own < DELAY_NS,
            &format!("{own} ns"),
        );
    }
    let lowest = ["host_queue", "device"];
    let lowest: f64 = segments(stack, "write")
        .filter(|segment| lowest.iter().any(|it| segment["name"] == *it))
        .map(mean)
        .sum();
    case.holds(
        &format!("{name}: none of it is the lowest device's"),
        lowest < DELAY_NS,
        &format!("{lowest} ns"),
    );
    let reads = of_kind(stack, "read", "delay");
    case.holds(
        &format!("{name}: reads are not delayed"),
        reads < DELAY_NS,
        &format!("{reads} ns"),
    );
    case.figure(format!(
        "{name}: dm-delay {:.2} ms, lowest device {:.2} ms a write",
        slow / 1e6,
        lowest / 1e6
    ));
    Ok(())
}

/// The kernel's own counts of a device.
fn counts(
    case: &mut Case,
    machine: &Machine,
    recording: &Recording,
    name: &str,
) -> anyhow::Result<()> {
    let kernel_name = &machine.device(name)?.kernel_name;
    let stat = recording.stat(kernel_name)?;
    let device = entry(
        recording.analysis(),
        "devices",
        &[("side", "host"), ("name", kernel_name)],
    )?;
    let n = |pointer: &str| number(device, pointer);
    let done = n("/counts/completed")? + n("/counts/flushes")?;
    for (what, actual, expected) in [
        ("I/Os", done, stat.operations()),
        ("bytes read", n("/bytes/read")?, stat.read_sectors * 512),
        (
            "bytes written",
            n("/bytes/write")?,
            stat.write_sectors * 512,
        ),
    ] {
        case.equal(&format!("{name} ({kernel_name}): {what}"), actual, expected);
    }
    Ok(())
}
