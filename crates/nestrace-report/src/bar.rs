//! Shares as drawn bars.

/// A bar of `width` columns that is full at a share of 1: eighths of a column are drawn.
#[must_use]
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let full = width * 8;
    let eighths = (share.clamp(0.0, 1.0) * full as f64).round() as usize;
    let mut text = "█".repeat(eighths / 8);
    text.push_str(EIGHTHS[eighths % 8]);
    let drawn = text.chars().count();
    text.push_str(&" ".repeat(width.saturating_sub(drawn)));
    text
}

/// Whether a letter is a part of a bar.
pub(crate) const fn is_bar(letter: char) -> bool {
    // A block of eight eighths down to one.
    matches!(letter, '█'..='▏')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_their_columns() {
        for (share, expected) in [
            (0.0, "        "),
            (1.0, "████████"),
            (0.5, "████    "),
            (0.01, "▏       "),
            (0.125, "█       "),
            (7.0, "████████"),
            (f64::NAN, "        "),
        ] {
            assert_eq!(bar(share, 8), expected, "{share}");
        }
    }
}
