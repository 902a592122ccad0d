//! The block layer: tiny lists of events and what follows from them.

use crate::notation;
use crate::one_device;

use nestrace_analyzer::analysis::UnlinkedReason;
use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::Manifest;
use nestrace_trace::manifest::{self, Topology};

use one_device::{analyze, conserved, device, n_mean, parts_sum};

#[test]
fn a_read_without_scheduler() {
    let device = device(
        "100 Q b1 R 4096+8192
         110 G b1
         130 D r1 R 4096+8192 rel=b1
         500 C r1 R 4096+8192",
    );
    conserved(&device);
    parts_sum(&device);
    assert_eq!(device.dev, "7:0");
    assert_eq!(device.name, "7:0");
    let counts = device.counts;
    assert_eq!(
        (
            counts.queued,
            counts.issued,
            counts.completed,
            counts.flushes
        ),
        (Some(1), 1, 1, 0)
    );
    assert_eq!(device.bytes.read, 8192);
    let all = device.latency_ns.all;
    assert_eq!(n_mean(all.q2g), (1, Some(10)));
    assert_eq!(n_mean(all.g2d), (1, Some(20)));
    assert_eq!(n_mean(all.d2c), (1, Some(370)));
    assert_eq!(n_mean(all.q2c), (1, Some(400)));
    assert_eq!(n_mean(all.g2i), (0, None));
    assert_eq!(device.latency_ns.by_op.read, all);
    assert_eq!(n_mean(device.latency_ns.by_op.write.q2c), (0, None));
    assert_eq!(device.queue_depth.max, 1);
    assert!((device.queue_depth.mean - 370.0 / 400.0).abs() < 1e-9);
}

#[test]
fn a_write_with_scheduler() {
    let device = device(
        "100 Q b1 W 0+4096
         110 G b1
         150 I r1 W 0+4096
         180 D r1 Wmr 0+4096 rel=b1
         500 C r1 W 0+4096",
    );
    conserved(&device);
    parts_sum(&device);
    let all = device.latency_ns.all;
    assert_eq!(
        (n_mean(all.g2i), n_mean(all.i2d)),
        ((1, Some(40)), (1, Some(30)))
    );
    assert_eq!(n_mean(all.g2d).0, 0);
    assert_eq!((device.counts.meta, device.counts.readahead), (1, 1));
}

#[test]
fn merges_at_both_ends() {
    let device = device(
        "100 Q b2 W 4096+4096
         110 G b2
         120 Q b3 W 8192+4096
         125 M b3
         130 Q b1 W 0+4096
         138 F b1
         150 D r1 W 0+12288 rel=b1 links=b2,b3
         400 C r1 W 0+12288",
    );
    let check = conserved(&device);
    parts_sum(&device);
    assert_eq!(
        (check.back_merges, check.front_merges, check.get_requests),
        (1, 1, 1)
    );
    let counts = device.counts;
    assert_eq!(
        (counts.queued, counts.issued, counts.completed),
        (Some(3), 1, 1)
    );
    assert_eq!(
        (counts.back_merges, counts.front_merges),
        (Some(1), Some(1))
    );
    assert_eq!(device.bytes.write, 12288);
    let all = device.latency_ns.all;
    assert_eq!(
        (n_mean(all.q2m), n_mean(all.m2d)),
        ((2, Some(7)), (2, Some(19)))
    );
    assert_eq!(n_mean(all.d2c), (3, Some(250)));
    assert_eq!(n_mean(device.latency_ns.q2q), (2, Some(15)));
}

#[test]
fn more_than_three_links() {
    let device = device(
        "1 Q b1 W 0+512
         2 G b1
         3 Q b2 W 512+512
         4 M b2
         5 Q b3 W 1024+512
         6 M b3
         7 Q b4 W 1536+512
         8 M b4
         9 Q b5 W 2048+512
         10 M b5
         20 D r1 W 0+2560 rel=b1 links=b2,b3,b4,b5
         40 C r1 W 0+2560",
    );
    assert_eq!(conserved(&device).walked_at_issue, 5);
}

#[test]
fn a_split_ends_with_its_last_fragment() {
    // The parent keeps the tail and gets no second Q; the tail completes first.
    let device = device(
        "100 Q b1 R 0+12288
         102 X f1 R 0+4096 rel=b1
         104 G f1
         106 X f2 R 4096+4096 rel=b1
         108 G f2
         110 G b1
         120 D r1 R 0+4096 rel=f1
         122 D r2 R 4096+4096 rel=f2
         124 D r3 R 8192+4096 rel=b1
         300 C r3 R 8192+4096
         310 C r1 R 0+4096
         350 C r2 R 4096+4096",
    );
    let check = conserved(&device);
    assert_eq!((check.queued, check.splits, check.generations), (1, 2, 3));
    let all = device.latency_ns.all;
    assert_eq!(
        n_mean(all.q2g),
        (3, Some((4 + 8 + 10 + 1) / 3)),
        "one for each fragment"
    );
    assert_eq!(n_mean(all.q2c), (1, Some(250)), "one for the bio");
    assert_eq!(
        (n_mean(all.g2d), n_mean(all.d2c)),
        ((1, Some(14)), (1, Some(228))),
        "of its last fragment"
    );
    assert_eq!(
        (
            device.counts.queued,
            device.counts.completed,
            device.counts.splits
        ),
        (Some(1), 3, Some(2))
    );
    assert_eq!(device.bytes.read, 12288);
}

#[test]
fn a_requeue_walks_its_bios_once() {
    let device = device(
        "100 Q b1 R 0+4096
         110 G b1
         115 I r1 R 0+4096
         120 D r1 R 0+4096 rel=b1
         140 RQ r1 R 0+4096
         150 I r1 R 0+4096
         160 D r1 R 0+4096 rel=b1
         200 C r1 R 0+4096",
    );
    conserved(&device);
    parts_sum(&device);
    let counts = device.counts;
    assert_eq!(
        (counts.issued, counts.completed, counts.requeues),
        (2, 1, Some(1))
    );
    let all = device.latency_ns.all;
    assert_eq!(
        (n_mean(all.i2d), n_mean(all.d2c)),
        ((1, Some(45)), (1, Some(40))),
        "the last D counts"
    );
    assert_eq!(device.queue_depth.max, 1);
    assert!(
        (device.queue_depth.mean - 0.6).abs() < 1e-9,
        "not while it was put back"
    );
}

#[test]
fn partial_completions_end_the_bios_they_cover() {
    // b1 ends with the first C and its address lives again before the request is done.
    let device = device(
        "100 Q b1 R 0+4096
         101 G b1
         102 Q b2 R 4096+4096
         103 M b2
         110 D r1 R 0+8192 rel=b1 links=b2
         200 C r1 R 0+4096 left=0x1000
         210 Q b1 R 65536+4096
         211 G b1
         212 D r2 R 65536+4096 rel=b1
         300 C r1 R 4096+4096
         400 C r2 R 65536+4096",
    );
    conserved(&device);
    assert_eq!((device.counts.completed, device.bytes.read), (2, 12288));
    let q2c = device.latency_ns.all.q2c.expect("recorded");
    assert_eq!((q2c.n, q2c.min, q2c.max), (3, Some(100), Some(198)));
}

#[test]
fn a_partial_completion_before_a_requeue() {
    let device = device(
        "100 Q b1 R 0+8192
         101 G b1
         102 Q b2 R 8192+4096
         103 M b2
         110 D r1 R 0+12288 rel=b1 links=b2
         120 C r1 R 0+4096 left=0x2000
         130 RQ r1 R 4096+8192
         140 D r1 R 4096+8192 rel=b1 links=b2
         150 C r1 R 4096+4096 left=0x1000
         151 Q b1 R 0+512
         152 G b1
         153 D r2 R 0+512 rel=b1
         160 C r1 R 8192+4096
         170 C r2 R 0+512",
    );
    conserved(&device);
    assert_eq!(device.bytes.read, 12800);
}

#[test]
fn discards_merge_without_a_trace() {
    let device = device(
        "100 Q b1 D 0+4096
         101 G b1
         102 Q b2 D 65536+4096
         110 D r1 D 0+8192 rel=b1 links=b2
         200 C r1 D 0+8192",
    );
    let check = conserved(&device);
    assert_eq!(check.untraced_merges, 1);
    let counts = device.counts;
    assert_eq!(
        (counts.discards, counts.completed, counts.back_merges),
        (1, 1, Some(1))
    );
    assert_eq!((device.bytes.discard, device.bytes.write), (8192, 0));
    assert_eq!(n_mean(device.latency_ns.by_op.discard.q2c).0, 2);
}

#[test]
fn driver_commands_are_no_io() {
    let analysis = analyze(
        "100 D r1 O 0+4096
         200 C r1 O 0+4096",
    );
    assert!(analysis.devices.is_empty());
}

#[test]
fn request_merge_keeps_every_bio() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 I r1 W 0+4096
         103 Q b2 W 4096+4096
         104 G b2
         105 RM r2 W 4096+4096
         110 D r1 W 0+8192 rel=b1 links=b2
         200 C r1 W 0+8192",
    );
    conserved(&device);
    parts_sum(&device);
    assert_eq!(
        (device.counts.request_merges, device.counts.completed),
        (Some(1), 1)
    );
    assert_eq!(
        n_mean(device.latency_ns.all.g2i).0,
        1,
        "b2 came after the insert"
    );
}

#[test]
fn light_recordings_know_requests_only() {
    let device = device(
        "200 RD r1 R 0+4096 issued=100
         240 RD r2 W 4096+4096 issued=140
         250 RD fl F issued=241
         300 RD r3 Wsfu 8192+512 issued=260
         301 RD r3 Wfu 0+0 issued=0
         302 RD r4 Wf 0+0 issued=0
         400 RD r5 D 0+65536 issued=310",
    );
    let counts = device.counts;
    assert_eq!(
        (counts.issued, counts.completed, counts.discards),
        (4, 4, 1)
    );
    assert_eq!((counts.flushes, counts.device_flushes), (1, 1));
    assert_eq!(
        (counts.queued, counts.back_merges, counts.splits),
        (None, None, None)
    );
    assert_eq!(
        (device.bytes.read, device.bytes.write, device.bytes.discard),
        (4096, 4608, 65536)
    );
    let latency = device.latency_ns;
    assert_eq!(
        (latency.all.q2c, latency.all.q2g, latency.q2q, latency.flush),
        (None, None, None, None)
    );
    assert_eq!(
        n_mean(latency.all.d2c),
        (4, Some((100 + 100 + 40 + 90 + 2) / 4))
    );
    assert_eq!(device.queue_depth.max, 2);
    assert!(device.check.is_none() && device.users.is_none());
}

#[test]
fn a_light_request_from_before_the_start_has_no_latency() {
    let device = device("1 RD r2 R 0+512 issued=1\n200 RD r1 R 0+4096 issued=0");
    assert_eq!((device.counts.completed, device.bytes.read), (2, 4608));
    assert_eq!(device.latency_ns.all.d2c.map(|dist| dist.n), Some(1));
    assert_eq!(
        device.unlinked.into_iter().collect::<Vec<_>>(),
        [(UnlinkedReason::BeforeStart, 1)]
    );
}

#[test]
fn devices_are_sorted_by_bytes_and_named() {
    let mut manifest = Manifest::default();
    manifest.topology = Topology {
        devices: vec![manifest::Device {
            name: "vda".into(),
            dev: 254 << 20,
            scheduler: "none".into(),
            ..Default::default()
        }],
        ..Default::default()
    };

    let events = notation::events(
        "2 RD r1 R 0+4096 issued=1
         3 RD r1 R 0+8192 issued=1 dev=254:0
         4 RQ r7 R 0+8192 dev=8:0",
    );
    let analysis = Analyzer::analyze(&manifest, Options::default(), events);
    let names: Vec<&str> = analysis
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    assert_eq!(names, ["vda", "7:0"], "8:0 had no I/O");
    assert_eq!(analysis.devices[0].scheduler.as_deref(), Some("none"));
}
