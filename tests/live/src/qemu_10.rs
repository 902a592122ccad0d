//! QEMU 10.0 from Debian's backports, run by path: several disks in one guest against the same
//! independent counts. Its `directsync` with Linux AIO or io_uring issues no `fdatasync` on a raw
//! image but marks each write with `RWF_DSYNC`.

use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::qemu_package;
use nestrace_rig::stack::{Aio, Bus, CacheMode, DiskStack, HostFsKind, ImageFormat, Stack};
use serde_json::Value;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::measure::{Watched, measure};
use super::{Scenario, backend_calls, direct_io_link, ground_truth, image_pattern, topology};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "qemu-10",
    about: "QEMU 10.0 of bookworm-backports: counts, image bytes, RWF_DSYNC",
    run,
    alone: false,
};

const BASE: &str = "bookworm";
const SUITE: &str = "bookworm-backports";
/// A recording that has to be made again costs less the fewer disks it has.
const DISKS_AT_ONCE: usize = 2;

const STACKS: [Stack; 6] = {
    use self::Aio::{IoUring, Native, Threads};
    use self::Bus::{Ide, Virtio, VirtioScsi};
    use self::CacheMode::{Directsync, None as Uncached, Writeback};
    use self::HostFsKind::{Ext4, Xfs};
    use self::ImageFormat::{Qcow2, Raw};
    [
        stack(Xfs, Raw, Directsync, IoUring, VirtioScsi),
        stack(Ext4, Raw, Directsync, Native, Virtio),
        stack(Xfs, Qcow2, Uncached, IoUring, Virtio),
        stack(Ext4, Qcow2, Writeback, IoUring, Virtio),
        stack(Xfs, Raw, Directsync, Threads, Ide),
        stack(Ext4, Qcow2, Uncached, Threads, VirtioScsi),
    ]
};

const fn stack(
    host_fs: HostFsKind,
    format: ImageFormat,
    cache: CacheMode,
    aio: Aio,
    bus: Bus,
) -> Stack {
    let disk = DiskStack {
        format,
        cache,
        aio,
        bus,
        iothread: false,
    };
    Stack { host_fs, disk }
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    ctx.progress.say("QEMU of bookworm-backports");
    let qemu = qemu_package::obtain(BASE, SUITE)?;
    let hosts = STACKS
        .iter()
        .enumerate()
        .map(|(index, stack)| ctx.host_fs(stack.host_fs, index % 2 == 0, ""))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let ids: Vec<String> = (0..STACKS.len())
        .map(|index| format!("disk-{index}"))
        .collect();
    let mut disks = Vec::new();
    for ((host, id), stack) in hosts.iter().zip(&ids).zip(&STACKS) {
        disks.push(ctx.disk(host, id, stack.disk, 64 << 20, "falloc")?);
    }
    let guest = Guest::boot(GuestSpec {
        disks,
        qemu,
        ..ctx.guest_spec(&ctx.guest_name("qemu-10"))
    })?;
    ctx.progress.say("the guest is up");
    let watched = Watched::of_guest(&guest, &ids, &hosts);
    let groups = watched.chunks(DISKS_AT_ONCE);
    for (disks, stacks) in groups.zip(STACKS.chunks(DISKS_AT_ONCE)) {
        let names: Vec<String> = stacks.iter().map(Stack::to_string).collect();
        report.case(&format!("qemu-10/{}", names.join(" + ")), |case| {
            compare(ctx, case, disks, stacks)
        })?;
    }
    Ok(())
}

fn compare(
    ctx: &LiveContext,
    case: &mut Case,
    watched: &[Watched<'_>],
    stacks: &[Stack],
) -> anyhow::Result<()> {
    let measured = measure(ctx, watched, || {
        watched
            .iter()
            .try_for_each(|disk| image_pattern::write_and_read(disk.guest, disk.disk))
    })?;
    let analysis = &measured.analysis;
    ground_truth::nothing_lost(case, analysis)?;
    let found = topology::recorded(&measured.bundle)?;
    for ((disk, stack), truth) in watched.iter().zip(stacks).zip(&measured.truth) {
        let name = disk.guest.name();
        let version = &topology::guest(&found, name)?["qemu_version"];
        let is_ten = version.as_str().is_some_and(|text| text.starts_with("10."));
        case.holds("QEMU's version", is_ten, &version.to_string());
        let device_read = truth.device.read_sectors * 512;
        image_pattern::compare(case, analysis, (name, disk.disk), stack, device_read)?;
        ground_truth::qemu(case, analysis, name, disk.disk, &truth.disk)?;
        ground_truth::device(case, analysis, disk.host.device(), &truth.device)?;
        synchronous_writes(case, analysis, disk, stack)?;
    }
    backend_calls::bytes_are_accounted(case, &direct_io_link::host_events(&measured.bundle)?);
    ctx.discard(&measured.bundle);
    Ok(())
}

/// How `directsync` makes writes durable, by the kind of submission.
fn synchronous_writes(
    case: &mut Case,
    analysis: &Value,
    disk: &Watched<'_>,
    stack: &Stack,
) -> anyhow::Result<()> {
    let keys = [("guest", disk.guest.name()), ("disk", disk.disk)];
    let image = entry(analysis, "images", &keys)?;
    let writes = number(image, "/file_io/writes")?;
    let marked = number(image, "/file_io/dsync")?;
    let syncs = number(image, "/file_io/syncs")?;
    case.figure(format!(
        "{writes} writes, {marked} RWF_DSYNC, {syncs} syncs"
    ));
    let figures = format!("{marked} of {writes} writes with RWF_DSYNC, {syncs} syncs");
    let what = format!("{stack}: synchronous writes");
    match (stack.disk.cache, stack.disk.aio) {
        (CacheMode::Directsync, Aio::Threads) => {
            case.holds(&what, marked == 0 && syncs > 0, &figures);
        }
        (CacheMode::Directsync, _) => {
            case.holds(&what, marked == writes && marked > 0, &figures);
            case.equal(&format!("{stack}: syncs"), syncs, 0);
        }
        _ => case.holds(&what, marked == 0, &figures),
    }
    Ok(())
}
