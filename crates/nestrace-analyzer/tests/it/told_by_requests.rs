//! A result says which devices nothing but their requests distinguished from others.

use crate::two_sides;

use nestrace_analyzer::Options;
use nestrace_trace::manifest::Manifest;

use two_sides::{Streams, VDB, VM1, WAY, chains, manifest, side};

/// vm1 with two disks of virtio-blk of one size, without serial numbers.
fn alike() -> Manifest {
    let mut manifest = manifest();
    manifest.guest_sides = vec![side("vm1", &[("vda", VM1.dev), ("vdb", VDB)])];
    let disks = &mut manifest.topology.guests[0].disks;
    for disk in disks {
        (disk.bus, disk.serial) = ("virtio-blk".into(), None);
    }
    manifest
}

#[test]
fn it_says_how_disks_were_told_apart() {
    const BIOS: u64 = 2000;
    let mut streams = Streams::new(1);
    streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    let analysis = streams.analyze(&alike(), Options::default());
    assert_eq!(chains(&analysis, "vm1", "vd").linked, BIOS);
    let told =
        "vda inside vm1 is vd: bus and size fit several disks, and no other disk had its requests";
    assert!(
        analysis.trace.notices.iter().any(|notice| notice == told),
        "{:?}",
        analysis.trace.notices
    );
}
