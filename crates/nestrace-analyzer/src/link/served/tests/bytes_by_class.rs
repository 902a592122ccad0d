//! What reaches the device for a disk, and what it is for.

use nestrace_trace::image_map::{Extent, ImageMap};
use nestrace_trace::manifest::Topology;

use super::super::DiskOnHost;
use super::run;
use crate::result::analysis::{ClassBytes, ReadWrite};

/// A host bio of one request, from Q to C.
fn bio(number: u64, what: &str) -> String {
    let at = 1000 * number;
    let (operation, place) = what.split_once(' ').expect("operation and place");
    let place_only = place.split(' ').next().expect("place");
    format!(
        "{at} Q b{number} {operation} {place}
         {} G b{number}
         {} D r{number} {operation} {place_only} rel=b{number}
         {} C r{number} {operation} {place_only}
         ",
        at + 1,
        at + 2,
        at + 3
    )
}

fn on_host(bios: &[&str], maps: &[ImageMap], qcow2: bool) -> [DiskOnHost; 2] {
    let mut topology = super::topology();
    if qcow2 {
        topology.guests[0].disks[0].images[0].format = "qcow2".into();
    }
    let text: String = (1..).zip(bios).map(|(n, what)| bio(n, what)).collect();
    run(&topology, maps, &text).on_host
}

#[test]
fn journal_and_metadata_are_divided_as_the_written_bytes_are() {
    let [vd, sd] = on_host(
        &[
            "W 40960+12288 inode=12 of=7:0 sub=1 at=0",
            "W 81920+4096 inode=13 of=7:0 sub=1 at=0",
            // XFS' log, then a metadata buffer.
            "W 8192+8192 end_io=3",
            "W 65536+4096 end_io=4",
            // Somebody else's file.
            "W 131072+4096 inode=777 of=7:0 sub=1 at=0",
        ],
        &[],
        false,
    );
    assert_eq!(
        vd.by_class,
        ClassBytes {
            data: Some(12_288),
            image_metadata: Some(0),
            host_journal: Some(6144),
            host_metadata: Some(3072),
            readahead: Some(0),
        }
    );
    let write = 12_288 + 6144 + 3072;
    assert_eq!(
        (vd.host, vd.device),
        (ReadWrite { read: 0, write }, vd.host)
    );
    assert_eq!((vd.shared_with, sd.shared_with), (1, 1));
    assert_eq!(sd.host.write, 4096 + 2048 + 1024);
}

#[test]
fn another_partitions_file_system_is_no_disks() {
    let mut topology = super::two_partitions();
    let bios = [
        // Of each disk's own file system: an XFS' log, a block of ext4's, a page of the partition.
        "W 36864+4096 end_io=3",
        "W 98304+8192 end_io=4",
        "W 106496+2048 inode=271581185 sub=2 at=8192",
        // Before both, and behind them.
        "W 4096+16384 end_io=3",
        "W 163840+32768 end_io=4",
    ];
    let text: String = (1..).zip(bios).map(|(n, what)| bio(n, what)).collect();
    let [vd, sd] = run(&topology, &[], &text).on_host;
    assert_eq!((vd.host.write, sd.host.write), (4096, 8192 + 2048));
    assert_eq!(
        (vd.by_class.host_journal, sd.by_class.host_journal),
        (Some(4096), Some(0))
    );
    assert_eq!((vd.shared_with, sd.shared_with), (0, 0));

    // A guest that has the partition for itself: the host's file systems write none of it.
    let image = &mut topology.guests[0].disks[1].images[0];
    (image.is_block_device, image.inode) = (true, 0);
    let [vd, sd] = run(&topology, &[], &text).on_host;
    assert_eq!((vd.host.write, sd.by_class.host_metadata), (4096, Some(0)));
    assert_eq!(sd.by_class.data, Some(2048));

    // An older recording does not say where partitions are.
    for device in &mut topology.devices {
        device.start = 0;
    }
    let [vd, _] = run(&topology, &[], &text).on_host;
    assert!(vd.host.write > 4096);
}

/// A disk of each of two guests, both above one backing file.
fn clones() -> Topology {
    let mut topology = super::topology();
    let mut second = topology.guests[0].clone();
    second.name = "vm2".into();
    second.disks.remove(0);
    topology.guests[0].disks.remove(1);
    topology.guests.push(second);
    for guest in &mut topology.guests {
        guest.backends.clear();
        let mut backing = super::image(50);
        backing.direct = Some(true);
        guest.disks[0].images.push(backing);
    }
    topology
}

#[test]
fn what_clones_read_of_their_backing_file_is_each_ones_own() {
    let read = |n: u64, guest: u32, place: u64, bytes: u64| {
        let (at, tid) = (1000 * n, 200 + guest);
        format!(
            "{at} read 0x5 {place}+{bytes} inode=50 of=7:0 dev=0:{guest} tid={tid}
             {} Q b{n} R {place}+{bytes} inode=50 of=7:0 sub=1 at={place} tid={tid}
             {} G b{n}
             {} D r{n} R {place}+{bytes} rel=b{n}
             {} C r{n} R {place}+{bytes}
             {} exit 0x0 result={bytes} tid={tid} dev=0:{guest}
             ",
            at + 1,
            at + 2,
            at + 3,
            at + 4,
            at + 5
        )
    };
    let text = read(1, 0, 40_960, 4096) + &read(2, 1, 81_920, 8192) + &read(3, 1, 40_960, 16_384);
    let [one, two] = run(&clones(), &[], &text).on_host;
    assert_eq!((one.host.read, two.host.read), (4096, 8192 + 16_384));
    assert_eq!((one.device.read, two.device.read), (4096, 8192 + 16_384));
}

#[test]
fn read_ahead_is_told_from_what_was_asked_for() {
    let [vd, _] = on_host(
        &[
            "R 40960+4096 inode=12 of=7:0 sub=2 at=0",
            "Rr 45056+65536 inode=12 of=7:0 sub=2 at=4096",
        ],
        &[],
        false,
    );
    let by_class = vd.by_class;
    assert_eq!(
        (by_class.data, by_class.readahead),
        (Some(4096), Some(65_536))
    );
    assert_eq!(
        vd.host,
        ReadWrite {
            read: 69_632,
            write: 0
        }
    );
}

#[test]
fn what_a_qcow2_image_holds_is_told_by_its_map() {
    let map = ImageMap {
        cluster_bytes: 65536,
        extents: vec![Extent {
            guest_offset: 0,
            bytes: 65536,
            file_offset: 5 << 20,
        }],
        ..ImageMap::default()
    };
    let bios = [
        "W 40960+4096 inode=12 of=7:0 sub=2 at=5242880",
        "W 81920+512 inode=12 of=7:0 sub=2 at=262144",
    ];
    let [vd, _] = on_host(&bios, std::slice::from_ref(&map), true);
    let by_class = vd.by_class;
    assert_eq!(
        (by_class.data, by_class.image_metadata),
        (Some(4096), Some(512))
    );
    // What an incomplete map lacks may be anything.
    let partial = ImageMap {
        partial: Some("it has more than 1 extents".into()),
        ..map.clone()
    };
    let [vd, _] = on_host(&bios, &[partial], true);
    let by_class = vd.by_class;
    assert_eq!((by_class.data, by_class.image_metadata), (Some(4608), None));
    // Without a map it is not known.
    let [vd, _] = on_host(&bios, &[], true);
    let by_class = vd.by_class;
    assert_eq!((by_class.data, by_class.image_metadata), (Some(4608), None));
}

#[test]
fn a_request_of_two_bios_counts_once() {
    let mut topology = super::topology();
    topology.guests[0].disks.truncate(1);
    let merged = "100 Q b1 W 40960+4096 inode=12 of=7:0 sub=1 at=0
         101 G b1
         102 Q b2 W 45056+4096 inode=12 of=7:0 sub=1 at=4096
         103 M b2 rel=b1
         104 D r1 W 40960+8192 rel=b1 links=b2
         105 C r1 W 40960+8192";
    let vd = run(&topology, &[], merged).on_host[0];
    assert_eq!((vd.host.write, vd.device.write), (8192, 8192));
}
