//! Kernels before 3.18 write no C of a flush request. The yardstick is a kernel that does.

use super::*;

/// As such a kernel tells it.
fn without_flush_ends(told: &[Event]) -> Vec<Event> {
    let is_flush_end =
        |event: &Event| event.kind() == Some(Kind::Complete) && event.op() == flags::OP_FLUSH;
    let told = as_blktrace(told).into_iter();
    told.filter(|event| !is_flush_end(event)).collect()
}

/// The block layer sees the same, if each flush ends when what waited for it goes on.
fn check_without(text: &str) -> (Vec<BioSpan>, Vec<RequestSpan>) {
    let told = notation::events(text);
    let expected = spans(&told);
    let found = spans(&identified(&without_flush_ends(&told)));
    assert_eq!(found, expected, "{text}");
    (found.0, found.1)
}

#[test]
fn sequences_go_on_when_a_flush_has_ended() {
    let (bios, requests) = check_without(
        "1 Q b1 Wfu 0+4096
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
         51 C e1 W 0+0",
    );
    assert_eq!((bios.len(), requests.len()), (2, 4));
    assert_eq!((bios[0].requests.len(), bios[0].ended_ns), (3, 31));
    assert_eq!((bios[1].requests.len(), bios[1].empty_flush), (1, true));
}

#[test]
fn one_flush_serves_all_that_wait_for_it_and_the_next_ends_it() {
    let (bios, requests) = check_without(
        "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         3 I e1 Wf 0+0
         4 Q b2 Wf 0+0
         5 G b2 Wf 0+0
         6 I e2 Wf 0+0
         7 D f1 F 0+0
         20 C f1 F 0+0
         20 C e1 W 0+0
         21 C e2 W 0+0
         30 Q b3 Wf 0+4096
         31 G b3 Wf 0+4096
         32 I r3 Wf 0+4096
         33 D f1 F 0+0
         34 Q b4 Wf 0+0
         35 G b4 Wf 0+0
         36 I e4 Wf 0+0
         50 C f1 F 0+0
         50 D f1 F 0+0
         51 D r3 Ws 0+4096 rel=b3
         60 C r3 Ws 0+4096
         60 C r3 W 0+0
         70 C f1 F 0+0
         70 C e4 W 0+0",
    );
    assert_eq!((bios.len(), requests.len()), (4, 4));
}

/// Data whose device has FUA, or that needs no flush behind it, ends while a flush for others is on its way.
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
         30 C f1 F 0+0
         30 C e2 W 0+0",
    );
    let flushes = requests.iter().filter(|request| request.flush);
    let ends: Vec<u64> = flushes.map(|flush| flush.completed_ns).collect();
    assert_eq!(ends, [10, 30]);
}

#[test]
fn a_kernel_that_tells_them_is_believed() {
    // The second flush's end was lost.
    let told = notation::events(
        "1 Q b1 Wf 0+0
         2 G b1 Wf 0+0
         3 D f1 F 0+0
         4 C f1 F 0+0
         5 C e1 W 0+0
         11 Q b2 Wf 0+0
         12 G b2 Wf 0+0
         13 D f1 F 0+0
         15 C e2 W 0+0",
    );
    let (_, requests, _) = spans(&identified(&as_blktrace(&told)));
    assert_eq!(requests.len(), 1);
}
