//! A recording with guests' own streams.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::recorder::Recorder;
use nestrace_rig::stack::{DiskStack, GuestFsKind, HostFsKind};

use super::counts::DiskCounts;
use crate::context::LiveContext;
use crate::measure::{Measured, Observed, Watched, in_a_guest, measure_observed};

/// The contract: 4 s in a TCG guest; a loaded machine gets more before we give up.
const LIVE: Duration = Duration::from_secs(120);
/// What writing back all of a guest's page cache may take.
const SYNC: Duration = Duration::from_secs(60);

/// Boots a guest that has an agent and these disks. Its file systems are made before the agent starts: one
/// whose module comes later makes it load its programs once more.
pub fn boot(ctx: &LiveContext, purpose: &str, disks: Vec<DiskSpec>) -> anyhow::Result<Guest> {
    boot_with(ctx, purpose, |spec| GuestSpec { disks, ..spec })
}

/// The same for a guest that `change` has the last word on.
pub fn boot_with(
    ctx: &LiveContext,
    purpose: &str,
    change: impl FnOnce(GuestSpec) -> GuestSpec,
) -> anyhow::Result<Guest> {
    let name = ctx.guest_name(purpose);
    let guest = Guest::boot(change(ctx.agent_guest_spec(&name)?))?;
    ctx.progress.say(&format!("guest {name} is up"));
    Ok(guest)
}

/// Waits until the recorder says that the host's side and the agents of these guests are live.
pub fn wait_live(recorder: &mut Recorder, guests: &[&str]) -> anyhow::Result<()> {
    recorder.wait_live(LIVE)?;
    for guest in guests {
        recorder.wait_for_line(&[guest, "agent", "live"], LIVE)?;
    }
    Ok(())
}

/// What the agents of these disks' guests have said, or, of a guest that does not obey, its console; for
/// an error.
fn agents_say(watched: &[Watched<'_>]) -> String {
    let mut guests: Vec<&Guest> = watched.iter().map(|disk| disk.guest).collect();
    guests.dedup_by_key(|guest| guest.name());
    let said = guests.iter().map(|guest| {
        guest.agent_log().unwrap_or_else(|error| {
            let console = guest.console();
            let from = console.len().saturating_sub(2000);
            let end = console.get(from..).unwrap_or(&console);
            format!("{error}; the console ends with: {end}")
        })
    });
    said.collect::<Vec<_>>().join(" / ")
}

/// The guest's own name of a disk: `vda`.
pub fn device_in_guest(guest: &Guest, disk: &str) -> anyhow::Result<String> {
    let device = guest.device_of(disk)?;
    Ok(device.trim_start_matches("/dev/").to_owned())
}

/// The disk of [`of_a_mixed_load`].
pub const DISK: &str = "disk-a";

/// Records a guest and its agent during reads, writes and syncs on a raw image on ext4; `look` gets the recording
/// and the guest's name. What it accepts is discarded.
pub fn of_a_mixed_load(
    ctx: &LiveContext,
    purpose: &str,
    look: impl FnOnce(&Path, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Ext4, true, "")?;
    let disk = ctx.disk(&host, DISK, DiskStack::RAW, 64 << 20, "off")?;
    let guest = boot(ctx, purpose, vec![disk])?;
    guest.start_agent("")?;
    let device = guest.device_of(DISK)?;
    let watched = [Watched {
        guest: &guest,
        disk: DISK,
        host: &host,
    }];
    let load = format!(
        "fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth=4 --bs=8k \
         --size=8m --rw=randrw --fsync=64 --end_fsync=1"
    );
    let measured = measure(ctx, &watched, || {
        guest.run_ok(&load, Duration::from_secs(60))?;
        Ok(())
    })?;
    look(&measured.bundle, guest.name())?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// Where [`of_programs`] has its files in the guest.
pub const FOLDER: &str = "/mnt/ledger";

/// Records a guest whose programs read, write and sync files on ext4: buffered, by aio, and from the page cache. `look`
/// gets the recording and the guest's name. What it accepts is discarded.
pub fn of_programs(
    ctx: &LiveContext,
    purpose: &str,
    look: impl FnOnce(&Path, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let disk = ctx.disk(&host, DISK, DiskStack::RAW, 64 << 20, "off")?;
    let guest = boot(ctx, purpose, vec![disk])?;
    guest.make_fs(DISK, GuestFsKind::Ext4)?;
    guest.mount(DISK, GuestFsKind::Ext4, FOLDER, "")?;
    guest.start_agent("--backend ebpf")?;
    let watched = [Watched {
        guest: &guest,
        disk: DISK,
        host: &host,
    }];
    let load = format!(
        "fio --directory={FOLDER} --size=1m --bs=4k --fallocate=none --thread --output=/dev/null \
         --name=synced --stonewall --rw=write --ioengine=psync --fsync=4 --end_fsync=1 \
         --name=aio --stonewall --rw=randrw --direct=1 --ioengine=libaio --iodepth=4 \
         --name=cached --stonewall --filename=synced.0.0 --rw=read --invalidate=0 --ioengine=psync \
         && sync"
    );
    let measured = measure(ctx, &watched, || {
        guest.run_ok(&load, Duration::from_secs(120))?;
        Ok(())
    })?;
    look(&measured.bundle, guest.name())?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// Records the guests of `watched`, with their agents, during `work` and analyzes the recording.
pub fn measure(
    ctx: &LiveContext,
    watched: &[Watched<'_>],
    work: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Measured<DiskCounts>> {
    let mut guests: Vec<&str> = watched.iter().map(|disk| disk.guest.name()).collect();
    guests.dedup();
    // A file system on the host that writes by itself while programs are loaded would be a write at the edge.
    for disk in watched {
        disk.guest.wait_for_agent(LIVE)?;
    }
    let devices: Vec<String> = watched
        .iter()
        .map(|disk| device_in_guest(disk.guest, disk.disk))
        .collect::<anyhow::Result<_>>()?;
    let observed = Observed {
        guests: guests.clone(),
        counts: &|| {
            let each = watched.iter().zip(&devices);
            each.map(|(disk, device)| DiskCounts::take(disk, device))
                .collect()
        },
        sync: &|| {
            // What mkfs left in a guest's page cache first: its host gets that.
            for disk in watched {
                disk.guest.run_ok("sync", SYNC)?;
            }
            for disk in watched {
                disk.host.sync()?;
            }
            Ok(())
        },
        live: &|recorder| {
            let result = wait_live(recorder, &guests);
            result.with_context(|| format!("the agents say: {}", agents_say(watched)))
        },
        counts_on: in_a_guest,
    };
    measure_observed(ctx, &observed, work)
}
