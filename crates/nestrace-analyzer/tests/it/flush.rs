//! Flushes: the kernel's sequence of requests for one bio, and flushes without data.

use crate::one_device;

use one_device::{conserved, device, n_mean, parts_sum};

#[test]
fn a_journal_commit_on_a_device_without_fua() {
    // Flush, data with FLUSH_SEQ, flush, and a last C of nothing.
    let device = device(
        "100 Q b1 Wfu 0+4096
         101 G b1
         102 D fl F
         200 C fl Fs
         210 D r1 Wsfu 0+4096 rel=b1
         260 C r1 Wsfu 0+4096
         262 D fl F
         300 C fl Fs
         301 C r1 Wfu 0+0",
    );
    conserved(&device);
    parts_sum(&device);
    let counts = device.counts;
    assert_eq!(
        (counts.queued, counts.issued, counts.completed),
        (Some(1), 1, 1)
    );
    assert_eq!((counts.flushes, counts.device_flushes), (0, 2));
    assert_eq!(device.bytes.write, 4096);
    assert_eq!(
        n_mean(device.latency_ns.all.q2c),
        (1, Some(160)),
        "zero-length events never enter"
    );
    assert_eq!(
        n_mean(device.latency_ns.flush_d2c),
        (2, Some((98 + 38) / 2))
    );
    assert_eq!(device.queue_depth.max, 1);
}

#[test]
fn an_empty_flush() {
    let device = device(
        "100 Q b1 Wf 0+0
         101 G b1
         102 D fl F
         200 C fl Fs
         201 C r1 Wf 0+0",
    );
    conserved(&device);
    let counts = device.counts;
    assert_eq!(
        (
            counts.queued,
            counts.completed,
            counts.flushes,
            counts.device_flushes
        ),
        (Some(0), 0, 1, 1)
    );
    assert_eq!(n_mean(device.latency_ns.flush), (1, Some(101)));
    assert_eq!(n_mean(device.latency_ns.all.q2c), (0, None));
}

#[test]
fn a_flush_that_the_driver_puts_back_is_one() {
    let device = device(
        "100 Q b1 Wf 0+0
         101 G b1
         102 D fl F
         110 RQ fl F
         150 D fl F
         200 C fl Fs
         201 C r1 Wf 0+0",
    );
    conserved(&device);
    let counts = device.counts;
    assert_eq!(
        (counts.flushes, counts.device_flushes, counts.requeues),
        (1, 1, Some(1))
    );
    assert_eq!(n_mean(device.latency_ns.flush_d2c), (1, Some(50)));
}

#[test]
fn empty_flushes_at_a_reused_address_are_no_confusion() {
    // On-stack bios: the same address again, while an older flush still waits in the order.
    let device = device(
        "100 Q s1 Wf 0+0
         101 G s1
         110 Q s2 Wf 0+0
         111 G s2
         112 D fl F
         200 C fl Fs
         201 C r2 Wf 0+0
         202 Q s2 W 0+512
         203 G s2
         204 D r9 W 0+512 rel=s2
         205 C r1 Wf 0+0
         300 C r9 W 0+512",
    );
    conserved(&device);
    assert_eq!((device.counts.flushes, device.counts.completed), (2, 1));
    assert_eq!(
        n_mean(device.latency_ns.flush),
        (2, Some((101 + 95) / 2)),
        "count and mean are exact"
    );
}
