//! Two guests in one recording, with disks of the same name and with clones of one image: nothing is mixed up.

use std::path::Path;
use std::time::Duration;

use nestrace_rig::disk_image;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::{DiskSpec, Guest};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{Aio, Bus, DiskStack, HostFsKind, ImageFormat};
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::measure::{Watched, measure};
use super::{Scenario, ground_truth};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "two-guests",
    about: "two guests with equally named disks in one recording, at work at the same time",
    run,
    alone: false,
};

const DISK: &str = "disk-a";
const CLONE: &str = "clone";

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let raw = DiskStack::RAW;
    let scsi = DiskStack {
        bus: Bus::VirtioScsi,
        aio: Aio::IoUring,
        ..raw
    };
    let first_host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let second_host = ctx.host_fs(HostFsKind::Ext4, false, "")?;
    let base_host = ctx.host_fs(HostFsKind::Ext4, true, "")?;
    let base = base_host.path().join("base.raw");
    disk_image::create(&base, ImageFormat::Raw, 32 << 20, "full")?;
    let first_disks = vec![
        ctx.disk(&first_host, DISK, raw, 64 << 20, "full")?,
        clone_of(&base, &base_host, "first", Aio::Native)?,
    ];
    let second_disks = vec![
        ctx.disk(&second_host, DISK, scsi, 64 << 20, "full")?,
        clone_of(&base, &base_host, "second", Aio::Threads)?,
    ];
    let first = ctx.boot(&ctx.guest_name("first"), first_disks)?;
    let second = ctx.boot(&ctx.guest_name("second"), second_disks)?;
    report.case("two-guests/clones", |case| {
        clones(case, ctx, [&first, &second], &base_host, &base)
    })?;
    report.case("two-guests", |case| {
        let watched = [
            Watched {
                guest: &first,
                disk: DISK,
                host: &first_host,
            },
            Watched {
                guest: &second,
                disk: DISK,
                host: &second_host,
            },
        ];
        let devices = [first.device_of(DISK)?, second.device_of(DISK)?];
        let measured = measure(ctx, &watched, || {
            let limit = Duration::from_secs(60);
            let running = first.start(&load(&devices[0], "8k", "12m", "randwrite"), limit)?;
            second.run_ok(&load(&devices[1], "4k", "5m", "randrw"), limit)?;
            running.wait()?;
            Ok(())
        })?;
        ground_truth::nothing_lost(case, &measured.analysis)?;
        for (disk, truth) in watched.iter().zip(&measured.truth) {
            case.figure(disk.guest.name());
            ground_truth::device(case, &measured.analysis, disk.host.device(), &truth.device)?;
            ground_truth::qemu(
                case,
                &measured.analysis,
                disk.guest.name(),
                DISK,
                &truth.disk,
            )?;
        }
        Ok(())
    })?;
    Ok(())
}

/// An empty image above another one.
fn clone_of(base: &Path, host: &HostFs, name: &str, aio: Aio) -> anyhow::Result<DiskSpec> {
    let image = host.path().join(format!("{name}.qcow2"));
    Tool::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(base)
        .arg(&image)
        .run()?;
    let stack = DiskStack {
        format: ImageFormat::Qcow2,
        aio,
        ..DiskStack::RAW
    };
    Ok(DiskSpec::new(CLONE, image, stack))
}

/// Both read their common base, the second twice as much: each has what it read.
fn clones(
    case: &mut Case,
    ctx: &LiveContext,
    guests: [&Guest; 2],
    host: &HostFs,
    base: &Path,
) -> anyhow::Result<()> {
    let watched = guests.map(|guest| Watched {
        guest,
        disk: CLONE,
        host,
    });
    let blocks = [64_u64, 128];
    let lines = guests
        .iter()
        .zip(blocks)
        .map(|(guest, blocks)| {
            let device = guest.device_of(CLONE)?;
            Ok(format!(
                "dd if={device} of=/dev/null bs=64k count={blocks} iflag=direct 2> /dev/null"
            ))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let measured = measure(ctx, &watched, || {
        let limit = Duration::from_secs(60);
        let running = guests[0].start(&lines[0], limit)?;
        guests[1].run_ok(&lines[1], limit)?;
        running.wait()?;
        Ok(())
    })?;
    let analysis = &measured.analysis;
    ground_truth::nothing_lost(case, analysis)?;
    let path = base.display().to_string();
    for (guest, blocks) in guests.iter().zip(blocks) {
        let keys = [
            ("guest", guest.name()),
            ("disk", CLONE),
            ("path", path.as_str()),
        ];
        let image = entry(analysis, "images", &keys)?;
        for pointer in ["/file_io/bytes/read", "/host_bytes/read"] {
            let what = format!("{}: base {pointer}", guest.name());
            case.equal(&what, number(image, pointer)?, blocks << 16);
        }
    }
    let asked: u64 = blocks.iter().sum::<u64>() << 16;
    let read = measured.truth[0].device.read_sectors * 512;
    case.holds(
        "the kernel's count of what both read",
        read >= asked,
        &format!("{read} bytes, {asked} asked for"),
    );
    let notices = analysis["trace"]["notices"].to_string();
    let is_divided = !notices.contains("serves other disks");
    case.holds("the base is divided", is_divided, &notices);
    Ok(())
}

fn load(device: &str, block: &str, size: &str, rw: &str) -> String {
    format!(
        "fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth=8 \
         --bs={block} --size={size} --rw={rw} --fsync=32 --end_fsync=1"
    )
}
