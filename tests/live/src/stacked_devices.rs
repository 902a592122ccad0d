//! dm and md below a file system. This machine's kernel may have neither, so a guest of Debian's
//! kernel plays the host: ext4 on dm-linear over a partition, xfs on an md mirror, ext4 on a stripe of
//! dm and on one of md, ext4 on dm over a loop device; blktrace records beside nestrace.

mod cost;
mod images;
mod suspended;

use nestrace_blktrace::Action;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::kernels::machine::{Machine, Role};
use super::kernels::recording::Recording;
use super::{Scenario, direct_io_link, ground_truth, kernels};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "stacked-devices",
    about: "dm and md below file systems, in a guest: events, counts, the devices below, and iocost",
    run,
    alone: false,
};

const ROLE: Role<'_> = Role {
    series: "6.1",
    // mkfs.xfs wants 300 MB.
    disks: &[
        ("parted", 256 << 20),
        ("mirror-a", 384 << 20),
        ("mirror-b", 384 << 20),
        ("files", 384 << 20),
        ("half-a", 100 << 20),
        ("half-b", 100 << 20),
        ("halves", 100 << 20),
    ],
    scripts: &[
        ("setup.sh", include_str!("stacked_devices/setup.sh")),
        ("workload.sh", include_str!("stacked_devices/workload.sh")),
        ("images.sh", include_str!("stacked_devices/images.sh")),
        ("cost.sh", include_str!("stacked_devices/cost.sh")),
        ("stuck.sh", include_str!("stacked_devices/stuck.sh")),
    ],
    programs: &["dmsetup"],
    modules: &[],
    // This machine's QEMU is used in the guest.
    extra_arguments: &[
        "-virtfs",
        "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
    ],
};

/// Who makes a device of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Dm,
    Raid1,
    Raid0,
    Loop,
}

impl Driver {
    /// As the manifest names it.
    const fn kind(self) -> &'static str {
        match self {
            Self::Dm => "dm",
            Self::Raid1 | Self::Raid0 => "md",
            Self::Loop => "loop",
        }
    }
}

/// A device by its name in `setup.sh`, and what lies right below it.
const STACKS: [(&str, Driver, &[&str]); 6] = [
    ("linear", Driver::Dm, &["parted/1"]),
    ("mirror", Driver::Raid1, &["mirror_a", "mirror_b"]),
    ("stripe", Driver::Dm, &["half_a/1", "half_b/1"]),
    ("raid0", Driver::Raid0, &["half_a/2", "half_b/2"]),
    ("pieces", Driver::Dm, &["loop"]),
    ("loop", Driver::Loop, &["files"]),
];
/// The disks at the bottom.
const DISKS: [&str; 6] = [
    "parted", "mirror_a", "mirror_b", "half_a", "half_b", "files",
];

/// What the workload has to bring about.
const EXPECTED: [Action; 10] = [
    Action::Queue,
    Action::GetRequest,
    Action::BackMerge,
    Action::FrontMerge,
    Action::Split,
    Action::Remap,
    Action::Issue,
    Action::Complete,
    Action::Plug,
    Action::Unplug,
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let machine = Machine::boot(ctx, &ROLE)?;
    let recording = Recording::make(ctx, &machine)?;
    report.case("stacked-devices/topology", |case| {
        topology(case, &machine, &recording)
    })?;
    report.case("stacked-devices/blktrace", |case| {
        kernels::same_events(case, &recording, &EXPECTED, kernels::Told::All)
    })?;
    report.case("stacked-devices/counts", |case| {
        ground_truth::nothing_lost(case, recording.analysis())?;
        for (name, driver, _) in STACKS {
            counts(case, &machine, &recording, name, driver)?;
        }
        for name in DISKS {
            counts(case, &machine, &recording, name, Driver::Loop)?;
        }
        Ok(())
    })?;
    report.case("stacked-devices/loop-links", |case| {
        let device = machine.device("loop")?;
        direct_io_link::loop_requests_of(
            case,
            recording.events(),
            machine.file("loop")?,
            device.dev,
            &device.kernel_name,
        );
        Ok(())
    })?;
    ctx.discard(recording.bundle());
    report.case("stacked-devices/images", |case| {
        images::check(case, ctx, &machine)
    })?;
    report.case("stacked-devices/iocost", |case| {
        cost::check(case, ctx, &machine)
    })?;
    report.case("stacked-devices/suspended", |case| {
        suspended::check(case, &machine)
    })?;
    Ok(())
}

/// The manifest's devices: the kind of each, and the devices below it.
fn topology(case: &mut Case, machine: &Machine, recording: &Recording) -> anyhow::Result<()> {
    let devices = &recording.manifest().topology.devices;
    for (name, driver, beneath) in STACKS {
        let kernel_name = &machine.device(name)?.kernel_name;
        let beneath = beneath
            .iter()
            .map(|beneath| in_kernels_words(machine, beneath))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let found = devices.iter().find(|device| device.name == *kernel_name);
        let good =
            found.is_some_and(|device| device.kind == driver.kind() && device.beneath == beneath);
        let figures = format!("{found:?}, expected a {driver:?} over {beneath:?}");
        case.holds(&format!("{name} ({kernel_name})"), good, &figures);
    }
    for name in DISKS {
        let kernel_name = &machine.device(name)?.kernel_name;
        let is_disk = |device: &&nestrace_trace::manifest::Device| {
            device.name == *kernel_name && device.kind == "disk" && device.beneath.is_empty()
        };
        case.holds(name, devices.iter().any(|device| is_disk(&device)), "none");
    }
    case.figure(format!("{} devices", devices.len()));
    Ok(())
}

/// The analysis against the kernel's own counts.
fn counts(
    case: &mut Case,
    machine: &Machine,
    recording: &Recording,
    name: &str,
    driver: Driver,
) -> anyhow::Result<()> {
    let kernel_name = &machine.device(name)?.kernel_name;
    let stat = recording.stat(kernel_name)?;
    let analysis = recording.analysis();
    if driver == Driver::Loop {
        return ground_truth::device(case, analysis, kernel_name, &stat);
    }
    case.figure(format!(
        "{kernel_name}: {} I/Os, {} discards, {} + {} KiB",
        stat.operations(),
        stat.discards,
        stat.read_sectors / 2,
        stat.write_sectors / 2
    ));
    let device = entry(
        analysis,
        "devices",
        &[("side", "host"), ("name", kernel_name)],
    )?;
    let n = |pointer: &str| number(device, pointer);
    let (completed, discards) = (n("/counts/completed")?, n("/counts/discards")?);
    // md counts no flushes, raid0 no discards.
    let (operations, discards_counted, discarded) = match driver {
        Driver::Raid0 => (completed - discards, 0, 0),
        Driver::Raid1 => (completed, discards, n("/bytes/discard")?),
        _ => {
            let flushes = n("/counts/flushes")?;
            (completed + flushes, discards, n("/bytes/discard")?)
        }
    };
    let pairs = [
        ("what the driver handled", operations, stat.operations()),
        ("discards", discards_counted, stat.discards),
        ("bytes discarded", discarded, stat.discard_sectors * 512),
        ("bytes read", n("/bytes/read")?, stat.read_sectors * 512),
        (
            "bytes written",
            n("/bytes/write")?,
            stat.write_sectors * 512,
        ),
        ("flush requests", n("/counts/device_flushes")?, stat.flushes),
        ("requests issued", n("/counts/issued")?, 0),
        ("bios in requests", n("/check/walked_at_issue")?, 0),
        (
            "bios with data that ended",
            n("/check/ended")?,
            n("/check/queued")? - n("/check/empty_flushes")?,
        ),
        (
            "flushes that ended",
            n("/check/empty_flushes_ended")?,
            n("/check/empty_flushes")?,
        ),
        ("bios that ended twice", n("/check/ended_twice")?, 0),
        ("bios across a reuse", n("/check/reused_while_live")?, 0),
        ("bios without an end", n("/check/open_at_end")?, 0),
    ];
    for (what, actual, expected) in pairs {
        case.equal(&format!("{name} ({kernel_name}): {what}"), actual, expected);
    }
    let unlinked = &device["unlinked"];
    let none = unlinked.as_object().is_none_or(serde_json::Map::is_empty);
    case.holds(
        &format!("{name}: events without a bio"),
        none,
        &unlinked.to_string(),
    );
    Ok(())
}

/// `half_a/1` → `vde1`.
fn in_kernels_words(machine: &Machine, name: &str) -> anyhow::Result<String> {
    let (name, partition) = name.split_once('/').unwrap_or((name, ""));
    Ok(format!("{}{partition}", machine.device(name)?.kernel_name))
}
