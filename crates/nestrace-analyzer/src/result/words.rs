//! Words of the JSON that stand in strings, as its schema lists them. What is an enum says its words itself.

use schemars::{Schema, json_schema};

/// The side of a device or stream.
pub(crate) const SIDES: [&str; 2] = ["host", "guest"];
/// Why something was not followed.
pub(crate) const REASONS: [&str; 8] = [
    "lost_events",
    "before_start",
    "after_end",
    "ambiguous",
    "outside_clock_bound",
    "layer_not_recorded",
    "no_match",
    "no_end",
];
/// What an I/O does.
pub(crate) const OPERATIONS: [&str; 4] = ["read", "write", "discard", "flush"];
/// Who uses a device.
pub(crate) const USERS: [&str; 5] = ["image", "guest", "file_system", "loop", "process"];
/// How a clock was found.
pub(crate) const CLOCK_METHODS: [&str; 2] = ["io_exchanges", "none"];
/// Layers of a span.
pub(crate) const LAYERS: [&str; 10] = [
    "call",
    "throttle",
    "page_wait",
    "guest_journal",
    "guest_bio",
    "guest_request",
    "qemu",
    "file_io",
    "host_bio",
    "host_request",
];
/// What a span does.
pub(crate) const WORK: [&str; 9] = [
    "read",
    "write",
    "discard",
    "flush",
    "sync",
    "image_metadata",
    "journal",
    "others_data",
    "other",
];
/// Layers of a compared value.
pub(crate) const METRIC_LAYERS: [&str; 5] = ["guest", "qemu", "segment", "amplification", "device"];
/// Units of a compared value.
pub(crate) const UNITS: [&str; 7] = [
    "ns",
    "bytes",
    "bytes_per_second",
    "per_second",
    "share",
    "ratio",
    "count",
];

/// A string that is one of these.
pub(crate) fn among(words: &[&str]) -> Schema {
    json_schema!({ "enum": words })
}

/// These, and `null`.
pub(crate) fn or_null<'a>(words: &[&'a str]) -> Vec<Option<&'a str>> {
    words.iter().copied().map(Some).chain([None]).collect()
}
