//! Where QEMU's time passed, by overlap, and when chains take its place.

use crate::stack;
use crate::two_sides;

use nestrace_abi::flags;
use nestrace_analyzer::Options;
use nestrace_analyzer::verdict::VerdictMethod;

use stack::analyze;
use two_sides::{Streams, VM1, WAY, chains, manifest};

const START: u64 = 10_000_000_000;

#[test]
fn a_serial_request_is_split_exactly() {
    // start 100 … pread 120 … Q 130, D 150, C 350, return 370 … push 400.
    let analysis = analyze(
        "100 acct-read 0x9000d8 rel=0x10040 bytes=4096
         105 preadv 0x900000 rel=0x10000 0+4096
         120 read 0x5 0+4096 inode=12 of=7:0 tid=9
         130 Q b1 R 0+4096 inode=12 of=7:0 sub=1
         132 G b1
         150 D r1 R 0+4096 rel=b1
         350 C r1 R 0+4096
         370 exit tid=9 result=4096
         400 push 0x900000
         420 acct-done 0x9000d8 rel=0x10040",
    );
    let [disk] = &analysis.verdict.disks[..] else {
        panic!("one disk: {:?}", analysis.verdict.disks)
    };
    assert_eq!(
        (disk.guest.as_str(), disk.disk.as_str(), disk.requests),
        ("vm1", "vd", 1)
    );
    assert_eq!((disk.qemu_ns, disk.qemu_own_ns), (300, 50));
    assert_eq!(
        (disk.host_fs_ns, disk.host_queue_ns, disk.device_ns),
        (30, Some(20), Some(200))
    );
    assert_eq!(
        (disk.host_ns, disk.host_at_least_ns, disk.serial),
        (250, 250, true)
    );
    assert_eq!(disk.in_flight_millis, 1000);
}

#[test]
fn a_sync_waits_for_the_file_systems_own_bios() {
    let analysis = analyze(
        "100 acct-flush 0x9000d8 rel=0x10040
         110 fdatasync 0x5 inode=12 of=7:0 tid=9
         120 Q b1 W 0+4096 end_io=2
         121 G b1
         140 D r1 W 0+4096 rel=b1
         190 C r1 W 0+4096
         200 exit tid=9 result=0
         210 acct-done 0x9000d8 rel=0x10040
         300 Q b1 W 0+4096 end_io=2
         400 read 0x5 inode=12 of=7:0 tid=9",
    );
    let disk = &analysis.verdict.disks[0];
    assert_eq!(
        (
            disk.qemu_ns,
            disk.host_ns,
            disk.host_queue_ns,
            disk.device_ns
        ),
        (110, 90, Some(20), Some(50))
    );
}

#[test]
fn a_sync_waits_for_the_devices_flush() {
    let analysis = analyze(
        "100 acct-flush 0x9000d8 rel=0x10040
         110 fdatasync 0x5 inode=12 of=7:0 tid=9
         120 Q b1 Wf 0+0
         121 G b1
         125 D fl F
         190 C fl Fs
         191 C r1 Wf 0+0
         200 exit tid=9 result=0
         210 acct-done 0x9000d8 rel=0x10040",
    );
    let disk = &analysis.verdict.disks[0];
    assert_eq!(
        (disk.host_ns, disk.device_ns, disk.host_fs_ns),
        (90, Some(65), 25)
    );
}

#[test]
fn a_flush_with_a_lost_completion_does_not_stay_at_the_device() {
    // The C of the flush at 125 is missing: only the next D at its address shows that it has ended.
    let analysis = analyze(
        "100 acct-flush 0x9000d8 rel=0x10040
         110 fdatasync 0x5 inode=12 of=7:0 tid=9
         120 Q b1 Wf 0+0
         121 G b1
         125 D fl F
         200 exit tid=9 result=0
         210 acct-done 0x9000d8 rel=0x10040
         300 D fl F
         350 C fl Fs
         390 acct-flush 0x9000d8 rel=0x10040
         400 fdatasync 0x5 inode=12 of=7:0 tid=9
         500 exit tid=9 result=0
         510 acct-done 0x9000d8 rel=0x10040",
    );
    let check = analysis.devices[0].check.expect("full");
    assert_eq!(check.completions_missed, 1);
    let disk = &analysis.verdict.disks[0];
    assert_eq!((disk.host_ns, disk.device_ns), (90 + 100, Some(75)));
}

#[test]
fn overlapping_requests_give_a_range() {
    // Two requests, one file I/O at a time: while one is served the other only waits.
    let analysis = analyze(
        "100 acct-read 0x9000d8 rel=0x10040 bytes=512
         100 acct-read 0x9100d8 rel=0x10040 bytes=512
         100 read 0x5 0+512 inode=12 of=7:0 tid=9
         200 exit tid=9 result=512
         200 acct-done 0x9000d8 rel=0x10040
         200 read 0x5 0+512 inode=12 of=7:0 tid=9
         300 exit tid=9 result=512
         300 acct-done 0x9100d8 rel=0x10040",
    );
    let disk = &analysis.verdict.disks[0];
    assert_eq!(
        (
            disk.qemu_ns,
            disk.host_ns,
            disk.host_at_least_ns,
            disk.serial
        ),
        (300, 300, 200, false)
    );
    assert_eq!(disk.device_ns, None, "bios were not recorded");
}

/// The verdict's method for vm1's `vd`.
fn method(streams: Streams) -> Option<VerdictMethod> {
    let analysis = streams.analyze(&manifest(), Options::default());
    assert!(chains(&analysis, "vm1", "vd").linked > 0);
    let disks = &analysis.verdict.disks;
    disks.first().map(|disk| disk.method)
}

#[test]
fn a_few_links_are_no_verdict() {
    // Of some the guest knows nothing: its agent came late.
    for (unknown, expected) in [(199, VerdictMethod::Chains), (200, VerdictMethod::Overlap)] {
        let mut streams = Streams::new(2);
        let at = streams.traffic(VM1, START, 200, WAY);
        for i in 0..unknown {
            let at = at + i * 1_000_000;
            streams.qemu_data(VM1, at, flags::OP_WRITE, i * 8192, 4096, WAY);
        }
        assert_eq!(method(streams), Some(expected));
    }
    // And of these the host lost everything.
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, 200, WAY);
    let host = streams.host.len();
    let at = streams.traffic(VM1, at, 20, WAY);
    streams.host.truncate(host);
    streams.traffic(VM1, at, 200, WAY);
    assert_eq!(method(streams), Some(VerdictMethod::Overlap));
}
