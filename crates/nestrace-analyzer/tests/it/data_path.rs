//! A disk whose data path was not seen is not reported as slow QEMU, whatever was recorded of other disks; nor is a
//! file of two disks charged to the first, but to the one that does the I/O, if that is known.

use crate::two_sides;
use nestrace_analyzer::analysis::UnlinkedReason;

use nestrace_abi::Source;
use nestrace_analyzer::analysis::Unjudged;
use nestrace_analyzer::verdict::VerdictMethod;
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{Disk, GuestDisk, Manifest, Mount, Refused};

use two_sides::{Streams, VDB, VM1, VM2, WAY, chains, manifest};

const START: u64 = 10_000_000_000;
/// Another file than the manifest has.
const ELSEWHERE: two_sides::Disk = two_sides::Disk { inode: 777, ..VM1 };

/// vm1 does I/O that is not seen, vm2 I/O that is.
fn unseen(change: impl Fn(&mut Disk)) -> Analysis {
    let mut streams = Streams::new(2);
    streams.traffic(ELSEWHERE, START, 200, WAY);
    streams.traffic(VM2, START + 333, 200, WAY);
    let mut manifest = manifest();
    change(&mut manifest.topology.guests[0].disks[0]);
    streams.analyze(&manifest, Options::default())
}

fn threads(disk: &mut Disk) {
    disk.aio = Some(String::from("threads"));
}

/// What a rule could not judge vm1's `vd` for.
fn missing<'a>(analysis: &'a Analysis, rule: &str) -> Option<&'a str> {
    let mut unjudged = analysis.findings_unjudged.iter();
    let of_disk = |it: &&Unjudged| it.id == rule && it.guest == "vm1" && it.disk == "vd";
    unjudged.find(of_disk).map(|it| it.missing)
}

/// Nothing is said of layers that were not seen, and vm2 is as it is.
fn check_unseen(analysis: &Analysis, missed: &str, note: &str) {
    let told = chains(analysis, "vm1", "vd");
    assert_eq!((told.linked, told.guest_bios), (200, 200));
    assert_eq!(told.folded, ["file_io", "host_bio"]);
    assert!(chains(analysis, "vm2", "vd").folded.is_empty());
    let verdicts: Vec<&str> = analysis
        .verdict
        .disks
        .iter()
        .map(|it| it.guest.as_str())
        .collect();
    assert_eq!(verdicts, ["vm2"]);
    let layers = &analysis.amplification[0];
    assert_eq!(
        (layers.guest.as_str(), layers.qemu_bytes),
        ("vm1", Some(819_200))
    );
    let beneath = (layers.image_bytes, layers.host_bytes, layers.device_bytes);
    assert_eq!(beneath, (None, None, None));
    assert_eq!((layers.flushes.host, layers.flushes.device), (None, None));
    assert_eq!(layers.by_class, Default::default());
    assert_eq!(analysis.amplification[1].host_bytes, Some(819_200));
    assert!(
        analysis.findings.iter().all(|it| it.guest == "vm2"),
        "{:?}",
        analysis.findings
    );
    for rule in [
        "latency-overhead",
        "thread-pool-wait",
        "cow-on-cow",
        "readahead-waste",
    ] {
        assert!(
            missing(analysis, rule).is_none_or(|it| it == missed),
            "{rule}"
        );
    }
    assert_eq!(missing(analysis, "latency-overhead"), Some(missed));
    assert_eq!(missing(analysis, "virtualization-share"), None);
    let notes = &analysis.trace.notices;
    assert!(notes.iter().any(|it| it.contains(note)), "{notes:?}");
}

#[test]
fn a_disk_that_is_not_on_this_host() {
    let analysis = unseen(|disk| {
        threads(disk);
        disk.images.clear();
        disk.not_followed = Some(String::from("rbd: its blocks are on a cluster"));
    });
    let note = "vd of vm1 is not followed on this host: rbd: its blocks are on a cluster";
    check_unseen(
        &analysis,
        "the disk's I/O cannot be followed on this host",
        note,
    );
    assert_eq!(
        missing(&analysis, "thread-pool-wait"),
        Some("the disk's I/O cannot be followed on this host")
    );
}

#[test]
fn a_disk_whose_file_is_another_one() {
    let analysis = unseen(threads);
    let missed = "no file I/O on the disk's images was seen";
    check_unseen(
        &analysis,
        missed,
        "vd of vm1: 133 of 133 writes came without file I/O",
    );
}

/// Linux before 5.18: no other file has to be thought of, and the host's bios are still there.
#[test]
fn io_uring_that_the_kernel_says_too_little_of() {
    let mut streams = Streams::new(2);
    streams.traffic(ELSEWHERE, START, 200, WAY);
    let mut manifest = manifest();
    manifest.topology.guests[0].disks[0].aio = Some(String::from("io_uring"));
    manifest.refused.push(Refused {
        name: String::from("io_uring_submit_req"),
        ..Refused::default()
    });
    let analysis = streams.analyze(&manifest, Options::default());
    assert_eq!(chains(&analysis, "vm1", "vd").folded, ["file_io"]);
    let notes = &analysis.trace.notices;
    assert!(
        !notes.iter().any(|it| it.contains("another file")),
        "{notes:?}"
    );
}

#[test]
fn a_snapshot_takes_the_writes_away() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 150, WAY);
    streams.traffic(ELSEWHERE, at, 150, WAY);
    let analysis = streams.analyze(&manifest(), Options::default());
    assert_eq!(
        chains(&analysis, "vm1", "vd").folded,
        ["file_io", "host_bio"]
    );
    assert_eq!(analysis.amplification[0].image_bytes, None);
    assert!(analysis.verdict.disks.is_empty());
    let notes = &analysis.trace.notices;
    let note = "vd of vm1: 100 of 200 writes came without file I/O";
    assert!(notes.iter().any(|it| it.contains(note)), "{notes:?}");
}

#[test]
fn without_the_guest_s_side_there_is_no_estimate_either() {
    let mut streams = Streams::new(2);
    streams.traffic(ELSEWHERE, START, 200, WAY);
    streams.traffic(VM2, START + 333, 200, WAY);
    let mut alone: Manifest = manifest();
    alone.guest_sides.clear();
    let analysis = nestrace_analyzer::Analyzer::analyze(&alone, Options::default(), streams.host);
    let verdicts: Vec<&str> = analysis
        .verdict
        .disks
        .iter()
        .map(|it| it.guest.as_str())
        .collect();
    assert_eq!(verdicts, ["vm2"]);
}

/// Of an image on a file system without a block device: the host has no bios of it.
fn without_bios(fs_type: &str) -> Analysis {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 200, WAY);
    streams
        .host
        .retain(|event| event.kind().map(|kind| kind.source()) != Some(Source::Block));
    streams.traffic(VM2, START + 333, 200, WAY);
    let mut manifest = manifest();
    let image = &mut manifest.topology.guests[0].disks[0].images[0];
    image.devices.clear();
    image.mount = Some(Mount {
        fs_type: fs_type.to_owned(),
        source: String::from("store:/vm"),
        ..Mount::default()
    });
    let analysis = streams.analyze(&manifest, Options::default());
    let layers = &analysis.amplification[0];
    let bytes = (layers.image_bytes, layers.host_bytes, layers.device_bytes);
    assert_eq!(bytes, (Some(819_200), None, None));
    assert_eq!(layers.flushes.device, None);
    assert_eq!(analysis.images[0].host_bytes, None);
    assert_eq!(analysis.verdict.disks[0].guest, "vm1");
    analysis
}

#[test]
fn an_image_without_a_block_device() {
    let analysis = without_bios("zfs");
    assert_eq!(chains(&analysis, "vm1", "vd").folded, ["host_bio"]);
    assert_eq!(analysis.verdict.disks[0].device_ns, None);
    let missed = "the block device under the disk's image is unknown";
    assert_eq!(missing(&analysis, "latency-overhead"), Some(missed));
    let notes = &analysis.trace.notices;
    let note = "vd of vm1: its image lies on no block device that is known (zfs)";
    assert!(notes.iter().any(|it| it == note), "{notes:?}");
}

#[test]
fn an_image_on_a_server_lacks_no_layer_of_this_host() {
    let analysis = without_bios("nfs4");
    let none: [String; 0] = [];
    assert_eq!(chains(&analysis, "vm1", "vd").folded, none);
    let of_server = analysis.verdict.disks[0].device_ns;
    assert!(of_server.is_some_and(|ns| ns > 0), "{of_server:?}");
    let missed = "a server has the image's data, so this host has no bios of it";
    assert_eq!(missing(&analysis, "latency-overhead"), Some(missed));
    let notes = &analysis.trace.notices;
    assert!(
        !notes.iter().any(|it| it.contains("vd of vm1")),
        "{notes:?}"
    );
}

/// The disk that is asked for gets the image of another one as its backing file.
fn with_backing_file(streams: Streams, disk: (usize, usize), of: (usize, usize)) -> Analysis {
    let mut manifest = manifest();
    let guests = &mut manifest.topology.guests;
    let base = guests[of.0].disks[of.1].images[0].clone();
    guests[disk.0].disks[disk.1].images.push(base);
    streams.analyze(&manifest, Options::default())
}

const SHARED: &str = "an image file of the disk serves other disks too";
const ON_FILES: [&str; 3] = ["backing-chain", "readahead-waste", "direct-io-fallback"];

#[test]
fn a_file_of_two_guests_is_divided_by_who_does_the_io() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 200, WAY);
    streams.traffic(VM2, START + 333, 100, WAY);
    let analysis = with_backing_file(streams, (0, 0), (1, 0));
    let expected = [("vm1", 819_200), ("vm2", 409_600)];
    for (layers, (guest, bytes)) in analysis.amplification.iter().zip(expected) {
        assert_eq!(layers.guest, guest);
        let all = [
            layers.qemu_bytes,
            layers.image_bytes,
            layers.host_bytes,
            layers.device_bytes,
        ];
        assert_eq!(all, [Some(bytes); 4], "{guest}");
        assert!(chains(&analysis, guest, "vd").folded.is_empty());
    }
    for rule in ON_FILES {
        assert_ne!(missing(&analysis, rule), Some(SHARED), "{rule}");
    }
    let notes = &analysis.trace.notices;
    assert!(
        notes.iter().all(|it| !it.contains("serves other disks")),
        "{notes:?}"
    );
}

#[test]
fn a_file_of_two_disks_of_a_guest_is_charged_to_none() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 200, WAY);
    streams.traffic(VM2, START + 333, 200, WAY);
    let analysis = with_backing_file(streams, (0, 1), (0, 0));
    let layers = &analysis.amplification[0];
    assert_eq!((layers.guest.as_str(), layers.disk.as_str()), ("vm1", "vd"));
    assert_eq!(layers.qemu_bytes, Some(819_200));
    let bytes = (layers.image_bytes, layers.host_bytes, layers.device_bytes);
    assert_eq!((bytes, layers.flushes.host), ((None, None, None), None));
    assert!(chains(&analysis, "vm1", "vd").folded.is_empty());
    assert_eq!(analysis.verdict.method, VerdictMethod::Chains);
    for rule in ["readahead-waste", "direct-io-fallback"] {
        assert_eq!(missing(&analysis, rule), Some(SHARED), "{rule}");
    }
    assert_eq!(missing(&analysis, "latency-overhead"), None);
    let notes = &analysis.trace.notices;
    let note = "vd of vm1: /img/vd.raw serves other disks too";
    assert!(notes.iter().any(|it| it.starts_with(note)), "{notes:?}");
}

/// Rules that cannot judge may have found something.
#[test]
fn nothing_to_gain_is_not_said_of_what_was_not_judged() {
    let at_the_device = two_sides::Way {
        device: 9_000_000,
        ..WAY
    };
    let analyze = |shared| {
        let mut streams = Streams::new(2);
        streams.traffic(VM1, START, 200, at_the_device);
        if shared {
            with_backing_file(streams, (0, 1), (0, 0))
        } else {
            streams.analyze(&manifest(), Options::default())
        }
    };
    let id = "nothing-to-gain";
    let said = |analysis: &Analysis| analysis.findings.iter().any(|it| it.id == id);
    let alone = analyze(false);
    assert!(said(&alone), "{:?}", alone.findings);
    let shared = analyze(true);
    assert!(!said(&shared), "{:?}", shared.findings);
    assert!(missing(&shared, id).is_some_and(|it| it.contains("other rules")));
}

#[test]
fn bios_of_a_device_that_is_no_disk_are_counted() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 100, WAY);
    let plugged = two_sides::Disk { dev: VDB, ..VM1 };
    let host = streams.host.len();
    streams.traffic(plugged, START + 333, 50, WAY);
    streams.host.truncate(host);
    let mut manifest = manifest();
    let side = &mut manifest.guest_sides[0];
    side.disks.push(GuestDisk {
        name: "vdb".into(),
        dev: VDB,
        ..GuestDisk::default()
    });
    let analysis = streams.analyze(&manifest, Options::default());
    let unknown = chains(&analysis, "vm1", "");
    assert_eq!(unknown.guest_device, "vdb");
    assert_eq!((unknown.guest_bios, unknown.linked), (50, 0));
    assert_eq!(unknown.unlinked, [(UnlinkedReason::NoMatch, 50)].into());
    let why = "no disk of this guest has its bus and size; it may have been plugged in later";
    assert_eq!(unknown.why_no_disk.as_deref(), Some(why));
    let known = chains(&analysis, "vm1", "vd");
    assert_eq!((known.linked, known.why_no_disk.as_deref()), (100, None));
}
