//! A flush without data, and one whose data came before, ends with a completion that names its bio.

use std::collections::HashMap;

use nestrace_trace::flags::OP_FLUSH;
use nestrace_trace::{Event, Kind};
use xtask::case::Case;

/// Looks through the events of one machine, in the order of time.
pub fn hold(case: &mut Case, side: &str, events: &[Event]) {
    // Flushes without data that wait, with their time of Q.
    let mut waiting: HashMap<u64, u64> = HashMap::new();
    let (mut ended, mut unnamed) = (0_u64, 0_u64);
    for event in events {
        match event.kind() {
            Some(Kind::Queue) if event.bytes == 0 => {
                waiting.insert(event.object, event.ts_ns);
            }
            Some(Kind::Queue) => {
                waiting.remove(&event.object);
            }
            Some(Kind::Complete) if event.bytes == 0 && event.related == 0 => {
                // The device's own flush requests carry no bio.
                unnamed += u64::from((event.origin == 0) != (event.op() == OP_FLUSH));
                ended += u64::from(waiting.remove(&event.origin).is_some());
            }
            Some(Kind::BioComplete) => {
                waiting.remove(&event.object);
            }
            _ => {}
        }
    }
    // What has waited for a second has lost its end; the last ones may still get theirs.
    let last_ns = events.last().map_or(0, |event| event.ts_ns);
    let is_old = |queued_ns: &&u64| queued_ns.saturating_add(1_000_000_000) < last_ns;
    let without_end = waiting.values().filter(is_old).count() as u64;
    case.equal(
        &format!("{side}: completions without the bio they end"),
        unnamed,
        0,
    );
    case.holds(
        &format!("{side}: flushes ended by name"),
        ended > 0 && without_end <= ended / 100,
        &format!("{ended}, and {without_end} without an end"),
    );
}
