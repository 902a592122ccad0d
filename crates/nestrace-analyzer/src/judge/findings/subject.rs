//! One disk of one guest, with everything that is known of it on every layer.

use std::collections::BTreeSet;

use nestrace_abi::Source;
use nestrace_trace::manifest::{
    self, Device as HostDevice, GuestDisk, GuestMount, GuestSide, Manifest, Server,
};

use super::{Missing, threshold};
use crate::follow::image::{device_named, disk_of, is_stacked};
use crate::measure::clues::{DiskClues, FileSyncs};
use crate::model::data_path::{DataPath, Unseen};
use crate::result::analysis::{
    Amplification, Analysis, Chains, Device, Image, ImageRelation, QemuDisk,
};
use crate::result::side::Side;
use crate::result::unlinked::UnlinkedReason;
use crate::result::verdict::FOLLOWED;

/// Missing without the guest's side.
const NO_AGENT: Missing = "the guest was not recorded from inside: start the agent in it";
/// Missing where it was, but nothing tells which of its devices the disk is.
const NO_DEVICE: Missing = "the disk's device in the guest is unknown: give the disk a serial number (`serial=`) and start the \
                            agent before the recording";

/// Missing where the guest's backend or the recording leaves calls out.
const NO_CALLS: Missing = "calls of the guest's programs were not recorded: that needs the agent's eBPF backend and full detail";
/// Missing in recordings that agents made before they recorded what a call waits for.
const OLDER_AGENT: Missing =
    "the guest's agent was older: it did not record all that a call of a program waits for";
/// Every agent that does has this probe, or says why not.
const PROBE_OF_CALLS: &str = "balance_dirty_pages";

/// Missing where bytes and times of the images are counted for one of several disks.
const SHARED: Missing = "an image file of the disk serves other disks too";

/// What a rule looks at.
pub(super) struct Subject<'a> {
    pub analysis: &'a Analysis,
    pub guest: &'a manifest::Guest,
    pub disk: &'a manifest::Disk,
    pub chains: Option<&'a Chains>,
    /// Why there are none, if there are none.
    not_inside: Missing,
    pub amplification: Option<&'a Amplification>,
    pub qemu: Option<&'a QemuDisk>,
    /// What was gathered for single rules.
    pub clues: Option<&'a DiskClues>,
    /// How far its I/O was seen.
    pub path: DataPath,
    /// Top first.
    pub images: Vec<&'a Image>,
    /// The guest's own device.
    pub in_guest: Option<&'a Device>,
    /// The same, as the agent describes it.
    pub guest_disk: Option<&'a GuestDisk>,
    /// Mounts of the guest on this disk.
    pub mounts: Vec<&'a GuestMount>,
    /// What the guest says of itself.
    pub side: Option<&'a GuestSide>,
    /// Calls of file I/O in the guest were to be recorded.
    pub guest_calls_probed: bool,
    /// What these calls waited for was to be recorded too.
    guest_waits_probed: bool,
    /// The guest's bios tell whose pages they carry; blktrace does not record it.
    pub guest_tells_owners: bool,
    /// The lowest devices under the images, as the manifest and as the analysis have them; of a partition its disk,
    /// where the block layer counts.
    pub beneath: Vec<(&'a HostDevice, Option<&'a Device>)>,
    /// Devices right under the images, or right under the file systems that hold these.
    pub uppermost: Vec<(&'a HostDevice, Option<&'a Device>)>,
    /// All devices under the images, the lowest ones among them.
    pub stack: Vec<(&'a HostDevice, Option<&'a Device>)>,
}

impl<'a> Subject<'a> {
    /// Every disk that did something.
    pub(super) fn all(
        analysis: &'a Analysis,
        manifest: &'a Manifest,
        clues: &'a [DiskClues],
    ) -> Vec<Self> {
        let guests = manifest.topology.guests.iter();
        let disks = guests.flat_map(|guest| guest.disks.iter().map(move |disk| (guest, disk)));
        disks
            .filter_map(|(guest, disk)| {
                let of_disk = |it: &&DiskClues| it.guest == guest.name && it.disk == disk.name;
                let clues = clues.iter().find(of_disk);
                let subject = Self::of(analysis, manifest, guest, disk)?;
                let path = clues.map(|clues| clues.path).unwrap_or_default();
                Some(Self {
                    clues,
                    path,
                    ..subject
                })
            })
            .collect()
    }

    fn of(
        analysis: &'a Analysis,
        manifest: &'a Manifest,
        guest: &'a manifest::Guest,
        disk: &'a manifest::Disk,
    ) -> Option<Self> {
        let is = |of: &str, name: &str| of == guest.name && name == disk.name;
        let chains = analysis.chains.iter().find(|it| is(&it.guest, &it.disk));
        let qemu = analysis
            .qemu
            .iter()
            .find(|it| is(&it.guest, it.disk.as_deref().unwrap_or_default()));
        let worked = |it: &QemuDisk| it.reads + it.writes + it.flushes + it.discards > 0;
        let worked = chains.is_some_and(|it| it.guest_bios > 0) || qemu.is_some_and(worked);
        if !worked {
            return None;
        }
        let name_in_guest = chains.map(|it| it.guest_device.as_str());
        let side = manifest
            .guest_sides
            .iter()
            .rfind(|side| side.guest == guest.name);
        let of_guest = |device: &&Device| {
            device.guest.as_ref() == Some(&guest.name)
                && Some(device.name.as_str()) == name_in_guest
        };
        let guest_disk = side.and_then(|side| {
            side.disks
                .iter()
                .find(|it| Some(it.name.as_str()) == name_in_guest)
        });
        let mounts = side.into_iter().flat_map(|side| &side.mounts);
        let under = disk.images.iter().flat_map(|image| &image.devices);
        Some(Self {
            analysis,
            guest,
            disk,
            chains,
            not_inside: side.map_or(NO_AGENT, |_| NO_DEVICE),
            qemu,
            clues: None,
            path: DataPath::default(),
            amplification: analysis
                .amplification
                .iter()
                .find(|it| is(&it.guest, &it.disk)),
            images: analysis
                .images
                .iter()
                .filter(|it| is(&it.guest, &it.disk))
                .collect(),
            in_guest: analysis.devices.iter().find(of_guest),
            guest_disk,
            mounts: mounts
                .filter(|it| Some(it.disk.as_str()) == name_in_guest)
                .collect(),
            side,
            guest_calls_probed: side.is_some_and(|side| {
                let mut probes = side.probes.iter();
                probes.any(|probe| probe.source == Source::File.name())
            }),
            guest_waits_probed: side.is_some_and(|side| {
                let refused = side.probes_refused.iter().map(|probe| &probe.name);
                let mut names = side.probes.iter().map(|probe| &probe.name).chain(refused);
                names.any(|name| name == PROBE_OF_CALLS)
            }),
            guest_tells_owners: manifest
                .guest_sides
                .iter()
                .filter(|side| side.guest == guest.name)
                .all(|side| side.backend != "blktrace"),
            beneath: beneath(analysis, manifest, under.clone(), Depth::Lowest),
            uppermost: beneath(analysis, manifest, under.clone(), Depth::Uppermost),
            stack: beneath(analysis, manifest, under, Depth::All),
        })
    }

    pub(super) fn guest_name(&self) -> &'a str {
        &self.guest.name
    }

    pub(super) fn disk_name(&self) -> &'a str {
        &self.disk.name
    }

    /// The guest's own device, if it was recorded.
    pub(super) fn inside(&self) -> Result<&'a Device, Missing> {
        self.in_guest.ok_or(self.not_inside)
    }

    /// The chains down to the device, if what they say is certain enough to judge by.
    pub(super) fn followed(&self) -> Result<&'a Chains, Missing> {
        let chains = self.followed_to_the_image()?;
        self.seen_to_the_device()?;
        Ok(chains)
    }

    /// The same down to QEMU's file I/O, whatever is known of the device.
    pub(super) fn followed_to_the_image(&self) -> Result<&'a Chains, Missing> {
        let chains = self.followed_to_qemu()?;
        self.seen_to_the_image()?;
        Ok(chains)
    }

    /// The same down to QEMU, where it tells by itself when it hands a request back.
    pub(super) fn followed_to_hand_back(&self) -> Result<&'a Chains, Missing> {
        let pushed = self.qemu.is_some_and(|disk| disk.ended_by_push > 0);
        if pushed || self.disk.bus.contains("scsi") {
            return self.followed_to_qemu();
        }
        self.followed_to_the_image()
    }

    fn followed_to_qemu(&self) -> Result<&'a Chains, Missing> {
        let chains = self.chains.ok_or(self.not_inside)?;
        if chains.linked < threshold::BIOS {
            return Err("too few of the guest's requests were linked");
        }
        if chains.fraction.unwrap_or(0.0) < FOLLOWED {
            return Err("too many of the guest's requests could not be linked");
        }
        self.whole()?;
        Ok(chains)
    }

    /// QEMU's file I/O was seen below the disk.
    pub(super) fn seen_to_the_image(&self) -> Result<(), Missing> {
        seen(self.path.file_io)
    }

    /// Its images serve no other disk: what was counted on them is its own.
    pub(super) fn files_alone(&self) -> Result<(), Missing> {
        if self.path.shared {
            return Err(SHARED);
        }
        Ok(())
    }

    /// The host's bios were seen below the disk, with their ends.
    pub(super) fn seen_device(&self) -> Result<(), Missing> {
        seen(self.path.host_bio)?;
        let mut devices = self.beneath.iter().filter_map(|(_, device)| *device);
        let is_passed_on = |device: &Device| {
            let counts = &device.counts;
            counts.queued.unwrap_or(0) >= threshold::REQUESTS && counts.completed == 0
        };
        if devices.any(is_passed_on) {
            return Err(
                "a device under the image passes its I/O to devices that were not recorded",
            );
        }
        Ok(())
    }

    /// Both were.
    pub(super) fn seen_to_the_device(&self) -> Result<(), Missing> {
        self.seen_to_the_image()?;
        self.seen_device()
    }

    /// QEMU does no file I/O of its own beside the guest's, as for a backup or a mirror.
    pub(super) fn no_block_job(&self) -> Result<(), Missing> {
        let nobodys = self.chains.is_some_and(|chains| {
            let unlinked = chains
                .file_ios_unlinked
                .get(&UnlinkedReason::NoMatch)
                .copied();
            let allowed = (1.0 - FOLLOWED) * chains.file_ios as f64;
            unlinked.unwrap_or(0) as f64 > allowed
        });
        if nobodys {
            return Err(
                "QEMU did file I/O that no guest request asked for (a backup or a mirror?)",
            );
        }
        Ok(())
    }

    /// Nothing was lost.
    pub(super) fn whole(&self) -> Result<(), Missing> {
        if self.analysis.trace.lost > 0 {
            return Err("events were lost");
        }
        Ok(())
    }

    /// The layers' bytes, if they were counted down to the device.
    pub(super) fn amplified(&self) -> Result<&'a Amplification, Missing> {
        let amplified = self.amplified_to_the_image()?;
        self.seen_to_the_device()?;
        Ok(amplified)
    }

    /// The same down to QEMU's file I/O.
    pub(super) fn amplified_to_the_image(&self) -> Result<&'a Amplification, Missing> {
        self.whole()?;
        let amplified = self.amplification.ok_or(self.not_inside)?;
        self.seen_to_the_image()?;
        self.files_alone()?;
        Ok(amplified)
    }

    /// What was gathered in the pass, if the guest was recorded and nothing was lost.
    pub(super) fn gathered(&self) -> Result<&'a DiskClues, Missing> {
        self.whole()?;
        self.chains.and(self.clues).ok_or(self.not_inside)
    }

    /// The same, if every layer was seen below the disk.
    pub(super) fn gathered_to_the_device(&self) -> Result<&'a DiskClues, Missing> {
        let clues = self.gathered()?;
        if self
            .chains
            .is_some_and(|chains| chains.folded.iter().any(|layer| layer == "qemu"))
        {
            return Err(Unseen::NotRecorded.missing());
        }
        self.seen_to_the_device()?;
        self.files_alone()?;
        Ok(clues)
    }

    /// How the guest's programs sync files on the disk; `None` where no file system of the guest is on it.
    pub(super) fn file_syncs(&self) -> Result<Option<&'a [FileSyncs]>, Missing> {
        let clues = self.gathered()?;
        if !self.guest_tells_owners {
            return Err(NO_CALLS);
        }
        if self.mounts.is_empty() {
            return Ok(None);
        }
        if !self.guest_calls_probed {
            return Err(NO_CALLS);
        }
        if !self.guest_waits_probed {
            return Err(OLDER_AGENT);
        }
        Ok(Some(&clues.file_syncs))
    }

    /// The guest was recorded for as long as the host: their shares of the time are of the same time.
    pub(super) fn seen_throughout(&self) -> bool {
        let bytes = self
            .amplification
            .and_then(|it| it.guest_bytes.zip(it.qemu_bytes));
        bytes.is_some_and(|(guest, qemu)| guest as f64 >= threshold::THROUGHOUT * qemu as f64)
    }

    /// The disk's bus; empty where neither the recorder nor its requests show it.
    pub(super) fn bus(&self) -> &'a str {
        match self.disk.bus.as_str() {
            "" if self.clues.is_some_and(|clues| clues.virtio_blk) => "virtio-blk",
            bus => bus,
        }
    }

    /// The disk's iothread, `none`, or `unknown`: a disk that was found by its open file alone leaves it unknown how
    /// it is set up.
    pub(super) fn iothread(&self) -> &'a str {
        let disk = self.disk;
        let set_up = [&disk.qdev, &disk.cache, &disk.aio];
        let known = set_up.into_iter().any(Option::is_some);
        let otherwise = if known { "none" } else { "unknown" };
        disk.iothread.as_deref().unwrap_or(otherwise)
    }

    /// The only server that holds the disk's data; `None` where a device of the host holds some of it.
    pub(super) fn server(&self) -> Option<Server> {
        let mut servers = self.beneath.iter().map(|(about, _)| about.served_by());
        let first = servers.next()??;
        servers
            .all(|server| server.as_ref() == Some(&first))
            .then_some(first)
    }

    /// Where the lowest layer's time is spent, in words.
    pub(super) fn lowest(&self) -> String {
        let server = self.server().map(|server| format!("the {server}"));
        server.unwrap_or_else(|| String::from("the host's device"))
    }

    /// Kernel names of the devices that its images lie on, and of those below.
    pub(super) fn devices_below(&self) -> Vec<&'a str> {
        let under = self.disk.images.iter().flat_map(|image| &image.devices);
        let further = self.stack.iter().flat_map(|(device, _)| {
            let below = device.loop_file.iter().flat_map(|file| &file.devices);
            [&device.name]
                .into_iter()
                .chain(&device.beneath)
                .chain(below)
        });
        under.chain(further).map(String::as_str).collect()
    }

    /// The file system that the disk's data lies on.
    pub(super) fn host_fs(&self) -> Option<&'a str> {
        self.images.get(self.data_image())?.fs_type.as_deref()
    }

    /// Index of the first image that holds data of the disk's own: the top one, or its data file or first extent.
    pub(super) fn data_image(&self) -> usize {
        let holds_data = |image: &&Image| {
            let relation = image.relation;
            image.depth == 0 && matches!(relation, ImageRelation::DataFile | ImageRelation::Extent)
        };
        self.images.iter().position(holds_data).unwrap_or(0)
    }

    /// A file system with a journal on the disk in the guest. Others may lie beside it, as `/boot/efi` does.
    pub(super) fn journalled_in_guest(&self) -> Option<&'a GuestMount> {
        let mut mounts = self.mounts.iter();
        mounts.find(|mount| journals(&mount.fs_type)).copied()
    }

    /// Part of the summed latency of all bios, flushes included, that a set of segments has.
    pub(super) fn share_of(chains: &Chains, segments: &[&str]) -> f64 {
        let named = chains
            .segments
            .iter()
            .filter(|it| segments.contains(&it.name));
        named.map(|segment| segment.share).sum()
    }
}

/// Which of the devices that are on one another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Uppermost,
    All,
    Lowest,
}

/// What is under images that lie on these devices. A device that stands on others, as dm, md, bcache and loop do, is not a
/// lowest one.
fn beneath<'a>(
    analysis: &'a Analysis,
    manifest: &'a Manifest,
    names: impl Iterator<Item = &'a String>,
    depth: Depth,
) -> Vec<(&'a HostDevice, Option<&'a Device>)> {
    let topology = &manifest.topology;
    let mut found: Vec<(&HostDevice, Option<&Device>)> = Vec::new();
    let mut left: Vec<&String> = names.collect();
    left.reverse();
    let mut met: BTreeSet<&str> = BTreeSet::new();
    while let Some(name) = left.pop() {
        let Some(device) = device_named(topology, name) else {
            continue;
        };
        let whole = disk_of(topology, device).unwrap_or(device);
        if !met.insert(whole.name.as_str()) {
            continue;
        }
        let is_known = |name: &&String| device_named(topology, name).is_some();
        let is_stacked = depth != Depth::Uppermost
            && is_stacked(whole)
            && whole.beneath.iter().any(|name| is_known(&name));
        if is_stacked {
            left.extend(whole.beneath.iter().rev());
        }
        if depth == Depth::All || !is_stacked {
            let host = |it: &&Device| it.side == Side::Host && it.name == whole.name;
            found.push((whole, analysis.devices.iter().find(host)));
        }
    }
    found
}

fn seen(layer: Option<Unseen>) -> Result<(), Missing> {
    layer.map_or(Ok(()), |unseen| Err(unseen.missing()))
}

/// Keeps a journal of what it does.
pub(super) fn journals(fs: &str) -> bool {
    matches!(
        fs,
        "ext3" | "ext4" | "xfs" | "jfs" | "reiserfs" | "btrfs" | "f2fs"
    )
}
