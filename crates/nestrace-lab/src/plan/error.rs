//! What is wrong with a plan, and where.

use std::fmt;
use std::ops::Range;

/// A plan that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct PlanError {
    /// Where.
    pub place: Place,
    /// What is wrong there, and what would be right.
    pub message: String,
}

/// A place in a text; both numbers begin at 1, columns count characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Character of the line.
    pub column: usize,
}

impl Place {
    /// Of a byte of `text`.
    #[must_use]
    pub fn of(text: &str, byte: usize) -> Self {
        let mut byte = byte.min(text.len());
        while !text.is_char_boundary(byte) {
            byte -= 1;
        }
        let before = text.get(..byte).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let column = before.get(start..).map_or(0, |line| line.chars().count()) + 1;
        Self { line, column }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl PlanError {
    pub(super) fn at(text: &str, span: &Range<usize>, message: impl Into<String>) -> Self {
        // Words of the plan are in it, and a terminal obeys what is no letter.
        let plain = |c: char| {
            if c.is_control() {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        };
        let message: String = message.into();
        Self {
            place: Place::of(text, span.start),
            message: message.chars().map(plain).collect(),
        }
    }
}

/// `; did you mean "cache"?` where a known name is near, else all of them.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), *name))
        .min_by_key(|(distance, _)| *distance);
    // Half of the letters are the same, at least: every word of two letters is two letters away from another.
    let is_near = |distance: usize, name: &str| {
        let longer = word.chars().count().max(name.len());
        distance <= 2.max(name.len() / 3) && distance * 2 <= longer
    };
    match nearest {
        Some((distance, name)) if is_near(distance, name) => {
            format!("; did you mean \"{name}\"?")
        }
        _ => format!("; there is {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let text = "a = 1\nü = \"x\"\n";
        assert_eq!(Place::of(text, 0), Place { line: 1, column: 1 });
        // ü has two bytes: the quote is the fifth character.
        assert_eq!(Place::of(text, 11), Place { line: 2, column: 5 });
        assert_eq!(Place::of(text, 7), Place { line: 2, column: 1 });
        assert_eq!(Place::of(text, 999), Place { line: 3, column: 1 });
    }

    #[test]
    fn the_nearest_name_or_all() {
        assert_eq!(
            suggestion("cahce", &["cache", "aio"]),
            "; did you mean \"cache\"?"
        );
        assert_eq!(suggestion("xsf", &["9p", "xfs"]), "; did you mean \"xfs\"?");
        for word in ["zzzzzz", "", "4", "qq", "zip"] {
            assert_eq!(
                suggestion(word, &["9p", "bd"]),
                "; there is 9p, bd",
                "{word}"
            );
        }
    }
}
