//! Calls that are reported one by one: together they are what the rows say.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use nestrace_analyzer::analysis::{CallStory, StoryLayer, StorySpan};
use nestrace_analyzer::{Analysis, Analyzer, CALL_SEGMENT_NAMES, Options, StoryChoice};

use crate::two_sides::{self, Streams, VM1, VM2, WAY};

/// What was reported, in its order.
#[derive(Debug, Default)]
struct Reported {
    /// Begins of bios, by guest.
    bios: Vec<(String, u64)>,
    calls: Vec<CallStory>,
    /// Calls that came before a bio that they waited for.
    too_early: usize,
}

fn bios<'a>(span: &'a StorySpan, found: &mut Vec<&'a StorySpan>) {
    if span.layer == StoryLayer::GuestBio {
        found.push(span);
    }
    span.children.iter().for_each(|child| bios(child, found));
}

fn reported(asked: StoryChoice) -> (Analysis, Reported) {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, 10_000_000_000, 200, WAY);
    streams.traffic(VM2, at, 100, WAY);
    streams.under_fsyncs(VM1, 7);
    streams.under_fsyncs(VM2, 8);
    let mut options = Options::default();
    options.story = Some(StoryChoice::All);
    options.call_story = Some(asked);

    let mut analyzer = Analyzer::new(&two_sides::manifest(), options);
    let reported = Rc::new(RefCell::new(Reported::default()));
    let (of_bios, of_calls) = (Rc::clone(&reported), Rc::clone(&reported));
    analyzer.each_story(move |story| {
        let bio = (story.guest, story.tree.ts_ns);
        of_bios.borrow_mut().bios.push(bio);
    });
    analyzer.each_call(move |call| {
        let mut reported = of_calls.borrow_mut();
        let mut waited = Vec::new();
        bios(&call.tree, &mut waited);
        let is_known = |bio: &&StorySpan| reported.bios.contains(&(call.guest.clone(), bio.ts_ns));
        assert_eq!(waited.len() as u64, call.bios);
        let known = waited.iter().filter(|bio| is_known(bio)).count();
        reported.too_early += usize::from(known < waited.len());
        reported.calls.push(call);
    });
    let analysis = streams.analyze_with(analyzer);
    let reported = Rc::into_inner(reported).expect("the analyzer is gone");
    (analysis, reported.into_inner())
}

#[test]
fn they_sum_to_the_rows() {
    let (analysis, reported) = reported(StoryChoice::All);
    let rows = analysis.calls.as_ref().expect("calls are known");
    assert!(analysis.call_stories.is_empty(), "none is kept");
    let n: u64 = rows.iter().map(|row| row.n).sum();
    assert_eq!((n, reported.calls.len(), reported.too_early), (300, 300, 0));
    for row in rows {
        let of_row = |call: &&CallStory| {
            (&call.guest, &call.process, call.op, &call.file)
                == (&row.guest, &row.process, row.op, &row.file)
        };
        let calls: Vec<&CallStory> = reported.calls.iter().filter(of_row).collect();
        assert_eq!(calls.len() as u64, row.n);
        let sum_ns: u64 = calls.iter().map(|call| call.latency_ns).sum();
        assert_eq!(sum_ns, row.latency_ns.sum);
        let linked = calls.iter().filter(|call| call.linked).count();
        assert_eq!((linked as u64, row.linked), (row.n, row.n));
        let waited: u64 = calls.iter().map(|call| call.bios).sum();
        assert_eq!(waited, row.waited.bios);
        // Without stacked devices their segments are left out.
        let names = CALL_SEGMENT_NAMES
            .into_iter()
            .filter(|name| !name.starts_with("stack_"));
        for (segment, name) in row.segments.iter().zip(names) {
            assert_eq!(segment.name, name);
            let parts = calls.iter().filter_map(|call| call.segment_ns(name));
            let parts: u64 = parts.sum();
            let expected = segment.mean_ns * row.linked as f64;
            assert!((parts as f64 - expected).abs() < 1.0, "{name}: {parts}");
        }
    }
    assert!(
        reported
            .calls
            .iter()
            .all(|call| call.residual_ns() == Some(0))
    );
    assert!(reported.calls.iter().all(|call| call.pid == Some(500)));
    // Each once, in the order of their ends.
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for call in &reported.calls {
        let last = last.entry(&call.guest).or_default();
        assert_eq!(call.call, *last + 1);
        *last = call.call;
    }
    // By the guests' clocks, which are seconds apart, they lie where they were on the host.
    let first = &reported.calls[0];
    let at_ns = first.at_ns.expect("the clock is known");
    let truth_ns = 1_000_000_000 - 2_000;
    assert!(at_ns.abs_diff(truth_ns) <= first.clock_bound_ns, "{at_ns}");
}

#[test]
fn the_slowest_are_kept_as_before() {
    let (analysis, reported) = reported(StoryChoice::Slowest(3));
    assert_eq!((analysis.call_stories.len(), reported.calls.len()), (3, 0));
    let (_, one) = self::reported(StoryChoice::Io(5));
    let numbers: Vec<u64> = one.calls.iter().map(|call| call.call).collect();
    assert_eq!(numbers, [5, 5], "of each guest");
}
