//! The table of calls: a row for each.

use nestrace_analyzer::{CALL_SEGMENT_NAMES, analysis::CallStory};

use super::table::Table;
use crate::exit::Failure;

/// Columns before those of the segments.
const COLUMNS: [&str; 20] = [
    "side",
    "guest",
    "call",
    "process",
    "pid",
    "tid",
    "op",
    "mount",
    "inode",
    "path",
    "offset",
    "bytes",
    "result",
    "start_ns",
    "at_ns",
    "clock_bound_ns",
    "latency_ns",
    "without_io",
    "bios",
    "linked",
];

/// All columns.
pub fn columns() -> Vec<String> {
    let segments = CALL_SEGMENT_NAMES.map(|name| format!("{name}_ns"));
    let residual = String::from("residual_ns");
    let columns = COLUMNS.map(String::from).into_iter();
    columns.chain(segments).chain([residual]).collect()
}

/// Adds the row of a call.
pub fn row(table: &mut Table, call: &CallStory) -> Result<(), Failure> {
    table.text(call.side.name());
    table.text(&call.guest);
    table.number(call.call);
    table.text(&call.process);
    table.known(call.pid);
    table.number(call.tid);
    table.text(call.op.name());
    table.text(&call.file.mount);
    table.known(call.file.inode);
    table.text(call.file.path.as_deref().unwrap_or_default());
    table.number(call.offset);
    table.number(call.bytes);
    table.number(call.result);
    table.number(call.tree.ts_ns);
    table.known(call.at_ns);
    table.known(call.at_ns.map(|_| call.clock_bound_ns));
    table.number(call.latency_ns);
    table.number(u8::from(call.without_io));
    table.number(call.bios);
    table.number(u8::from(call.linked));
    for name in CALL_SEGMENT_NAMES {
        table.known(call.segment_ns(name));
    }
    table.known(call.residual_ns());
    table.end()
}
