//! A domain of a real libvirt: found by its name, followed although libvirt holds the monitor.

mod daemon;
mod domain;
mod lab;

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::disk_image;
use nestrace_rig::stack::{Aio, Bus, CacheMode, DiskStack, HostFsKind, ImageFormat, Stack};
use xtask::case::{Case, Report};

use self::daemon::Libvirt;
use self::domain::{Domain, DomainDisk};
use self::lab::SharedFolder;
use super::context::LiveContext;
use super::ground_truth::Counts;
use super::measure::{Measured, Observed, host_live, measure_observed, under_an_image};
use super::topology::{self, Facts};
use super::{Scenario, ground_truth, image_pattern};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "libvirt",
    about: "a domain of a private libvirtd, by name, while libvirt holds its monitor, and as the lab's guest",
    run,
    alone: false,
};

const QCOW2: DiskStack = DiskStack {
    format: ImageFormat::Qcow2,
    cache: CacheMode::None,
    aio: Aio::IoUring,
    bus: Bus::Virtio,
    iothread: false,
};
const RAW: DiskStack = DiskStack {
    bus: Bus::VirtioScsi,
    ..DiskStack::RAW
};

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let images = [host.path().join("a.qcow2"), host.path().join("b.raw")];
    let [first, second] = &images;
    disk_image::create(first, QCOW2.format, 64 << 20, "falloc")?;
    disk_image::create(second, RAW.format, 64 << 20, "falloc")?;
    let disks = [
        DomainDisk {
            target: "vda",
            alias: "virtio-disk0",
            image: first,
            stack: QCOW2,
        },
        DomainDisk {
            target: "sda",
            alias: "scsi0-0-0-0",
            image: second,
            stack: RAW,
        },
    ];
    let with_lab = ctx.wants("libvirt/lab");
    if with_lab {
        lab::install_agent(&ctx.progress)?;
    }
    let shared = SharedFolder::make()?;
    // Declared after the file system: its namespace holds the mount until it has ended.
    let libvirt = Libvirt::start(&ctx.progress)?;
    ctx.progress.say("libvirtd answers");
    let name = ctx.guest_name("libvirt");
    let domain = Domain::start(ctx, &libvirt, &name, &disks)?;
    ctx.progress.say("the domain is up");
    report.case("libvirt/guests", |case| {
        for disk in &disks {
            shown(case, ctx, &name, disk, host.device())?;
        }
        Ok(())
    })?;
    report.case("libvirt/record", |case| {
        let counts = || {
            let take = |disk: &DomainDisk<'_>| {
                anyhow::Ok(Counts {
                    device: BlockStat::read(host.device())?,
                    disk: domain.disk_stats(disk.alias)?,
                })
            };
            disks.iter().map(take).collect()
        };
        let observed = Observed {
            guests: vec![&name],
            counts: &counts,
            sync: &|| host.sync().context("write back the host file system"),
            live: &host_live,
            counts_on: under_an_image,
        };
        let measured = measure_observed(ctx, &observed, || {
            for disk in &disks {
                let device = domain.device_of(disk.target)?;
                domain.run_ok(&image_pattern::script(&device), Duration::from_secs(60))?;
            }
            Ok(())
        })?;
        compare(case, &measured, &name, &disks, host.device())
    })?;
    report.case("libvirt/snapshot", |case| {
        snapshot(case, ctx, &libvirt, &name, &disks)
    })?;
    if with_lab {
        report.case("libvirt/lab", |case| {
            lab::run(case, ctx, &libvirt, &domain, &shared)
        })?;
    }
    Ok(())
}

/// `nestrace guests` has the disk with its image and the device below.
fn shown(
    case: &mut Case,
    ctx: &LiveContext,
    guest: &str,
    disk: &DomainDisk<'_>,
    device: &str,
) -> anyhow::Result<()> {
    let found = topology::guests(ctx)?;
    let facts = Facts {
        guest,
        disk: disk.alias,
        image: &disk.image.display().to_string(),
        stack: disk.stack,
        device,
    };
    topology::disk_is(case, &found, &facts)?;
    let about = topology::guest(&found, guest)?;
    case.holds(
        "libvirt holds the monitor",
        about["qmp"].is_null(),
        &about["qmp"].to_string(),
    );
    let agent = &about["agent"];
    let is_channel = |path: &str| path.ends_with("/org.nestrace.agent.0");
    let found = agent.as_str().is_some_and(is_channel);
    case.holds("agent's channel", found, &agent.to_string());
    Ok(())
}

/// After a snapshot the new image is on top of the disk's, in a recording's topology too. The monitor that would tell is
/// libvirt's, and the command line is that of the start.
fn snapshot(
    case: &mut Case,
    ctx: &LiveContext,
    libvirt: &Libvirt,
    guest: &str,
    disks: &[DomainDisk<'_>; 2],
) -> anyhow::Result<()> {
    let [first, second] = disks;
    let overlay = first.image.with_file_name("overlay.qcow2");
    let file = format!("{},file={}", first.target, overlay.display());
    let not = format!("{},snapshot=no", second.target);
    libvirt.virsh(&[
        "snapshot-create-as",
        guest,
        "--disk-only",
        "--no-metadata",
        "--diskspec",
        &file,
        "--diskspec",
        &not,
    ])?;
    let found = topology::guests(ctx)?;
    let disk = topology::disk(&found, guest, first.alias)?;
    let images = disk["images"].as_array().into_iter().flatten();
    let paths: Vec<&str> = images.filter_map(|image| image["path"].as_str()).collect();
    let expected = [&overlay, first.image].map(|path| path.display().to_string());
    case.equal("images", paths.join(" "), expected.join(" "));
    case.equal(
        "format",
        disk["format"].as_str().unwrap_or_default(),
        "qcow2",
    );
    let all = topology::guest(&found, guest)?["disks"]
        .as_array()
        .map_or(0, Vec::len);
    case.equal("disks", all, disks.len());
    Ok(())
}

fn compare(
    case: &mut Case,
    measured: &Measured,
    guest: &str,
    disks: &[DomainDisk<'_>],
    device: &str,
) -> anyhow::Result<()> {
    let analysis = &measured.analysis;
    ground_truth::nothing_lost(case, analysis)?;
    let truth = measured.truth.first().context("count the requests")?;
    ground_truth::device(case, analysis, device, &truth.device)?;
    for (disk, truth) in disks.iter().zip(&measured.truth) {
        ground_truth::qemu(case, analysis, guest, disk.alias, &truth.disk)?;
        let stack = Stack {
            host_fs: HostFsKind::Xfs,
            disk: disk.stack,
        };
        let device_read = truth.device.read_sectors * 512;
        image_pattern::compare(case, analysis, (guest, disk.alias), &stack, device_read)?;
    }
    let found = topology::recorded(&measured.bundle)?;
    topology::backends_of(case, &found, guest, disks.len())
}
