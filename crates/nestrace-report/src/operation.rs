//! Words for the operations of a disk.

/// `reads`, `flushes`.
pub(crate) fn many(operation: &str) -> &str {
    match operation {
        "read" => "reads",
        "write" => "writes",
        "discard" => "discards",
        "flush" => "flushes",
        other => other,
    }
}
