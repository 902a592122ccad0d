//! Every stack against the counts of the kernel and of QEMU.
//!
//! A guest carries four disks, each of another stack on a host file system and loop device of its
//! own, and they are exercised one after another. `--full` runs all 288 stacks and goes on where an
//! earlier run of the same commit stopped.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::guest::DiskSpec;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::qmp::DiskStats;
use nestrace_rig::stack::{Aio, Bus, GuestFsKind, HostFsKind, Stack, covering_set, every_stack};
use nestrace_trace::Kind;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::direct_io_link::Subject;
use super::full_state::FullState;
use super::measure::{Measured, Watched, measure};
use super::with_agents::counts::guest_stat;
use super::with_agents::recording::device_in_guest;
use super::{Scenario, direct_io_link, ground_truth, image_pattern};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "stacks",
    about: "devices, QEMU requests and image bytes of every kind of stack against independent counts",
    run,
    alone: false,
};

const DISKS_PER_GUEST: usize = 4;
/// mkfs.xfs wants 300 MB.
const IMAGE_BYTES: u64 = 320 << 20;
const GUEST_FS: [GuestFsKind; 4] = [
    GuestFsKind::Ext4,
    GuestFsKind::Xfs,
    GuestFsKind::Ext3,
    GuestFsKind::Jfs,
];

/// Random and sequential, buffered and direct, reads and writes, syncs, a discard.
const WORKLOAD: &str = "\
cat > /tmp/work.fio <<EOF
[global]
directory=/mnt/work
size=6m
runtime=3
fallocate=none
stonewall
[buffered-random]
rw=randrw
bs=4k
fsync=16
[direct-deep]
rw=randwrite
bs=8k
direct=1
ioengine=libaio
iodepth=16
[sequential-write]
filename=sequential
rw=write
bs=128k
end_fsync=1
[sequential-read]
filename=sequential
rw=read
bs=64k
[direct-read]
filename=sequential
rw=randread
bs=4k
direct=1
ioengine=libaio
iodepth=8
EOF
fio /tmp/work.fio > /tmp/fio.log 2>&1 || { tail -5 /tmp/fio.log; exit 1; }
rm /mnt/work/buffered* && sync
fstrim /mnt/work && umount /mnt/work";

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let wanted = |stack: &Stack| ctx.wants(&format!("stacks/{stack}"));
    if !ctx.full {
        let stacks: Vec<Stack> = covering_set().into_iter().filter(wanted).collect();
        return run_set(ctx, report, &stacks, &mut |_| Ok(()));
    }
    let mut state = FullState::read("full-matrix")?;
    let left: Vec<Stack> = every_stack()
        .into_iter()
        .filter(|stack| wanted(stack) && !state.has(&stack.to_string()))
        .collect();
    ctx.progress.say(&format!(
        "{} stacks passed before, {} are left",
        state.n_passed(),
        left.len()
    ));
    run_set(ctx, report, &left, &mut |stack| {
        state.add(&stack.to_string())
    })
}

fn run_set(
    ctx: &LiveContext,
    report: &mut Report,
    stacks: &[Stack],
    passed: &mut dyn FnMut(&Stack) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for (n, group) in stacks.chunks(DISKS_PER_GUEST).enumerate() {
        run_guest(ctx, report, n, group, passed)?;
    }
    Ok(())
}

fn run_guest(
    ctx: &LiveContext,
    report: &mut Report,
    n: usize,
    stacks: &[Stack],
    passed: &mut dyn FnMut(&Stack) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ctx.progress
        .say(&format!("guest {n}: {} disks", stacks.len()));
    let (hosts, disks) = make_disks(ctx, stacks)?;
    let ids: Vec<String> = disks.iter().map(|disk| disk.id.clone()).collect();
    let guest = ctx.boot(&ctx.guest_name("stacks"), disks)?;
    ctx.progress.say(&format!("guest {n} is up"));
    let watched = Watched::of_guest(&guest, &ids, &hosts);
    report.case(&format!("stacks/image-bytes of guest {n}"), |case| {
        image_bytes(ctx, case, &watched, stacks)
    })?;
    for (index, (stack, disk)) in stacks.iter().zip(&watched).enumerate() {
        let guest_fs = GUEST_FS[(n + index) % GUEST_FS.len()];
        let name = format!("stacks/{stack} (guest {guest_fs})");
        if report.case(&name, |case| one_stack(ctx, case, disk, stack, guest_fs))? {
            passed(stack)?;
        }
    }
    Ok(())
}

fn make_disks(ctx: &LiveContext, stacks: &[Stack]) -> anyhow::Result<(Vec<HostFs>, Vec<DiskSpec>)> {
    let mut hosts = Vec::new();
    let mut disks = Vec::new();
    for (index, stack) in stacks.iter().enumerate() {
        // ext4 discards in its commits: then the loop device sees discards too.
        let options = if stack.host_fs == HostFsKind::Ext4 {
            "discard"
        } else {
            ""
        };
        let host = ctx.host_fs(stack.host_fs, index % 2 == 0, options)?;
        // ext3 knows no fallocate.
        let preallocation = if stack.host_fs == HostFsKind::Ext3 {
            "full"
        } else {
            "falloc"
        };
        disks.push(ctx.disk(
            &host,
            &format!("disk-{index}"),
            stack.disk,
            IMAGE_BYTES,
            preallocation,
        )?);
        hosts.push(host);
    }
    Ok((hosts, disks))
}

/// One recording over all disks of the guest: known bytes on each.
fn image_bytes(
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
    ground_truth::nothing_lost(case, &measured.analysis)?;
    for ((disk, stack), truth) in watched.iter().zip(stacks).zip(&measured.truth) {
        let name = disk.guest.name();
        let of = (name, disk.disk);
        let device_read = truth.device.read_sectors * 512;
        image_pattern::compare(case, &measured.analysis, of, stack, device_read)?;
        ground_truth::qemu(case, &measured.analysis, name, disk.disk, &truth.disk)?;
        ground_truth::device(case, &measured.analysis, disk.host.device(), &truth.device)?;
    }
    Ok(())
}

/// A file system and a mixed load on one disk, the others at rest.
fn one_stack(
    ctx: &LiveContext,
    case: &mut Case,
    disk: &Watched<'_>,
    stack: &Stack,
    guest_fs: GuestFsKind,
) -> anyhow::Result<()> {
    disk.guest.make_fs(disk.disk, guest_fs)?;
    let by_guest = Cell::new(BlockStat::default());
    let measured = measure(ctx, std::slice::from_ref(disk), || {
        let device = device_in_guest(disk.guest, disk.disk)?;
        let before = guest_stat(disk.guest, &device)?;
        disk.guest.mount(disk.disk, guest_fs, "/mnt/work", "")?;
        disk.guest.run_ok(WORKLOAD, Duration::from_secs(90))?;
        by_guest.set(guest_stat(disk.guest, &device)?.since(&before));
        Ok(())
    })?;
    let truth = measured
        .truth
        .first()
        .context("count the disk's requests")?;
    ground_truth::nothing_lost(case, &measured.analysis)?;
    ground_truth::device(case, &measured.analysis, disk.host.device(), &truth.device)?;
    let guest = disk.guest.name();
    ground_truth::qemu(case, &measured.analysis, guest, disk.disk, &truth.disk)?;
    discards(case, &measured, stack, &by_guest.get(), &truth.disk)?;
    if image_pattern::stays_direct(stack) {
        direct_io(case, &measured, disk, stack, guest_fs)?;
    } else {
        image_pattern::compare_load(case, &measured.analysis, guest, disk.disk)?;
    }
    ctx.discard(&measured.bundle);
    Ok(())
}

/// What the guest discards, QEMU discards, with a call for each range. It accounts them on SCSI and
/// IDE, but not on virtio-blk, where the calls of its block layer are the only witness.
fn discards(
    case: &mut Case,
    measured: &Measured,
    stack: &Stack,
    by_guest: &BlockStat,
    by_qemu: &DiskStats,
) -> anyhow::Result<()> {
    let bytes = by_guest.discard_sectors * 512;
    case.holds("discards of the guest", by_guest.discards > 0, "none");
    let events = direct_io_link::host_events(&measured.bundle)?;
    let calls = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::AioPdiscard));
    let discarded: u64 = calls.clone().map(|call| call.bytes).sum();
    case.equal("bytes of blk_aio_pdiscard", discarded, bytes);
    let n_calls = calls.count() as u64;
    let accounted = match stack.disk.bus {
        Bus::Virtio => (0, 0),
        Bus::VirtioScsi | Bus::Ide => (n_calls, bytes),
    };
    case.equal("discards by QMP", by_qemu.discards, accounted.0);
    case.equal("bytes discarded by QMP", by_qemu.discard_bytes, accounted.1);
    case.figure(format!(
        "{} discards by the guest, {n_calls} by QEMU",
        by_guest.discards
    ));
    Ok(())
}

/// Every bio of the image by its control block, and what QEMU wrote against what reached Q.
fn direct_io(
    case: &mut Case,
    measured: &Measured,
    disk: &Watched<'_>,
    stack: &Stack,
    guest_fs: GuestFsKind,
) -> anyhow::Result<()> {
    let events = direct_io_link::host_events(&measured.bundle)?;
    let spec = disk
        .guest
        .spec()
        .disks
        .iter()
        .find(|spec| spec.id == disk.disk);
    let image = &spec.context("find the disk's image")?.image;
    // XFS writes its log in blocks of 512 bytes, which the host pads with zeros.
    let whole_blocks = guest_fs != GuestFsKind::Xfs;
    let device = disk.host.device();
    let subject = Subject {
        image,
        device,
        stack,
    };
    let bytes = direct_io_link::image_bios(case, &events, &subject)?;
    let keys = [("guest", disk.guest.name()), ("disk", disk.disk)];
    let written = number(
        entry(&measured.analysis, "images", &keys)?,
        "/file_io/bytes/write",
    )?;
    if whole_blocks {
        case.equal(
            "direct I/O: bytes written at Q",
            bytes.direct_written,
            written,
        );
    } else {
        let figures = format!("{} at Q, {written} by QEMU", bytes.direct_written);
        case.holds(
            "direct I/O: bytes written at Q",
            bytes.direct_written >= written,
            &figures,
        );
    }
    if stack.disk.aio == Aio::Native && whole_blocks {
        direct_io_link::aio_writes_are_whole(case, &events, image)?;
    }
    if let (true, Some(backing)) = (disk.host.is_direct(), disk.host.backing_file()) {
        direct_io_link::loop_requests(case, &events, backing, device)?;
    }
    Ok(())
}
