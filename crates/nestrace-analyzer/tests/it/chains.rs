//! Guest bios followed to the host's device, where the truth is known.

use crate::two_sides;
use nestrace_analyzer::analysis::Side;
use nestrace_analyzer::analysis::UnlinkedReason;

use std::cell::RefCell;
use std::rc::Rc;

use nestrace_abi::flags;
use nestrace_analyzer::verdict::VerdictMethod;
use nestrace_analyzer::{Analyzer, Options, StoryChoice};
use nestrace_trace::{Event, Kind};

use two_sides::{LOOP0, Streams, VM1, VM2, WAY, chains, manifest, mean};

const START: u64 = 10_000_000_000;

#[test]
fn every_segment_is_where_the_time_was() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 300, WAY);
    let analysis = streams.analyze(&manifest(), Options::default());
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!((chains.guest_bios, chains.linked), (300, 300), "{chains:?}");
    assert_eq!(
        (chains.guest_requests, chains.guest_device.as_str()),
        (300, "vda")
    );
    assert_eq!((chains.wrong_order, chains.fraction), (0, Some(1.0)));
    assert_eq!(chains.residual_share, 0.0);
    assert_eq!(chains.q2c_mean_ns, WAY.total() as f64);
    for (name, ns) in [
        ("guest_queue", WAY.guest_queue),
        ("qemu_submit", WAY.qemu_submit),
        ("host_fs_submit", WAY.host_fs_submit),
        ("host_queue", WAY.host_queue),
        ("device", WAY.device),
        ("host_fs_complete", WAY.host_fs_complete),
        ("qemu_complete", WAY.qemu_complete),
        ("device_flush", 0),
        ("qemu_between", 0),
    ] {
        assert_eq!(mean(&chains.segments, name), ns as f64, "{name}");
        assert_eq!(mean(&chains.by_op.write, name), ns as f64, "{name}");
    }
    // Only the split between the two needs the clock.
    let virt = mean(&chains.segments, "virt_submit") + mean(&chains.segments, "virt_complete");
    assert_eq!(virt, WAY.virt() as f64);
    let sum: f64 = chains.segments.iter().map(|segment| segment.mean_ns).sum();
    assert!((sum - chains.q2c_mean_ns).abs() < 1e-6);
    let clock = &analysis.clocks[0];
    assert!(
        (clock.offset_ns.expect("known") - two_sides::OFFSET_NS).abs() <= WAY.virt() as i64,
        "{clock:?}"
    );
    assert_eq!(clock.violations, 0);
    assert_eq!(analysis.verdict.method, VerdictMethod::Chains);
    let device = analysis
        .devices
        .iter()
        .find(|device| device.side == Side::Guest)
        .expect("vda");
    assert_eq!(
        (device.name.as_str(), device.guest.as_deref()),
        ("vda", Some("vm1"))
    );
    assert_eq!(
        device.latency_ns.all.q2c.and_then(|dist| dist.mean),
        Some(WAY.total())
    );
}

#[test]
fn two_guests_are_never_mixed() {
    let slow = two_sides::Way {
        device: 900_000,
        ..WAY
    };
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 250, WAY);
    streams.traffic(VM2, START + 333, 250, slow);
    let analysis = streams.analyze(&manifest(), Options::default());
    for (guest, way) in [("vm1", WAY), ("vm2", slow)] {
        let chains = chains(&analysis, guest, "vd");
        assert_eq!((chains.guest_bios, chains.linked), (250, 250), "{chains:?}");
        assert_eq!(chains.q2c_mean_ns, way.total() as f64);
        assert_eq!(mean(&chains.segments, "device"), way.device as f64);
    }
    let mut only = Options::default();
    only.guest = Some("vm2".into());

    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 250, WAY);
    streams.traffic(VM2, START + 333, 250, slow);
    let analysis = streams.analyze(&manifest(), only);
    assert!(analysis.chains.iter().all(|chains| chains.guest == "vm2"));
    assert!(analysis.clocks.iter().all(|clock| clock.guest == "vm2"));
}

/// A commit with PREFLUSH and FUA on a disk without FUA is three requests of QEMU.
#[test]
fn a_journal_commit_waits_for_two_flushes() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 200, WAY);
    let end = commit(&mut streams, at, 1 << 20);
    streams.traffic(VM1, end + 100_000, 200, WAY);
    let analysis = streams.analyze(&manifest(), Options::default());
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!((chains.guest_bios, chains.linked), (401, 401), "{chains:?}");
    assert_eq!(chains.guest_requests, 403);
    let flush = chains
        .segments
        .iter()
        .find(|segment| segment.name == "device_flush")
        .expect("it");
    assert_eq!((flush.n, flush.p50_ns), (1, Some(2 * WAY.device)));
    assert_eq!(chains.residual_share, 0.0);
}

/// A bio with PREFLUSH|FUA at `at`; gives its end.
fn commit(streams: &mut Streams, at: u64, offset: u64) -> u64 {
    let (bio, request, flush) = (streams.address(), streams.address(), streams.address());
    let data = |object, flags| Event {
        object,
        offset,
        bytes: 4096,
        flags,
        tid: 500,
        ..Event::default()
    };
    // A flush has no place: its sector is −1.
    let none = |object| Event {
        object,
        offset: u64::MAX << 9,
        flags: flags::OP_FLUSH,
        ..Event::default()
    };
    let asked = flags::OP_WRITE | flags::PREFLUSH | flags::FUA;
    let sequence = flags::OP_WRITE | flags::FLUSH_SEQ;
    streams.guest(VM1, at, Kind::Queue, data(bio, asked));
    streams.guest(VM1, at + 1_000, Kind::GetRequest, data(bio, asked));
    let mut now = at + 2_000;
    for step in 0..3 {
        let issued = now;
        if step == 1 {
            let d = Event {
                related: bio,
                ..data(request, sequence)
            };
            streams.guest(VM1, issued, Kind::Issue, d);
            let end = streams.qemu_data(VM1, issued + 10_000, flags::OP_WRITE, offset, 4096, WAY);
            streams.guest(VM1, end + 10_000, Kind::Complete, data(request, sequence));
            now = end + 11_000;
        } else {
            streams.guest(VM1, issued, Kind::Issue, none(flush));
            let end = streams.qemu_flush(VM1, issued + 10_000, WAY);
            streams.guest(VM1, end + 10_000, Kind::Complete, none(flush));
            now = end + 11_000;
        }
    }
    let last = Event {
        bytes: 0,
        ..data(request, flags::OP_WRITE)
    };
    streams.guest(VM1, now, Kind::Complete, last);
    now
}

#[test]
fn merged_bios_are_charged_from_their_own_q() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 200, WAY);
    let (first, second, request) = (streams.address(), streams.address(), streams.address());
    let bio = |object, offset| Event {
        object,
        offset,
        bytes: 4096,
        flags: flags::OP_WRITE,
        tid: 500,
        ..Event::default()
    };
    streams.guest(VM1, at, Kind::Queue, bio(first, 1 << 20));
    streams.guest(VM1, at + 100, Kind::GetRequest, bio(first, 1 << 20));
    streams.guest(VM1, at + 40_000, Kind::Queue, bio(second, (1 << 20) + 4096));
    streams.guest(
        VM1,
        at + 40_100,
        Kind::BackMerge,
        bio(second, (1 << 20) + 4096),
    );
    let both = Event {
        related: first,
        sub: 1,
        bytes: 8192,
        ..bio(request, 1 << 20)
    };
    streams.guest(VM1, at + 50_000, Kind::Issue, both);
    streams.guest(
        VM1,
        at + 50_000,
        Kind::Link,
        Event {
            object: request,
            related: second,
            ..Event::default()
        },
    );
    let end = streams.qemu_data(VM1, at + 60_000, flags::OP_WRITE, 1 << 20, 8192, WAY);
    streams.guest(
        VM1,
        end + 10_000,
        Kind::Complete,
        Event {
            bytes: 8192,
            ..bio(request, 1 << 20)
        },
    );
    streams.traffic(VM1, end + 100_000, 200, WAY);
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(2));

    let analysis = streams.analyze(&manifest(), options);
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!(
        (chains.guest_bios, chains.linked, chains.guest_requests),
        (402, 402, 401),
        "{chains:?}"
    );
    let waited: Vec<(u64, u64)> = analysis
        .stories
        .iter()
        .map(|story| {
            let queue = story
                .segments
                .iter()
                .find(|segment| segment.name == "guest_queue")
                .expect("it");
            (story.io, queue.ns)
        })
        .collect();
    assert_eq!(waited, [(201, 50_000), (202, 10_000)]);
    assert!(
        analysis
            .stories
            .iter()
            .all(|story| story.tree.children[0].shared)
    );
}

#[test]
fn the_kernel_s_blktrace_gives_the_same_chains() {
    let build = || {
        let mut streams = Streams::new(2);
        let at = streams.traffic(VM1, START, 200, WAY);
        let end = commit(&mut streams, at, 1 << 20);
        streams.traffic(VM1, end + 100_000, 200, WAY);
        streams
    };
    let with_pointers = build().analyze(&manifest(), Options::default());
    let mut streams = build();
    for event in &mut streams.guests[0] {
        event.object = 0;
        event.related = 0;
        event.sub = 0;
        event.flags &= !flags::FLUSH_SEQ;
    }
    let mut manifest = manifest();
    manifest.guest_sides[0].backend = "blktrace".into();
    let by_sector = streams.analyze(&manifest, Options::default());
    let of = |analysis: &nestrace_analyzer::Analysis| {
        let chains = chains(analysis, "vm1", "vd");
        format!("{chains:?}")
    };
    assert_eq!(of(&by_sector), of(&with_pointers));
    assert_eq!(chains(&by_sector, "vm1", "vd").linked, 401);
}

#[test]
fn what_the_host_did_not_see_is_unlinked_with_a_reason() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 200, WAY);
    // The host lost everything about these.
    let host = streams.host.len();
    let at = streams.traffic(VM1, at, 5, WAY);
    streams.host.truncate(host);
    streams.traffic(VM1, at, 200, WAY);
    // And this one is still on its way.
    let bio = streams.address();
    let q = Event {
        object: bio,
        offset: 0,
        bytes: 4096,
        ..Event::default()
    };
    streams.guest(VM1, at + 900_000_000, Kind::Queue, q);
    let analysis = streams.analyze(&manifest(), Options::default());
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!((chains.guest_bios, chains.linked), (406, 400), "{chains:?}");
    assert_eq!(chains.unlinked.values().sum::<u64>(), 6);
    assert_eq!(chains.unlinked.get(&UnlinkedReason::AfterEnd), Some(&1));
}

#[test]
fn stories_by_number_and_by_length() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 200, WAY);
    let slow = two_sides::Way {
        device: 5_000_000,
        ..WAY
    };
    let at = streams.bio(VM1, at, flags::OP_WRITE, 1 << 20, 8192, slow);
    streams.traffic(VM1, at + 10_000, 100, WAY);
    let mut options = Options::default();
    options.story = Some(StoryChoice::Io(201));

    let analysis = streams.analyze(&manifest(), options);
    let [story] = analysis.stories.as_slice() else {
        panic!("{:?}", analysis.stories);
    };
    assert_eq!(
        (story.io, story.guest.as_str(), story.disk.as_str()),
        (201, "vm1", "vd")
    );
    assert_eq!((story.q2c_ns, story.unlinked), (slow.total(), None));
    assert_eq!(
        story.segments.iter().map(|segment| segment.ns).sum::<u64>(),
        story.q2c_ns
    );
    let layers = [
        ("guest_bio", "vda"),
        ("guest_request", "vda"),
        ("qemu", "vd"),
        ("file_io", "vd.raw"),
        ("host_bio", "loop0"),
        ("host_request", "loop0"),
    ];
    let mut span = &story.tree;
    for (place, (layer, name)) in layers.iter().enumerate() {
        assert_eq!((span.layer.name(), span.place.as_str()), (*layer, *name));
        if place + 1 < layers.len() {
            span = &span.children[0];
        }
    }
    assert_eq!(span.to_ns - span.from_ns, 5_000_000);
}

#[test]
fn a_part_of_the_recording() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 400, WAY);
    let mut options = Options::default();
    options.from_ns = Some(1_020_000_000);
    options.to_ns = Some(1_060_000_000);

    let analysis = streams.analyze(&manifest(), options);
    let chains = chains(&analysis, "vm1", "vd");
    assert!((100..300).contains(&chains.guest_bios), "{chains:?}");
    assert!(chains.linked + 2 >= chains.guest_bios, "{chains:?}");
}

/// A guest that was started again: another clock, the same disk, one entry.
#[test]
fn sessions_of_one_guest_are_one_disk() {
    check_sessions(100_000_000, 20_000_000_000);
}

/// The same after the clock of a running guest went ahead by an hour, its wall clock too or not.
#[test]
fn a_clock_that_went_ahead_is_another_session_of_the_same_disk() {
    let hour_ns = 3_600_000_000_000;
    let start_mono_ns = 24_000_000_000 + hour_ns;
    for wall_ns in [0, hour_ns] {
        check_sessions(start_mono_ns, 20_000_000_000 + wall_ns);
    }
}

/// Another session of vm1, 20 s after the start of the recording: what its clock shows then, and by how much its wall
/// clock has gone on.
fn check_sessions(start_mono_ns: u64, wall_ns: u64) {
    let mut manifest = manifest();
    let mut again = manifest.guest_sides[0].clone();
    again.file = "guest-vm1.2.arrows".into();
    again.start_mono_ns = start_mono_ns;
    again.start_unix_ns += wall_ns;
    manifest.guest_sides[1] = again;
    let reborn = two_sides::Disk {
        offset_ns: start_mono_ns.cast_signed() - 29_000_000_000,
        ..VM1
    };
    let mut streams = Streams::new(2);
    let end = streams.traffic(VM1, START, 220, WAY);
    let begin = end.max(29_000_000_000) + 1_000_000_000;
    let mut second = Streams::new(2);
    second.traffic(reborn, begin, 230, WAY);
    streams.host.extend(second.host);
    streams.guests[1] = std::mem::take(&mut second.guests[0]);
    let analysis = streams.analyze(&manifest, Options::default());
    assert_eq!(analysis.chains.iter().filter(|c| c.disk == "vd").count(), 1);
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!((chains.guest_bios, chains.linked), (450, 450), "{chains:?}");
    assert_eq!(chains.q2c_mean_ns, WAY.total() as f64);
    let offsets: Vec<i64> = analysis
        .clocks
        .iter()
        .filter_map(|clock| clock.offset_ns)
        .collect();
    assert!(
        (offsets[0] - two_sides::OFFSET_NS).abs() <= WAY.virt() as i64,
        "{offsets:?}"
    );
    assert!(
        (offsets[1] - reborn.offset_ns).abs() <= WAY.virt() as i64,
        "{offsets:?}"
    );
}

/// Nothing from inside: the host's analysis is what it was, with an empty clock.
#[test]
fn an_empty_guest_stream_changes_nothing() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 50, WAY);
    streams.guests[0].clear();
    let host = streams.host.clone();
    let with = streams.analyze(&manifest(), Options::default());
    let mut alone = manifest();
    alone.guest_sides.clear();
    let without = Analyzer::analyze(&alone, Options::default(), host);
    assert!(with.chains.is_empty() && with.clocks.iter().all(|clock| clock.pairs == 0));
    assert_eq!(
        format!("{:?}", with.devices),
        format!("{:?}", without.devices)
    );
    assert_eq!(with.qemu, without.qemu);
    assert_eq!(with.images, without.images);
    assert_eq!(with.verdict, without.verdict);
}

/// The serial number of a virtio disk is asked for with a request at sector −1; a write there is nonsense.
#[test]
fn a_request_that_lies_nowhere_is_no_nonsense() {
    let of = |flags| {
        let mut streams = Streams::new(2);
        let at = streams.traffic(VM1, START, 200, WAY);
        let object = streams.address();
        let nowhere = || Event {
            object,
            offset: u64::MAX << 9,
            bytes: 20,
            flags,
            ..Event::default()
        };
        streams.guest(VM1, at, Kind::Issue, nowhere());
        streams.guest(VM1, at + 1_000, Kind::Complete, nowhere());
        let analysis = streams.analyze(&manifest(), Options::default());
        let chains = chains(&analysis, "vm1", "vd");
        assert_eq!((chains.guest_requests, chains.linked), (200, 200));
        analysis.trace.notices
    };
    let nonsense = |notice: &&String| notice.contains("that no kernel can have written");
    assert_eq!(of(flags::OP_OTHER).iter().filter(nonsense).count(), 0);
    let told = of(flags::OP_WRITE);
    let told: Vec<&String> = told.iter().filter(nonsense).collect();
    assert_eq!(
        told,
        ["2 events from inside vm1 that no kernel can have written: not used"]
    );
}

/// The guest says what it likes: times that go back, endless bios, unknown kinds, another's devices.
#[test]
fn a_lying_guest_harms_nobody() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 200, WAY);
    streams.traffic(VM2, START + 100, 200, WAY);
    let honest = {
        let mut streams = Streams::new(2);
        streams.traffic(VM1, START, 200, WAY);
        streams.traffic(VM2, START + 100, 200, WAY);
        streams.analyze(&manifest(), Options::default())
    };
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..20_000 {
        let at = random() % 100_000_000_000;
        streams.guests[1].push(Event {
            ts_ns: if at % 50 == 0 { u64::MAX - at } else { at },
            kind: (random() % 100) as u8,
            sub: random() as u8,
            dev: [VM1.dev, LOOP0, random() as u32][random() as usize % 3],
            object: random() % 8,
            related: random() % 8,
            offset: random(),
            bytes: random(),
            flags: random() as u32,
            ..Event::default()
        });
    }
    let analysis = streams.analyze(&manifest(), Options::default());
    let of =
        |analysis: &nestrace_analyzer::Analysis| format!("{:?}", chains(analysis, "vm1", "vd"));
    assert_eq!(of(&analysis), of(&honest));
    let host = |analysis: &nestrace_analyzer::Analysis| -> String {
        let devices = analysis.devices.iter();
        format!(
            "{:?}",
            devices
                .filter(|device| device.side == Side::Host)
                .collect::<Vec<_>>()
        )
    };
    assert_eq!(host(&analysis), host(&honest));
    assert_eq!(analysis.qemu, honest.qemu);
}

/// QEMU does one UNMAP of SCSI as two discards, in the callback that ends the first; of another guest's
/// disk beside it both are its own.
#[test]
fn an_unmap_in_pieces_is_one_request() {
    let sda = two_sides::Disk {
        dev: 8 << 20,
        inode: 13,
        backend: 0x20000,
        ..VM1
    };
    let mut streams = Streams::new(2);
    let mut at = streams.traffic(VM1, START, 200, WAY);
    let long = 65_536 * 512;
    let mut discard = |at: u64, offset: u64, bytes: u64, pieces: &[u64]| {
        let (bio, request) = (streams.address(), streams.address());
        let of = |object, related| Event {
            object,
            related,
            offset,
            bytes,
            flags: flags::OP_DISCARD,
            ..Event::default()
        };
        streams.guest(sda, at, Kind::Queue, of(bio, 0));
        streams.guest(sda, at + 1_000, Kind::GetRequest, of(bio, 0));
        streams.guest(sda, at + 3_000, Kind::Issue, of(request, bio));
        let mut now = at + 20_000;
        let mut place = offset;
        for bytes in pieces {
            let qemu = |object, related| Event {
                object,
                related,
                bytes: *bytes,
                sub: 4,
                tid: 100,
                ..Event::default()
            };
            streams.host(now, Kind::AcctStart, qemu(0x7000, 0x20040));
            let call = Event {
                offset: place,
                sub: 0,
                ..qemu(0x9000, 0x20000)
            };
            streams.host(now + 1_000, Kind::AioPdiscard, call);
            streams.host(now + 50_000, Kind::AcctDone, qemu(0x7000, 0x20040));
            place += bytes;
            now += 53_000;
        }
        streams.guest(sda, now + 10_000, Kind::Complete, of(request, 0));
        now + 300_000
    };
    for i in 0..6 {
        at = discard(at, i * long, long, &[65_535 * 512, 512]);
    }
    // Neighbours that the guest asked for one by one.
    for i in 0..6 {
        at = discard(at, (100 + i) * long, long - 512, &[65_535 * 512]);
    }
    streams.traffic(VM1, at, 200, WAY);
    let analysis = streams.analyze(&manifest(), Options::default());
    let chains = chains(&analysis, "vm1", "sd");
    assert_eq!(
        (chains.guest_bios, chains.linked, chains.wrong_order),
        (12, 12, 0),
        "{chains:?}"
    );
    let between = chains
        .by_op
        .discard
        .iter()
        .find(|segment| segment.name == "qemu_submit");
    assert!(between.is_some_and(|segment| segment.n == 12));
}

#[test]
fn every_story_is_told_as_it_becomes_known() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 200, WAY);
    streams.traffic(VM2, at, 100, WAY);
    let manifest = manifest();
    let mut options = Options::default();
    options.story = Some(StoryChoice::All);

    let mut analyzer = Analyzer::new(&manifest, options);
    let told = Rc::new(RefCell::new(Vec::new()));
    let listener = Rc::clone(&told);
    analyzer.each_story(move |story| listener.borrow_mut().push(story));
    let analysis = streams.analyze_with(analyzer);
    assert!(analysis.stories.is_empty());
    let told = told.borrow();
    for chains in &analysis.chains {
        let of_disk = || told.iter().filter(|story| story.guest == chains.guest);
        assert_eq!(of_disk().count() as u64, chains.linked);
        let mut numbers: Vec<u64> = of_disk().map(|story| story.io).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(1..=chains.guest_bios));
        let sum: u64 = of_disk().map(|story| story.q2c_ns).sum();
        assert_eq!(sum, chains.latency_ns.data.sum);
        for story in of_disk() {
            let parts = story.segments.iter().map(|segment| segment.ns);
            assert_eq!(parts.sum::<u64>(), story.q2c_ns);
        }
    }
    assert_eq!(analysis.chains.len(), 2);
}
