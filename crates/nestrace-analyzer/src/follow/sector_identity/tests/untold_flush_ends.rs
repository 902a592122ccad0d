//! Kernels before 3.18 write no C of a flush request. The yardstick is a kernel that does.

use super::*;

fn without(told: &[Event], is_left_out: impl Fn(&Event) -> bool) -> Vec<Event> {
    let told = as_blktrace(told).into_iter();
    told.filter(|event| !is_left_out(event)).collect()
}

fn is_flush_end(event: &Event) -> bool {
    event.kind() == Some(Kind::Complete) && event.op() == flags::OP_FLUSH
}

fn of_old_kernel(events: &[Event]) -> Vec<Event> {
    identified_by(SectorIdentity::of_kernel("3.2.23"), events)
}

/// The block layer sees the same, if each flush ends when what waited for it goes on.
fn check_without(text: &str) -> (Vec<BioSpan>, Vec<RequestSpan>) {
    let told = notation::events(text);
    let expected = spans(&told);
    let found = spans(&of_old_kernel(&without(&told, is_flush_end)));
    assert_eq!(found, expected, "{text}");
    (found.0, found.1)
}

/// When flushes end that such a kernel traces only by these events.
fn ends_found(text: &str) -> Vec<u64> {
    flush_ends(&of_old_kernel(&as_blktrace(&notation::events(text))))
}

/// Ends of flushes in the order of their report.
fn flush_ends(events: &[Event]) -> Vec<u64> {
    let ends = events.iter().filter(|event| is_flush_end(event));
    ends.map(|event| event.ts_ns).collect()
}

const SEQUENCES: &str = "1 Q b1 Wfu 0+4096
     2 G b1 Wfu 0+4096
     3 I r1 Wfu 0+4096
     4 D f1 F 0+0
     11 C f1 F 0+0
     11 D r1 Ws 0+4096 rel=b1
     20 C r1 Ws 0+4096
     21 D f1 F 0+0
     31 C f1 F 0+0
     31 C r1 W 0+0
     40 Q b2 Wf 0+0
     41 G b2 Wf 0+0
     42 I e1 Wf 0+0
     43 D f1 F 0+0
     51 C f1 F 0+0
     51 C e1 W 0+0";

#[test]
fn sequences_go_on_when_a_flush_has_ended() {
    let (bios, requests) = check_without(SEQUENCES);
    assert_eq!((bios.len(), requests.len()), (2, 4));
    assert_eq!((bios[0].requests.len(), bios[0].ended_ns), (3, 31));
    assert_eq!((bios[1].requests.len(), bios[1].empty_flush), (1, true));
}

/// There the machinery has them before they are inserted.
#[test]
fn multi_queue_disks_insert_data_behind_their_flush() {
    check_without(
        "1 Q b1 Wfu 0+4096
         2 G b1 Wfu 0+4096
         4 D f1 F 0+0
         11 C f1 F 0+0
         11 I r1 Ws 0+4096
         11 D r1 Ws 0+4096 rel=b1
         20 C r1 Ws 0+4096
         21 D f1 F 0+0
         31 C f1 F 0+0
         31 C r1 W 0+0",
    );
}

#[test]
fn one_flush_serves_all_that_wait_for_it() {
    let (bios, requests) = check_without(
        "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         3 I e1 Wf 0+0
         4 Q b2 Wf 0+0
         5 G b2 Wf 0+0
         6 I e2 Wf 0+0
         7 D f1 F 0+0
         300u C f1 F 0+0
         300u C e1 W 0+0
         301u C e2 W 0+0
         310u Q b3 Wf 0+0
         311u G b3 Wf 0+0
         312u I e3 Wf 0+0
         313u D f1 F 0+0
         600u C f1 F 0+0
         600u C e3 W 0+0",
    );
    assert_eq!((bios.len(), requests.len()), (3, 2));
}

/// Of three that one flush served, the last goes on when the next flush is already there.
#[test]
fn the_next_flush_is_issued_while_those_of_the_one_before_go_on() {
    let ends = ends_found(
        "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         3 Q b2 Wf 0+0
         4 G b2 Wf 0+0
         7 D f1 F 0+0
         8 Q b3 Wf 0+0
         9 G b3 Wf 0+0
         300u C e1 W 0+0
         305u D f1 F 0+0
         310u C e2 W 0+0
         600u C e3 W 0+0",
    );
    assert_eq!(ends, [300_000, 600_000]);
}

/// The machinery takes up a flush some time before it is issued; who comes in between has the next one.
#[test]
fn whoever_came_before_a_flush_may_have_the_next() {
    let ends = ends_found(
        "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         4 Q b2 Wf 0+0
         5 G b2 Wf 0+0
         7 D f1 F 0+0
         300u C e1 W 0+0
         301u D f1 F 0+0
         600u C e2 W 0+0",
    );
    assert_eq!(ends, [300_000, 600_000]);
}

/// Data whose device has FUA, or that need no flush behind them, end while a flush for others is on its way.
#[test]
fn what_waited_for_no_flush_ends_none() {
    let (_, requests) = check_without(
        "1 Q b1 Wf 0+4096
         2 G b1 Wf 0+4096
         3 I r1 Wf 0+4096
         4 D f1 F 0+0
         10 C f1 F 0+0
         10 D r1 Ws 0+4096 rel=b1
         11 Q b2 Wf 0+0
         12 G b2 Wf 0+0
         13 I e2 Wf 0+0
         14 D f1 F 0+0
         20 C r1 Ws 0+4096
         20 C r1 W 0+0
         200u C f1 F 0+0
         200u C e2 W 0+0",
    );
    let flushes = requests.iter().filter(|request| request.flush);
    let ends: Vec<u64> = flushes.map(|flush| flush.completed_ns).collect();
    assert_eq!(ends, [10, 200_000]);
}

#[test]
fn a_flush_that_was_put_back_is_one() {
    let ends = ends_found(
        "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         4 D f1 F 0+0
         5 RQ f1 F 0+0
         7 D f1 F 0+0
         300u C e1 W 0+0",
    );
    assert_eq!(ends, [300_000]);
}

#[test]
fn kernels_and_disks_that_tell_them_are_believed() {
    // Two hardware queues, and the end of the third flush was lost.
    let text = "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         3 D f1 F 0+0
         4 Q b2 Wf 0+0
         5 G b2 Wf 0+0
         6 D f2 F 0+0
         200u C f1 F 0+0
         200u C e1 W 0+0
         210u C f2 F 0+0
         210u C e2 W 0+0
         300u Q b3 Wf 0+0
         301u G b3 Wf 0+0
         302u D f1 F 0+0
         500u C e3 W 0+0";
    let told = as_blktrace(&notation::events(text));
    for kernel in ["3.18.0", "6.1.0-40-amd64", "4.4", "", "unknown", "3"] {
        let found = identified_by(SectorIdentity::of_kernel(kernel), &told);
        assert_eq!(flush_ends(&found), [200_000, 210_000], "{kernel}");
    }
    // RHEL's kernels before 3.18 tell them.
    let one_queue = without(&told, |event| event.ts_ns == 6);
    let found = identified_by(SectorIdentity::of_kernel("3.10.0-1160.el7"), &one_queue);
    assert_eq!(flush_ends(&found), [200_000, 210_000]);
}

/// A disk on another driver of the same kernel, and what is known of one after events were lost.
#[test]
fn each_disk_for_itself() {
    let mut told = as_blktrace(&notation::events(SEQUENCES));
    let mut other = without(&told, is_flush_end);
    other.iter_mut().for_each(|event| event.dev = 7);
    let n_told = told.len();
    told.extend(other);
    told.push(Event {
        kind: Kind::Loss as u8,
        sub: Source::Block as u8,
        object: 1,
        ..Event::default()
    });
    // The first disk's again, with the last end missing.
    let again = told[..n_told].to_vec();
    let last = again.iter().rposition(is_flush_end);
    told.extend(
        again
            .iter()
            .enumerate()
            .filter(|(n, _)| Some(*n) != last)
            .map(|(_, event)| *event),
    );
    let found = of_old_kernel(&told);
    assert_eq!(flush_ends(&found), [11, 31, 51, 11, 31, 51, 11, 31]);
}

#[test]
fn an_end_comes_before_what_shows_it_and_its_links() {
    let told = as_blktrace(&notation::events(
        "1 Q b1 Wf 0+4096
         2 G b1 Wf 0+4096
         3 Q b2 Wf 4096+4096
         4 M b2 Wf 4096+4096
         5 D f1 F 0+0
         9 D r1 Ws 0+8192",
    ));
    let found = of_old_kernel(&told);
    let kinds: Vec<Kind> = found.iter().filter_map(Event::kind).skip(5).collect();
    assert_eq!(kinds, [Kind::Complete, Kind::Issue, Kind::Link]);
}
