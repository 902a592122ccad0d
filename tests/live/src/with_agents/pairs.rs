//! Guest file systems over host file systems.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::{DiskSpec, Guest};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{Bus, DiskStack, GuestFsKind, HostFsKind, Stack, covering_set};
use xtask::case::{Case, Report};

use super::chains::{self, Subject};
use super::counts::DiskCounts;
use super::recording::{boot, device_in_guest, measure};
use crate::context::LiveContext;
use crate::measure::{Measured, Watched};

const DISKS_PER_GUEST: usize = 4;
/// mkfs.xfs wants 300 MB.
const IMAGE_BYTES: u64 = 320 << 20;
const HOST_FS: [HostFsKind; 3] = [HostFsKind::Ext4, HostFsKind::Xfs, HostFsKind::Btrfs];

/// A guest file system on a disk over a host file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// In the guest.
    pub guest_fs: GuestFsKind,
    /// The rest.
    pub stack: Stack,
}

impl Pair {
    /// Its name as a case.
    pub fn case(&self) -> String {
        format!("agent/{}/{}", self.guest_fs, self.stack)
    }
}

/// All 24 pairs of file systems, each over every disk of the covering set.
pub fn every_pair() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for disk in disks() {
        pairs.extend(file_systems().map(|(guest_fs, host_fs)| pair(guest_fs, host_fs, disk)));
    }
    pairs
}

/// All 24 pairs, and every disk of the covering set once.
pub fn covering_pairs() -> Vec<Pair> {
    let disks = disks();
    let places = file_systems().zip(disks.iter().cycle());
    places
        .map(|((guest_fs, host_fs), disk)| pair(guest_fs, host_fs, *disk))
        .collect()
}

fn pair(guest_fs: GuestFsKind, host_fs: HostFsKind, disk: DiskStack) -> Pair {
    let stack = Stack { host_fs, disk };
    Pair { guest_fs, stack }
}

fn disks() -> Vec<DiskStack> {
    covering_set().iter().map(|stack| stack.disk).collect()
}

fn file_systems() -> impl Iterator<Item = (GuestFsKind, HostFsKind)> {
    let guests = GuestFsKind::ALL.iter();
    guests.flat_map(|&guest_fs| HOST_FS.map(|host_fs| (guest_fs, host_fs)))
}

/// Runs these, four in a guest.
pub fn run(
    ctx: &LiveContext,
    report: &mut Report,
    pairs: &[Pair],
    passed: &mut dyn FnMut(&Pair) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for (n, group) in pairs.chunks(DISKS_PER_GUEST).enumerate() {
        let mut recorded = None;
        report.case(&format!("agent/recording {n}"), |case| {
            recorded = Some(Recorded::make(ctx, case, group)?);
            Ok(())
        })?;
        let Some(recorded) = recorded else { continue };
        for (index, pair) in group.iter().enumerate() {
            if report.case(&pair.case(), |case| recorded.check(case, index))? {
                passed(pair)?;
            }
        }
        ctx.discard(&recorded.measured.bundle);
    }
    Ok(())
}

/// A recording of a guest with several disks at work.
struct Recorded {
    measured: Measured<DiskCounts>,
    devices: Vec<String>,
    guest: Guest,
    _hosts: Vec<HostFs>,
}

impl Recorded {
    fn make(ctx: &LiveContext, case: &mut Case, pairs: &[Pair]) -> anyhow::Result<Self> {
        let (hosts, disks) = make_disks(ctx, pairs)?;
        let ids: Vec<String> = disks.iter().map(|disk| disk.id.clone()).collect();
        let guest = boot(ctx, "agent", disks)?;
        let mut devices = Vec::new();
        for (id, pair) in ids.iter().zip(pairs) {
            guest.make_fs(id, pair.guest_fs)?;
            devices.push(device_in_guest(&guest, id)?);
        }
        guest.start_agent("--backend ebpf")?;
        let watched = Watched::of_guest(&guest, &ids, &hosts);
        let work = workload(&devices, pairs);
        let measured = measure(ctx, &watched, || {
            guest.run_ok(&work, Duration::from_secs(240))?;
            Ok(())
        })?;
        measured.is_whole(case)?;
        chains::clock(case, &measured.analysis, guest.name())?;
        Ok(Self {
            measured,
            devices,
            guest,
            _hosts: hosts,
        })
    }

    fn check(&self, case: &mut Case, index: usize) -> anyhow::Result<()> {
        let analysis = &self.measured.analysis;
        let counts = self.measured.truth.get(index).context("find the counts")?;
        let device = self.devices.get(index).context("find the device")?;
        let subject = Subject {
            guest: &self.guest,
            disk: &id(index),
            device,
            linked: chains::LINKED,
        };
        chains::disk(case, analysis, &subject, counts)
    }
}

/// The name of a disk.
pub fn id(index: usize) -> String {
    format!("disk-{index}")
}

/// Host file systems with a disk of each pair.
pub fn make_disks(
    ctx: &LiveContext,
    pairs: &[Pair],
) -> anyhow::Result<(Vec<HostFs>, Vec<DiskSpec>)> {
    let mut hosts = Vec::new();
    let mut disks = Vec::new();
    for (index, pair) in pairs.iter().enumerate() {
        let host = ctx.host_fs(pair.stack.host_fs, index % 2 == 0, "")?;
        disks.push(ctx.disk(
            &host,
            &id(index),
            pair.stack.disk,
            IMAGE_BYTES,
            // Clusters of some images are allocated while the guest writes.
            if index % 2 == 0 { "falloc" } else { "off" },
        )?);
        hosts.push(host);
    }
    Ok((hosts, disks))
}

/// What runs on each disk: random and sequential, buffered and direct, reads and writes, syncs, a
/// discard. `$1` is the folder.
const LOAD: &str = "\
fio --directory=$1 --size=4m --fallocate=none --output=/tmp/fio.$$ \
--name=buffered --rw=randrw --bs=4k --fsync=16 --time_based --runtime=3 \
--name=deep --stonewall --rw=randwrite --bs=8k --direct=1 --ioengine=libaio --iodepth=16 \
--name=sequential --stonewall --rw=write --bs=128k --end_fsync=1 \
--name=again --stonewall --filename=sequential.0.0 --rw=read --bs=64k \
--name=direct-read --stonewall --filename=sequential.0.0 --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=8 \
|| { tail -5 /tmp/fio.$$; exit 1; }
rm $1/buffered* && sync
[ \"$2\" = ide ] || fstrim $1 2> /dev/null
umount $1
";

/// Mounts every disk and loads all of them at once.
pub fn workload(devices: &[String], pairs: &[Pair]) -> String {
    let mut script = format!("cat > /tmp/load.sh <<'EOF'\n{LOAD}EOF\n");
    for (device, pair) in devices.iter().zip(pairs) {
        script += &format!(
            "load {}; mkdir -p /mnt/{device}; mount -t {} /dev/{device} /mnt/{device} || exit 1\n",
            pair.guest_fs.module(),
            pair.guest_fs
        );
    }
    script += "pids=; ";
    for (device, pair) in devices.iter().zip(pairs) {
        let bus = if pair.stack.disk.bus == Bus::Ide {
            "ide"
        } else {
            ""
        };
        script += &format!("sh /tmp/load.sh /mnt/{device} {bus} & pids=\"$pids $!\"\n");
    }
    script + "for pid in $pids; do wait $pid || exit 1; done"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_and_every_disk_is_covered() {
        let covering = covering_pairs();
        assert_eq!(covering.len(), 24);
        for (guest_fs, host_fs) in file_systems() {
            let fits = |pair: &&Pair| pair.guest_fs == guest_fs && pair.stack.host_fs == host_fs;
            assert_eq!(covering.iter().filter(fits).count(), 1);
        }
        for disk in disks() {
            assert!(covering.iter().any(|pair| pair.stack.disk == disk));
        }
        assert_eq!(every_pair().len(), 24 * 16);
    }
}
