//! What loop and dm devices do below a host request.

use nestrace_trace::manifest::{Device, Mount, Server, Topology};

use super::{run, served, topology};
use crate::link::chains::walk;
use crate::result::segments::SegmentKind;

#[test]
fn direct_io_of_a_loop_device_lies_within_its_request() {
    assert_eq!(
        served(
            &topology(),
            &[],
            "100 acct-write 0x10d8 rel=0x10120 bytes=4096
             101 pwritev 0x1000 8192+4096 rel=0x10000
             110 uring-write u1 8192+4096 inode=12 of=7:0
             111 dio-begin k1 8192+4096 inode=12 of=7:0 iocb=k1 origin=u1
             112 Q b1 W 90112+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=u1
             113 G b1
             115 D r1 W 90112+4096 rel=b1
             120 Q c1 W 500000+4096 inode=99 of=8:0 sub=1 iocb=kl origin=r1 dev=8:0 tid=60
             121 G c1 dev=8:0
             122 D r2 W 500000+4096 rel=c1 dev=8:0
             150 C r2 W 500000+4096 dev=8:0
             160 C r1 W 90112+4096
             170 uring-done u1 result=4096
             180 push 0x1000
             190 acct-done 0x10d8 rel=0x10120"
        ),
        [
            "qemu Write 8192+4096 100-180 [file Write 8192+4096 110-170 [\
             bio Write 90112+4096 112-160 [request Write 90112+4096 115-160 [\
             bio Write 500000+4096 120-150 [request Write 500000+4096 122-150]]]]]"
        ]
    );
}

#[test]
fn direct_io_on_the_file_of_a_loop_device_has_a_time_of_its_own() {
    let mut topology = topology();
    topology.devices[0].beneath = vec!["sda".into()];
    assert_eq!(
        below(
            &topology,
            "112 Q b1 W 90112+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=u1
             113 G b1
             115 D r1 W 90112+4096 rel=b1
             118 dio-begin kl 500000+4096 inode=99 of=8:0 origin=r1 tid=60
             120 Q c1 W 500000+4096 inode=99 of=8:0 sub=1 iocb=kl origin=r1 dev=8:0 tid=60
             121 G c1 dev=8:0
             122 D r2 W 500000+4096 rel=c1 dev=8:0
             150 C r2 W 500000+4096 dev=8:0
             155 dio-done kl 500000+4096 inode=99 of=8:0 origin=r1 tid=61
             160 C r1 W 90112+4096"
        ),
        "bio Write 90112+4096 112-160 [request Write 90112+4096 115-160 [\
         loop's file Write 90112+4096 118-155 [\
         bio Write 500000+4096 120-150 [request Write 500000+4096 122-150]]]]"
    );
}

/// A stacked device under the image, over sda and sdb.
fn stacked(kind: &str, driver: &str, major: u32) -> Topology {
    let mut topology = topology();
    topology.devices.push(Device {
        name: "sdb".into(),
        dev: 8 << 20 | 16,
        kind: "disk".into(),
        ..Device::default()
    });
    topology.devices.push(Device {
        name: "upper".into(),
        dev: major << 20,
        kind: kind.into(),
        driver: driver.into(),
        beneath: vec!["sda".into(), "sdb".into()],
        ..Device::default()
    });
    topology.guests[0].disks[0].images[0].devices = vec!["upper".into()];
    topology
}

/// What a write of QEMU has below its file I/O; the events begin after 111 and end before 170.
fn below(topology: &Topology, events: &str) -> String {
    let events = format!(
        "100 acct-write 0x10d8 rel=0x10120 bytes=8192
         101 pwritev 0x1000 8192+8192 rel=0x10000
         110 uring-write u1 8192+8192 inode=12 of=7:0
         111 dio-begin k1 8192+8192 inode=12 of=7:0 iocb=k1 origin=u1
         {events}
         170 uring-done u1 result=8192
         180 push 0x1000
         190 acct-done 0x10d8 rel=0x10120"
    );
    let served = served(topology, &[], &events);
    let [only] = served.as_slice() else {
        panic!("one request: {served:?}");
    };
    let above = "qemu Write 8192+8192 100-180 [file Write 8192+8192 110-170 [";
    let rest = only
        .strip_prefix(above)
        .and_then(|rest| rest.strip_suffix("]]"));
    rest.unwrap_or_else(|| panic!("{only}")).to_owned()
}

#[test]
fn a_clone_of_dm_lies_within_the_bio_that_it_was_made_of() {
    // The clone names no owner; a bio at another place is in flight beside it.
    assert_eq!(
        below(
            &stacked("dm", "linear", 253),
            "112 Q b1 W 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=253:0
             112 Q b2 W 98304+8192 dev=253:0 tid=77
             113 A c1 W 190112+8192 dev=8:0 of=253:0 at=90112
             114 Q c1 W 190112+8192 dev=8:0
             115 G c1 dev=8:0
             120 D r2 W 190112+8192 rel=c1 dev=8:0
             150 C r2 W 190112+8192 dev=8:0
             155 BC b1 W 90112+8192 dev=253:0
             160 BC b2 W 98304+8192 dev=253:0"
        ),
        "bio Write 90112+8192 112-155 [request Write 90112+8192 112-155 [\
         bio Write 190112+8192 114-150 [request Write 190112+8192 120-150]]]"
    );
}

#[test]
fn of_two_bios_at_one_place_none_is_guessed() {
    assert_eq!(
        below(
            &stacked("dm", "linear", 253),
            "112 Q b1 W 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=253:0
             112 Q b2 W 94208+8192 dev=253:0 tid=77
             113 A c1 W 194208+4096 dev=8:0 of=253:0 at=94208
             114 Q c1 W 194208+4096 dev=8:0
             120 D r2 W 194208+4096 rel=c1 dev=8:0
             150 C r2 W 194208+4096 dev=8:0
             155 BC b1 W 90112+8192 dev=253:0
             160 BC b2 W 94208+8192 dev=253:0"
        ),
        "bio Write 90112+8192 112-155 [request Write 90112+8192 112-155]"
    );
}

#[test]
fn what_a_driver_s_thread_did_before_it_handed_the_bio_on_is_waited_for() {
    // thin's worker reads its mappings; what another thread does meanwhile is another's.
    assert_eq!(
        below(
            &stacked("dm", "thin", 253),
            "112 Q b1 W 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=253:0
             113 Q m1 R 4096+4096 dev=8:16 tid=60
             114 D r3 R 4096+4096 rel=m1 dev=8:16
             115 Q m2 R 8192+4096 dev=8:16 tid=61
             116 D r4 R 8192+4096 rel=m2 dev=8:16
             118 C r4 R 8192+4096 dev=8:16
             119 C r3 R 4096+4096 dev=8:16
             130 A c1 W 190112+8192 dev=8:0 of=253:0 at=90112 tid=60
             131 Q c1 W 190112+8192 dev=8:0 tid=60
             132 D r2 W 190112+8192 rel=c1 dev=8:0
             150 C r2 W 190112+8192 dev=8:0
             155 BC b1 W 90112+8192 dev=253:0"
        ),
        "bio Write 90112+8192 112-155 [request Write 90112+8192 112-155 [\
         bio* LayerMetadata 4096+4096 113-119 [request Read 4096+4096 114-119], \
         bio Write 190112+8192 131-150 [request Write 190112+8192 132-150]]]"
    );
}

#[test]
fn all_of_a_stripe_with_parity_belongs_to_the_write() {
    // The parity has no place in the array; its pages are old, so it is read first. Sector 0 belongs to no block.
    assert_eq!(
        below(
            &stacked("md", "raid5", 9),
            "112 Q b1 W 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=9:0
             113 A p1 R 40960+4096 dev=8:16 of=9:0 at=0 rel=0x5000 tid=60
             114 Q p1 R 40960+4096 dev=8:16 tid=60
             115 A d1 R 40960+4096 dev=8:0 of=9:0 at=90112 rel=0x5000 tid=60
             116 Q d1 R 40960+4096 dev=8:0 tid=60
             117 D r3 R 40960+4096 rel=p1 dev=8:16
             118 D r4 R 40960+4096 rel=d1 dev=8:0
             120 C r3 R 40960+4096 dev=8:16
             121 C r4 R 40960+4096 dev=8:0
             130 A d1 W 40960+4096 dev=8:0 of=9:0 at=90112 rel=0x5000 tid=60
             131 Q d1 W 40960+4096 dev=8:0 tid=60
             132 D r5 W 40960+4096 rel=d1 dev=8:0
             133 A p9 W 49152+4096 dev=8:16 of=9:0 at=0 rel=0x6000 tid=60
             134 Q p9 W 49152+4096 dev=8:16 tid=60
             135 D r6 W 49152+4096 rel=p9 dev=8:16
             140 C r5 W 40960+4096 dev=8:0
             141 C r6 W 49152+4096 dev=8:16
             155 BC b1 W 90112+8192 dev=9:0"
        ),
        "bio Write 90112+8192 112-155 [request Write 90112+8192 112-155 [\
         bio ReadModifyWrite 40960+4096 114-120 [request Read 40960+4096 117-120], \
         bio ReadModifyWrite 40960+4096 116-121 [request Read 40960+4096 118-121], \
         bio Write 40960+4096 131-140 [request Write 40960+4096 132-140]]]"
    );
}

#[test]
fn a_block_of_other_data_that_is_read_for_the_parity_belongs_to_the_write() {
    // Of three members the other data is read, at a place that no bio names. Another bio reads in the same stripe.
    assert_eq!(
        below(
            &stacked("md", "raid5", 9),
            "112 Q b1 W 90112+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=9:0
             113 A d2 R 40960+4096 dev=8:16 of=9:0 at=155648 rel=0x5000 tid=60
             114 Q d2 R 40960+4096 dev=8:16 tid=60
             115 D r3 R 40960+4096 rel=d2 dev=8:16
             116 Q b2 R 221184+4096 dev=9:0 tid=77
             117 A d3 R 40960+4096 dev=8:0 of=9:0 at=221184 rel=0x5000 tid=60
             118 Q d3 R 40960+4096 dev=8:0 tid=60
             119 D r7 R 40960+4096 rel=d3 dev=8:0
             120 C r3 R 40960+4096 dev=8:16
             121 C r7 R 40960+4096 dev=8:0
             122 BC b2 R 221184+4096 dev=9:0
             130 A d1 W 40960+4096 dev=8:0 of=9:0 at=90112 rel=0x5000 tid=60
             131 Q d1 W 40960+4096 dev=8:0 tid=60
             132 D r5 W 40960+4096 rel=d1 dev=8:0
             133 A p1 W 40960+4096 dev=8:32 of=9:0 at=0 rel=0x5000 tid=60
             134 Q p1 W 40960+4096 dev=8:32 tid=60
             135 D r6 W 40960+4096 rel=p1 dev=8:32
             140 C r5 W 40960+4096 dev=8:0
             141 C r6 W 40960+4096 dev=8:32
             155 BC b1 W 90112+4096 dev=9:0"
        ),
        "bio Write 90112+4096 112-155 [request Write 90112+4096 112-155 [\
         bio ReadModifyWrite 40960+4096 114-120 [request Read 40960+4096 115-120], \
         bio Write 40960+4096 131-140 [request Write 40960+4096 132-140], \
         bio Write 40960+4096 134-141 [request Write 40960+4096 135-141]]]"
    );
}

#[test]
fn a_stripe_that_takes_the_place_of_another_belongs_to_its_own_write() {
    // The first bio has two stripes and waits for the second one's parity. The first stripe's place in md's cache is used again
    // for one that another bio writes, and the first stripe itself is written again.
    assert_eq!(
        below(
            &stacked("md", "raid5", 9),
            "112 Q b1 W 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=9:0
             113 A d1 W 40960+4096 dev=8:0 of=9:0 at=90112 rel=0x5000 tid=60
             114 Q d1 W 40960+4096 dev=8:0 tid=60
             115 D r1 W 40960+4096 rel=d1 dev=8:0
             116 C r1 W 40960+4096 dev=8:0
             117 A d2 W 45056+4096 dev=8:0 of=9:0 at=94208 rel=0x6000 tid=60
             118 Q d2 W 45056+4096 dev=8:0 tid=60
             119 D r2 W 45056+4096 rel=d2 dev=8:0
             120 Q b2 W 155648+4096 dev=9:0 tid=77
             121 A p1 R 40960+4096 dev=8:32 of=9:0 at=0 rel=0x5000 tid=60
             122 Q p1 R 40960+4096 dev=8:32 tid=60
             123 D r3 R 40960+4096 rel=p1 dev=8:32
             124 C r3 R 40960+4096 dev=8:32
             125 A d3 W 40960+4096 dev=8:16 of=9:0 at=155648 rel=0x5000 tid=60
             126 Q d3 W 40960+4096 dev=8:16 tid=60
             127 D r4 W 40960+4096 rel=d3 dev=8:16
             128 C r4 W 40960+4096 dev=8:16
             129 BC b2 W 155648+4096 dev=9:0
             130 A p9 W 49152+4096 dev=8:32 of=9:0 at=0 rel=0x5000 tid=60
             131 Q p9 W 49152+4096 dev=8:32 tid=60
             132 D r5 W 49152+4096 rel=p9 dev=8:32
             133 C r5 W 49152+4096 dev=8:32
             140 C r2 W 45056+4096 dev=8:0
             155 BC b1 W 90112+8192 dev=9:0"
        ),
        "bio Write 90112+8192 112-155 [request Write 90112+8192 112-155 [\
         bio Write 40960+4096 114-116 [request Write 40960+4096 115-116], \
         bio Write 45056+4096 118-140 [request Write 45056+4096 119-140]]]"
    );
}

/// Times by segment of the only request.
fn segments(topology: &Topology, events: &str) -> Vec<(SegmentKind, u64)> {
    let outcome = run(topology, &[], events);
    let [only] = outcome.served.as_slice() else {
        panic!("one request: {:?}", outcome.served);
    };
    let times = walk(&only.span);
    let whole = only.span.end_ns - only.span.start_ns;
    assert_eq!(times.total(), whole, "the segments are the whole");
    let times = SegmentKind::OF_BIO.into_iter().map(|it| (it, times.of(it)));
    times.filter(|(_, ns)| *ns > 0).collect()
}

fn server() -> Server {
    Server {
        protocol: "nbd".into(),
        address: "10.0.0.1:10809".into(),
        ..Server::default()
    }
}

#[test]
fn below_a_stacked_device_a_server_is_no_device() {
    let mut topology = stacked("dm", "linear", 253);
    topology.devices[1].server = Some(server());
    let events = "100 acct-write 0x10d8 rel=0x10120 bytes=8192
         101 pwritev 0x1000 8192+8192 rel=0x10000
         110 uring-write u1 8192+8192 inode=12 of=7:0
         111 dio-begin k1 8192+8192 inode=12 of=7:0 iocb=k1 origin=u1
         112 Q b1 Wf 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=253:0
         113 A c1 W 190112+8192 dev=8:0 of=253:0 at=90112
         114 Q c1 W 190112+8192 dev=8:0
         115 G c1 dev=8:0
         120 D r2 W 190112+8192 rel=c1 dev=8:0
         150 C r2 W 190112+8192 dev=8:0
         155 BC b1 W 90112+8192 dev=253:0
         170 uring-done u1 result=8192
         180 push 0x1000
         190 acct-done 0x10d8 rel=0x10120";
    assert_eq!(
        segments(&topology, events),
        [
            (SegmentKind::QemuSubmit, 10),
            (SegmentKind::HostFsSubmit, 2),
            (SegmentKind::HostQueue, 6),
            (SegmentKind::StackSubmit, 2),
            (SegmentKind::StackComplete, 5),
            (SegmentKind::Remote, 30),
            (SegmentKind::HostFsComplete, 15),
            (SegmentKind::QemuComplete, 10),
        ]
    );
}

/// The first disk's image is on NFS.
fn on_nfs(direct: bool, cache: &str) -> Topology {
    let mut topology = topology();
    topology.devices.clear();
    let disk = &mut topology.guests[0].disks[0];
    disk.cache = Some(cache.into());
    let image = &mut disk.images[0];
    image.direct = Some(direct);
    image.devices.clear();
    image.mount = Some(Mount {
        fs_type: "nfs4".into(),
        source: "10.0.0.1:/vm".into(),
        ..Mount::default()
    });
    topology
}

#[test]
fn direct_io_on_a_network_file_system_is_the_server_s() {
    let events = "100 acct-write 0x10d8 rel=0x10120 bytes=8192
         101 pwritev 0x1000 8192+8192 rel=0x10000
         110 uring-write u1 8192+8192 inode=12 of=7:0
         170 uring-done u1 result=8192
         180 push 0x1000
         190 acct-done 0x10d8 rel=0x10120";
    assert_eq!(
        segments(&on_nfs(true, "none"), events),
        [
            (SegmentKind::QemuSubmit, 10),
            (SegmentKind::Remote, 60),
            (SegmentKind::QemuComplete, 10),
        ]
    );
    // The page cache may have taken it.
    assert_eq!(
        segments(&on_nfs(false, "writeback"), events),
        [
            (SegmentKind::QemuSubmit, 10),
            (SegmentKind::HostFsSubmit, 60),
            (SegmentKind::QemuComplete, 10),
        ]
    );
}

/// A write whose file I/O is `begin` to `end`, with what lies between.
fn write_on_nfs(begin: &str, between: &str, end: &str) -> Vec<(SegmentKind, u64)> {
    let events = format!(
        "100 acct-write 0x10d8 rel=0x10120 bytes=8192
         101 pwritev 0x1000 8192+8192 rel=0x10000
         110 {begin}
         {between}
         170 {end}
         180 push 0x1000
         190 acct-done 0x10d8 rel=0x10120"
    );
    segments(&on_nfs(true, "none"), &events)
}

/// 20 in the client before the call is sent, 30 at the server, 10 after.
const APART: [(SegmentKind, u64); 5] = [
    (SegmentKind::QemuSubmit, 10),
    (SegmentKind::HostFsSubmit, 20),
    (SegmentKind::Remote, 30),
    (SegmentKind::HostFsComplete, 10),
    (SegmentKind::QemuComplete, 10),
];
/// No call is known to be its own.
const CLIENT_S: [(SegmentKind, u64); 3] = [
    (SegmentKind::QemuSubmit, 10),
    (SegmentKind::HostFsSubmit, 60),
    (SegmentKind::QemuComplete, 10),
];

#[test]
fn a_call_to_the_server_is_apart_from_its_client() {
    let by_thread = ("write 5 8192+8192 inode=12 of=7:0", "exit result=8192");
    let by_uring = (
        "uring-write u1 8192+8192 inode=12 of=7:0",
        "uring-done u1 result=8192",
    );
    for (file_io, between, expected) in [
        // In the thread of the call; it ends in another one.
        (
            by_thread,
            "115 rpc-write n1 8192+8192 inode=12 of=7:0 rel=d1
             165 rpc-end n1 inode=12 of=7:0 rel=130 30+0 tid=7",
            &APART[..],
        ),
        // By the kiocb, whoever began it.
        (
            by_uring,
            "115 rpc-write n1 8192+8192 inode=12 of=7:0 rel=d1 iocb=u1 origin=u1 tid=6
             165 rpc-end n1 inode=12 of=7:0 rel=130 30+0 tid=7",
            &APART[..],
        ),
        // Two parts, and the commit of the same direct I/O by another thread.
        (
            by_thread,
            "115 rpc-write n1 8192+4096 inode=12 of=7:0 rel=d1
             116 rpc-write n2 12288+4096 inode=12 of=7:0 rel=d1
             145 rpc-end n1 inode=12 of=7:0 rel=130 10+0 tid=7
             146 rpc-end n2 inode=12 of=7:0 rel=131 14+0 tid=7
             147 rpc-commit n3 inode=12 of=7:0 rel=d1 tid=7
             165 rpc-end n3 inode=12 of=7:0 rel=150 10+0 tid=7",
            &[
                (SegmentKind::QemuSubmit, 10),
                (SegmentKind::HostFsSubmit, 20),
                (SegmentKind::Remote, 25),
                (SegmentKind::HostFsBetween, 5),
                (SegmentKind::HostFsComplete, 10),
                (SegmentKind::QemuComplete, 10),
            ],
        ),
        // A client that does not say when it sent the call (SMB).
        (
            by_thread,
            "130 rpc-write n1 8192+8192 inode=12 of=7:0
             160 rpc-end n1 inode=12 of=7:0 rel=0xffffffffffffffff tid=7",
            &APART[..],
        ),
        // Another thread's, another place's, another file's.
        (
            by_thread,
            "115 rpc-write n1 8192+8192 inode=12 of=7:0 tid=6
             116 rpc-write n2 65536+8192 inode=12 of=7:0
             117 rpc-write n3 8192+8192 inode=13 of=7:0
             165 rpc-end n1 inode=12 of=7:0 rel=130 30+0
             165 rpc-end n2 inode=12 of=7:0 rel=130 30+0
             165 rpc-end n3 inode=13 of=7:0 rel=130 30+0",
            &CLIENT_S[..],
        ),
        // It was not sent; it was sent before it began.
        (
            by_thread,
            "115 rpc-write n1 8192+8192 inode=12 of=7:0
             115 rpc-write n2 8192+8192 inode=12 of=7:0
             165 rpc-end n1 inode=12 of=7:0
             165 rpc-end n2 inode=12 of=7:0 rel=90 30+0",
            &CLIENT_S[..],
        ),
    ] {
        let (begin, end) = file_io;
        assert_eq!(write_on_nfs(begin, between, end), expected, "{between}");
    }
}

#[test]
fn native_aio_on_a_network_file_system_ends_with_its_last_call() {
    let begins = "rpc-write n1 8192+8192 inode=12 of=7:0 rel=d1 iocb=k1 origin=i1";
    for calls in [
        // In the thread that submits; by a worker after it has returned.
        format!("115 {begins}\n 120 io_submit-exit result=1"),
        format!("115 io_submit-exit result=1\n 120 {begins} tid=7"),
    ] {
        let between = format!(
            "111 aio-submit-write i1 8192+8192 inode=12 of=7:0
             {calls}
             165 rpc-end n1 inode=12 of=7:0 rel=130 30+0 tid=7"
        );
        assert_eq!(
            write_on_nfs("io_submit 0+1", &between, "thread t1"),
            [
                (SegmentKind::QemuSubmit, 11),
                (SegmentKind::HostFsSubmit, 19),
                (SegmentKind::Remote, 30),
                (SegmentKind::HostFsComplete, 5),
                (SegmentKind::QemuComplete, 15),
            ],
            "{calls}"
        );
    }
}
