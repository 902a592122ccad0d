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

/// The last C names its bio: a lost one is its own bio's loss, and no later flush gets the end of the next one.
#[test]
fn flushes_that_are_named_end_by_name() {
    let device = device(
        "100 Q b1 Wf 0+0
         101 G b1
         110 Q b2 Wf 0+0
         111 G b2
         120 Q b3 Wf 0+0
         121 G b3
         130 D fl F
         200 C fl Fs
         # That of b1 is missing; of the others the younger one ends first.
         210 C r3 Wf 0+0 origin=b3
         230 C r2 Wf 0+0 origin=b2
         300 Q b4 Wf 0+0
         301 G b4
         302 D fl F
         330 C fl Fs
         340 C r4 Wf 0+0 origin=b4",
    );
    let check = device.check.expect("full");
    assert_eq!((check.empty_flushes, check.empty_flushes_ended), (4, 3));
    let flush = device.latency_ns.flush.expect("recorded");
    assert_eq!(
        (flush.min, flush.mean, flush.max),
        (Some(40), Some((90 + 120 + 40) / 3), Some(120))
    );
}

/// A C that names a bio that was never queued, or a flush that has ended, ends no other one.
#[test]
fn a_name_that_is_not_known_ends_no_flush() {
    let device = device(
        "100 Q b1 Wf 0+0
         101 G b1
         130 D fl F
         200 C fl Fs
         205 C r9 Wf 0+0 origin=b9
         210 C r1 Wf 0+0 origin=b1
         220 C r1 Wf 0+0 origin=b1
         230 Q b2 Wf 0+0",
    );
    let check = device.check.expect("full");
    assert_eq!((check.empty_flushes, check.empty_flushes_ended), (2, 1));
    assert_eq!(n_mean(device.latency_ns.flush), (1, Some(110)));
    let unlinked: u64 = device.unlinked.values().sum();
    assert_eq!(unlinked, 2);
}

/// The last C of a flush sequence is lost, and its request's address serves a flush without data next: the name
/// tells them apart, wherever either lies.
#[test]
fn a_named_end_is_not_that_of_the_sequence_before() {
    for end in ["0+0", "4096+0"] {
        let device = device(&format!(
            "100 Q b1 Wfu 0+4096
             101 G b1
             102 D fl F
             200 C fl Fs
             210 D r1 Wsfu 0+4096 rel=b1
             260 C r1 Wsfu 0+4096
             # Missing: C r1 Wfu 0+0 origin=b1
             300 Q b2 Wf 0+0
             301 G b2
             302 D fl F
             400 C fl Fs
             401 C r1 Wf {end} origin=b2"
        ));
        let check = device.check.expect("full");
        assert_eq!(
            (check.empty_flushes_ended, check.missed.completed),
            (1, 1),
            "{end}"
        );
        assert_eq!(n_mean(device.latency_ns.flush), (1, Some(101)), "{end}");
    }
}
