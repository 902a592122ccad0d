//! A kept call in words.

use nestrace_trace::manifest::GuestSide;

use super::KeptCall;
use super::summary::{file, operation};
use crate::link::chains::{CallTeller, Names, segments_of, walk};
use crate::result::analysis::CallStory;
use crate::result::side::Side;

/// All but the program's name, the disk and the time on the host's clock.
pub(crate) fn call_story(
    session: usize,
    kept: &KeptCall,
    side: &GuestSide,
    names: &Names<'_>,
) -> CallStory {
    let call = &kept.call;
    let of_file = file(call.caller.file, side);
    let segments = if kept.linked {
        segments_of(&walk(&kept.tree))
    } else {
        Vec::new()
    };
    let teller = CallTeller {
        begin_ns: call.start_ns,
        session,
        names,
        file: &of_file.label(),
        clocks: &kept.clocks,
    };
    CallStory {
        side: Side::Guest,
        call: call.serial,
        guest: side.guest.clone(),
        process: String::new(),
        pid: (kept.pid != 0).then_some(kept.pid),
        tid: call.caller.tid,
        op: operation(call.caller.op),
        tree: teller.tell(&kept.tree),
        file: of_file,
        disk: String::new(),
        guest_device: String::new(),
        offset: call.offset,
        bytes: call.bytes,
        result: call.result,
        at_ns: None,
        clock_bound_ns: kept
            .clocks
            .iter()
            .map(|clock| clock.bound_ns)
            .max()
            .unwrap_or(0),
        latency_ns: call.end_ns.saturating_sub(call.start_ns),
        without_io: kept.without_io,
        bios: kept.bios,
        linked: kept.linked,
        segments,
    }
}
