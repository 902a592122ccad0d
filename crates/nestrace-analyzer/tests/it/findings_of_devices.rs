//! Rules about the host's devices look at the device that does the work, and at everybody who uses it.

use crate::two_sides;
use nestrace_analyzer::analysis::UserKind;

use nestrace_abi::{end_io, flags};
use nestrace_analyzer::analysis::{Evidence, Finding};
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{Device, Disk, GuestMount, Manifest, Mount};
use nestrace_trace::{Event, Kind};

use two_sides::{LOOP0, Streams, VM1, VM2, WAY, Way, manifest};

const START: u64 = 10_000_000_000;
const US: u64 = 1_000;
/// Enough for the device to be busy.
const IOS: u64 = 1_000;
/// A device that takes nearly all of the time.
const SLOW: Way = Way {
    device: 900 * US,
    ..WAY
};
/// A process of the host.
const COPY: u32 = 4_000;
/// A kernel thread of its file system.
const LOG: u32 = 7;

fn find<'a>(analysis: &'a Analysis, id: &str) -> Option<&'a Finding> {
    let mut findings = analysis.findings.iter();
    findings.find(|it| it.id == id && it.guest == "vm1")
}

fn get<'a>(analysis: &'a Analysis, id: &str) -> &'a Finding {
    find(analysis, id).unwrap_or_else(|| panic!("{id} of {:?}", analysis.findings))
}

fn silent(analysis: &Analysis, id: &str) {
    assert!(find(analysis, id).is_none(), "{:?}", analysis.findings);
    assert_eq!(missing(analysis, id), None);
}

fn missing(analysis: &Analysis, id: &str) -> Option<&'static str> {
    let mut unjudged = analysis.findings_unjudged.iter();
    let of_rule = unjudged.find(|it| it.id == id && it.guest == "vm1");
    of_rule.map(|it| it.missing)
}

/// The images' device with other facts.
fn on_device(change: impl Fn(&mut Device)) -> Manifest {
    let mut manifest = manifest();
    let devices = &mut manifest.topology.devices;
    devices
        .iter_mut()
        .filter(|it| it.dev == LOOP0)
        .for_each(change);
    manifest
}

/// The images lie on the second partition of a disk.
fn on_partition() -> Manifest {
    let mut manifest = on_device(|disk| {
        (disk.name, disk.kind) = ("vda".into(), "disk".into());
        disk.loop_file = None;
    });
    manifest.topology.devices.push(Device {
        name: "vda2".into(),
        dev: LOOP0 | 2,
        kind: "partition".into(),
        beneath: vec!["vda".into()],
        ..Device::default()
    });
    for disk in disks(&mut manifest) {
        disk.images[0].devices = vec!["vda2".into()];
    }
    manifest
}

fn disks(manifest: &mut Manifest) -> impl Iterator<Item = &mut Disk> {
    let guests = manifest.topology.guests.iter_mut();
    guests.flat_map(|guest| &mut guest.disks)
}

/// `n` writes of the host, each half a millisecond at the device.
fn host_writes(streams: &mut Streams, n: u64, (tid, end_io): (u32, u8)) {
    for i in 0..n {
        let (bio, request) = (streams.address(), streams.address());
        let of = |object| Event {
            object,
            offset: (1 << 40) + i * 65_536,
            bytes: 65_536,
            flags: flags::OP_WRITE,
            dev: LOOP0,
            tid,
            ..Event::default()
        };
        let at = START + 333 + i * 1_000 * US;
        streams.host(at, Kind::Queue, Event { end_io, ..of(bio) });
        streams.host(at + 1, Kind::GetRequest, of(bio));
        let issue = Event {
            related: bio,
            ..of(request)
        };
        streams.host(at + US, Kind::Issue, issue);
        streams.host(at + 500 * US, Kind::Complete, of(request));
    }
}

fn busy_guest() -> Streams {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, IOS, SLOW);
    streams
}

fn analyze(streams: Streams, manifest: &Manifest) -> Analysis {
    streams.analyze(manifest, Options::default())
}

/// What the host's device is: it ends bios itself and has no requests.
fn without_requests(streams: &mut Streams) {
    let mut carried = std::collections::HashMap::new();
    let on_disk = |event: &Event| event.dev == LOOP0 && event.owner_dev != LOOP0;
    streams.host.sort_by_key(|event| event.ts_ns);
    streams.host.retain_mut(|event| match event.kind() {
        Some(Kind::GetRequest) if on_disk(event) => false,
        Some(Kind::Issue) if on_disk(event) => {
            carried.insert(event.object, event.related);
            false
        }
        Some(Kind::Complete) if on_disk(event) => {
            event.kind = Kind::BioComplete as u8;
            event.object = carried[&event.object];
            event.bytes = 0;
            true
        }
        _ => true,
    });
}

#[test]
fn a_logical_volume_is_busy_while_it_has_bios() {
    let volume = on_device(|device| device.kind = "dm".into());
    let mut streams = busy_guest();
    without_requests(&mut streams);
    let analysis = analyze(streams, &volume);
    assert_eq!(analysis.chains[0].linked, IOS, "{:?}", analysis.chains);
    let device = analysis
        .devices
        .iter()
        .find(|it| it.name == "loop0")
        .expect("it");
    assert_eq!((device.counts.issued, device.queue_depth.max), (0, 1));
    let busy_ns = IOS * (SLOW.device + SLOW.host_queue);
    assert_eq!(device.queue_depth.busy_ns, busy_ns);
    silent(&analysis, "queue-idle");

    // The way in and out takes longer than the volume.
    let mut streams = Streams::new(2);
    let slow_way = Way {
        virt_submit: 2_000 * US,
        ..SLOW
    };
    streams.traffic(VM1, START, IOS, slow_way);
    without_requests(&mut streams);
    let analysis = analyze(streams, &volume);
    let share = get(&analysis, "queue-idle").share;
    // The recording began a second before.
    let lasted_ns = 1_000_000 * US + IOS * (slow_way.total() + 100 * US);
    let idle_ns = IOS * (slow_way.total() - SLOW.device - SLOW.host_queue);
    let expected = idle_ns as f64 / lasted_ns as f64;
    assert!((share - expected).abs() < 0.02, "{share}, not {expected}");
}

#[test]
fn a_partition_is_its_disk() {
    let analysis = analyze(busy_guest(), &on_partition());
    silent(&analysis, "noisy-neighbour");
    silent(&analysis, "queue-idle");

    let mut streams = busy_guest();
    host_writes(&mut streams, 600, (COPY, 0));
    let analysis = analyze(streams, &on_partition());
    let finding = get(&analysis, "noisy-neighbour");
    assert_eq!(finding.evidence["device"], Evidence::from("vda"));
}

#[test]
fn another_guest_is_a_neighbour_too() {
    let id = "noisy-neighbour";
    let mut streams = busy_guest();
    streams.traffic(VM2, START + 333, IOS, SLOW);
    let analysis = analyze(streams, &manifest());
    let finding = get(&analysis, id);
    let other = Evidence::from("disk vd of guest vm2");
    assert_eq!(finding.evidence["largest_other"], other);
    assert!((finding.share - 0.5).abs() < 0.01, "{finding:?}");

    // Both disks are one guest's: it is no neighbour of itself.
    let mut same = manifest();
    let of_other = same.topology.guests[1].disks.remove(0);
    same.topology.guests[0].disks.push(Disk {
        name: "vdb".into(),
        ..of_other
    });
    let mut streams = busy_guest();
    streams.traffic(VM2, START + 333, IOS, SLOW);
    streams.guests[1].clear();
    silent(&analyze(streams, &same), id);
}

/// The guest's flush, from its Q to its end.
fn flush(streams: &mut Streams, at: u64) {
    let (bio, request, last) = (streams.address(), streams.address(), streams.address());
    let of = |object, flags| Event {
        object,
        flags,
        offset: u64::MAX << 9,
        tid: 500,
        ..Event::default()
    };
    let empty = flags::OP_WRITE | flags::PREFLUSH;
    streams.guest(VM1, at, Kind::Queue, of(bio, empty));
    streams.guest(VM1, at + US, Kind::GetRequest, of(bio, empty));
    let asked = of(request, flags::OP_FLUSH);
    streams.guest(VM1, at + 2 * US, Kind::Issue, asked);
    let end = streams.qemu_flush(VM1, at + 12 * US, WAY);
    streams.guest(VM1, end + 10 * US, Kind::Complete, asked);
    streams.guest(
        VM1,
        end + 11 * US,
        Kind::Complete,
        of(last, flags::OP_WRITE),
    );
}

/// A guest whose flushes make the host's file system commit.
fn committing() -> Streams {
    let mut streams = Streams::new(2);
    let mut at = START;
    for i in 0..300 {
        at = streams.bio(VM1, at, flags::OP_WRITE, i * i * 4096, 16_384, SLOW) + i * 300;
        if i % 10 == 0 {
            flush(&mut streams, at);
            at += 1_000 * US;
        }
    }
    host_writes(&mut streams, 30, (LOG, end_io::XFS_LOG));
    streams
}

/// The image lies on xfs; the guest has these file systems on its disk.
fn file_systems(in_guest: &[&str]) -> Manifest {
    let mut manifest = manifest();
    for disk in disks(&mut manifest) {
        disk.images[0].mount = Some(Mount {
            fs_type: "xfs".into(),
            mount_point: "/images".into(),
            ..Mount::default()
        });
    }
    let mount = |(n, fs_type): (u32, &&str)| GuestMount {
        disk: "vda".into(),
        dev: 254 << 20 | n,
        fs_type: (*fs_type).into(),
        ..GuestMount::default()
    };
    manifest.guest_sides[0].mounts = (1..).zip(in_guest).map(mount).collect();
    manifest
}

#[test]
fn a_small_file_system_beside_it_hides_no_journal() {
    let id = "journal-on-journal";
    let analysis = analyze(committing(), &file_systems(&["vfat", "ext4"]));
    let finding = get(&analysis, id);
    assert_eq!(finding.evidence["guest_fs"], Evidence::from("ext4"));
    silent(&analyze(committing(), &file_systems(&["vfat", "ext2"])), id);
}

#[test]
fn whose_journal_it_is_nobody_knows_where_others_write() {
    let id = "journal-on-journal";
    let mut streams = committing();
    host_writes(&mut streams, 200, (COPY, 0));
    let analysis = analyze(streams, &file_systems(&["ext4"]));
    assert!(find(&analysis, id).is_none(), "{:?}", analysis.findings);
    let missing = missing(&analysis, id).expect("it cannot tell");
    assert!(missing.contains("others wrote to the device"), "{missing}");

    // Who only reads, as a backup does, makes no journal.
    let mut streams = committing();
    let from = streams.host.len();
    host_writes(&mut streams, 200, (COPY, 0));
    let copies = streams.host[from..].iter_mut();
    copies.for_each(|event| event.flags = flags::OP_READ);
    get(&analyze(streams, &file_systems(&["ext4"])), id);
}

/// A thread's process and name.
fn thread(tid: u32, process: u32, name: &str) -> Event {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    Event {
        tid,
        object: process.into(),
        related: half(0),
        offset: half(8),
        ..Event::default()
    }
}

/// Somebody on the host reads vm1's image through the page cache, ahead of itself: 600 times 64 KiB.
fn with_copy(streams: &mut Streams, tid: u32) {
    let from = streams.host.len();
    host_writes(streams, 600, (tid, 0));
    for event in &mut streams.host[from..] {
        event.flags = flags::OP_READ | flags::RAHEAD;
        if event.kind == Kind::Queue as u8 {
            (event.sub, event.inode, event.owner_dev) = (flags::OWNER_PAGES, VM1.inode, LOOP0);
            event.file_offset = event.offset;
        }
    }
    for (tid, process, name) in [
        (900, 1_000, "worker"),
        (1_000, 1_000, "qemu-system-x86"),
        (COPY, COPY, "cp"),
        (LOG, LOG, "kworker/u8:1"),
    ] {
        streams.host(START - 1_000, Kind::Thread, thread(tid, process, name));
    }
}

/// What the host read of vm1's image, what amplification says of it, and who used the device besides.
fn read_of_image(analysis: &Analysis) -> (u64, u64, Option<String>) {
    let image = analysis.images.iter().find(|it| it.inode == VM1.inode);
    let image = image.and_then(|it| it.host_bytes).expect("bios");
    let amplified = analysis.amplification[0].read.host.expect("bios");
    let users = analysis.devices.iter().find(|it| it.name == "loop0");
    let users = users.and_then(|it| it.users.as_ref()).expect("users");
    let process = users.iter().find(|user| user.kind == UserKind::Process);
    let name = process.and_then(|user| user.name.clone());
    (image.read, amplified, name)
}

#[test]
fn what_a_backup_reads_of_an_image_is_no_io_of_its_guest() {
    let own = IOS.div_ceil(3) * 4_096;
    let copied = 600 * 65_536;
    let mut streams = busy_guest();
    with_copy(&mut streams, COPY);
    let analysis = analyze(streams, &manifest());
    assert_eq!(read_of_image(&analysis), (own, own, Some("cp".into())));
    let finding = get(&analysis, "noisy-neighbour");
    assert_eq!(finding.evidence["largest_other"], Evidence::from("cp"));
    for id in ["readahead-waste", "direct-io-fallback"] {
        assert!(find(&analysis, id).is_none(), "{:?}", analysis.findings);
    }
    assert_eq!(analysis.chains[0].linked, IOS);

    // A thread of the kernel works for anyone, and one that is not known may be QEMU's.
    for unknown in [LOG, COPY + 1] {
        let mut streams = busy_guest();
        with_copy(&mut streams, unknown);
        let (image, amplified, process) = read_of_image(&analyze(streams, &manifest()));
        assert_eq!(
            (image, amplified, process),
            (own + copied, own + copied, None)
        );
    }
}
