//! The layers above the block layer: QEMU's accounting, file I/O, images, the verdict.

mod notation;

use nestrace_analyzer::analysis::{Image, QemuDisk, ReadWrite};
use nestrace_analyzer::{Analysis, Analyzer, Options};
use nestrace_trace::manifest::{self, Backend, Device, Disk, Guest, Manifest, Topology};

const LOOP0: u32 = 7 << 20;

fn image(path: &str, inode: u64) -> manifest::Image {
    manifest::Image {
        path: path.into(),
        format: "raw".into(),
        inode,
        dev: LOOP0,
        direct: Some(true),
        devices: vec!["loop0".into()],
        ..Default::default()
    }
}

fn disk(name: &str, bus: &str, inode: u64) -> Disk {
    Disk {
        name: name.into(),
        bus: bus.into(),
        images: vec![image(&format!("/img/{name}.raw"), inode)],
        ..Default::default()
    }
}

/// Two guests: vm1 with a virtio-blk disk (inode 12) and a SCSI disk (inode 13), vm2 with inode 14.
fn manifest() -> Manifest {
    let vm1 = Guest {
        name: "vm1".into(),
        pid: 1000,
        disks: vec![disk("vd", "virtio-blk", 12), disk("sd", "virtio-scsi", 13)],
        backends: vec![
            Backend { address: 0x10000, disk: 0, proof: "node name".into() },
            Backend { address: 0x20000, disk: 1, proof: "node name".into() },
        ],
        ..Default::default()
    };
    let vm2 = Guest { name: "vm2".into(), pid: 2000, disks: vec![disk("vd", "virtio-blk", 14)], ..Default::default() };
    Manifest {
        topology: Topology {
            guests: vec![vm1, vm2],
            devices: vec![
                Device {
                    name: "loop0".into(),
                    dev: LOOP0,
                    kind: "loop".into(),
                    loop_file: Some(manifest::Image { inode: 99, dev: 8 << 20, ..Default::default() }),
                    ..Default::default()
                },
                Device { name: "sda".into(), dev: 8 << 20, kind: "disk".into(), ..Default::default() },
            ],
        },
        ..Default::default()
    }
}

fn analyze(text: &str) -> Analysis {
    Analyzer::analyze(&manifest(), Options::default(), notation::events(text))
}

fn qemu(analysis: &Analysis, name: &str) -> QemuDisk {
    let named = |disk: &&QemuDisk| format!("{}/{}", disk.guest, disk.disk.as_deref().unwrap_or("?")) == name;
    analysis.qemu.iter().find(named).cloned().unwrap_or_else(|| panic!("no {name}: {:?}", analysis.qemu))
}

fn image_of(analysis: &Analysis, inode: u64) -> Image {
    analysis.images.iter().find(|image| image.inode == inode).cloned().expect("image")
}

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
    assert_eq!((vd.reads, vd.writes, vd.flushes, vd.discards, vd.failed), (1, 0, 1, 0, 1));
    assert_eq!((vd.bytes.read, vd.bytes.write), (4096, 0));
    assert_eq!((vd.latency_ns.read.mean, vd.latency_ns.flush.mean), (Some(100), Some(20)));
    let sd = qemu(&analysis, "vm1/sd");
    assert_eq!((sd.discards, sd.bytes.discard, sd.invalid, sd.unlinked, sd.writes), (1, 65536, 1, 1, 0));
    assert_eq!(sd.merged, None, "blk_aio_* was not recorded");
    assert!(analysis.qemu.iter().all(|disk| disk.guest == "vm1"), "vm2 had no QEMU events");
}

#[test]
fn a_restarted_request_counts_once() {
    let analysis = analyze(
        "100 acct-write 0x9000d8 rel=0x10040 bytes=512
         150 acct-write 0x9000d8 rel=0x10040 bytes=512
         200 acct-done 0x9000d8 rel=0x10040",
    );
    let vd = qemu(&analysis, "vm1/vd");
    assert_eq!((vd.writes, vd.bytes.write, vd.latency_ns.write.mean), (1, 512, Some(50)));
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
    assert_eq!(vd.merged_by_type.map(|merged| (merged.read, merged.write)), Some((0, 2)));
    assert_eq!((vd.latency_ns.write.sum, vd.ended_by_push), (99 + 103 + 104, 3));
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
    assert_eq!((first.writes, first.reads, first.latency_ns.write.mean), (1, 0, Some(200)));
    assert_eq!((second.writes, second.reads, second.latency_ns.read.mean), (0, 1, Some(90)));
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
    // With two disks left nobody can tell.
    manifest.topology.guests[0].backends.clear();
    let analysis = Analyzer::analyze(&manifest, Options::default(), events);
    assert_eq!(qemu(&analysis, "vm1/?").writes, 2);
}

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
    assert_eq!((io.reads, io.writes, io.syncs, io.dsync, io.failed), (1, 1, 1, 1, 1));
    assert_eq!(io.bytes, ReadWrite { read: 4096, write: 512 }, "bytes are those that the call returned");
    assert_eq!((io.latency_ns.write.mean, io.latency_ns.sync.mean), (Some(20), Some(20)));
    assert_eq!(image_of(&analysis, 13).file_io.expect("recorded").reads, 0);
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
    assert_eq!((io.latency_ns.write.min, io.latency_ns.write.max), (Some(6), Some(99)));
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
    assert_eq!((io.reads, io.bytes.read, io.latency_ns.read.mean), (1, 8192, Some(199)));
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
    assert_eq!((io.reads, io.writes, io.syncs, io.dsync, io.failed), (1, 1, 0, 1, 1));
    assert_eq!(io.bytes, ReadWrite { read: 16384, write: 4096 });
}

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
    assert_eq!(image.host_bytes, Some(ReadWrite { read: 8192, write: 4096 }));
    assert_eq!(image.file_io, None, "file I/O was not recorded");
    let device = |name: &str| analysis.devices.iter().find(|device| device.name == name).expect("device");
    let users = |name: &str| -> Vec<(&str, String, u64)> {
        let users = device(name).users.as_ref().expect("full");
        let mut all: Vec<_> = users
            .iter()
            .map(|user| (user.kind, user.disk.clone().or(user.name.clone()).unwrap_or_default(), user.requests))
            .collect();
        all.sort();
        all
    };
    assert_eq!(
        users("loop0"),
        [("file_system", String::new(), 1), ("image", "vd".into(), 2), ("process", "fio".into(), 1)]
    );
    assert_eq!(users("sda"), [("image", "vd".into(), 1), ("loop", "loop0".into(), 1)]);
    let verdict = &analysis.verdict.devices.iter().find(|verdict| verdict.device == "loop0").expect("verdict");
    assert!((verdict.others_share - 0.25).abs() < 1e-9, "{verdict:?}");
    assert_eq!(verdict.largest_other.as_deref(), Some("fio"));
}

#[test]
fn o_direct_that_reached_the_device_as_pages() {
    let analysis = analyze(
        "100 Q b1 W 0+4096 inode=12 of=7:0 sub=2
         101 Q b2 W 4096+8192 inode=12 of=7:0 sub=1
         105 read 0x5 0+512 inode=12 of=7:0",
    );
    let io = image_of(&analysis, 12).file_io.expect("recorded");
    assert_eq!((io.buffered_fallback, io.buffered_fallback_bytes), (1, 4096));
}

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
    let [disk] = &analysis.verdict.disks[..] else { panic!("one disk: {:?}", analysis.verdict.disks) };
    assert_eq!((disk.guest.as_str(), disk.disk.as_str(), disk.requests), ("vm1", "vd", 1));
    assert_eq!((disk.qemu_ns, disk.qemu_own_ns), (300, 50));
    assert_eq!((disk.host_fs_ns, disk.host_queue_ns, disk.device_ns), (30, Some(20), Some(200)));
    assert_eq!((disk.host_ns, disk.host_at_least_ns, disk.serial), (250, 250, true));
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
    assert_eq!((disk.qemu_ns, disk.host_ns, disk.host_queue_ns, disk.device_ns), (110, 90, Some(20), Some(50)));
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
    assert_eq!((disk.host_ns, disk.device_ns, disk.host_fs_ns), (90, Some(65), 25));
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
    assert_eq!((disk.qemu_ns, disk.host_ns, disk.host_at_least_ns, disk.serial), (300, 300, 200, false));
    assert_eq!(disk.device_ns, None, "bios were not recorded");
}

#[test]
fn the_trace_tells_losses_and_state() {
    let mut manifest = manifest();
    manifest.start_mono_ns = 1000;
    manifest.start_unix_ns = 77;
    manifest.losses = vec![
        manifest::Loss { source: "block".into(), guest: None, events: 5 },
        manifest::Loss { source: "file".into(), guest: None, events: 0 },
        manifest::Loss { source: "walk".into(), guest: None, events: 2 },
    ];
    manifest.streams = vec![manifest::Stream { file: "host.arrows".into(), side: "host".into(), ..Default::default() }];
    let options = Options { path: "run.nest".into(), ..Options::default() };
    let events = notation::events("2000 Q b1 R 0+512\n3000 loss total=9 sub=0\n3000 loss total=4 sub=3");
    let trace = Analyzer::analyze(&manifest, options, events).trace;
    assert_eq!((trace.path.as_str(), trace.start_unix_ns, trace.duration_ns, trace.events), ("run.nest", 77, 1000, 3));
    assert_eq!((trace.lost, trace.truncated), (9 + 4, true), "walk counts no events; not closed");
    let losses: Vec<_> = trace.losses.iter().map(|loss| (loss.source.as_str(), loss.events)).collect();
    assert_eq!(losses, [("block", 9), ("walk", 2), ("qemu", 4)]);
    assert_eq!((trace.sources[0].name.as_str(), trace.sources[0].lost, trace.sources[0].events), ("host.arrows", 13, 3));
    manifest.state = manifest::State::Complete;
    manifest.end_mono_ns = 9000;
    let trace = Analyzer::analyze(&manifest, Options::default(), []).trace;
    assert_eq!((trace.duration_ns, trace.truncated), (8000, false));
}

#[test]
fn unknown_kinds_are_skipped_and_counted() {
    let event = nestrace_trace::Event { kind: 250, ..Default::default() };
    let trace = Analyzer::analyze(&manifest(), Options::default(), [event]).trace;
    assert_eq!((trace.events, trace.unknown_events), (1, 1));
}

#[test]
fn options_choose_guest_device_and_time() {
    let text = "1000 acct-read 0x1 rel=0x10040 bytes=512
         1010 acct-read 0x1 rel=0x10040 bytes=512 dev=1
         1100 Q b1 R 0+512
         1101 Q b1 R 0+512 dev=8:0
         2000 acct-done 0x1 rel=0x10040
         2000 acct-done 0x1 rel=0x10040 dev=1
         5000 Q b9 R 0+512";
    let options = Options {
        guest: Some("vm2".into()),
        device: Some("loop0".into()),
        to_ns: Some(3000),
        ..Options::default()
    };
    let analysis = Analyzer::analyze(&manifest(), options, notation::events(text));
    assert_eq!(analysis.qemu.iter().map(|disk| disk.guest.as_str()).collect::<Vec<_>>(), ["vm2"]);
    assert!(analysis.images.iter().all(|image| image.guest == "vm2"));
    let [device] = &analysis.devices[..] else { panic!("one device") };
    assert_eq!((device.name.as_str(), device.counts.queued), ("loop0", Some(1)));
}
