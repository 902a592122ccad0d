//! Two guests in one recording, with disks of the same name: nothing is mixed up.

use std::time::Duration;

use nestrace_lab::stack::{Aio, Bus, DiskStack, HostFsKind};

use super::case::Report;
use super::measure::{Watched, measure};
use super::rig::LiveContext;
use super::{Scenario, ground_truth};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "two-guests",
    about: "two guests with equally named disks in one recording, at work at the same time",
    run,
};

const DISK: &str = "disk-a";

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("two-guests", |case| {
        let raw = DiskStack::RAW;
        let scsi = DiskStack {
            bus: Bus::VirtioScsi,
            aio: Aio::IoUring,
            ..raw
        };
        let first_host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
        let second_host = ctx.host_fs(HostFsKind::Ext4, false, "")?;
        let first_disk = ctx.disk(&first_host, DISK, raw, 64 << 20, "full")?;
        let second_disk = ctx.disk(&second_host, DISK, scsi, 64 << 20, "full")?;
        let first = ctx.boot(&ctx.guest_name("first"), vec![first_disk])?;
        let second = ctx.boot(&ctx.guest_name("second"), vec![second_disk])?;
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

fn load(device: &str, block: &str, size: &str, rw: &str) -> String {
    format!(
        "fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth=8 \
         --bs={block} --size={size} --rw={rw} --fsync=32 --end_fsync=1"
    )
}
