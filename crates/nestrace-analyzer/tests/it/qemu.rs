//! QEMU's accounting: counts, merges, completion notification, which disk.

use crate::notation;
use crate::stack;

use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::manifest::{Backend, Notice};
use nestrace_trace::{Event, Kind};

use stack::{analyze, manifest, qemu};

#[test]
fn qemu_counts_what_is_done() {
    // Stats are at 0x40 within each BlockBackend; the failed and the unfinished one do not count.
    let analysis = analyze(
        "100 acct-read 0x9000d8 rel=0x10040 bytes=4096
         200 acct-done 0x9000d8 rel=0x10040
         210 acct-write 0x9000d8 rel=0x10040 bytes=512
         260 acct-failed 0x9000d8 rel=0x10040
         270 acct-flush 0x9000d8 rel=0x10040
         290 acct-done 0x9000d8 rel=0x10040
         300 acct-unmap 0x9000d8 rel=0x20040 bytes=65536
         310 acct-done 0x9000d8 rel=0x20040
         320 acct-invalid rel=0x20040 sub=2
         330 acct-done 0x777 rel=0x20040
         340 acct-write 0x9000d8 rel=0x20040 bytes=512",
    );
    let vd = qemu(&analysis, "vm1/vd");
    assert_eq!(
        (vd.reads, vd.writes, vd.flushes, vd.discards, vd.failed),
        (1, 0, 1, 0, 1)
    );
    assert_eq!((vd.bytes.read, vd.bytes.write), (4096, 0));
    assert_eq!(
        (vd.latency_ns.read.mean, vd.latency_ns.flush.mean),
        (Some(100), Some(20))
    );
    let sd = qemu(&analysis, "vm1/sd");
    assert_eq!(
        (
            sd.discards,
            sd.bytes.discard,
            sd.invalid,
            sd.unlinked,
            sd.writes
        ),
        (1, 65536, 1, 1, 0)
    );
    assert_eq!(sd.merged, None, "blk_aio_* was not recorded");
    assert!(
        analysis.qemu.iter().all(|disk| disk.guest == "vm1"),
        "vm2 had no QEMU events"
    );
}

#[test]
fn a_restarted_request_counts_once() {
    let analysis = analyze(
        "100 acct-write 0x9000d8 rel=0x10040 bytes=512
         150 acct-write 0x9000d8 rel=0x10040 bytes=512
         200 acct-done 0x9000d8 rel=0x10040",
    );
    let vd = qemu(&analysis, "vm1/vd");
    assert_eq!(
        (vd.writes, vd.bytes.write, vd.latency_ns.write.mean),
        (1, 512, Some(50))
    );
}

#[test]
fn virtio_merges_are_starts_without_a_call() {
    // Three writes, one pwritev for all; its opaque is 0xd8 below the head's cookie. The push names
    // the element and ends the latency before the accounting does.
    let analysis = analyze(
        "100 acct-write 0x9010d8 rel=0x10040 bytes=4096
         101 acct-write 0x9000d8 rel=0x10040 bytes=4096
         102 acct-write 0x9020d8 rel=0x10040 bytes=4096
         110 pwritev 0x900000 rel=0x10000 0+12288
         111 acct-flush 0x9030d8 rel=0x10040
         112 aio-flush 0x903000 rel=0x10000
         200 push 0x900000
         202 acct-done 0x9000d8 rel=0x10040
         203 push 0x901000
         205 acct-done 0x9010d8 rel=0x10040
         206 push 0x902000
         208 acct-done 0x9020d8 rel=0x10040
         220 acct-done 0x9030d8 rel=0x10040",
    );
    let vd = qemu(&analysis, "vm1/vd");
    assert_eq!((vd.writes, vd.merged, vd.flushes), (3, Some(2), 1));
    assert_eq!(
        vd.merged_by_type.map(|merged| (merged.read, merged.write)),
        Some((0, 2))
    );
    assert_eq!(
        (vd.latency_ns.write.sum, vd.ended_by_push),
        (99 + 103 + 104, 3)
    );
    assert_eq!(vd.latency_ns.flush.mean, Some(109), "no push: done");
}

#[test]
fn scsi_does_not_merge() {
    let analysis = analyze(
        "100 acct-write 0x9010d8 rel=0x20040 bytes=4096
         110 pwritev 0x777000 rel=0x20000 0+4096
         205 acct-done 0x9010d8 rel=0x20040",
    );
    assert_eq!(qemu(&analysis, "vm1/sd").merged, Some(0));
}

#[test]
fn two_guests_may_use_the_same_addresses() {
    let analysis = analyze(
        "100 acct-write 0x9000d8 rel=0x10040 bytes=512
         110 acct-read 0x9000d8 rel=0x10040 bytes=4096 dev=1
         200 acct-done 0x9000d8 rel=0x10040 dev=1
         300 acct-done 0x9000d8 rel=0x10040",
    );
    let (first, second) = (qemu(&analysis, "vm1/vd"), qemu(&analysis, "vm2/vd"));
    assert_eq!(
        (first.writes, first.reads, first.latency_ns.write.mean),
        (1, 0, Some(200))
    );
    assert_eq!(
        (second.writes, second.reads, second.latency_ns.read.mean),
        (0, 1, Some(90))
    );
}

#[test]
fn the_last_disk_belongs_to_the_last_backend() {
    let mut manifest = manifest();
    manifest.topology.guests[0].backends.pop();
    let text = "100 acct-write 0x1 rel=0x10040 bytes=512
         101 acct-write 0x2 rel=0x20040 bytes=1024
         200 acct-done 0x1 rel=0x10040
         201 acct-done 0x2 rel=0x20040";
    let events = notation::events(text);
    let analysis = Analyzer::analyze(&manifest, Options::default(), events.clone());
    assert_eq!(qemu(&analysis, "vm1/sd").bytes.write, 1024);
    // With two disks left it cannot be known.
    manifest.topology.guests[0].backends.clear();
    let analysis = Analyzer::analyze(&manifest, Options::default(), events);
    assert_eq!(qemu(&analysis, "vm1/?").writes, 2);
}

#[test]
fn a_disk_that_was_plugged_in_later_is_not_the_only_disk() {
    // vm2 had one disk when recording began.
    let text = "100 acct-write 0x1 rel=0x10040 bytes=512 dev=1
         200 acct-done 0x1 rel=0x10040 dev=1
         300 acct-write 0x1 rel=0x10040 bytes=512 dev=1
         301 acct-write 0x2 rel=0x80040 bytes=4096 dev=1
         400 acct-done 0x1 rel=0x10040 dev=1
         401 acct-done 0x2 rel=0x80040 dev=1";
    let events = notation::events(text);
    let mut manifest = manifest();
    let analysis = Analyzer::analyze(&manifest, Options::default(), events.clone());
    let written = |analysis, disk| qemu(analysis, disk).bytes.write;
    assert_eq!(written(&analysis, "vm2/?"), 1024 + 4096, "either may be vd");
    let first = events.iter().filter(|event| event.related == 0x10040);
    let analysis = Analyzer::analyze(&manifest, Options::default(), first.copied());
    assert_eq!(written(&analysis, "vm2/vd"), 1024);
    // Two BlockBackends of one disk are known from the beginning, each only by elimination.
    manifest.topology.guests[1].backends = [0x10000, 0x80000]
        .map(|address| Backend {
            address,
            disk: 0,
            proof: "only disk".into(),
        })
        .to_vec();
    let analysis = Analyzer::analyze(&manifest, Options::default(), events.clone());
    assert_eq!(written(&analysis, "vm2/?"), 1024 + 4096);
    let idle = events.iter().filter(|event| event.related == 0x80040);
    let analysis = Analyzer::analyze(&manifest, Options::default(), idle.copied());
    assert_eq!(written(&analysis, "vm2/?"), 4096, "the other one may be vd");
    // A name tells which is which.
    manifest.topology.guests[1].backends[0].proof = "node name".into();
    let analysis = Analyzer::analyze(&manifest, Options::default(), events);
    assert_eq!(
        (written(&analysis, "vm2/vd"), written(&analysis, "vm2/?")),
        (1024, 4096)
    );
}

#[test]
fn a_backend_that_is_another_one_s_is_not_the_only_disk_s() {
    let events = notation::events(
        "100 acct-write 0x1 rel=0x80040 bytes=512 dev=1
         110 pwritev 0x77 rel=0x80000 0+512 dev=1
         200 acct-done 0x1 rel=0x80040 dev=1",
    );
    let mut manifest = manifest();
    let written = |manifest: &_, disk| {
        let analysis = Analyzer::analyze(manifest, Options::default(), events.clone());
        qemu(&analysis, disk).bytes.write
    };
    assert_eq!(written(&manifest, "vm2/vd"), 512);
    manifest.topology.guests[1].backends = vec![Backend {
        address: 0x10000,
        disk: 0,
        proof: "drive name".into(),
    }];
    assert_eq!(written(&manifest, "vm2/?"), 512);
    // The same for the last of two disks.
    let sd = manifest.topology.guests[0].disks[1].clone();
    manifest.topology.guests[1].disks.push(sd);
    assert_eq!(written(&manifest, "vm2/sd"), 512);
    manifest.topology.guests[1].backends.push(Backend {
        address: 0x20000,
        disk: 1,
        proof: "node name".into(),
    });
    assert_eq!(written(&manifest, "vm2/?"), 512);
}

#[test]
fn after_another_file_was_opened_nobody_is_the_only_disk() {
    let second = 1_000_000_000;
    let event = |kind, at, bytes| Event {
        kind: kind as u8,
        ts_ns: at,
        object: 1,
        related: 0x80040,
        bytes,
        dev: 1,
        sub: 2,
        ..Event::default()
    };
    let mut manifest = manifest();
    let written = |manifest: &_, at, disk| {
        let events = [
            event(Kind::AcctStart, at, 512),
            event(Kind::AcctDone, at + 100, 0),
        ];
        let analysis = Analyzer::analyze(manifest, Options::default(), events);
        qemu(&analysis, disk).bytes.write
    };
    manifest.notices.push(Notice {
        mono_ns: 10 * second,
        what: "file_opened".into(),
        message: "guest vm1 opened another file (inode 5)".into(),
    });
    assert_eq!(written(&manifest, 11 * second, "vm2/vd"), 512, "vm1 did");
    manifest.notices[0].message = "guest vm2 opened another file (inode 5)".into();
    assert_eq!(written(&manifest, 11 * second, "vm2/?"), 512);
    assert_eq!(written(&manifest, second, "vm2/vd"), 512);
}
