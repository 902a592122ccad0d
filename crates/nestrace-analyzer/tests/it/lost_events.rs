//! Events whose partners are missing: lost, before the start, after the end.

use crate::notation;
use crate::one_device;
use nestrace_analyzer::analysis::UnlinkedReason;

use nestrace_analyzer::{BlockAnalyzer, BlockOptions};
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
        [(UnlinkedReason::NoMatch, 2)]
    );
    let all = no_match.latency_ns.all;
    assert_eq!((n_mean(all.q2c).0, n_mean(all.d2c).0), (1, 2));
    assert_eq!((no_match.counts.completed, no_match.bytes.read), (2, 1024));
    let lost = device(&format!("5 loss total=3 sub=0\n{text}"));
    assert_eq!(
        lost.unlinked.into_iter().collect::<Vec<_>>(),
        [(UnlinkedReason::LostEvents, 2)]
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
        [(&UnlinkedReason::BeforeStart, &2)]
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

#[test]
fn a_completion_elsewhere_is_that_of_another_request() {
    // C of the first and D of the second, at the same address, were lost.
    let device = device(
        "100 Q b1 R 0+4096
         101 G b1
         102 D r1 R 0+4096 rel=b1
         5000000 C r1 R 8192+512
         6000000 Q b2 R 0+512
         6000001 G b2
         6000002 D r1 R 0+512 rel=b2
         6000003 C r1 R 0+512",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.open_at_end), (1, 1));
    assert_eq!((check.missed.completed, check.missed.bytes.read), (1, 4096));
    assert_eq!((device.counts.completed, device.bytes.read), (2, 1024));
    assert_eq!(device.unlinked.values().sum::<u64>(), 1);
    let all = device.latency_ns.all;
    assert_eq!(
        (n_mean(all.d2c), n_mean(all.q2c)),
        ((1, Some(1)), (1, Some(3)))
    );
}

#[test]
fn a_request_with_a_lost_completion_is_not_what_merges_at_its_address() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 D r1 W 0+4096 rel=b1
         200 Q b2 W 8192+4096
         201 G b2
         202 I r2 W 8192+4096
         203 Q b3 W 12288+4096
         204 G b3
         205 RM r1 W 12288+4096
         206 D r2 W 8192+8192 rel=b2 links=b3
         300 C r2 W 8192+8192
         400 Q b1 R 0+512",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 1));
    assert_eq!(check.missed.bytes.write, 4096);
    assert_eq!((check.reused_while_live, check.ended), (1, 2));
    assert_eq!(
        (device.counts.request_merges, device.queue_depth.max),
        (Some(1), 1)
    );
}

#[test]
fn a_flush_is_not_the_end_of_data() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 D r1 W 0+4096 rel=b1
         900 C r1 F 0+0",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 1));
    assert_eq!(device.latency_ns.flush_d2c.map_or(0, |dist| dist.n), 0);
}

/// The data of a flush sequence came, and the C that counts was not seen.
fn lost_end_of_a_sequence(next: &str) -> nestrace_analyzer::analysis::Device {
    device(&format!(
        "100 Q b1 Wf 0+4096
         101 G b1
         102 D r1 Ws 0+4096 rel=b1
         200 C r1 Ws 0+4096
         {next}"
    ))
}

#[test]
fn a_lost_end_of_a_flush_sequence_is_seen_at_the_reuse() {
    let of_its_bio = "300 Q b1 R 0+512
         301 G b1
         302 D r2 R 0+512 rel=b1
         303 C r2 R 0+512";
    let at_issue = "300 Q b2 R 0+512
         301 G b2
         302 D r1 R 0+512 rel=b2
         303 C r1 R 0+512";
    let at_completion = "303 C r1 R 0+512";
    for next in [of_its_bio, at_issue, at_completion] {
        let device = lost_end_of_a_sequence(next);
        let check = device.check.expect("full");
        assert_eq!(
            (check.completions_missed, check.missed.completed),
            (1, 1),
            "{next}"
        );
        assert_eq!(check.missed.bytes.write, 0, "{next}");
        assert_eq!(
            (device.counts.completed, device.bytes.write),
            (1, 4096),
            "{next}"
        );
    }
}

#[test]
fn a_request_in_parts_completes_where_the_last_part_ended() {
    let device = device(
        "100 Q b1 W 4096+4096
         101 G b1
         102 Q b2 W 8192+4096
         103 M b2
         104 D r1 W 4096+8192 rel=b1 links=b2
         200 C r1 W 4096+2048 left=6144
         300 RQ r1 W 6144+6144
         310 D r1 W 6144+6144 rel=b1 links=b2
         400 C r1 W 6144+2048 left=4096
         500 C r1 W 8192+4096",
    );
    let check = one_device::conserved(&device);
    assert_eq!((check.completions_missed, device.bytes.write), (0, 8192));
}

#[test]
fn the_block_layer_alone_forgets_what_was_in_flight() {
    let text = "100 Q b1 R 0+4096
         101 G b1
         110 D r1 R 0+4096 rel=b1
         130 loss total=1 sub=0
         900 C r1 R 0+4096
         1000 Q b2 R 0+512";
    let mut analyzer = BlockAnalyzer::new(BlockOptions::default());
    for event in notation::events(text) {
        analyzer.push(&event);
    }
    let analysis = analyzer.finish();
    let device = &analysis.devices[0].device;
    assert_eq!(device.queue_depth.busy_ns, 130 - 110);
    assert_eq!(
        (device.counts.completed, n_mean(device.latency_ns.all.d2c).0),
        (1, 0)
    );
}

#[test]
fn what_is_put_back_elsewhere_is_another_request() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 D r1 W 0+4096 rel=b1
         # C r1
         300 Q b2 W 8192+4096
         301 G b2
         302 I r1 W 8192+4096
         303 RQ r1 W 8192+4096
         310 D r1 W 8192+4096 rel=b2
         400 C r1 W 8192+4096",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 1));
    assert_eq!(check.missed.bytes.write, 4096);
    let all = device.latency_ns.all;
    assert_eq!(n_mean(all.d2c), (1, Some(90)));
    assert_eq!(
        (n_mean(all.g2i), n_mean(all.i2d)),
        ((1, Some(1)), (1, Some(8)))
    );
    assert_eq!((device.counts.issued, device.queue_depth.max), (2, 1));
}

#[test]
fn an_insert_elsewhere_is_that_of_another_request() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 D r1 W 0+4096 rel=b1
         # C r1
         300 Q b2 W 8192+4096
         301 G b2
         302 I r1 W 8192+4096
         310 D r1 W 8192+4096 rel=b2
         400 C r1 W 8192+4096",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 1));
    let all = device.latency_ns.all;
    assert_eq!((n_mean(all.i2d), n_mean(all.g2d).0), ((1, Some(8)), 0));
}

#[test]
fn a_lost_merge_of_what_was_put_back_leaves_its_address_to_another() {
    let device = device(
        "100 Q b1 W 4096+4096
         101 G b1
         102 D r1 W 4096+4096 rel=b1
         110 RQ r1 W 4096+4096
         111 Q b2 W 0+4096
         112 G b2
         113 I r2 W 0+4096
         # RM r1
         120 D r2 W 0+8192 rel=b2 links=b1
         130 C r2 W 0+8192
         200 Q b3 W 65536+4096
         201 G b3
         210 D r1 W 65536+4096 rel=b3
         250 C r1 W 65536+4096",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.ended), (0, 3));
    assert_eq!(device.latency_ns.all.d2c.expect("full").n, 3);
}

/// Most bios that waited when another one was queued.
fn most_at_queue(text: &str) -> u64 {
    device(text).stats.expect("full").at_queue.max
}

#[test]
fn what_was_merged_or_issued_unseen_does_not_wait_for_ever() {
    let discard = "100 Q b1 D 0+4096
         101 G b1
         102 Q b2 D 65536+4096
         110 D r1 D 0+8192 rel=b1 links=b2
         200 C r1 D 0+8192\n";
    let lost_merge = "100 Q b1 W 0+4096
         101 G b1
         102 Q b2 W 4096+4096
         # M b2
         110 D r1 W 0+8192 rel=b1 links=b2
         200 C r1 W 0+8192\n";
    let lost_issue = "100 Q b1 W 0+4096
         101 G b1
         # D and C r1\n";
    assert_eq!(most_at_queue(&discard.repeat(9)), 1);
    assert_eq!(most_at_queue(&lost_merge.repeat(9)), 1);
    assert_eq!(most_at_queue(&lost_issue.repeat(9)), 1);
}

#[test]
fn what_is_issued_again_with_its_bio_was_put_back() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         110 D r1 W 0+4096 rel=b1
         # RQ r1
         150 D r1 W 0+4096 rel=b1
         200 C r1 W 0+4096",
    );
    let check = device.check.expect("full");
    assert_eq!((check.reissued_while_live, check.ended), (1, 1));
    assert_eq!((check.completions_missed, check.missed.completed), (0, 0));
    assert_eq!((check.missed.bytes.write, device.bytes.write), (0, 4096));
    assert_eq!((device.counts.completed, device.queue_depth.max), (1, 1));
}

#[test]
fn bytes_that_completed_are_not_missed() {
    let device = device(
        "100 Q b1 W 0+4096
         101 G b1
         102 Q b2 W 4096+4096
         103 M b2
         110 D r1 W 0+8192 rel=b1 links=b2
         150 C r1 W 0+4096 left=4096
         # C r1
         200 Q b3 W 65536+4096
         201 G b3
         210 D r1 W 65536+4096 rel=b3
         250 C r1 W 65536+4096",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 1));
    assert_eq!((check.missed.bytes.write, device.bytes.write), (4096, 8192));
}

#[test]
fn a_later_part_is_not_another_request() {
    let device = device(
        "100 Q b1 R 0+4096
         101 G b1
         102 Q b2 R 4096+4096
         103 M b2
         110 D r1 R 0+8192 rel=b1 links=b2
         # C r1 R 0+4096 left=4096
         200 C r1 R 4096+4096",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 0));
    assert_eq!((check.missed.bytes.read, device.bytes.read), (4096, 4096));
    assert_eq!((check.ended, check.open_at_end), (1, 1));
    assert_eq!((device.counts.completed, device.queue_depth.max), (1, 1));
    assert_eq!(n_mean(device.latency_ns.all.q2c), (1, Some(98)));
}

#[test]
fn a_lost_end_of_a_flush_sequence_is_not_that_of_an_empty_flush() {
    let device = lost_end_of_a_sequence_at_8192(
        "300 Q b2 Wf 0+0
         301 G b2
         310 C r1 Wf 0+0",
    );
    let check = device.check.expect("full");
    assert_eq!((check.completions_missed, check.missed.completed), (1, 1));
    assert_eq!(
        (check.missed.bytes.write, check.empty_flushes_ended),
        (0, 1)
    );
    assert_eq!(n_mean(device.latency_ns.flush), (1, Some(10)));
    assert_eq!(device.latency_ns.all.q2c.expect("full").n, 0);
}

#[test]
fn a_flush_sequence_ends_at_its_place_behind_it_or_nowhere() {
    for place in ["8192", "12288", "18446744073709551104"] {
        let device = lost_end_of_a_sequence_at_8192(&format!(
            "300 Q b2 Wf 0+0
             301 G b2
             310 C r1 Wf {place}+0"
        ));
        let check = device.check.expect("full");
        assert_eq!(
            (
                check.completions_missed,
                check.ended,
                device.counts.completed
            ),
            (0, 1, 1),
            "{place}"
        );
    }
}

fn lost_end_of_a_sequence_at_8192(next: &str) -> nestrace_analyzer::analysis::Device {
    device(&format!(
        "100 Q b1 Wf 8192+4096
         101 G b1
         102 D r1 Ws 8192+4096 rel=b1
         200 C r1 Ws 8192+4096
         # C r1 Wf 8192+0
         {next}"
    ))
}

#[test]
fn a_flush_whose_issue_was_lost_counts_once() {
    let lost = device("1 Q b1 R 0+512\n20000000000 C fl Fs");
    assert_eq!(lost.counts.device_flushes, 1);
    assert_eq!(lost.unlinked.get(&UnlinkedReason::NoMatch), Some(&1));
    let put_back = device("100 D fl F\n110 RQ fl F\n# D fl\n200 C fl Fs");
    assert_eq!(put_back.counts.device_flushes, 1);
    assert_eq!(put_back.unlinked.values().sum::<u64>(), 1);
}

#[test]
fn a_piece_without_an_end_leaves_its_bio_in_flight() {
    let device = device(
        "100 Q b1 W 0+8192
         101 X f1 W 0+4096 rel=b1
         102 G f1
         103 G b1
         110 D r1 W 0+4096 rel=f1
         # C r1
         200 Q f1 W 65536+4096
         210 Q b4 W 131072+4096",
    );
    let writes = device.stats.expect("full").histograms.all.write;
    // None, then b1, then b1 and what lives at f1 now.
    assert_eq!(writes.expect("writes").outstanding[..2], [2, 1]);
}

/// Busy and active time, the depth's maximum, and completions that were not seen.
fn at_device(text: &str) -> (u64, u64, u64, u64) {
    let device = device(text);
    let depth = device.queue_depth;
    let stats = device.stats.expect("full");
    let missed = device.check.expect("full").completions_missed;
    (depth.busy_ns, stats.active.active_ns, depth.max, missed)
}

#[test]
fn a_request_whose_completion_was_lost_is_not_at_the_device_for_ever() {
    let lost = "1 Q b1 R 0+512
         2 G b1
         3 D r1 R 0+512 rel=b1";
    let other = "10 Q b2 R 8192+512
         11 G b2
         12 D r2 R 8192+512 rel=b2
         24 C r2 R 8192+512";
    let later = "100 Q b3 R 16384+512
         101 G b3
         102 D r3 R 16384+512 rel=b3
         112 C r3 R 16384+512";
    for (text, expected) in [
        // As it would be without the one that was lost.
        (format!("{lost}\n{other}\n{later}"), (22, 22, 1, 1)),
        // It has been overtaken for no longer than others were there: it may be there still.
        (format!("{lost}\n{other}"), (21, 21, 2, 0)),
        // Its address serves another.
        (
            format!(
                "{lost}\n{other}\n100 Q b1 R 16384+512\n101 G b1\n102 D r1 R 16384+512 rel=b1\n112 C r1 R 16384+512"
            ),
            (22, 22, 1, 1),
        ),
        // A device that hangs.
        (
            format!("{other}\n{}", later.replace("112 C r3", "900000 Q b4")),
            (12 + 899_898, 12, 1, 0),
        ),
    ] {
        assert_eq!(at_device(&text), expected, "{text}");
    }
}

#[test]
fn where_a_reader_left_something_out_what_was_in_flight_is_not_followed() {
    let text = |mark: &str| {
        format!(
            "1 Q b1 R 0+512
             2 G b1
             3 D r1 R 0+512 rel=b1
             {mark}
             90 C r1 R 0+512"
        )
    };
    let whole = device(&text(""));
    assert_eq!(n_mean(whole.latency_ns.all.d2c), (1, Some(87)));
    assert!(whole.unlinked.is_empty());
    let marked = device(&text("50 loss sub=0 rel=0x1"));
    assert_eq!(n_mean(marked.latency_ns.all.d2c), (0, None));
    assert_eq!(
        marked.unlinked.into_iter().collect::<Vec<_>>(),
        [(UnlinkedReason::LostEvents, 1)]
    );
}
