//! Rules on the guest's page cache: each fires on streams with its case, stays silent where one thing is different, and
//! says what it lacks where calls, pages or the guest's memory were not recorded.

use nestrace_abi::flags::{self, op};
use nestrace_analyzer::analysis::Evidence;
use nestrace_trace::manifest::{GuestMemory, Manifest, Probe};
use nestrace_trace::{Event, Kind};

use crate::findings_of_streams::{
    MOUNTED, START, analyze, at_queue, fires, missing, mounted, silent,
};
use crate::two_sides::{Streams, VM1, WAY, Way};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const US: u64 = 1_000;
const FILE: u64 = 77;
/// The thread that queues the bios of [`Streams::bio`].
const TID: u32 = 500;

/// A guest with BPF. Everything is known about it.
fn known() -> Manifest {
    let mut manifest = mounted("ext4", "rw,relatime");
    let side = &mut manifest.guest_sides[0];
    side.memory = GuestMemory {
        total_bytes: 16 * MIB,
        available_bytes: 8 * MIB,
        dirty_limit_bytes: 2 * MIB,
        dirty_background_bytes: MIB,
    };
    side.disks[0].read_ahead_kb = 16;
    let probe = |(name, source): (&str, &str)| Probe {
        name: name.into(),
        source: source.into(),
        ..Probe::default()
    };
    side.probes = [
        ("sys_enter", "file"),
        ("balance_dirty_pages", "host_fs"),
        ("mm_filemap_fault", "host_fs"),
    ]
    .map(probe)
    .into();
    manifest
}

/// The same without one of the probes.
fn without(probe: &str) -> Manifest {
    let mut manifest = known();
    manifest.guest_sides[0].probes.retain(|it| it.name != probe);
    manifest
}

/// The same by the kernel's blktrace.
fn by_blktrace() -> Manifest {
    let mut manifest = known();
    let side = &mut manifest.guest_sides[0];
    side.backend = "blktrace".into();
    side.probes.clear();
    manifest
}

/// A call on the file, or a look of a fault into the page cache.
fn of_file(sub: u8, offset: u64, bytes: u64) -> Event {
    Event {
        sub,
        offset,
        bytes,
        inode: FILE,
        owner_dev: MOUNTED,
        tid: TID,
        ..Event::default()
    }
}

/// All bios carry pages of the file, at the place that they have on the disk.
fn of_pages(mut streams: Streams) -> Streams {
    at_queue(&mut streams, 0..u64::MAX, |queue| {
        (queue.sub, queue.inode, queue.owner_dev) = (flags::OWNER_PAGES, FILE, MOUNTED);
        queue.file_offset = queue.offset;
    });
    streams
}

/// Bios that read so much at each of `places`, as often as it says.
fn bring(places: u64, times: u64, bytes: u64) -> Streams {
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..places * times {
        let place = n % places * n.rem_euclid(places) * 64 * KIB;
        at = streams.bio(VM1, at, flags::OP_READ, place, bytes, WAY) + n * 700;
    }
    of_pages(streams)
}

#[test]
fn pages_that_are_evicted_and_read_again() {
    let id = "cold-reads";
    let analysis = analyze(bring(150, 2, 16 * KIB), &known());
    let finding = fires(&analysis, id, 0.5);
    let once = Evidence::Whole(150 * 16 * KIB);
    assert_eq!(finding.evidence["read_again_bytes"], once);
    assert_eq!(finding.evidence["distinct_bytes"], once);
    assert!(finding.advice[0].contains("more memory"), "{finding:?}");

    silent(&analyze(bring(300, 1, 16 * KIB), &known()), id);
    // Gone after a small part of what the cache could hold: a program dropped them.
    let mut large = known();
    large.guest_sides[0].memory.available_bytes = 64 * MIB;
    silent(&analyze(bring(150, 2, 16 * KIB), &large), id);
    let mut unknown = known();
    unknown.guest_sides[0].memory = GuestMemory::default();
    let analysis = analyze(bring(150, 2, 16 * KIB), &unknown);
    assert!(missing(&analysis, id).contains("memory"));
    silent(&analyze(bring(300, 1, 16 * KIB), &unknown), id);
    let analysis = analyze(bring(150, 2, 16 * KIB), &by_blktrace());
    assert!(missing(&analysis, id).contains("eBPF"));
}

/// Reads by a program, each of so many bytes `step` after the one before, and each with a bio.
fn reads(bytes: u64, step: u64, opened: u32) -> Streams {
    reads_by(WAY, bytes, step, opened)
}

fn reads_by(way: Way, bytes: u64, step: u64, opened: u32) -> Streams {
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..300 {
        let read = Event {
            aux: opened,
            ..of_file(op::READ, n * step, bytes)
        };
        streams.guest(VM1, at, Kind::SyscallEnter, read);
        let end = streams.bio(VM1, at + US, flags::OP_READ, n * step, bytes, way);
        let result = of_file(op::READ, bytes, 0);
        streams.guest(VM1, end + US, Kind::SyscallExit, result);
        at = end + 5 * US + n * 100;
    }
    of_pages(streams)
}

#[test]
fn sequential_reads_that_wait_for_each_page() {
    let id = "readahead-short";
    let analysis = analyze(reads(4 * KIB, 4 * KIB, 0), &known());
    let finding = fires(&analysis, id, 0.99);
    assert_eq!(finding.evidence["waits"], Evidence::Whole(299));
    assert_eq!(
        finding.evidence["for_each_wait_bytes"],
        Evidence::Whole(4 * KIB)
    );
    assert_eq!(finding.evidence["read_ahead_kb"], Evidence::Whole(16));
    assert!(finding.advice[0].contains("/sys/block/vda/queue/read_ahead_kb"));
    // The setting is not what makes it small.
    let mut usual = known();
    usual.guest_sides[0].disks[0].read_ahead_kb = 128;
    let analysis = analyze(reads(4 * KIB, 4 * KIB, 0), &usual);
    let finding = fires(&analysis, id, 0.99);
    assert!(
        finding.advice[0].contains("POSIX_FADV_RANDOM"),
        "{finding:?}"
    );

    silent(&analyze(reads(4 * KIB, 8 * KIB, 0), &known()), id);
    silent(&analyze(reads(128 * KIB, 128 * KIB, 0), &known()), id);
    const O_DIRECT: u32 = 0o40_000;
    silent(&analyze(reads(4 * KIB, 4 * KIB, O_DIRECT), &known()), id);
    let analysis = analyze(reads(4 * KIB, 4 * KIB, 0), &by_blktrace());
    assert!(missing(&analysis, id).contains("eBPF"));
}

/// The kernel's usual read-ahead is short where the way to the device takes longer than the device does.
#[test]
fn sequential_reads_that_wait_for_the_way_to_a_fast_device() {
    let id = "readahead-short";
    let fast = Way {
        device: 20_000,
        ..WAY
    };
    let mut usual = known();
    usual.guest_sides[0].disks[0].read_ahead_kb = 128;
    let analysis = analyze(reads_by(fast, 128 * KIB, 128 * KIB, 0), &usual);
    let finding = fires(&analysis, id, 0.741);
    assert_eq!(
        finding.evidence["for_each_wait_bytes"],
        Evidence::Whole(128 * KIB)
    );
    let on_the_way = finding.evidence["on_the_way_share"].clone();
    let Evidence::Real(on_the_way) = on_the_way else {
        panic!("{on_the_way:?}");
    };
    let expected = (fast.total() - fast.device - fast.host_queue) as f64 / fast.total() as f64;
    assert!((on_the_way - expected).abs() < 0.001, "{on_the_way}");
    assert!(finding.explanation.contains("read_ahead_kb=128"));
    assert!(finding.advice[0].contains("/sys/block/vda/queue/read_ahead_kb"));

    // The device takes most of it.
    silent(&analyze(reads(128 * KIB, 128 * KIB, 0), &usual), id);
    // Already long.
    let long = reads_by(fast, 1024 * KIB, 1024 * KIB, 0);
    silent(&analyze(long, &usual), id);
}

/// Writes through the page cache that return after 100 µs, each with such a pause, and bios that write them back.
fn writes(pause_ns: u64) -> Streams {
    let mut streams = Streams::new(2);
    for n in 0..200 {
        let at = START + n * 1_000 * US + n * n % 97 * 1_000;
        let write = of_file(op::WRITE, n * 16 * KIB, 16 * KIB);
        streams.guest(VM1, at, Kind::SyscallEnter, write);
        if pause_ns > 0 {
            let pause = Event {
                offset: pause_ns,
                tid: TID,
                ..Event::default()
            };
            streams.guest(VM1, at + 10 * US, Kind::DirtyThrottle, pause);
        }
        let result = of_file(op::WRITE, 16 * KIB, 0);
        streams.guest(VM1, at + 100 * US, Kind::SyscallExit, result);
        let later = at + 200 * US;
        streams.bio(VM1, later, flags::OP_WRITE, n * 16 * KIB, 16 * KIB, WAY);
    }
    of_pages(streams)
}

#[test]
fn writers_that_are_paused() {
    let id = "dirty-throttled";
    let analysis = analyze(writes(60 * US), &known());
    let finding = fires(&analysis, id, 0.6);
    assert_eq!(finding.evidence["waits"], Evidence::Whole(200));
    assert_eq!(
        finding.evidence["waited_ns"],
        Evidence::Whole(200 * 60 * US)
    );
    let limit = Evidence::Whole(2 * MIB);
    assert_eq!(finding.evidence["dirty_limit_bytes"], limit);
    // A pause ends with its call.
    fires(&analyze(writes(1_000_000 * US), &known()), id, 0.9);

    silent(&analyze(writes(0), &known()), id);
    silent(&analyze(writes(5 * US), &known()), id);
    let analysis = analyze(writes(0), &without("balance_dirty_pages"));
    assert!(missing(&analysis, id).contains("pauses"));
    let analysis = analyze(writes(60 * US), &by_blktrace());
    assert!(missing(&analysis, id).contains("eBPF"));
}

/// Faults of a mapped file, each with a bio; `seen`: the kernel shows them.
fn faults(n_faults: u64, seen: bool) -> Streams {
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..n_faults {
        let place = n * n * 64 * KIB;
        let fault = of_file(0, place, 0);
        let end = streams.bio(VM1, at + US, flags::OP_READ, place, 16 * KIB, WAY);
        if seen {
            streams.guest(VM1, at, Kind::PageFault, fault);
            // Every other one is mapped with those around it, and not looked for again.
            if n % 2 == 0 {
                streams.guest(VM1, end + US, Kind::PageFault, fault);
            }
        } else {
            // Any event of a call: calls were recorded.
            streams.guest(VM1, at, Kind::SyscallExit, of_file(op::READ, 0, 0));
        }
        at = end + 5 * US + n * 100;
    }
    of_pages(streams)
}

#[test]
fn faults_that_wait_one_after_the_other() {
    let id = "mmap-faults";
    let analysis = analyze(faults(150, true), &known());
    let finding = fires(&analysis, id, 1.0);
    assert_eq!(finding.evidence["waits"], Evidence::Whole(150));
    assert_eq!(
        finding.evidence["file"],
        Evidence::from("inode 77 of /data")
    );
    // Few, as when a program starts.
    silent(&analyze(faults(99, true), &known()), id);

    // A kernel that does not show them: it matters only if pages came that no call asked for.
    let older = without("mm_filemap_fault");
    let analysis = analyze(faults(150, false), &older);
    assert!(missing(&analysis, id).contains("6.12"));
    silent(&analyze(reads(4 * KIB, 4 * KIB, 0), &older), id);
    let analysis = analyze(faults(150, false), &by_blktrace());
    assert!(missing(&analysis, id).contains("eBPF"));
}

/// That calls were not recorded says nothing of the nesting.
#[test]
fn rules_on_programs_leave_the_nesting_to_the_others() {
    let device_only = Way {
        device: 90_000_000,
        ..WAY
    };
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 150, device_only);
    let analysis = analyze(streams, &by_blktrace());
    assert!(missing(&analysis, "cold-reads").contains("eBPF"));
    assert!(
        analysis
            .findings
            .iter()
            .any(|it| it.id == "nothing-to-gain")
    );
}
