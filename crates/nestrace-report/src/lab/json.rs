//! A comparison for programs.

use super::Comparison;

/// One JSON object, with a newline at its end.
#[must_use]
pub fn render(comparison: &Comparison) -> String {
    let mut text = serde_json::to_string_pretty(comparison).unwrap_or_default();
    text.push('\n');
    text
}
