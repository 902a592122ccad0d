//! The JSON of `docs/json.md`, schema `nestrace-analysis/1`.

use nestrace_analyzer::Analysis;

/// The analysis as one indented object with a final newline.
#[must_use]
pub fn render(analysis: &Analysis) -> String {
    // Every value is a number, a string or a list of them, and every key a string: nothing that
    // serde_json refuses.
    let mut text = serde_json::to_string_pretty(analysis).unwrap_or_default();
    text.push('\n');
    text
}
