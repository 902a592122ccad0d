//! Text as it may be shown.
//!
//! Names come from other users, guests and files. None may move the cursor, name a window, begin a line or turn the
//! order of letters around.

/// Whether `c` only looks like something: it is no control character, and none that changes the direction of what
/// follows.
#[must_use]
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text for one line: what is not printable is replaced.
///
/// ```
/// assert_eq!(nestrace_trace::printable("vm1\x1b]0;x\x07\n"), "vm1\u{fffd}]0;x\u{fffd}\u{fffd}");
/// ```
#[must_use]
pub fn printable(text: &str) -> String {
    replaced(text, "")
}

/// The same of a text that may have several lines, and tabs in them.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    replaced(text, "\n\t")
}

/// A text as one word of a line that a user types into a shell.
///
/// ```
/// assert_eq!(nestrace_trace::shell_word("vm 1"), "'vm 1'");
/// assert_eq!(nestrace_trace::shell_word("/dev/sdb1"), "/dev/sdb1");
/// ```
#[must_use]
pub fn shell_word(text: &str) -> String {
    let text = printable(text);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn replaced(text: &str, kept: &str) -> String {
    let shown = |c: char| {
        if is_printable(c) || kept.contains(c) {
            c
        } else {
            char::REPLACEMENT_CHARACTER
        }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_replaced() {
        for (text, line, lines) in [
            ("vm-1 ä/…", "vm-1 ä/…", "vm-1 ä/…"),
            ("a\x1b[2J", "a\u{fffd}[2J", "a\u{fffd}[2J"),
            (
                "a\u{9b}2J\x7f",
                "a\u{fffd}2J\u{fffd}",
                "a\u{fffd}2J\u{fffd}",
            ),
            (
                "a\u{202e}b\u{2066}",
                "a\u{fffd}b\u{fffd}",
                "a\u{fffd}b\u{fffd}",
            ),
            ("a\r\n\tb", "a\u{fffd}\u{fffd}\u{fffd}b", "a\u{fffd}\n\tb"),
        ] {
            assert_eq!(printable(text), line, "{text:?}");
            assert_eq!(printable_lines(text), lines, "{text:?}");
        }
    }
}
