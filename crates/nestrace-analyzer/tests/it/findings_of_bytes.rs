//! Rules about bytes count what belongs to their case: the direction, the disk's own, and enough of it.

use crate::two_sides;

use nestrace_abi::end_io;
use nestrace_abi::flags::{self, OP_READ, OP_WRITE};
use nestrace_analyzer::analysis::{Evidence, Finding};
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::image_map::{Extent, ImageMap};
use nestrace_trace::manifest::{self, Manifest, Mount};
use nestrace_trace::{Event, Kind, Source};

use two_sides::{LOOP0, Streams, VM1, WAY, manifest};

const START: u64 = 10_000_000_000;
const US: u64 = 1_000;
const KIB: u64 = 1 << 10;
/// Where the file of a qcow2 image has its tables.
const TABLES: u64 = 1 << 34;
/// Of other files on the host's file system.
const ELSEWHERE: u64 = 1 << 40;

fn find<'a>(analysis: &'a Analysis, id: &str) -> Option<&'a Finding> {
    let mut findings = analysis.findings.iter();
    findings.find(|it| it.id == id && it.guest == "vm1")
}

/// The finding with its share, about.
fn fires<'a>(analysis: &'a Analysis, id: &str, share: f64) -> &'a Finding {
    let found = find(analysis, id).unwrap_or_else(|| panic!("{id} of {:?}", analysis.findings));
    assert!((found.share - share).abs() < 0.005, "{found:?}");
    found
}

fn silent(analysis: &Analysis, id: &str) {
    assert!(find(analysis, id).is_none(), "{:?}", analysis.findings);
    let mut unjudged = analysis.findings_unjudged.iter();
    let of_rule = unjudged.find(|it| it.id == id && it.guest == "vm1");
    assert_eq!(of_rule, None);
}

/// `n` bios of vm1, one after the other at places that do not repeat; gives the end.
fn guest_io(streams: &mut Streams, from: u64, operation: u32, n: u64, bytes: u64) -> u64 {
    let mut at = from;
    for i in 0..n {
        let offset = i * 7 % n * bytes;
        at = streams.bio(VM1, at, operation, offset, bytes, WAY) + 50 * US + i * i % 997 * 100;
    }
    at
}

/// `n` bios of the host that belong to no request of a guest, from `at` on.
fn host_io(streams: &mut Streams, at: u64, n: u64, bio: Event) {
    for i in 0..n {
        let (object, request) = (streams.address(), streams.address());
        let of = |object| Event {
            object,
            offset: bio.offset + i * bio.bytes,
            bytes: bio.bytes,
            flags: bio.flags,
            dev: LOOP0,
            tid: bio.tid,
            ..Event::default()
        };
        let queue = Event {
            object,
            offset: bio.offset + i * bio.bytes,
            file_offset: bio.file_offset + i * bio.bytes,
            dev: LOOP0,
            ..bio
        };
        let issue = Event {
            related: object,
            ..of(request)
        };
        let at = at + i * 40 * US;
        streams.host(at, Kind::Queue, queue);
        streams.host(at + 1, Kind::GetRequest, of(object));
        streams.host(at + US, Kind::Issue, issue);
        streams.host(at + 30 * US, Kind::Complete, of(request));
    }
}

/// A bio of the image's own tables.
fn tables(operation: u32, bytes: u64) -> Event {
    Event {
        flags: operation,
        offset: TABLES,
        bytes,
        sub: flags::OWNER_DIRECT,
        inode: VM1.inode,
        owner_dev: LOOP0,
        file_offset: TABLES,
        tid: 800,
        ..Event::default()
    }
}

/// A bio of the host's file system: of its log, or of other metadata.
fn file_system(operation: u32, bytes: u64, end_io: u8) -> Event {
    Event {
        flags: operation,
        offset: ELSEWHERE,
        bytes,
        end_io,
        tid: 7,
        ..Event::default()
    }
}

/// vm1's `vd` with other facts.
fn with(change: impl Fn(&mut manifest::Disk)) -> Manifest {
    let mut manifest = manifest();
    change(&mut manifest.topology.guests[0].disks[0]);
    manifest
}

fn qcow2(disk: &mut manifest::Disk) {
    disk.format = "qcow2".into();
    disk.images[0].format = "qcow2".into();
}

fn sparse(disk: &mut manifest::Disk) {
    disk.format = "raw".into();
    disk.images[0].size = 1 << 30;
    disk.images[0].allocated = 1 << 20;
}

fn on_fs(fs_type: &str) -> impl Fn(&mut manifest::Disk) {
    move |disk| {
        disk.images[0].mount = Some(Mount {
            fs_type: fs_type.into(),
            mount_point: "/images".into(),
            ..Mount::default()
        });
    }
}

/// With the map of vm1's image: the guest's disk lies at the same place in the file.
fn analyze(streams: Streams, manifest: &Manifest) -> Analysis {
    let map = ImageMap {
        cluster_bytes: 64 * KIB,
        extents: vec![Extent {
            guest_offset: 0,
            bytes: 1 << 30,
            file_offset: 0,
        }],
        ..ImageMap::default()
    };
    let mut options = Options::default();
    options.image_maps = vec![map];

    streams.analyze(manifest, options)
}

#[test]
fn tables_that_are_read_are_not_written() {
    let id = "qcow2-allocation";
    // As much again of tables as of data: read, written, and beside reads that are far more.
    let streams = |operation, reads| {
        let mut streams = Streams::new(2);
        host_io(&mut streams, START, 300, tables(operation, 16 * KIB));
        let end = guest_io(&mut streams, START + 333, OP_WRITE, 300, 16 * KIB);
        guest_io(&mut streams, end, OP_READ, reads, 64 * KIB);
        streams
    };
    let image = with(qcow2);
    let analysis = analyze(streams(OP_READ, 0), &image);
    silent(&analysis, id);
    let by_class = analysis.amplification[0].by_class;
    let bytes = 300 * 16 * KIB;
    assert_eq!(
        (by_class.data, by_class.image_metadata),
        (Some(bytes), Some(bytes)),
        "which are of both directions"
    );
    let analysis = analyze(streams(OP_WRITE, 1000), &image);
    let finding = fires(&analysis, id, 1.0);
    assert_eq!(finding.evidence["data_bytes"], Evidence::Whole(bytes));
}

#[test]
fn metadata_that_the_host_reads_is_not_written() {
    let streams = |operation| {
        let mut streams = Streams::new(2);
        let metadata = file_system(operation, 16 * KIB, end_io::XFS_BUF);
        host_io(&mut streams, START, 100, metadata);
        guest_io(&mut streams, START + 333, OP_WRITE, 300, 16 * KIB);
        streams
    };
    let image = with(sparse);
    silent(&analyze(streams(OP_READ), &image), "sparse-allocation");
    fires(
        &analyze(streams(OP_WRITE), &image),
        "sparse-allocation",
        0.25,
    );
    let image = with(on_fs("btrfs"));
    silent(&analyze(streams(OP_READ), &image), "cow-on-cow");
    fires(&analyze(streams(OP_WRITE), &image), "cow-on-cow", 0.25);
    // No copies are made there: what is written more has another reason.
    let image = with(|disk| {
        on_fs("btrfs")(disk);
        let mount = disk.images[0].mount.as_mut().expect("a mount");
        mount.options = "rw,relatime,nodatasum,nodatacow,space_cache=v2".into();
    });
    silent(&analyze(streams(OP_WRITE), &image), "cow-on-cow");
    // The mark of the image itself says more than the option, and a file system that copies allocates in any image.
    for (nocow, fires_there, silent_there) in [
        (true, "sparse-allocation", "cow-on-cow"),
        (false, "cow-on-cow", "sparse-allocation"),
    ] {
        let image = with(|disk| {
            on_fs("btrfs")(disk);
            sparse(disk);
            disk.images[0].nocow = Some(nocow);
        });
        let analysis = analyze(streams(OP_WRITE), &image);
        fires(&analysis, fires_there, 0.25);
        silent(&analysis, silent_there);
    }
}

#[test]
fn read_ahead_that_nobody_comes_for() {
    let id = "readahead-waste";
    let ahead = |bytes| Event {
        flags: OP_READ | flags::RAHEAD,
        sub: flags::OWNER_PAGES,
        tid: 7,
        ..tables(OP_READ, bytes)
    };
    let cached = |disk: &mut manifest::Disk| disk.images[0].direct = Some(false);
    // Everything is read three times, twice from the host's cache: that says nothing of what was read ahead.
    let mut streams = Streams::new(2);
    let mut at = guest_io(&mut streams, START, OP_READ, 300, 16 * KIB);
    let first = streams.host.len();
    for _ in 0..2 {
        at = guest_io(&mut streams, at, OP_READ, 300, 16 * KIB);
    }
    let mut number = 0;
    streams.host.retain(|event| {
        number += 1;
        number <= first || event.kind().map(Kind::source) != Some(Source::Block)
    });
    host_io(&mut streams, START, 300, ahead(16 * KIB));
    let finding = analyze(streams, &with(cached));
    let finding = fires(&finding, id, 0.5);
    let unused = Evidence::Whole(300 * 16 * KIB);
    assert_eq!(finding.evidence["unused_bytes"], unused);

    // Tables make the host read twice as much; next to nothing was read ahead.
    let mut streams = Streams::new(2);
    guest_io(&mut streams, START, OP_READ, 300, 16 * KIB);
    host_io(&mut streams, START, 300, tables(OP_READ, 16 * KIB));
    host_io(&mut streams, START, 1, ahead(4 * KIB));
    let small_cache = with(|disk| {
        qcow2(disk);
        cached(disk);
    });
    silent(&analyze(streams, &small_cache), id);
}

#[test]
fn reads_of_the_hosts_file_system_are_not_for_writes() {
    let id = "misaligned";
    let streams = |bio| {
        let mut streams = Streams::new(2);
        host_io(&mut streams, START, 300, bio);
        guest_io(&mut streams, START + 333, OP_WRITE, 300, 16 * KIB);
        streams
    };
    // Somebody looks for files.
    let inodes = file_system(OP_READ, 16 * KIB, end_io::XFS_BUF);
    silent(&analyze(streams(inodes), &with(sparse)), id);
    let of_image = tables(OP_READ, 16 * KIB);
    fires(&analyze(streams(of_image), &with(sparse)), id, 1.0);
}

#[test]
fn a_commit_beside_an_idle_guest_is_no_allocation() {
    let mut streams = Streams::new(2);
    let log = file_system(OP_WRITE, 4 * KIB, end_io::XFS_LOG);
    host_io(&mut streams, START, 10, log);
    guest_io(&mut streams, START + 333, OP_WRITE, 3, 4 * KIB);
    silent(&analyze(streams, &with(sparse)), "sparse-allocation");
}
