//! Device numbers and names of a guest that are another disk's later.

use crate::two_sides;
use nestrace_analyzer::analysis::Side;
use nestrace_analyzer::analysis::UnlinkedReason;

use nestrace_abi::flags;
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{GuestDisk, Manifest};
use nestrace_trace::{Event, Kind};

use two_sides::{Disk, OFFSET_NS, Streams, VDB, VM1, WAY, chains, manifest, side};

const BIOS: u64 = 400;
/// Of the disk that has the number later.
const EARLY_BIOS: u64 = 10;
const LATER_BIOS: u64 = 20;
const LATER_FLUSHES: u64 = 3;
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
/// How long before its first bio the agent found the first disk there last, if that is known.
fn replaced(mut manifest: Manifest, another: GuestDisk, looked_before_ns: Option<u64>) -> Analysis {
    let mut streams = Streams::new(1);
    let end = streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    let n_host = streams.host.len();
    // The agent finds it some time after its first bios.
    let begin = end + 1_000_000;
    let found = streams.traffic(VM1, begin, EARLY_BIOS, WAY);
    let mut end = streams.traffic(VM1, found, LATER_BIOS, WAY);
    for _ in 0..LATER_FLUSHES {
        end = flush(&mut streams, end);
    }
    streams.host.truncate(n_host);
    let guest_ns = |host_ns: u64| host_ns.saturating_add_signed(OFFSET_NS);
    let disks = &mut manifest.guest_sides[0].disks;
    if let Some(before_ns) = looked_before_ns {
        disks[0].until_mono_ns = guest_ns(begin - before_ns);
    }
    disks.push(GuestDisk {
        name: "vda".into(),
        dev: VM1.dev,
        since_mono_ns: guest_ns(found),
        ..another
    });
    streams.analyze(&manifest, Options::default())
}

/// A flush that the guest issues to its disk; gives a time after it.
fn flush(streams: &mut Streams, at: u64) -> u64 {
    let event = Event {
        object: streams.address(),
        flags: flags::OP_FLUSH,
        ..Event::default()
    };
    streams.guest(VM1, at, Kind::Issue, event);
    streams.guest(VM1, at + 100_000, Kind::Complete, event);
    at + 200_000
}

/// Bios, requests, links and ambiguous bios of each entry of `chains[]`.
fn counts(analysis: &Analysis) -> Vec<(u64, u64, u64, u64)> {
    let all = analysis.chains.iter();
    let counts = all.map(|chains| {
        let ambiguous = chains
            .unlinked
            .get(&UnlinkedReason::Ambiguous)
            .copied()
            .unwrap_or(0);
        assert_eq!(chains.disk.is_empty(), chains.why_no_disk.is_some());
        (
            chains.guest_bios,
            chains.guest_requests,
            chains.linked,
            ambiguous,
        )
    });
    counts.collect()
}

fn another(serial: &str, size: u64) -> GuestDisk {
    GuestDisk {
        size,
        serial: serial.into(),
        ..GuestDisk::default()
    }
}

#[test]
fn another_disk_under_the_number_is_counted_by_itself() {
    for (manifest, another) in [
        (one_disk(Some("a")), another("b", SIZE)),
        (one_disk(None), another("", 2 * SIZE)),
    ] {
        let analysis = replaced(manifest, another, Some(0));
        let later = (LATER_BIOS, LATER_BIOS + LATER_FLUSHES, 0, 0);
        // The agent had not found it yet: it may have been either.
        let doubtful = (EARLY_BIOS, EARLY_BIOS, 0, EARLY_BIOS);
        let expected = [(BIOS, BIOS, BIOS, 0), later, doubtful];
        assert_eq!(counts(&analysis), expected);
        let layers = &analysis.amplification[0];
        let layers = (layers.guest_bytes, layers.qemu_bytes, layers.flushes.guest);
        let bytes = Some(BIOS * 4096);
        assert_eq!(layers, (bytes, bytes, Some(0)));
        let whole = &analysis
            .devices
            .iter()
            .find(|device| device.side == Side::Guest);
        let whole = whole.map(|device| device.bytes.total());
        assert_eq!(whole, Some((BIOS + EARLY_BIOS + LATER_BIOS) * 4096));
    }
}

#[test]
fn what_came_after_the_last_look_at_a_disk_is_not_linked() {
    for looked_before_ns in [Some(20_000_000), None] {
        let another = another("b", SIZE);
        let analysis = replaced(one_disk(Some("a")), another, looked_before_ns);
        let [disk, _, doubtful] = counts(&analysis)[..] else {
            panic!("{:?}", analysis.chains);
        };
        let (bios, requests, linked, ambiguous) = disk;
        // In the last 20 ms, or where nothing says when the look was, in the last two seconds.
        assert!(
            bios < BIOS && (bios > BIOS / 2) == looked_before_ns.is_some(),
            "{bios}"
        );
        // A request that was issued after the look is of either, also that of an earlier bio.
        assert!(linked == bios - ambiguous && ambiguous <= 1, "{ambiguous}");
        assert!(bios - requests <= 1);
        let (more_bios, _, linked, ambiguous) = doubtful;
        assert_eq!((linked, ambiguous), (0, more_bios));
        assert_eq!(bios + more_bios, BIOS + EARLY_BIOS);
        assert_eq!(analysis.amplification[0].guest_bytes, Some(requests * 4096));
    }
}

#[test]
fn a_number_that_nobody_used_again_has_one_disk() {
    let mut streams = Streams::new(1);
    let end = streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    let mut manifest = one_disk(None);
    let disks = &mut manifest.guest_sides[0].disks;
    disks[0].until_mono_ns = (end + 500_000).saturating_add_signed(OFFSET_NS);
    disks.push(GuestDisk {
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

/// Over a reboot two disks change their names and numbers; the second one's requests do not reach QEMU.
#[test]
fn a_disk_is_itself_under_whatever_name_it_has() {
    let mut manifest = manifest();
    let boot = |disks: [&str; 2], start_mono_ns| {
        let mut side = side("vm1", &[("vda", VM1.dev), ("vdb", VDB)]);
        for (disk, serial) in side.disks.iter_mut().zip(disks) {
            disk.serial = serial.into();
        }
        side.start_mono_ns = start_mono_ns;
        side
    };
    manifest.guest_sides = vec![
        boot(["vm1-vd", "vm1-sd"], 4_000_000_000),
        boot(["vm1-sd", "vm1-vd"], 24_000_000_000),
    ];
    let vdb = Disk { dev: VDB, ..VM1 };
    let mut streams = Streams::new(2);
    let mut other = Streams::new(1);
    let mut begin = 10_000_000_000;
    for (served, not_served) in [(VM1, vdb), (vdb, VM1)] {
        let mut boot = Streams::new(1);
        boot.traffic(served, begin, BIOS, WAY);
        other.traffic(not_served, begin, LATER_BIOS, WAY);
        streams.host.append(&mut boot.host);
        let session = usize::from(begin > 20_000_000_000);
        streams.guests[session].append(&mut boot.guests[0]);
        streams.guests[session].append(&mut other.guests[0]);
        begin = 30_000_000_000;
    }
    let analysis = streams.analyze(&manifest, Options::default());
    let layers = &analysis.amplification;
    let vd = layers.iter().find(|layers| layers.disk == "vd");
    let bytes = vd.map(|vd| (vd.guest_bytes, vd.qemu_bytes, vd.read.guest));
    let n_reads = BIOS.div_ceil(3);
    let expected = [2 * BIOS, 2 * BIOS, 2 * n_reads].map(|n| Some(n * 4096));
    assert_eq!(bytes, Some(expected.into()));
}
