//! Devices that hand bios on to devices below: dm and md. What they do at once is one I/O for the
//! kernel's statistics, and so for `completed`.

use crate::notation;
use crate::one_device;

use nestrace_analyzer::analysis::Device;
use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::Manifest;
use nestrace_trace::manifest::{self, Topology};
use one_device::{conserved, n_mean};

/// The devices of a recording with dm-0 (253:0) or md0 (9:0) over 7:0: the stacked one, the disk.
fn devices(text: &str) -> (Device, Device) {
    let device = |name: &str, kind: &str, major: u32| manifest::Device {
        name: name.into(),
        dev: major << 20,
        kind: kind.into(),
        ..Default::default()
    };
    let mut manifest = Manifest::default();
    manifest.topology = Topology {
        devices: vec![device("dm-0", "dm", 253), device("md0", "md", 9)],
        ..Default::default()
    };

    let analysis = Analyzer::analyze(&manifest, Options::default(), notation::events(text));
    let (disk, stacked) = analysis
        .devices
        .into_iter()
        .partition::<Vec<_>, _>(|device| device.name == "7:0");
    let only = |devices: Vec<Device>| devices.into_iter().next().expect("a device");
    (only(stacked), only(disk))
}

/// What holds of a device without requests when nothing is in flight at the ends.
fn whole(device: &Device) {
    let check = device.check.expect("a full recording");
    assert_eq!(check.ended, check.queued - check.empty_flushes, "{check:?}");
    assert_eq!(check.empty_flushes_ended, check.empty_flushes, "{check:?}");
    assert_eq!(
        (check.reused_while_live, check.open_at_end),
        (0, 0),
        "{check:?}"
    );
    assert!(device.unlinked.is_empty(), "{:?}", device.unlinked);
    assert_eq!(device.latency_ns.all.d2c, None, "it has no requests");
}

#[test]
fn a_clone_is_a_bio_of_the_disk() {
    let (dm, disk) = devices(
        "100 Q b1 W 0+8192 dev=253:0
         110 A c1 W 1048576+8192 of=253:0
         111 Q c1 W 1048576+8192
         112 G c1
         113 D r1 W 1048576+8192 rel=c1
         200 C r1 W 1048576+8192
         210 BC b1 W 0+8192 dev=253:0",
    );
    conserved(&disk);
    assert_eq!(disk.counts.remaps, Some(1));
    assert_eq!(
        (dm.counts.queued, dm.counts.completed, dm.counts.issued),
        (Some(1), 1, 0)
    );
    assert_eq!(dm.bytes.write, 8192);
    assert_eq!(n_mean(dm.latency_ns.all.q2c), (1, Some(110)));
    whole(&dm);
}

#[test]
fn dm_trims_a_bio_at_the_border_of_a_target() {
    let (dm, disk) = devices(
        "100 Q b1 W 0+8192 dev=253:0
         102 X b1 W 4096+4096 rel=0x1234 dev=253:0
         110 A c1 W 1048576+4096 of=253:0
         111 Q c1 W 1048576+4096
         112 G c1
         113 D r1 W 1048576+4096 rel=c1
         114 A c2 W 0+4096 of=253:0
         115 Q c2 W 0+4096
         116 G c2
         117 D r2 W 0+4096 rel=c2
         200 C r1 W 1048576+4096
         201 C r2 W 0+4096
         210 BC b1 W 4096+4096 dev=253:0",
    );
    conserved(&disk);
    assert_eq!((dm.counts.queued, dm.counts.splits), (Some(1), Some(1)));
    assert_eq!((dm.counts.completed, dm.bytes.write), (2, 8192));
    assert_eq!(n_mean(dm.latency_ns.all.q2c), (1, Some(110)));
    assert_eq!(dm.check.map(|check| check.generations), Some(1));
    whole(&dm);
}

#[test]
fn dm_makes_a_flush_of_a_bio_with_data() {
    // The flag is gone when the bio ends.
    let (dm, disk) = devices(
        "100 Q b1 Wfu 0+4096 dev=253:0
         110 A c1 Wf 0+0 of=253:0
         111 Q c1 Wf 0+0
         112 G c1
         150 C r1 Wf 0+0
         160 A c2 Wu 0+4096 of=253:0
         161 Q c2 Wu 0+4096
         162 G c2
         163 D r2 Wu 0+4096 rel=c2
         200 C r2 Wu 0+4096
         210 BC b1 Wu 0+4096 dev=253:0
         300 Q b2 Wf 0+0 dev=253:0
         310 BC b2 Wf 0+0 dev=253:0",
    );
    conserved(&disk);
    assert_eq!((dm.counts.completed, dm.counts.flushes), (1, 2));
    assert_eq!(dm.counts.device_flushes, 0);
    whole(&dm);
}

#[test]
fn md_splits_without_a_word() {
    // A stripe of 4096: the front becomes a bio of its own (e1), the bio keeps the tail.
    let (md, disk) = devices(
        "100 Q b1 R 2048+4096 dev=9:0
         110 A c1 R 0+2048 of=9:0
         111 Q c1 R 0+2048
         112 G c1
         113 D r1 R 0+2048 rel=c1
         114 A c2 R 8192+2048 of=9:0
         115 Q c2 R 8192+2048
         116 G c2
         117 D r2 R 8192+2048 rel=c2
         200 C r1 R 0+2048
         201 BC e1 R 2048+2048 dev=9:0
         210 C r2 R 8192+2048
         211 BC b1 R 4096+2048 dev=9:0",
    );
    conserved(&disk);
    assert_eq!((md.counts.queued, md.counts.completed), (Some(1), 2));
    assert_eq!(md.bytes.read, 4096);
    assert_eq!(n_mean(md.latency_ns.all.q2c), (1, Some(111)));
    whole(&md);
}

#[test]
fn a_silent_part_where_a_flush_of_a_member_was() {
    let (md, disk) = devices(
        "10 Q e1 Wf 0+0
         11 G e1
         20 C r0 Wf 0+0
         100 Q b1 R 2048+4096 dev=9:0
         110 A c1 R 0+2048 of=9:0
         111 Q c1 R 0+2048
         112 G c1
         113 D r1 R 0+2048 rel=c1
         200 C r1 R 0+2048
         201 BC e1 R 2048+2048 dev=9:0
         211 BC b1 R 4096+2048 dev=9:0",
    );
    conserved(&disk);
    assert_eq!((md.counts.completed, md.bytes.read), (2, 4096));
    whole(&md);
}

#[test]
fn md_and_a_split_with_a_word() {
    // X: more than the queue's limits.
    let (md, _) = devices(
        "100 Q b1 D 0+131072 dev=9:0
         101 X e1 D 0+65536 rel=b1 dev=9:0
         110 A c1 D 0+65536 of=9:0
         111 Q c1 D 0+65536
         112 G c1
         113 D r1 D 0+65536 rel=c1
         200 C r1 D 0+65536
         201 BC e1 D 0+65536 dev=9:0
         211 BC b1 D 65536+65536 dev=9:0",
    );
    assert_eq!((md.counts.queued, md.counts.splits), (Some(1), Some(1)));
    assert_eq!((md.counts.completed, md.counts.discards), (2, 2));
    assert_eq!(md.bytes.discard, 131_072);
    assert_eq!(n_mean(md.latency_ns.all.q2c), (1, Some(111)));
    assert_eq!(md.check.map(|check| check.generations), Some(2));
    whole(&md);
}
