//! Trees of QEMU's requests from lists of events.
//!
//! Two disks of one guest on one file system on loop0: `vd` (virtio-blk, inode 12) and `sd` (SCSI,
//! inode 13). A virtio-blk cookie lies 0xd8 above its `opaque`, statistics 0x120 above the backend.

mod bytes_by_class;
mod image_data;
mod layers_beneath;
mod waiting;
mod waits_for_jobs;

use nestrace_trace::image_map::ImageMap;
use nestrace_trace::manifest::{Backend, Device, Disk, Guest, Image, Manifest, Mount, Topology};

use super::{DiskOnHost, HostHalf, HostLayers, HostSide};
use crate::follow::block::{BlockLayer, Lent};
use crate::follow::file_io::FileIo;
use crate::follow::image::{Images, RecordedRpcs};
use crate::follow::image_observer::ImageObserver;
use crate::follow::qemu::{Disks, Qemu};
use crate::measure::overlap::Activity;
use crate::model::span::{Layer, Served, Span};
use crate::model::threads::Threads;
use crate::notation;
use crate::result::unlinked::Reasons;

const LOOP0: u32 = 7 << 20;

fn image(inode: u64) -> Image {
    Image {
        path: format!("/img/{inode}"),
        format: "raw".into(),
        inode,
        dev: LOOP0,
        direct: Some(true),
        devices: vec!["loop0".into()],
        mount: Some(Mount {
            fs_type: "ext4".into(),
            ..Mount::default()
        }),
        ..Image::default()
    }
}

fn disk(name: &str, bus: &str, inode: u64) -> Disk {
    Disk {
        name: name.into(),
        bus: bus.into(),
        cache: Some("none".into()),
        images: vec![image(inode)],
        ..Disk::default()
    }
}

fn topology() -> Topology {
    let backend = |address, disk| Backend {
        address,
        disk,
        proof: "node name".into(),
    };
    Topology {
        guests: vec![Guest {
            name: "vm1".into(),
            disks: vec![disk("vd", "virtio-blk", 12), disk("sd", "virtio-scsi", 13)],
            backends: vec![backend(0x10000, 0), backend(0x20000, 1)],
            ..Guest::default()
        }],
        devices: vec![
            Device {
                name: "loop0".into(),
                dev: LOOP0,
                kind: "loop".into(),
                loop_file: Some(Image {
                    inode: 99,
                    dev: 8 << 20,
                    ..Image::default()
                }),
                ..Device::default()
            },
            Device {
                name: "sda".into(),
                dev: 8 << 20,
                kind: "disk".into(),
                ..Device::default()
            },
        ],
        ..Topology::default()
    }
}

/// The same disks on two file systems, in partitions of loop0 with 64 KiB each, the first at 32 KiB.
fn two_partitions() -> Topology {
    let mut topology = topology();
    for (n, disk) in (0u32..).zip(&mut topology.guests[0].disks) {
        let name = format!("loop0p{}", n + 1);
        disk.images[0].devices = vec![name.clone()];
        disk.images[0].dev = (259 << 20) + n;
        topology.devices.push(Device {
            name,
            dev: (259 << 20) + n,
            kind: "partition".into(),
            beneath: vec!["loop0".into()],
            start: (32 << 10) + (u64::from(n) << 16),
            size: 64 << 10,
            ..Device::default()
        });
    }
    topology
}

/// What the host's half made of a list of events.
struct Outcome {
    served: Vec<Served>,
    /// Of the disk `vd`.
    half: HostHalf,
    /// Of the disks `vd` and `sd`.
    on_host: [DiskOnHost; 2],
}

fn run(topology: &Topology, maps: &[ImageMap], text: &str) -> Outcome {
    let mut images = Images::new(topology);
    let rpcs = text.contains("rpc-");
    images.rpcs_recorded = RecordedRpcs {
        nfs: rpcs,
        smb: rpcs,
    };
    let n_disks = images.disks.len();
    let mut manifest = Manifest::default();
    manifest.topology = topology.clone();

    let mut side = HostSide::new(&manifest, &images, maps);
    let mut block = BlockLayer::default();
    let (mut files, threads) = (FileIo::default(), Threads::default());
    let mut qemu = Qemu::new(&topology.guests, &[], n_disks);
    let mut activity = vec![Activity::default(); n_disks];
    let mut follow = true;
    for event in notation::events(text) {
        let kind = event.kind().expect("known");
        if follow {
            HostSide::follow(&mut HostLayers {
                block: &mut block,
                files: &mut files,
                qemu: &mut qemu,
                images: &images,
            });
            follow = false;
        }
        match kind.source() {
            nestrace_abi::Source::Block => {
                let mut lent = Lent {
                    observer: &mut ImageObserver {
                        images: &mut images,
                        activity: &mut activity,
                        files: &mut files,
                    },
                    threads: &threads,
                    reasons: Reasons::default(),
                };
                block.push(kind, &event, &mut lent);
            }
            nestrace_abi::Source::File => {
                files.push(kind, &event, &mut images, &mut activity);
            }
            nestrace_abi::Source::Qemu => {
                let mut disks = Disks {
                    images: &images,
                    activity: &mut activity,
                };
                qemu.push(kind, &event, &mut disks);
            }
            _ => {}
        }
        side.after(
            kind,
            &event,
            &mut HostLayers {
                block: &mut block,
                files: &mut files,
                qemu: &mut qemu,
                images: &images,
            },
        );
    }
    side.served.iter().for_each(|served| nested(&served.span));
    assert_eq!(side.calls.n_open(), 0, "nothing is kept of what has ended");
    Outcome {
        half: side.finish(0),
        on_host: [0, 1].map(|disk| side.on_host(disk, &images)),
        served: side.served,
    }
}

/// Children lie within their parents.
fn nested(span: &Span) {
    assert!(span.start_ns <= span.end_ns, "{span:?}");
    for child in &span.children {
        assert!(
            child.start_ns >= span.start_ns && child.end_ns <= span.end_ns,
            "{child:?} in {span:?}"
        );
        nested(child);
    }
}

/// The requests as text, in the order of their ends: `?` marks ambiguous ones, `*` shared spans.
fn served(topology: &Topology, maps: &[ImageMap], text: &str) -> Vec<String> {
    let outcome = run(topology, maps, text);
    let line = |served: &Served| {
        let mark = if served.ambiguous { "? " } else { "" };
        format!("{mark}{}", tree(&served.span))
    };
    outcome.served.iter().map(line).collect()
}

fn tree(span: &Span) -> String {
    let layer = match span.layer {
        Layer::Qemu => "qemu",
        Layer::QemuJob => "job",
        Layer::FileIo => "file",
        Layer::HostBio => "bio",
        Layer::HostRequest => "request",
        Layer::StackFile => "loop's file",
        other => panic!("not of the host: {other:?}"),
    };
    let mut text = format!(
        "{layer}{} {:?} {}+{} {}-{}",
        if span.shared { "*" } else { "" },
        span.what,
        span.offset,
        span.bytes,
        span.start_ns,
        span.end_ns
    );
    if !span.children.is_empty() {
        let children: Vec<String> = span.children.iter().map(tree).collect();
        text += &format!(" [{}]", children.join(", "));
    }
    text
}
