//! Devices that hand I/O on to devices below: dm, md, bcache, and loop devices over something with a device; and devices
//! with their data on a server.

use std::collections::{BTreeMap, BTreeSet};

use nestrace_abi::end_io;
use nestrace_trace::manifest::{Device, Topology};

use super::volume::{Extent, device_named, disk_of};
use crate::model::owner::Owner;
use crate::model::span::{Below, BioSpan};
use crate::model::stacking::Stacking;

/// A loop device over a file on a file system with devices.
#[derive(Debug)]
struct LoopFile {
    dev: u32,
    /// Where in the file the device begins.
    start: u64,
    extents: Vec<Extent>,
}

/// All of them, by the numbers of whole disks.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    stacked: BTreeSet<u32>,
    on_servers: BTreeSet<u32>,
    with_parity: BTreeSet<u32>,
    /// What dm, md and bcache devices stand on.
    members: BTreeMap<u32, BTreeSet<u32>>,
    /// All of that.
    beneath: BTreeSet<u32>,
    loops: Vec<LoopFile>,
}

impl Stacks {
    pub(super) fn new(topology: &Topology) -> Self {
        let mut this = Self::default();
        for device in &topology.devices {
            let beneath = device.beneath.iter();
            let beneath = beneath
                .filter_map(|name| disk_of(topology, device_named(topology, name)?))
                .map(|disk| disk.dev);
            let beneath: BTreeSet<u32> = beneath.collect();
            if !is_stacked(device) || device.kind == "loop" && beneath.is_empty() {
                if device.served_by().is_some() {
                    this.on_servers.insert(device.dev);
                }
                continue;
            }
            this.stacked.insert(device.dev);
            if has_parity(device) {
                this.with_parity.insert(device.dev);
            }
            match &device.loop_file {
                Some(file) if !file.is_block_device => {
                    let extents = file.devices.iter();
                    this.loops.push(LoopFile {
                        dev: device.dev,
                        start: file.start,
                        extents: extents
                            .filter_map(|it| Extent::named(topology, it))
                            .collect(),
                    });
                }
                Some(_) => {}
                None => {
                    this.beneath.extend(&beneath);
                    this.members.insert(device.dev, beneath);
                }
            }
        }
        this
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stacked.is_empty()
    }

    /// Whether a device hands I/O on to devices that the recording knows.
    pub(crate) fn is_stacked(&self, dev: u32) -> bool {
        self.stacked.contains(&dev)
    }

    /// What the work of a device goes on to.
    pub(crate) fn under(&self, dev: u32) -> Below {
        if self.is_stacked(dev) {
            Below::Devices
        } else if self.on_servers.contains(&dev) {
            Below::Server
        } else {
            Below::Nothing
        }
    }

    /// Whether it works in stripes with parity.
    pub(crate) fn has_parity(&self, dev: u32) -> bool {
        self.with_parity.contains(&dev)
    }

    /// Whether a bio is one that a driver of a stacked device made for itself: nothing else may use what such a device
    /// stands on.
    pub(crate) fn is_drivers_own(&self, bio: &BioSpan) -> bool {
        self.beneath.contains(&bio.dev)
            && bio.above.is_none()
            && matches!(bio.owner, Owner::Thread(_))
    }

    /// Whether md made a flush of a device below for its device `dev`.
    pub(crate) fn is_flush_for(&self, dev: u32, flush: (u32, u8)) -> bool {
        let members = self.members.get(&dev);
        flush.1 == end_io::MD_FLUSH && members.is_some_and(|members| members.contains(&flush.0))
    }

    /// Loop devices over files of a file system at this place of a device.
    pub(crate) fn loops_on(&self, dev: u32, place: Option<u64>) -> impl Iterator<Item = u32> {
        let holds = move |file: &&LoopFile| file.extents.iter().any(|it| it.holds(dev, place));
        self.loops.iter().filter(holds).map(|file| file.dev)
    }

    /// Where in its file a loop device begins, in bytes.
    pub(crate) fn start_of_loop(&self, dev: u32) -> u64 {
        let file = self.loops.iter().find(|file| file.dev == dev);
        file.map_or(0, |file| file.start)
    }
}

/// Whether a device works in stripes with parity.
pub(crate) fn has_parity(device: &Device) -> bool {
    matches!(device.driver.as_str(), "raid4" | "raid5" | "raid6")
}

/// Whether a device hands I/O on to devices below, if it has any.
pub(crate) fn is_stacked(device: &Device) -> bool {
    Stacking::of(&device.kind).is_some() || device.kind == "loop"
}
