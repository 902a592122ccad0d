//! Rules that gather their evidence in the pass: each fires on streams with its case, and stays silent
//! where one thing is different.

use crate::two_sides;

use nestrace_abi::flags::{self, op};
use nestrace_analyzer::analysis::{Evidence, Finding};
use nestrace_analyzer::verdict::LimitHolder;
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{GuestMount, Limit, LimitPlace, Limited, Manifest, Mount};
use nestrace_trace::{Event, Kind, Source};

use two_sides::{LOOP0, Streams, VDA, VM1, WAY, Way, manifest};

pub const START: u64 = 10_000_000_000;
const MS: u64 = 1_000_000;
/// Super block of the guest's file system.
pub const MOUNTED: u32 = 254 << 20 | 1;
const DEVICE_ONLY: Way = Way {
    device: 900_000,
    ..WAY
};

/// vm1's `vda` is mounted.
pub fn mounted(fs_type: &str, options: &str) -> Manifest {
    let mut manifest = manifest();
    manifest.guest_sides[0].mounts = vec![GuestMount {
        disk: "vda".into(),
        dev: MOUNTED,
        fs_type: fs_type.into(),
        mount_point: "/data".into(),
        options: options.into(),
    }];
    manifest
}

pub fn analyze(streams: Streams, manifest: &Manifest) -> Analysis {
    let analysis = streams.analyze(manifest, Options::default());
    let followed = analysis.chains.iter().all(|it| it.linked == it.guest_bios);
    assert!(followed, "{:?}", analysis.chains);
    analysis
}

fn find<'a>(analysis: &'a Analysis, id: &str) -> Option<&'a Finding> {
    analysis.findings.iter().find(|finding| finding.id == id)
}

/// The finding with its share, about.
pub fn fires<'a>(analysis: &'a Analysis, id: &str, share: f64) -> &'a Finding {
    let found = find(analysis, id).unwrap_or_else(|| panic!("{id} of {:?}", analysis.findings));
    assert!((found.share - share).abs() < 0.02, "{found:?}");
    found
}

pub fn silent(analysis: &Analysis, id: &str) {
    assert!(find(analysis, id).is_none(), "{:?}", analysis.findings);
    let unjudged = &analysis.findings_unjudged;
    assert!(unjudged.iter().all(|it| it.id != id), "{unjudged:?}");
}

pub fn missing(analysis: &Analysis, id: &str) -> &'static str {
    let unjudged = &analysis.findings_unjudged;
    let of_rule = unjudged.iter().find(|it| it.id == id && it.guest == "vm1");
    of_rule
        .unwrap_or_else(|| panic!("{id} judged: {:?}", analysis.findings))
        .missing
}

/// Changes the guest's Q of the bios that begin in a range.
pub fn at_queue(streams: &mut Streams, offsets: std::ops::Range<u64>, change: impl Fn(&mut Event)) {
    let queued = streams.guests[0].iter_mut();
    queued
        .filter(|it| it.kind == Kind::Queue as u8 && offsets.contains(&it.offset))
        .for_each(change);
}

const LOG: u64 = 1 << 35;

/// Commits, each of a block of data and one of the log, which goes on after so many commits.
fn commits(each_log_block: u64) -> Streams {
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..250 {
        let log = LOG + n / each_log_block * 4096;
        for offset in [n * n * 4096, log] {
            at = streams.bio(VM1, at, flags::OP_WRITE, offset, 4096, DEVICE_ONLY) + n * 300;
        }
    }
    streams
}

#[test]
fn a_log_whose_block_is_written_again_with_each_commit() {
    let id = "repeated-log-writes";
    let jfs = mounted("jfs", "rw,relatime");
    let analysis = analyze(commits(10), &jfs);
    let finding = fires(&analysis, id, 0.45);
    assert_eq!(finding.evidence["rewrites"], Evidence::Whole(225));
    assert_eq!(finding.evidence["seeks"], Evidence::Whole(225));

    silent(&analyze(commits(1), &jfs), id);
    let no_log = mounted("ext2", "rw,relatime");
    silent(&analyze(commits(10), &no_log), id);
    // A file's own block may be written as often as its owner likes.
    let mut of_file = commits(10);
    at_queue(&mut of_file, LOG..u64::MAX, |queue| {
        (queue.sub, queue.inode, queue.owner_dev) = (flags::OWNER_PAGES, 77, MOUNTED);
    });
    silent(&analyze(of_file, &jfs), id);

    // blktrace does not tell which of them are a file's.
    let mut by_blktrace = jfs.clone();
    by_blktrace.guest_sides[0].backend = "blktrace".into();
    let analysis = analyze(commits(10), &by_blktrace);
    assert!(find(&analysis, id).is_none(), "{:?}", analysis.findings);
    assert!(missing(&analysis, id).contains("eBPF"));
    silent(&analyze(commits(1), &by_blktrace), id);
}

/// Eight requests with data at a time; metadata comes a bit after them, and takes `takes_ns` at the device.
fn metadata_and_data(takes_ns: u64, data: bool) -> Streams {
    let mut streams = Streams::new(2);
    for n in 0..100 {
        let at = START + n * 20 * MS + n * n % 97 * 1_000;
        for k in 0..if data { 8 } else { 0 } {
            let way = Way {
                device: MS + k * takes_ns / 10,
                ..WAY
            };
            let place = (n * n + k) * 4096;
            let from = streams.host.len();
            streams.bio(VM1, at + k * 1_000, flags::OP_WRITE, place, 4096, way);
            // Each by a worker of its own: a thread is in one call at a time.
            let events = streams.host[from..].iter_mut();
            events
                .filter(|event| event.tid == 900)
                .for_each(|event| event.tid = 950 + k as u32);
        }
        let way = Way {
            device: takes_ns,
            ..WAY
        };
        let metadata = LOG + n * n * 4096;
        streams.bio(VM1, at + MS / 10, flags::OP_READ, metadata, 4096, way);
    }
    at_queue(&mut streams, LOG..u64::MAX, |queue| {
        queue.flags |= flags::META | flags::PRIO;
    });
    streams
}

#[test]
fn metadata_that_waits_while_data_is_served() {
    let id = "metadata-blind";
    let analysis = analyze(metadata_and_data(10 * MS, true), &manifest());
    let undisturbed = qemu_ns(WAY) - WAY.device + MS;
    let way = Way {
        device: 10 * MS,
        ..WAY
    };
    let cost = (qemu_ns(way) - undisturbed) as f64 / way.total() as f64;
    let finding = fires(&analysis, id, cost);
    assert_eq!(finding.evidence["behind_data"], Evidence::Whole(100));
    assert!(!finding.is_worth_acting_on());

    let alone = metadata_and_data(10 * MS, false);
    silent(&analyze(alone, &manifest()), id);
    // A device that does all of them at once: data is done meanwhile, and costs nothing.
    let at_once = metadata_and_data(MS, true);
    silent(&analyze(at_once, &manifest()), id);
    let mut unmarked = metadata_and_data(10 * MS, true);
    at_queue(&mut unmarked, LOG..u64::MAX, |queue| {
        queue.flags = flags::OP_READ;
    });
    silent(&analyze(unmarked, &manifest()), id);
    // ext4's journal before Linux 6.7 has no mark, but is known by its pages.
    let mut journal = metadata_and_data(10 * MS, true);
    at_queue(&mut journal, LOG..u64::MAX, |queue| {
        queue.flags = flags::OP_READ | flags::SYNC;
        (queue.sub, queue.inode, queue.owner_dev) = (flags::OWNER_PAGES, u64::from(VDA), 4);
    });
    fires(&analyze(journal, &mounted("ext4", "rw")), id, cost);
}

/// Every place is read twice; the second time, the host has it if `cached`. `owner` is who reads in the
/// guest.
fn read_twice(cached: bool, owner: u8) -> Streams {
    let mut streams = Streams::new(2);
    let mut at = START;
    for round in 0..2 {
        let from = streams.host.len();
        for n in 0..150 {
            let offset = n * n * 4096;
            at = streams.bio(VM1, at, flags::OP_READ, offset, 4096, WAY) + n * 700;
        }
        if round == 1 && cached {
            let mut number = 0;
            streams.host.retain(|event| {
                number += 1;
                number <= from || event.kind().map(Kind::source) != Some(Source::Block)
            });
        }
    }
    at_queue(&mut streams, 0..u64::MAX, |queue| {
        (queue.sub, queue.inode, queue.owner_dev) = (owner, 77, MOUNTED);
    });
    streams
}

#[test]
fn blocks_that_guest_and_host_cache() {
    let id = "double-cache";
    let through = |direct| {
        let mut manifest = mounted("ext4", "rw,relatime");
        let disk = &mut manifest.topology.guests[0].disks[0];
        disk.cache = Some(if direct { "none" } else { "writeback" }.into());
        disk.images[0].direct = Some(direct);
        manifest
    };
    let writeback = through(false);
    let analysis = analyze(read_twice(true, flags::OWNER_PAGES), &writeback);
    let finding = fires(&analysis, id, 0.5);
    let read = Evidence::Whole(150 * 4096);
    assert_eq!(finding.evidence["read_again_cached_bytes"], read);
    assert_eq!(finding.evidence["distinct_bytes"], read);

    let from_device = read_twice(false, flags::OWNER_PAGES);
    silent(&analyze(from_device, &writeback), id);
    let no_cache_in_guest = read_twice(true, flags::OWNER_DIRECT);
    silent(&analyze(no_cache_in_guest, &writeback), id);
    let no_cache_on_host = analyze(read_twice(true, flags::OWNER_PAGES), &through(true));
    silent(&no_cache_on_host, id);
    let unknown = analyze(read_twice(true, flags::OWNER_NONE), &writeback);
    assert!(missing(&unknown, id).contains("eBPF"));
}

/// The guest reads files for 14 s; metadata is written all the time, a file every `write_every_ms`.
fn reading(write_every_ms: Option<u64>) -> Streams {
    let mut streams = Streams::new(2);
    let call = |sub| Event {
        sub,
        inode: 77,
        owner_dev: MOUNTED,
        ..Event::default()
    };
    for n in 0..280 {
        let at = START + n * 50 * MS + n * n % 97 * 1_000;
        streams.guest(VM1, at, Kind::SyscallEnter, call(op::READ));
        if write_every_ms.is_some_and(|every| n * 50 % every == 0) {
            streams.guest(VM1, at, Kind::SyscallEnter, call(op::WRITE));
        }
        streams.bio(VM1, at + 1_000, flags::OP_READ, n * n * 4096, 4096, WAY);
        if n % 2 == 0 {
            let inode_table = LOG + n % 16 * 4096;
            streams.bio(VM1, at + 5 * MS, flags::OP_WRITE, inode_table, 4096, WAY);
        }
    }
    at_queue(&mut streams, LOG..u64::MAX, |queue| {
        (queue.sub, queue.inode, queue.owner_dev) = (flags::OWNER_PAGES, u64::from(VDA), 4);
    });
    streams
}

#[test]
fn reading_that_writes_access_times() {
    let id = "atime-updates";
    let strict = mounted("ext4", "rw");
    let analysis = analyze(reading(None), &strict);
    let finding = fires(&analysis, id, 1.0 / 3.0);
    assert_eq!(finding.evidence["side"], Evidence::Word("guest".into()));

    silent(&analyze(reading(None), &mounted("ext4", "rw,noatime")), id);
    silent(&analyze(reading(None), &mounted("ext4", "rw,relatime")), id);
    silent(&analyze(reading(Some(4_000)), &strict), id);
    let mut without_calls = reading(None);
    without_calls.guests[0].retain(|event| event.kind().map(Kind::source) != Some(Source::File));
    assert!(missing(&analyze(without_calls, &strict), id).contains("eBPF"));
}

#[test]
fn reading_an_image_that_writes_access_times_on_the_host() {
    let id = "atime-updates";
    let on = |options: &str| {
        let mut manifest = manifest();
        manifest.topology.guests[0].disks[0].images[0].mount = Some(Mount {
            fs_type: "ext4".into(),
            mount_point: "/images".into(),
            options: options.into(),
            ..Mount::default()
        });
        manifest
    };
    let streams = |writes: bool| {
        let mut streams = Streams::new(2);
        for n in 0..280 {
            let at = START + n * 50 * MS + n * n % 97 * 1_000;
            let operation = if writes && n % 60 == 0 {
                flags::OP_WRITE
            } else {
                flags::OP_READ
            };
            streams.bio(VM1, at, operation, n * n * 4096, 4096, WAY);
            if n % 2 == 0 {
                host_write(&mut streams, at + 5 * MS, MS, u64::from(LOOP0), flags::META);
            }
        }
        streams
    };
    let finding = analyze(streams(false), &on("rw"));
    let finding = fires(&finding, id, 1.0 / 3.0);
    assert_eq!(finding.evidence["side"], Evidence::Word("host".into()));
    silent(&analyze(streams(false), &on("rw,relatime")), id);
    silent(&analyze(streams(true), &on("rw")), id);
}

/// A bio of the host's page cache, of pages of this inode.
fn host_write(streams: &mut Streams, at: u64, lasts_ns: u64, inode: u64, flags: u32) {
    let (bio, request) = (streams.address(), streams.address());
    let of = |object| Event {
        object,
        offset: (1 << 40) + at,
        bytes: 4096,
        flags: flags::OP_WRITE | flags,
        dev: LOOP0,
        tid: 7,
        ..Event::default()
    };
    let queue = Event {
        sub: flags::OWNER_PAGES,
        inode,
        owner_dev: LOOP0,
        ..of(bio)
    };
    let issue = Event {
        related: bio,
        ..of(request)
    };
    streams.host(at, Kind::Queue, queue);
    streams.host(at + 500, Kind::GetRequest, of(bio));
    streams.host(at + 1_000, Kind::Issue, issue);
    streams.host(at + lasts_ns, Kind::Complete, of(request));
}

/// Reads one after the other: so many as fast as they are, so many that take `device_ns`, with write-back
/// beside them if it is there.
fn reads_beside_writeback(fast: u64, device_ns: u64, flags: Option<u32>) -> Streams {
    let mut streams = Streams::new(2);
    let slow = Way {
        device: device_ns,
        ..WAY
    };
    let mut at = START;
    for n in 0..fast + 150 {
        let way = if n < fast { WAY } else { slow };
        let end = streams.bio(VM1, at, flags::OP_READ, n * n * 4096, 4096, way);
        if let Some(flags) = flags.filter(|_| n >= fast) {
            // Of vm2's image: the device is the same.
            host_write(&mut streams, at + 30_000, end - at - 60_000, 14, flags);
        }
        at = end + n * 700;
    }
    streams
}

#[test]
fn reads_that_wait_for_the_hosts_write_back() {
    let id = "writeback-burst";
    let background = Some(flags::BACKGROUND);
    let slow = 1_000_000;
    let manifest = || {
        let mut manifest = manifest();
        manifest.topology.guests[1].disks[0].images[0].direct = Some(false);
        manifest
    };
    let analysis = analyze(reads_beside_writeback(200, slow, background), &manifest());
    let (fast_ns, slow_ns) = (200 * qemu_ns(WAY), 150 * (qemu_ns(WAY) - WAY.device + slow));
    let more = 150 * (slow - WAY.device);
    fires(&analysis, id, more as f64 / (fast_ns + slow_ns) as f64);

    let no_slower = reads_beside_writeback(200, WAY.device, background);
    silent(&analyze(no_slower, &manifest()), id);
    silent(
        &analyze(reads_beside_writeback(200, slow, None), &manifest()),
        id,
    );
    let mut writes_through = manifest();
    writes_through.topology.guests[0].disks[0].cache = Some("writethrough".into());
    let at_once = reads_beside_writeback(200, slow, Some(flags::SYNC));
    silent(&analyze(at_once, &writes_through), id);
    let nothing_else = analyze(reads_beside_writeback(20, slow, background), &manifest());
    assert!(missing(&nothing_else, id).contains("record for longer"));
}

fn qemu_ns(way: Way) -> u64 {
    way.total() - way.guest_queue - way.virt()
}

/// Reads every 10 ms, for 6 s.
fn every_10_ms(way: impl Fn(u64) -> Way) -> Streams {
    let mut streams = Streams::new(2);
    for n in 0..600 {
        let at = START + n * 10 * MS + n * n % 97 * 1_000;
        streams.bio(VM1, at, flags::OP_READ, n * n * 4096, 4096, way(n));
    }
    streams
}

#[test]
fn a_limit_that_holds_requests_back() {
    let id = "host-throttled";
    let mut threads = manifest();
    threads.topology.guests[0].disks[0].aio = Some("threads".into());
    let share = |held: u64, way: Way| held as f64 / (qemu_ns(way) as f64);
    let in_qemu = Way {
        qemu_submit: 9 * MS,
        ..WAY
    };
    let analysis = analyze(every_10_ms(|_| in_qemu), &threads);
    let finding = fires(&analysis, id, share(9 * MS, in_qemu));
    assert_eq!(finding.evidence["held_by"], Evidence::Word("QEMU".into()));
    assert!(finding.explanation.contains("100 requests"), "{finding:?}");
    silent(&analysis, "thread-pool-wait");

    let in_kernel = Way {
        host_fs_submit: 9 * MS,
        ..WAY
    };
    let analysis = analyze(every_10_ms(|_| in_kernel), &threads);
    let finding = fires(&analysis, id, share(9 * MS, in_kernel));
    let kernel = Evidence::Word("the kernel".into());
    assert_eq!(finding.evidence["held_by"], kernel);
    silent(&analyze(every_10_ms(|_| WAY), &threads), id);
}

#[test]
fn the_limit_that_is_reached_is_named() {
    let id = "host-throttled";
    let limit = |set_with, name: &str, bounds, value| Limit {
        set_with,
        name: String::from(name),
        bounds,
        value,
        ..Limit::default()
    };
    let in_qemu = Way {
        qemu_submit: 9 * MS,
        ..WAY
    };
    let mut set = manifest();
    set.topology.guests[0].disks[0].limits = vec![
        limit(LimitPlace::Iotune, "", Limited::Writes, 99),
        limit(LimitPlace::ThrottleGroup, "gold", Limited::Reads, 101),
        limit(LimitPlace::Iotune, "", Limited::Bytes, 64 << 20),
    ];
    let analysis = analyze(every_10_ms(|_| in_qemu), &set);
    let finding = find(&analysis, id).expect("it fires");
    assert!(finding.title.contains("101 reads a second"), "{finding:?}");
    assert!(finding.explanation.contains("throttle group gold"));
    assert_eq!(finding.evidence["limit_value"], Evidence::Whole(101));
    let verdict = &analysis.verdict.disks[0].limit_is_the_bottleneck;
    let verdict = verdict.as_ref().expect("it is at its limit");
    assert_eq!(
        (verdict.held_by, verdict.value),
        (LimitHolder::Qemu, Some(101))
    );

    // A limit of another device, and one that is far away, are not the one.
    let in_kernel = Way {
        host_fs_submit: 9 * MS,
        ..WAY
    };
    let mut set = manifest();
    let mut others = limit(LimitPlace::IoMax, "/a", Limited::Reads, 100);
    others.device = Some("elsewhere".into());
    let mut far = limit(LimitPlace::IoMax, "/a", Limited::Reads, 5_000);
    far.device = Some(set.topology.guests[0].disks[0].images[0].devices[0].clone());
    set.topology.guests[0].limits = vec![others, far];
    let analysis = analyze(every_10_ms(|_| in_kernel), &set);
    let finding = find(&analysis, id).expect("it fires");
    assert!(
        finding.explanation.contains("None of the limits"),
        "{finding:?}"
    );
    let verdict = &analysis.verdict.disks[0].limit_is_the_bottleneck;
    let verdict = verdict.as_ref().expect("something holds it");
    assert_eq!(
        (verdict.held_by, &verdict.limit),
        (LimitHolder::Kernel, &None)
    );
}

/// Bios wait in the queue of the device that the image lies on, and the policy of a cgroup holds there.
fn in_queue_of_a_policy(set_with: LimitPlace, nr_requests: u32, before_tag: u64) -> Analysis {
    let in_queue = Way {
        host_queue: 9 * MS,
        ..WAY
    };
    let mut streams = every_10_ms(|_| in_queue);
    let got = |event: &&mut Event| event.kind == Kind::GetRequest as u8;
    for event in streams.host.iter_mut().filter(got) {
        event.ts_ns += before_tag;
    }
    let mut set = manifest();
    let name = set.topology.guests[0].disks[0].images[0].devices[0].clone();
    for device in &mut set.topology.devices {
        device.nr_requests = nr_requests;
    }
    set.topology.guests[0].limits = vec![Limit {
        set_with,
        name: String::from("/machine.slice"),
        device: Some(name),
        bounds: Limited::Weight,
        value: 37,
    }];
    analyze(streams, &set)
}

#[test]
fn a_policy_of_the_queue_holds_bios_back_although_tags_are_free() {
    let id = "host-throttled";
    let analysis = in_queue_of_a_policy(LimitPlace::IoCost, 64, 8 * MS);
    let finding = find(&analysis, id).expect("it fires");
    assert!(finding.title.contains("iocost"), "{finding:?}");
    assert_eq!(finding.evidence["limit_value"], Evidence::Whole(37));
    assert!(finding.advice[0].contains("weight 37 in io.weight of the cgroup /machine.slice"));
    let verdict = &analysis.verdict.disks[0].limit_is_the_bottleneck;
    let verdict = verdict.as_ref().expect("the policy holds it");
    assert_eq!(
        (verdict.held_by, verdict.value),
        (LimitHolder::Kernel, Some(37))
    );
    // A scheduler's time is after the tag; where all tags are in use the policy proves nothing; io.max holds elsewhere.
    silent(&in_queue_of_a_policy(LimitPlace::IoCost, 64, 0), id);
    silent(&in_queue_of_a_policy(LimitPlace::IoCost, 1, 8 * MS), id);
    silent(&in_queue_of_a_policy(LimitPlace::IoMax, 64, 8 * MS), id);
}

#[test]
fn what_waits_for_other_reasons_is_no_limit() {
    let id = "host-throttled";
    let mut threads = manifest();
    threads.topology.guests[0].disks[0].aio = Some("threads".into());
    // Workers that are all busy: file I/O is under way all the time.
    let busy = Way {
        qemu_submit: 10 * MS,
        device: 10 * MS,
        ..WAY
    };
    let analysis = analyze(every_10_ms(|_| busy), &threads);
    silent(&analysis, id);
    assert!(find(&analysis, "thread-pool-wait").is_some());
    // A file system that allocates now and then takes as long, but lets through what comes.
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..600 {
        let way = Way {
            host_fs_submit: 2 * MS + n / 50 % 4 * 6 * MS,
            ..WAY
        };
        at = streams.bio(VM1, at, flags::OP_READ, n * n * 4096, 4096, way) + n * 700;
    }
    silent(&analyze(streams, &threads), id);
}

#[test]
fn pages_that_the_reader_asked_for_are_no_read_ahead() {
    let mut through_cache = manifest();
    through_cache.topology.guests[0].disks[0].images[0].direct = Some(false);
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..150 {
        at = streams.bio(VM1, at, flags::OP_READ, n * n * 4096, 4096, WAY) + n * 700;
    }
    // Linux marks what a reader waits for as read-ahead too.
    for event in &mut streams.host {
        if event.kind == Kind::Queue as u8 {
            event.sub = flags::OWNER_PAGES;
            event.flags |= flags::RAHEAD;
        }
    }
    let analysis = analyze(streams, &through_cache);
    let by_class = analysis.amplification[0].by_class;
    assert_eq!(
        (by_class.readahead, by_class.data),
        (Some(0), Some(150 * 4096))
    );
    silent(&analysis, "host-readahead");
}
