//! The disks that bios on images belong to.

use crate::notation;
use crate::stack;

use nestrace_analyzer::analysis::{ReadWrite, UserKind};
use nestrace_analyzer::{Analyzer, Options};

use stack::{analyze, image_of};

#[test]
fn bios_belong_to_images_and_count_on_the_first_device_only() {
    // The loop device's own file lies on sda; a bio of the image's pages there would be a clone.
    let analysis = analyze(
        "10 thread tid=50 tgid=50 name=kworker/u4:1
         10 thread tid=60 tgid=61 name=fio-job
         10 thread tid=61 tgid=61 name=fio
         100 Q b1 W 0+4096 inode=12 of=7:0 sub=2 tid=50
         101 G b1
         102 Q b2 R 8192+8192 inode=12 of=7:0 sub=1
         103 G b2
         104 Q b3 W 65536+4096 end_io=2 tid=70
         105 G b3
         106 Q b4 W 100000+4096 inode=777 of=7:0 sub=2 tid=60
         107 G b4
         108 Q b5 W 0+4096 inode=99 of=8:0 dev=8:0 tid=50
         109 G b5 dev=8:0
         110 Q b6 W 8192+4096 inode=12 of=7:0 sub=2 dev=8:0 tid=50
         111 G b6 dev=8:0
         120 D r1 W 0+4096 rel=b1
         121 D r2 R 8192+8192 rel=b2
         122 D r3 W 65536+4096 rel=b3
         123 D r4 W 100000+4096 rel=b4
         124 D r5 W 0+4096 rel=b5 dev=8:0
         125 D r6 W 8192+4096 rel=b6 dev=8:0
         220 C r1 W 0+4096
         221 C r2 R 8192+8192
         222 C r3 W 65536+4096
         223 C r4 W 100000+4096
         224 C r5 W 0+4096 dev=8:0
         225 C r6 W 8192+4096 dev=8:0",
    );
    let image = image_of(&analysis, 12);
    assert_eq!(
        image.host_bytes,
        Some(ReadWrite {
            read: 8192,
            write: 4096
        })
    );
    assert_eq!(image.file_io, None, "file I/O was not recorded");
    let device = |name: &str| {
        analysis
            .devices
            .iter()
            .find(|device| device.name == name)
            .expect("device")
    };
    let users = |name: &str| -> Vec<(&str, String, u64)> {
        let users = device(name).users.as_ref().expect("full");
        let mut all: Vec<_> = users
            .iter()
            .map(|user| {
                (
                    user.kind.name(),
                    user.disk.clone().or(user.name.clone()).unwrap_or_default(),
                    user.requests,
                )
            })
            .collect();
        all.sort();
        all
    };
    assert_eq!(
        users("loop0"),
        [
            ("file_system", String::new(), 1),
            ("image", "vd".into(), 2),
            ("process", "fio".into(), 1)
        ]
    );
    assert_eq!(
        users("sda"),
        [("image", "vd".into(), 1), ("loop", "loop0".into(), 1)]
    );
    let verdict = &analysis
        .verdict
        .devices
        .iter()
        .find(|verdict| verdict.device == "loop0")
        .expect("verdict");
    assert!((verdict.others_share - 0.25).abs() < 1e-9, "{verdict:?}");
    assert_eq!(verdict.largest_other.as_deref(), Some("fio"));
}

#[test]
fn pages_of_the_device_itself_are_metadata() {
    let analysis = analyze(
        "100 Q b1 W 0+4096 inode=7340032 of=0:5 sub=2
         101 G b1
         102 D r1 W 0+4096 rel=b1
         200 C r1 W 0+4096",
    );
    let users = analysis.devices[0].users.as_ref().expect("full");
    assert_eq!(
        users.iter().map(|user| user.kind).collect::<Vec<_>>(),
        [UserKind::FileSystem]
    );
}

#[test]
fn o_direct_that_reached_the_device_as_pages() {
    let fallback = |text: &str| {
        let analysis = analyze(text);
        let io = image_of(&analysis, 12).file_io.expect("recorded");
        (io.buffered_fallback, io.buffered_fallback_bytes)
    };
    // QEMU wrote 12 KiB, 8 of them by direct I/O.
    assert_eq!(
        fallback(
            "90 write 0x5 0+12288 inode=12 of=7:0 tid=7
             100 Q b1 W 0+4096 inode=12 of=7:0 sub=2
             101 Q b2 W 4096+8192 inode=12 of=7:0 sub=1
             110 exit tid=7 result=12288"
        ),
        (1, 4096)
    );
    // All that it wrote went the direct way: the pages are those of an image that was just copied.
    assert_eq!(
        fallback(
            "90 write 0x5 4096+8192 inode=12 of=7:0 tid=7
             100 Q b1 W 0+4096 inode=12 of=7:0 sub=2
             101 Q b2 W 4096+8192 inode=12 of=7:0 sub=1
             110 exit tid=7 result=8192"
        ),
        (0, 0)
    );
}

#[test]
fn anonymous_direct_io_belongs_to_the_image_that_its_thread_works_on() {
    // btrfs ends its own bios: they name no kiocb. Thread 9 is in a pread, thread 8 in io_submit,
    // thread 7 has returned.
    let analysis = analyze(
        "90 read 0x5 0+4096 inode=12 of=7:0 tid=7
         95 exit tid=7 result=4096
         100 read 0x5 0+4096 inode=12 of=7:0 tid=9
         101 Q b1 R 0+4096 sub=3 tid=9
         102 dio-begin 0x5500 0+8192 inode=13 of=7:0 origin=0xa1 tid=8
         103 Q b2 W 4096+8192 sub=3 tid=8
         104 Q b3 W 65536+512 sub=3 tid=7
         105 Q b4 R 0+512 sub=3 tid=9 dev=8:0
         200 exit tid=9 result=4096",
    );
    let bytes = |inode| image_of(&analysis, inode).host_bytes.expect("recorded");
    assert_eq!((bytes(12).read, bytes(12).write), (4096, 0));
    assert_eq!((bytes(13).read, bytes(13).write), (0, 8192));
}

#[test]
fn direct_io_from_shared_memory_belongs_to_the_image_too() {
    // The first page is one of a memfd (0:1). The thread also has to read the file system's metadata, by the device's
    // own inode (0:5), and what is not its image's is not.
    let analysis = analyze(
        "100 read 0x5 0+4096 inode=12 of=7:0 tid=9
         101 Q b1 R 0+4096 inode=77 of=0:1 sub=2 tid=9
         102 Q b2 R 8192+4096 inode=7340032 of=0:5 sub=2 tid=9
         103 Q b3 R 65536+512 inode=77 of=0:1 sub=2 tid=9 dev=8:0
         104 Q b4 R 65536+512 inode=78 of=8:1 sub=2 tid=9
         200 exit tid=9 result=4096
         201 Q b5 R 16384+4096 inode=77 of=0:1 sub=2 tid=9",
    );
    let image = image_of(&analysis, 12);
    assert_eq!(image.host_bytes.expect("recorded").read, 4096);
    assert_eq!(image.file_io.expect("recorded").buffered_fallback, 0);
}

#[test]
fn a_loop_device_over_a_block_device_uses_it() {
    const SDA: u32 = 8 << 20;
    let mut manifest = stack::manifest();
    let file = manifest.topology.devices[0].loop_file.as_mut();
    let file = file.expect("a loop device");
    file.is_block_device = true;
    (file.inode, file.dev) = (u64::from(SDA), SDA);
    // By direct I/O, and written back; a file of that inode number is another one.
    let events = notation::events(
        "100 Q b1 W 0+4096 inode=8388608 of=0:5 sub=1 dev=8:0 tid=50
         101 G b1 dev=8:0
         102 D r1 W 0+4096 rel=b1 dev=8:0
         110 C r1 W 0+4096 dev=8:0
         200 Q b2 W 8192+8192 inode=8388608 of=0:5 sub=2 dev=8:0 tid=51
         201 G b2 dev=8:0
         202 D r2 W 8192+8192 rel=b2 dev=8:0
         210 C r2 W 8192+8192 dev=8:0
         300 Q b3 W 32768+512 inode=8388608 of=8:1 sub=1 dev=8:0 tid=52
         301 G b3 dev=8:0
         302 D r3 W 32768+512 rel=b3 dev=8:0
         310 C r3 W 32768+512 dev=8:0",
    );
    let analysis = Analyzer::analyze(&manifest, Options::default(), events);
    let users = analysis.devices[0].users.as_ref().expect("full");
    let mut users: Vec<_> = users.iter().map(|user| (user.kind, user.bytes)).collect();
    users.sort_unstable();
    assert_eq!(users, [(UserKind::Loop, 12288), (UserKind::Process, 512)]);
}

#[test]
fn a_bio_that_was_given_back_at_once_counts_for_nothing() {
    // As io_uring does it: first without waiting, then again by a worker. 12 is BLK_STS_AGAIN.
    let analysis = analyze(
        "100 Q b1 Rn 0+8192 inode=12 of=7:0 sub=1
         101 BC b1 Rn 0+8192 aux=12
         200 Q b1 R 0+8192 inode=12 of=7:0 sub=1 tid=101
         201 G b1
         202 D r1 R 0+8192 rel=b1
         300 C r1 R 0+8192",
    );
    let device = &analysis.devices[0];
    let check = device.check.expect("full");
    assert_eq!(
        (check.refused, check.queued, check.get_requests, check.ended),
        (1, 1, 1, 1)
    );
    assert_eq!(
        (device.counts.queued, device.counts.completed),
        (Some(1), 1)
    );
    assert_eq!(device.bytes.read, 8192);
    let image = image_of(&analysis, 12).host_bytes.expect("recorded");
    assert_eq!((image.read, image.write), (8192, 0));
}

#[test]
fn a_bio_that_may_wait_and_fails_early_is_one_that_ended() {
    // 10 is BLK_STS_IOERR: the device is going away. It is not queued again.
    let analysis = analyze(
        "100 Q b1 R 0+8192 inode=12 of=7:0 sub=1
         101 BC b1 R 0+8192 aux=10
         200 Q b2 R 0+4096 inode=12 of=7:0 sub=1
         201 G b2
         202 D r2 R 0+4096 rel=b2
         300 C r2 R 0+4096",
    );
    let device = &analysis.devices[0];
    let check = device.check.expect("full");
    assert_eq!((check.refused, check.queued, check.ended), (0, 2, 2));
    assert_eq!(
        (device.counts.queued, device.counts.completed),
        (Some(2), 1),
        "it never was a request"
    );
    assert_eq!(device.bytes.read, 4096);
    let d2c = device.latency_ns.all.d2c.expect("a device with requests");
    assert_eq!((d2c.n, d2c.mean), (1, Some(98)));
}
