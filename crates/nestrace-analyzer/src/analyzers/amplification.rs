//! Bytes and flushes of each disk, layer by layer. What a layer counted by itself is taken from there.

use crate::analyzers::data_path::DataPaths;
use crate::follow::block::BlockLayer;
use crate::follow::qemu::Qemu;
use crate::link::guest_side::DiskSummary;
use crate::link::served::{DiskOnHost, HostSide};
use crate::model::ids::{DevNo, DiskId};
use crate::result::analysis::{
    Amplification, Chains, Image, ImageFileIo, LayerBytes, LayerFlushes, QemuDisk, ReadWrite,
};
use crate::result::sums::LayerSums;

/// What the layers counted for one disk.
struct Layers<'a> {
    /// One for each session. Never the guest's whole device: its number or name may have been another disk's too.
    guest: Vec<DiskSummary<'a>>,
    qemu: Option<&'a QemuDisk>,
    files: Vec<&'a ImageFileIo>,
    host: Option<DiskOnHost>,
}

impl Layers<'_> {
    fn of_guest(&self, of: impl Fn(&DiskSummary<'_>) -> u64) -> Option<u64> {
        let sum = self.guest.iter().map(of).sum();
        (!self.guest.is_empty()).then_some(sum)
    }

    fn bytes(&self, of: fn(&ReadWrite) -> u64) -> LayerBytes {
        let files = self.files.iter().map(|file| of(&file.bytes));
        let qemu = |disk: &QemuDisk| ReadWrite {
            read: disk.bytes.read,
            write: disk.bytes.write,
        };
        LayerBytes {
            guest: self.of_guest(|disk| of(&disk.bytes)),
            qemu: self.qemu.map(|disk| of(&qemu(disk))),
            image: (!self.files.is_empty()).then(|| files.sum()),
            host: self.host.map(|host| of(&host.host)),
            device: self.host.map(|host| of(&host.device)),
        }
    }

    fn flushes(&self, device: Option<u64>) -> LayerFlushes {
        let syncs = self.files.iter().map(|file| file.syncs + file.dsync);
        LayerFlushes {
            guest: self.of_guest(|disk| disk.flushes),
            qemu: self.qemu.map(|disk| disk.flushes),
            host: (!self.files.is_empty()).then(|| syncs.sum()),
            device,
        }
    }
}

/// What the pass has counted, for whole layers of the host.
pub(crate) struct LayerCounts<'a> {
    pub paths: DataPaths<'a>,
    pub qemu: &'a Qemu,
    pub block: &'a BlockLayer,
    pub host: Option<&'a HostSide>,
}

/// What the result says of QEMU, images and chains.
pub(crate) struct Reported<'a> {
    pub qemu: &'a [QemuDisk],
    pub images: &'a [Image],
    pub chains: &'a [Chains],
}

impl LayerCounts<'_> {
    /// What each layer made of a disk's I/O, but for how it went as time passed; `guest`: what each session of its guest
    /// says of it. `None` where its guest was not recorded.
    pub(crate) fn entry(
        &self,
        number: u32,
        guest: Vec<DiskSummary<'_>>,
        of: &Reported<'_>,
    ) -> Option<Amplification> {
        let known = self.paths.images;
        let host = self.host?;
        let disk = known.disks.get(number as usize)?;
        let is = |guest: &str, name: &str| guest == disk.guest_name && name == disk.name;
        let chains = of.chains.iter().find(|it| is(&it.guest, &it.disk))?;
        let images = of.images.iter().filter(|it| is(&it.guest, &it.disk));
        let path = self.paths.of(number);
        let layers = Layers {
            guest,
            qemu: of
                .qemu
                .iter()
                .find(|it| is(&it.guest, it.disk.as_deref().unwrap_or_default())),
            files: images
                .filter_map(|image| image.file_io.as_ref())
                .filter(|_| path.file_io.is_none() && !path.shared)
                .collect(),
            host: (path.host_bio.is_none() && !path.shared).then(|| host.on_host(number, known)),
        };
        let flushes = self.flushes_beneath(number);
        let flushes = flushes.filter(|_| path.host_bio.is_none());
        Some(entry(chains, &layers, flushes))
    }

    /// What the layers have counted so far, by disk.
    pub(crate) fn all(&self) -> Vec<LayerSums> {
        let disks = (0u32..).take(self.paths.images.disks.len());
        disks.map(|number| self.totals(number)).collect()
    }

    /// What the layers have counted for a disk so far.
    pub(crate) fn totals(&self, number: u32) -> LayerSums {
        let images = self.paths.images;
        let Some((disk, host)) = images.disks.get(number as usize).zip(self.host) else {
            return LayerSums::default();
        };
        let guests = &self.paths.manifest.topology.guests;
        let (qemu, qemu_flushes) = guests
            .get(disk.guest as usize)
            .map(|guest| self.qemu.so_far(disk, guest))
            .unwrap_or_default();
        let image = images
            .of_disk(number)
            .map(|(_, image)| image.file.bytes())
            .fold(ReadWrite::default(), |sum, it| ReadWrite {
                read: sum.read + it.read,
                write: sum.write + it.write,
            });
        let on_host = host.on_host(number, images);
        LayerSums {
            qemu,
            image,
            host: on_host.host,
            device: on_host.device,
            qemu_flushes,
            device_flushes: self.flushes_beneath(number).unwrap_or(0),
        }
    }

    /// Flushes that the devices right under a disk's images did.
    fn flushes_beneath(&self, disk: u32) -> Option<u64> {
        let devices = self.block.gathered.devices.iter();
        let beneath = devices.filter(|device| {
            self.paths
                .images
                .is_beneath(DevNo(device.dev), DiskId(disk))
        });
        self.paths
            .bios_recorded
            .then(|| beneath.map(|device| device.flushes_done()).sum())
    }
}

fn entry(chains: &Chains, layers: &Layers<'_>, device_flushes: Option<u64>) -> Amplification {
    let read = layers.bytes(|bytes| bytes.read);
    let write = layers.bytes(|bytes| bytes.write);
    let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    Amplification {
        guest: chains.guest.clone(),
        disk: chains.disk.clone(),
        guest_bytes: both(read.guest, write.guest),
        qemu_bytes: both(read.qemu, write.qemu),
        image_bytes: both(read.image, write.image),
        host_bytes: both(read.host, write.host),
        device_bytes: both(read.device, write.device),
        read,
        write,
        flushes: layers.flushes(device_flushes),
        by_class: layers.host.map(|host| host.by_class).unwrap_or_default(),
        classes: layers.host.map(|host| host.classes),
        readahead_unused: layers.host.map(|host| host.readahead_unused),
        shared_with: layers.host.map_or(0, |host| host.shared_with),
        ..Amplification::default()
    }
}
