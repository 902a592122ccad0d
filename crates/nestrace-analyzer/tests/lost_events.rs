//! Events whose partners are missing: lost, before the start, after the end.

mod notation;
mod one_device;

use one_device::{device, n_mean};

#[test]
fn a_lost_q_leaves_d2c() {
    // Long after the start, and no loss was reported: no match.
    let text = "1 Q b1 R 0+512
         2 G b1
         3 D r1 R 0+512 rel=b1
         4 C r1 R 0+512
         20000000000 G b2
         20000000010 D r2 R 512+512 rel=b2
         20000000050 C r2 R 512+512";
    let no_match = device(text);
    assert_eq!(
        no_match.unlinked.into_iter().collect::<Vec<_>>(),
        [("no_match", 2)]
    );
    let all = no_match.latency_ns.all;
    assert_eq!((n_mean(all.q2c).0, n_mean(all.d2c).0), (1, 2));
    assert_eq!((no_match.counts.completed, no_match.bytes.read), (2, 1024));
    let lost = device(&format!("5 loss total=3 sub=0\n{text}"));
    assert_eq!(
        lost.unlinked.into_iter().collect::<Vec<_>>(),
        [("lost_events", 2)]
    );
}

#[test]
fn in_flight_at_the_start() {
    let device = device(
        "100 C r0 W 0+4096
         110 D r1 R 0+512 rel=b2
         150 C r1 R 0+512",
    );
    assert_eq!(
        device.unlinked.iter().collect::<Vec<_>>(),
        [(&"before_start", &2)]
    );
    assert_eq!((device.counts.completed, device.bytes.write), (2, 4096));
    assert_eq!(n_mean(device.latency_ns.all.d2c), (1, Some(40)));
}

#[test]
fn in_flight_at_the_end() {
    let check = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 Q b2 W 0+4096
         103 D r1 W 0+4096 rel=b1",
    )
    .check
    .expect("full");
    assert_eq!((check.open_at_end, check.ended), (2, 0));
}

#[test]
fn a_lost_completion_is_seen_at_the_reuse() {
    let check = device(
        "100 Q b1 W 0+4096
         101 G b1
         103 D r1 W 0+4096 rel=b1
         200 Q b1 W 4096+4096
         201 G b1
         202 D r1 W 4096+4096 rel=b1
         300 C r1 W 4096+4096",
    )
    .check
    .expect("full");
    assert_eq!(
        (
            check.reused_while_live,
            check.reissued_while_live,
            check.ended
        ),
        (1, 0, 1)
    );
    assert_eq!(
        (
            check.ended_twice,
            check.generations,
            check.completions_missed
        ),
        (0, 2, 1)
    );
    let missed = check.missed;
    assert_eq!(
        (missed.completed, missed.discards, missed.bytes.write),
        (1, 0, 4096)
    );
}

#[test]
fn two_requests_with_one_bio_end_it_twice() {
    let check = device(
        "100 Q b1 W 0+4096
         101 G b1
         103 D r1 W 0+4096 rel=b1
         104 D r2 W 0+4096 rel=b1
         200 C r1 W 0+4096
         300 C r2 W 0+4096",
    )
    .check
    .expect("full");
    assert_eq!(
        (check.ended, check.ended_twice, check.walked_at_issue),
        (1, 1, 1)
    );
}

#[test]
fn a_request_with_a_lost_completion_does_not_stay_at_the_device() {
    // Its address serves a zero-length flush next, whose end has 0 bytes and is not the data's.
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 D r1 W 0+4096 rel=b1
         200 Q b2 Wf 0+0
         201 G b2
         210 C r1 Wf 0+0
         300 Q b1 R 0+512
         301 G b1
         302 D r2 R 0+512 rel=b1
         303 C r2 R 0+512",
    );
    let check = device.check.expect("full");
    assert_eq!(
        (check.completions_missed, check.empty_flushes_ended),
        (1, 1)
    );
    assert_eq!(
        (check.missed.completed, check.missed.bytes.write),
        (1, 4096)
    );
    assert_eq!(
        (
            device.counts.completed,
            check.reused_while_live,
            device.queue_depth.max
        ),
        (1, 1, 1)
    );
    assert_eq!(device.latency_ns.all.d2c.expect("full").max, Some(1));
}
