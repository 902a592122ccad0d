//! Guests whose QEMU exports no functions: their bios are followed to QEMU's file I/O by the guest's memory, and the counts
//! are those of the guest's kernel and of QEMU.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::GuestSpec;
use nestrace_rig::stack::{
    Aio, Bus, CacheMode, DiskStack, GuestFsKind, HostFsKind, ImageFormat, Stack,
};
use serde_json::Value;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::measure::Watched;
use super::with_agents::chains::{self, Subject};
use super::with_agents::counts::DiskCounts;
use super::with_agents::pairs::{self, Pair};
use super::with_agents::recording::{boot_with, device_in_guest, measure};
use super::{Scenario, ground_truth, nameless_qemu};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "without-functions",
    about: "a QEMU without functions: six stacks followed by the guest's memory",
    run,
    alone: false,
};

const PAIRS: [Pair; 6] = {
    use self::Aio::{IoUring, Native, Threads};
    use self::Bus::{Virtio, VirtioScsi};
    use self::CacheMode::{None as Uncached, Writeback};
    use self::GuestFsKind::{Ext3, Ext4, Xfs};
    use self::HostFsKind::{Ext4 as OnExt4, Xfs as OnXfs};
    use self::ImageFormat::{Qcow2, Raw};
    [
        pair(Ext4, OnExt4, Raw, Uncached, IoUring, Virtio),
        pair(Xfs, OnXfs, Qcow2, Uncached, IoUring, Virtio),
        pair(Ext3, OnXfs, Raw, Uncached, Native, VirtioScsi),
        pair(Ext4, OnExt4, Qcow2, Writeback, Threads, Virtio),
        pair(Xfs, OnExt4, Raw, Writeback, Threads, VirtioScsi),
        pair(Ext4, OnXfs, Qcow2, Uncached, Native, VirtioScsi),
    ]
};

/// From 3.5 GiB on QEMU's memory is in two pieces: 3 GiB below the hole, the rest above 4 GiB.
const MEMORY_MIB: u32 = 3584;
/// Linux takes what is above 4 GiB first.
const FILL_UPPER: &str = "dd if=/dev/zero of=/tmp/fill bs=1M count=400";

const fn pair(
    guest_fs: GuestFsKind,
    host_fs: HostFsKind,
    format: ImageFormat,
    cache: CacheMode,
    aio: Aio,
    bus: Bus,
) -> Pair {
    let disk = DiskStack {
        format,
        cache,
        aio,
        bus,
        iothread: false,
    };
    Pair {
        guest_fs,
        stack: Stack { host_fs, disk },
    }
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for QEMU")?;
    let qemu = nameless_qemu::copy(folder.path())?;
    let (hosts, disks) = pairs::make_disks(ctx, &PAIRS)?;
    let ids: Vec<String> = disks.iter().map(|disk| disk.id.clone()).collect();
    let guest = boot_with(ctx, "without-functions", |spec| GuestSpec {
        disks,
        qemu,
        memory_mib: MEMORY_MIB,
        ..spec
    })?;
    let mut devices = Vec::new();
    for (id, pair) in ids.iter().zip(&PAIRS) {
        guest.make_fs(id, pair.guest_fs)?;
        devices.push(device_in_guest(&guest, id)?);
    }
    guest.start_agent("--backend ebpf")?;
    let watched = Watched::of_guest(&guest, &ids, &hosts);
    guest.run_ok(FILL_UPPER, Duration::from_secs(60))?;
    let work = pairs::workload(&devices, &PAIRS);
    let mut measured = None;
    report.case("without-functions/recording", |case| {
        let recorded = measure(ctx, &watched, || {
            guest.run_ok(&work, Duration::from_secs(240))?;
            Ok(())
        })?;
        recorded.is_whole(case)?;
        chains::clock(case, &recorded.analysis, guest.name())?;
        measured = Some(recorded);
        Ok(())
    })?;
    let Some(measured) = measured else {
        return Ok(());
    };
    for (index, (pair, device)) in PAIRS.iter().zip(&devices).enumerate() {
        let counts = measured.truth.get(index).context("find the counts")?;
        let name = format!("without-functions/{}/{}", pair.guest_fs, pair.stack);
        report.case(&name, |case| {
            let id = pairs::id(index);
            let chains = entry(
                &measured.analysis,
                "chains",
                &[("guest", guest.name()), ("disk", &id)],
            )?;
            let subject = Subject {
                guest: &guest,
                disk: &id,
                device,
                linked: chains::LINKED,
            };
            disk(case, &measured.analysis, chains, &subject, counts)
        })?;
    }
    ctx.discard(&measured.bundle);
    Ok(())
}

/// Everything that has to hold for a disk of a guest with an agent whose QEMU has no functions.
pub fn disk(
    case: &mut Case,
    analysis: &Value,
    chains: &Value,
    subject: &Subject<'_>,
    counts: &DiskCounts,
) -> anyhow::Result<()> {
    chains::linked(case, chains, subject.linked)?;
    chains::sums(case, chains)?;
    case.equal(
        "layers that are folded",
        chains["folded"].to_string(),
        r#"["qemu"]"#.to_owned(),
    );
    case.equal(
        "guest_requests against QEMU's count",
        number(chains, "/guest_requests")?,
        counts.requests(),
    );
    let keys = [
        ("side", "guest"),
        ("guest", subject.guest.name()),
        ("name", subject.device),
    ];
    ground_truth::device_entry(case, entry(analysis, "devices", &keys)?, &counts.guest)?;
    Ok(())
}
