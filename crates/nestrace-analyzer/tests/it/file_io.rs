//! QEMU's file I/O on image files, by system call, native aio and io_uring.

use crate::notation;
use crate::stack;

use nestrace_analyzer::analysis::ReadWrite;
use nestrace_analyzer::{Analyzer, Options};

use stack::{analyze, image_of, manifest};

#[test]
fn system_calls_count_when_they_succeed() {
    let analysis = analyze(
        "100 read 0x5 0+4096 inode=12 of=7:0 tid=7
         110 exit tid=7 result=4096
         120 write 0x5 0+0 inode=12 of=7:0 tid=7 flags=2
         140 exit tid=7 result=512
         150 write 0x5 0+512 inode=12 of=7:0 tid=7
         160 exit tid=7 result=-5
         170 fdatasync 0x5 inode=12 of=7:0 tid=8
         171 read 0x6 0+512 inode=555 of=7:0 tid=7
         172 exit tid=7 result=512
         190 exit tid=8 result=0",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!(
        (io.reads, io.writes, io.syncs, io.dsync, io.failed),
        (1, 1, 1, 1, 1)
    );
    assert_eq!(
        io.bytes,
        ReadWrite {
            read: 4096,
            write: 512
        },
        "bytes are those that the call returned"
    );
    assert_eq!(
        (io.latency_ns.write.mean, io.latency_ns.sync.mean),
        (Some(20), Some(20))
    );
    assert_eq!(image_of(&analysis, 13).file_io.expect("recorded").reads, 0);
}

#[test]
fn a_call_whose_return_was_lost_does_not_end_with_the_next_one() {
    let next_calls = [
        "100 write 0x5 0+4096 inode=12 of=7:0 tid=7
         # exit
         200 read 0x6 0+512 inode=555 of=7:0 tid=7
         900 exit tid=7 result=512",
        "100 write 0x5 0+4096 inode=12 of=7:0 tid=7
         # exit
         200 io_submit 0x1 tid=7
         900 io_submit-exit tid=7 result=1",
        "100 uring-write 0xffff02 0+4096 inode=12 of=7:0
         # uring-done
         200 uring-read 0xffff02 0+512 inode=555 of=7:0
         900 uring-done 0xffff02 result=512",
    ];
    for text in next_calls {
        let io = image_of(&analyze(text), 12).file_io.expect("recorded");
        assert_eq!((io.reads, io.writes, io.failed), (0, 1, 0), "{text}");
        assert_eq!(io.bytes.write, 4096, "{text}");
        assert_eq!(io.latency_ns.write.n, 0, "{text}");
    }
}

#[test]
fn io_submit_may_take_fewer_than_it_is_given() {
    let analysis = analyze(
        "100 io_submit bytes=3 tid=7
         101 aio-submit-write 0xa1 0+4096 inode=12 of=7:0 tid=7
         102 aio-submit-write 0xa2 4096+4096 inode=12 of=7:0 tid=7
         103 aio-submit-write 0xa3 8192+4096 inode=12 of=7:0 tid=7
         104 dio-begin 0x5500 0+4096 inode=12 of=7:0 origin=0xa1
         105 dio-begin 0x5600 4096+4096 inode=12 of=7:0 origin=0xa2
         108 dio-done 0x5600 bytes=4096 inode=12 of=7:0 origin=0xa2
         110 io_submit-exit tid=7 result=2
         200 dio-done 0x5500 bytes=4096 inode=12 of=7:0 origin=0xa1",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!((io.writes, io.bytes.write), (2, 8192));
    assert_eq!(
        (io.latency_ns.write.min, io.latency_ns.write.max),
        (Some(6), Some(99))
    );
}

#[test]
fn buffered_aio_ends_with_io_submit() {
    let analysis = analyze(
        "100 io_submit bytes=1 tid=7
         101 aio-submit-read 0xa1 0+4096 inode=12 of=7:0 tid=7
         150 io_submit-exit tid=7 result=1",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!((io.reads, io.latency_ns.read.mean), (1, Some(49)));
}

#[test]
fn aio_without_an_iomap_tracepoint_ends_with_its_bios() {
    let analysis = analyze(
        "100 io_submit bytes=1 tid=7
         101 aio-submit-read 0xa1 0+8192 inode=12 of=7:0 tid=7
         102 Q b1 R 0+4096 inode=12 of=7:0 sub=1 origin=0xa1 end_io=1
         103 G b1
         104 Q b2 R 8192+4096 inode=12 of=7:0 sub=1 origin=0xa1 end_io=1
         105 G b2
         106 io_submit-exit tid=7 result=1
         110 D r1 R 0+4096 rel=b1
         111 D r2 R 8192+4096 rel=b2
         200 C r1 R 0+4096
         300 C r2 R 8192+4096",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!(
        (io.reads, io.bytes.read, io.latency_ns.read.mean),
        (1, 8192, Some(199))
    );
}

#[test]
fn io_uring_counts_at_its_end() {
    let analysis = analyze(
        "100 uring-read 0xffff01 0+0 inode=14 of=7:0 dev=1
         101 uring-write 0xffff02 0+4096 inode=14 of=7:0 dev=1 flags=2
         102 uring-fdatasync 0xffff03 inode=14 of=7:0 dev=1
         150 uring-done 0xffff01 result=16384 dev=1
         160 uring-done 0xffff02 result=4096 dev=1
         170 uring-done 0xffff03 result=-5 dev=1",
    );
    let io = image_of(&analysis, 14).file_io.expect("recorded");
    assert_eq!(
        (io.reads, io.writes, io.syncs, io.dsync, io.failed),
        (1, 1, 0, 1, 1)
    );
    assert_eq!(
        io.bytes,
        ReadWrite {
            read: 16384,
            write: 4096
        }
    );
}

#[test]
fn direct_io_that_iomap_declines_goes_on_as_buffered_io() {
    let analysis = analyze(
        "100 io_submit bytes=1 tid=7
         101 aio-submit-write 0xa1 0+4096 inode=12 of=7:0 tid=7
         102 dio-begin 0x5500 0+4096 inode=12 of=7:0 origin=0xa1
         103 dio-done 0x5500 bytes=0 aux=15 inode=12 of=7:0 origin=0xa1
         150 io_submit-exit tid=7 result=1",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!(
        (
            io.writes,
            io.failed,
            io.bytes.write,
            io.latency_ns.write.mean
        ),
        (1, 0, 4096, Some(49))
    );
}

#[test]
fn a_sync_by_native_aio_ends_where_the_file_system_tells() {
    let analysis = analyze(
        "90 io_submit bytes=1 tid=7
         91 aio-submit-fdsync 0xa1 inode=12 of=7:0 tid=7
         92 io_submit-exit tid=7 result=1
         150 sync-exit inode=12 of=7:0 tid=70 result=0
         200 io_submit bytes=1 tid=7
         201 aio-submit-fdsync 0xa1 inode=13 of=7:0 tid=7
         202 io_submit-exit tid=7 result=1",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!((io.syncs, io.latency_ns.sync.mean), (1, Some(59)));
    let untold = image_of(&analysis, 13).file_io.expect("recorded");
    assert_eq!((untold.syncs, untold.latency_ns.sync.n), (1, 0));
}

#[test]
fn direct_io_tells_the_file_that_io_uring_had_not_looked_up() {
    let analysis = analyze(
        "100 uring-read 0xffff01 0+0
         101 uring-read 0xffff02 0+0
         110 dio-begin 0xffff01 0+4096 inode=12 of=7:0 origin=0xffff01
         150 uring-done 0xffff01 result=4096
         151 uring-done 0xffff02 result=4096
         160 dio-begin 0xffff02 0+4096 inode=12 of=7:0 origin=0xffff02",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!(
        (io.reads, io.bytes.read, io.latency_ns.read.mean),
        (1, 4096, Some(50))
    );
}

#[test]
fn two_file_systems_may_use_the_same_inode_number_and_iocb() {
    // Image 13 lies on 8:16 as inode 12 too, and its QEMU has its iocb at the same address.
    let mut manifest = manifest();
    let other = &mut manifest.topology.guests[0].disks[1].images[0];
    (other.inode, other.dev) = (12, 8 << 20 | 16);
    let events = notation::events(
        "10 sync-exit inode=12 of=7:0 tid=70 result=0
         11 sync-exit inode=12 of=8:16 tid=71 result=0
         100 aio-submit-write 0xa1 0+4096 inode=12 of=7:0
         110 aio-submit-write 0xa1 0+512 inode=12 of=8:16
         120 dio-begin 0x5500 0+4096 inode=12 of=7:0 origin=0xa1
         121 dio-begin 0x5600 0+512 inode=12 of=8:16 origin=0xa1
         130 dio-done 0x5600 bytes=512 inode=12 of=8:16 origin=0xa1
         150 dio-done 0x5500 bytes=4096 inode=12 of=7:0 origin=0xa1
         200 aio-submit-fdsync 0xa2 inode=12 of=7:0
         210 aio-submit-fdsync 0xa3 inode=12 of=8:16
         240 sync-exit inode=12 of=8:16 tid=71 result=0
         290 sync-exit inode=12 of=7:0 tid=70 result=0",
    );
    let analysis = Analyzer::analyze(&manifest, Options::default(), events);
    let latency = |disk: &str| {
        let image = analysis.images.iter().find(|image| image.disk == disk);
        let io = image.and_then(|image| image.file_io.clone()).expect(disk);
        (
            io.bytes.write,
            io.latency_ns.write.sum,
            io.latency_ns.sync.sum,
        )
    };
    assert_eq!(latency("sd"), (512, 20, 30));
    let vm1 = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!(
        (
            vm1.bytes.write,
            vm1.latency_ns.write.sum,
            vm1.latency_ns.sync.sum
        ),
        (4096, 50, 90)
    );
}
