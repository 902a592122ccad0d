//! A device number of a guest that another disk gets while it is recorded.

use crate::two_sides;

use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{GuestDisk, Manifest};

use two_sides::{OFFSET_NS, Streams, VM1, WAY, chains, manifest, side};

const BIOS: u64 = 400;
/// Of the disk that has the number later.
const EARLY_BIOS: u64 = 10;
const LATER_BIOS: u64 = 20;
const SIZE: u64 = 1 << 30;

/// vm1 with one disk.
fn one_disk(serial: Option<&str>) -> Manifest {
    let mut manifest = manifest();
    manifest.guest_sides = vec![side("vm1", &[("vda", VM1.dev)])];
    manifest.guest_sides[0].disks[0].size = SIZE;
    let disks = &mut manifest.topology.guests[0].disks;
    disks.truncate(1);
    disks[0].bus = "virtio-blk".into();
    disks[0].virtual_size = SIZE;
    disks[0].serial = serial.map(str::to_owned);
    manifest.guest_sides[0].disks[0].serial = serial.unwrap_or_default().into();
    manifest
}

/// The first disk's requests reach QEMU; those of the disk that has its number later are at the same places and do not.
fn replaced(mut manifest: Manifest, another: GuestDisk) -> Analysis {
    let mut streams = Streams::new(1);
    let end = streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    let n_host = streams.host.len();
    let begin = end + 1_000_000;
    // It is found some time after its first bios.
    let found = streams.traffic(VM1, begin, EARLY_BIOS, WAY);
    streams.traffic(VM1, found, LATER_BIOS, WAY);
    streams.host.truncate(n_host);
    manifest.guest_sides[0].disks.push(GuestDisk {
        name: "vda".into(),
        dev: VM1.dev,
        since_mono_ns: found.saturating_add_signed(OFFSET_NS),
        ..another
    });
    streams.analyze(&manifest, Options::default())
}

/// Bios, requests and links of the disk that QEMU's is, and of the one that is none of QEMU's.
fn counts(analysis: &Analysis) -> [(u64, u64, u64); 2] {
    let of = |disk: &str| {
        let chains = chains(analysis, "vm1", disk);
        (chains.guest_bios, chains.guest_requests, chains.linked)
    };
    [of("vd"), of("")]
}

#[test]
fn another_disk_under_the_number_is_counted_by_itself() {
    let another = [
        (
            one_disk(Some("a")),
            GuestDisk {
                size: SIZE,
                serial: "b".into(),
                ..GuestDisk::default()
            },
        ),
        (
            one_disk(None),
            GuestDisk {
                size: 2 * SIZE,
                ..GuestDisk::default()
            },
        ),
    ];
    for (manifest, another) in another {
        let analysis = replaced(manifest, another);
        let first = BIOS + EARLY_BIOS;
        let expected = [(first, first, BIOS), (LATER_BIOS, LATER_BIOS, 0)];
        assert_eq!(counts(&analysis), expected);
        let other = chains(&analysis, "vm1", "");
        assert!(other.why_no_disk.is_some(), "{other:?}");
    }
}

#[test]
fn a_number_that_nobody_used_again_has_one_disk() {
    let mut streams = Streams::new(1);
    let end = streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    let mut manifest = one_disk(None);
    manifest.guest_sides[0].disks.push(GuestDisk {
        name: "vda".into(),
        dev: VM1.dev,
        size: 2 * SIZE,
        since_mono_ns: (end + 1_000_000).saturating_add_signed(OFFSET_NS),
        ..GuestDisk::default()
    });
    let analysis = streams.analyze(&manifest, Options::default());
    let vd = chains(&analysis, "vm1", "vd");
    let found = (vd.guest_bios, vd.guest_requests, vd.linked);
    assert_eq!((found, analysis.chains.len()), ((BIOS, BIOS, BIOS), 1));
}
