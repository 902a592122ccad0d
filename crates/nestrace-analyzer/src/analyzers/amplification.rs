//! Bytes and flushes of each disk, layer by layer. What a layer counted by itself is taken from there.

use crate::Analyzer;
use crate::link::clock::ClockSummary;
use crate::link::guest_side::DiskSummary;
use crate::link::served::DiskOnHost;
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

impl Analyzer {
    /// `amplification[]`: one entry for each disk whose guest was recorded too.
    pub(crate) fn amplification(
        &self,
        clocks: &[ClockSummary],
        qemu: &[QemuDisk],
        images: &[Image],
        chains: &[Chains],
    ) -> Vec<Amplification> {
        let Some(host) = &self.host else {
            return Vec::new();
        };
        let of_disk = |number: u32| {
            let disk = self.images.disks.get(number as usize)?;
            let is = |guest: &str, name: &str| guest == disk.guest_name && name == disk.name;
            let chains = chains.iter().find(|it| is(&it.guest, &it.disk))?;
            let images = images.iter().filter(|it| is(&it.guest, &it.disk));
            let path = self.data_paths().of(number);
            let layers = Layers {
                guest: self
                    .inside_guest(number, clocks)
                    .map(|(_, summary)| summary)
                    .collect(),
                qemu: qemu
                    .iter()
                    .find(|it| is(&it.guest, it.disk.as_deref().unwrap_or_default())),
                files: images
                    .filter_map(|image| image.file_io.as_ref())
                    .filter(|_| path.file_io.is_none() && !path.shared)
                    .collect(),
                host: (path.host_bio.is_none() && !path.shared)
                    .then(|| host.on_host(number, &self.images)),
            };
            let totals = self.layer_totals(number);
            let place = number as usize;
            Some(Amplification {
                series: self.layers.series(place, self.end_ns(), totals),
                ..entry(
                    chains,
                    &layers,
                    self.flushes_beneath(number)
                        .filter(|_| path.host_bio.is_none()),
                )
            })
        };
        let numbers = (0u32..).take(self.images.disks.len());
        numbers.filter_map(of_disk).collect()
    }

    /// Takes what the layers have counted before an event of this time, where a stretch of time ends.
    pub(crate) fn note_layers(&mut self, ts_ns: u64) {
        let disks = (0u32..).take(self.images.disks.len());
        let totals: Vec<LayerSums> = disks.map(|number| self.layer_totals(number)).collect();
        self.layers.note(ts_ns, &totals);
    }

    /// What the layers have counted for a disk so far.
    fn layer_totals(&self, number: u32) -> LayerSums {
        let Some((disk, host)) = self
            .images
            .disks
            .get(number as usize)
            .zip(self.host.as_ref())
        else {
            return LayerSums::default();
        };
        let guest = self.manifest.topology.guests.get(disk.guest as usize);
        let (qemu, qemu_flushes) = guest
            .map(|guest| self.qemu.so_far(disk, guest))
            .unwrap_or_default();
        let images = self.images.of_disk(number);
        let image =
            images
                .map(|(_, image)| image.file.bytes())
                .fold(ReadWrite::default(), |sum, it| ReadWrite {
                    read: sum.read + it.read,
                    write: sum.write + it.write,
                });
        let on_host = host.on_host(number, &self.images);
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
        let devices = self.block.devices.iter();
        let beneath = devices.filter(|device| self.images.is_beneath(device.dev, disk));
        self.bios_recorded
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
