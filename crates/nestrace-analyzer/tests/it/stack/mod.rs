//! Two guests with three disks on one file system on loop0.
#![allow(dead_code)] // Each test program uses its part.

use nestrace_analyzer::analysis::{Image, QemuDisk};
use nestrace_analyzer::{Analysis, Analyzer, Options};
use nestrace_trace::manifest::{self, Backend, Device, Disk, Guest, Manifest, Topology};

use crate::notation;

const LOOP0: u32 = 7 << 20;

pub fn image(path: &str, inode: u64) -> manifest::Image {
    manifest::Image {
        path: path.into(),
        format: "raw".into(),
        inode,
        dev: LOOP0,
        direct: Some(true),
        devices: vec!["loop0".into()],
        ..Default::default()
    }
}

pub fn disk(name: &str, bus: &str, inode: u64) -> Disk {
    Disk {
        name: name.into(),
        bus: bus.into(),
        images: vec![image(&format!("/img/{name}.raw"), inode)],
        ..Default::default()
    }
}

/// Two guests: vm1 with a virtio-blk disk (inode 12) and a SCSI disk (inode 13), vm2 with inode 14.
pub fn manifest() -> Manifest {
    let vm1 = Guest {
        name: "vm1".into(),
        pid: 1000,
        disks: vec![disk("vd", "virtio-blk", 12), disk("sd", "virtio-scsi", 13)],
        backends: vec![
            Backend {
                address: 0x10000,
                disk: 0,
                proof: "node name".into(),
            },
            Backend {
                address: 0x20000,
                disk: 1,
                proof: "node name".into(),
            },
        ],
        ..Default::default()
    };
    let vm2 = Guest {
        name: "vm2".into(),
        pid: 2000,
        disks: vec![disk("vd", "virtio-blk", 14)],
        ..Default::default()
    };
    let mut manifest = Manifest::default();
    manifest.topology = Topology {
        guests: vec![vm1, vm2],
        devices: vec![
            Device {
                name: "loop0".into(),
                dev: LOOP0,
                kind: "loop".into(),
                loop_file: Some(manifest::Image {
                    inode: 99,
                    dev: 8 << 20,
                    ..Default::default()
                }),
                ..Default::default()
            },
            Device {
                name: "sda".into(),
                dev: 8 << 20,
                kind: "disk".into(),
                ..Default::default()
            },
        ],
        ..Default::default()
    };
    manifest
}

pub fn analyze(text: &str) -> Analysis {
    Analyzer::analyze(&manifest(), Options::default(), notation::events(text))
}

pub fn qemu(analysis: &Analysis, name: &str) -> QemuDisk {
    let named = |disk: &&QemuDisk| {
        format!("{}/{}", disk.guest, disk.disk.as_deref().unwrap_or("?")) == name
    };
    analysis
        .qemu
        .iter()
        .find(named)
        .cloned()
        .unwrap_or_else(|| panic!("no {name}: {:?}", analysis.qemu))
}

pub fn image_of(analysis: &Analysis, inode: u64) -> Image {
    analysis
        .images
        .iter()
        .find(|image| image.inode == inode)
        .cloned()
        .expect("image")
}
