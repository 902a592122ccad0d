//! What reaches the device for a disk, and what it is for.

use nestrace_trace::image_map::{Extent, ImageMap};

use super::super::DiskOnHost;
use super::run;
use crate::analysis::{ClassBytes, ReadWrite};

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
    let [vd, _] = on_host(&bios, &[map], true);
    let by_class = vd.by_class;
    assert_eq!(
        (by_class.data, by_class.image_metadata),
        (Some(4096), Some(512))
    );
    // Without a map nobody knows.
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
