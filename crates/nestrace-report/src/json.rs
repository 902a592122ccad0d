//! The JSON of `docs/json.md`, schemas `nestrace-analysis/1` and `nestrace-comparison/1`.

use nestrace_analyzer::{Analysis, compare::Comparison};

/// The analysis as one indented object with a final newline.
#[must_use]
pub fn render(analysis: &Analysis) -> String {
    closed(serde_json::to_string_pretty(analysis))
}

/// The comparison as one indented object with a final newline.
#[must_use]
pub fn render_comparison(comparison: &Comparison) -> String {
    closed(serde_json::to_string_pretty(comparison))
}

fn closed(object: serde_json::Result<String>) -> String {
    // Every value is a number, a string or a list of them, and every key a string: nothing that
    // serde_json refuses.
    let mut text = object.unwrap_or_default();
    text.push('\n');
    text
}
