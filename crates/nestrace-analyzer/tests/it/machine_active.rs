//! When any device of a machine had work: as long as there is one device it is that device's, and nothing is lost when a
//! second one comes.

use nestrace_analyzer::analysis::ActivePeriods;
use nestrace_analyzer::{BlockAnalyzer, BlockOptions};
use nestrace_trace::{Event, Kind};
use proptest::prelude::*;

/// Requests as (device, issued, length of stay); a stay of 0 has no completion. All of `flushes` are requests without data.
fn active(requests: &[(u32, u64, u64)], flushes: &[bool], is_second_known: bool) -> ActivePeriods {
    let mut events = Vec::new();
    for (number, (dev, issued_ns, stay_ns)) in (1_u64..).zip(requests) {
        let is_flush = flushes[number as usize % flushes.len()];
        let at = |ts_ns, kind: Kind| Event {
            ts_ns,
            kind: kind as u8,
            dev: *dev,
            object: number,
            offset: number * 4096,
            bytes: if is_flush { 0 } else { 4096 },
            flags: if is_flush {
                nestrace_abi::flags::OP_FLUSH
            } else {
                0
            },
            ..Event::default()
        };
        events.push(at(*issued_ns, Kind::Issue));
        if *stay_ns > 0 {
            events.push(at(issued_ns + stay_ns, Kind::Complete));
        }
    }
    events.sort_by_key(|event| event.ts_ns);
    let mut analyzer = BlockAnalyzer::new(BlockOptions::default());
    for dev in [1, 2] {
        if dev == 1 || is_second_known {
            analyzer.push(&Event {
                dev,
                kind: Kind::Plug as u8,
                ..Event::default()
            });
        }
    }
    events.iter().for_each(|event| analyzer.push(event));
    analyzer.finish().active
}

proptest! {
    #[test]
    fn it_does_not_matter_when_the_second_device_comes(
        mut requests in prop::collection::vec((1_u32..3, 1_u64..400, 0_u64..60), 1..40),
        flushes in prop::collection::vec(prop::bool::weighted(0.2), 1..8),
        alone in any::<bool>(),
    ) {
        if alone {
            requests.iter_mut().for_each(|request| request.0 = 1);
        }
        let late = active(&requests, &flushes, false);
        let early = active(&requests, &flushes, true);
        prop_assert_eq!(format!("{late:?}"), format!("{early:?}"));
    }
}
