//! Two guests with two disks each, of the same names, at work at once: nothing is mixed up.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::stack::{Aio, Bus, DiskStack, HostFsKind};
use xtask::case::{Case, Report};

use crate::context::LiveContext;
use crate::measure::Watched;
use crate::with_agents::chains::{self, Subject};
use crate::with_agents::recording::{boot, device_in_guest, measure};

const DISKS: [&str; 2] = ["disk-a", "disk-b"];

/// The only case.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("guest-side/two-guests", |case| both(ctx, case))?;
    Ok(())
}

fn both(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let stack = |bus, aio| DiskStack {
        aio,
        bus,
        ..DiskStack::RAW
    };
    let stacks = [
        stack(Bus::Virtio, Aio::Native),
        stack(Bus::VirtioScsi, Aio::IoUring),
    ];
    let mut hosts = Vec::new();
    let mut guests = Vec::new();
    for (index, purpose) in ["first", "second"].into_iter().enumerate() {
        let mut disks = Vec::new();
        for (place, id) in DISKS.into_iter().enumerate() {
            let host = ctx.host_fs(HostFsKind::Xfs, place == 0, "")?;
            // The same disks in another order: names and sizes alone must not decide.
            let stack = stacks[(index + place) % stacks.len()];
            disks.push(ctx.disk(&host, id, stack, 64 << 20, "full")?);
            hosts.push(host);
        }
        let guest = boot(ctx, purpose, disks)?;
        guest.start_agent("--backend ebpf")?;
        guests.push(guest);
    }
    let places = guests
        .iter()
        .flat_map(|guest| DISKS.map(|disk| (guest, disk)));
    let watched: Vec<Watched<'_>> = places
        .zip(&hosts)
        .map(|((guest, disk), host)| Watched { guest, disk, host })
        .collect();
    let devices: Vec<String> = watched
        .iter()
        .map(|disk| device_in_guest(disk.guest, disk.disk))
        .collect::<anyhow::Result<_>>()?;
    let [first, second] = guests.as_slice() else {
        anyhow::bail!("boot two guests");
    };
    let loads = [
        load(&devices[..2], ["8k", "4k"], ["6m", "2m"]),
        load(&devices[2..], ["16k", "4k"], ["8m", "3m"]),
    ];
    let measured = measure(ctx, &watched, || {
        let limit = Duration::from_secs(120);
        let running = first.start(&loads[0], limit)?;
        second.run_ok(&loads[1], limit)?;
        running.wait()?;
        Ok(())
    })?;
    measured.is_whole(case)?;
    for (index, disk) in watched.iter().enumerate() {
        let counts = measured.truth.get(index).context("find the counts")?;
        let subject = Subject {
            guest: disk.guest,
            disk: disk.disk,
            device: &devices[index],
            linked: chains::LINKED,
        };
        chains::disk(case, &measured.analysis, &subject, counts)?;
    }
    for guest in &guests {
        chains::clock(case, &measured.analysis, guest.name())?;
    }
    ctx.discard(&measured.bundle);
    Ok(())
}

fn load(devices: &[String], blocks: [&str; 2], sizes: [&str; 2]) -> String {
    let jobs = devices.iter().zip(blocks).zip(sizes);
    let jobs = jobs.map(|((device, block), size)| {
        format!("--name={device} --filename=/dev/{device} --bs={block} --io_size={size}")
    });
    let jobs: Vec<String> = jobs.collect();
    format!(
        "fio --direct=1 --ioengine=libaio --iodepth=4 --rw=randrw --size=32m --fsync=32 \
         --output=/tmp/fio.out {}",
        jobs.join(" ")
    )
}
