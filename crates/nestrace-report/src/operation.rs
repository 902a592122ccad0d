//! Words for the operations of a disk.

use nestrace_analyzer::compare::IoOperation;

/// `reads`, `flushes`.
pub(crate) const fn many(operation: IoOperation) -> &'static str {
    match operation {
        IoOperation::Read => "reads",
        IoOperation::Write => "writes",
        IoOperation::Discard => "discards",
        IoOperation::Flush => "flushes",
        other => other.name(),
    }
}
