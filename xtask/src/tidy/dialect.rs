//! A rule about comments: plain English, no private dialect.
//!
//! It refuses the words in `REFUSED` in every line that begins as a comment, in all sources. It does not read texts
//! that users see, nor code in a comment.

use super::sources::Source;

/// Refused words, in small letters, and what to write instead.
const REFUSED: [(&str, &str); 16] = [
    ("told", "say which part reports it"),
    ("beneath", "below, or the name of the layer"),
    ("nobody", "name what happens"),
    ("of which", "a sentence of its own"),
    ("thereof", "a sentence of its own"),
    ("whereof", "a sentence of its own"),
    ("beget", "make"),
    ("hand-back", "completion notification"),
    ("hand-backs", "completion notifications"),
    ("handed back", "returned, or completed"),
    ("story", "I/O trace"),
    ("stories", "I/O traces"),
    ("corridor", "offset bounds"),
    ("corridors", "offset bounds"),
    ("lane", "virtqueue"),
    ("lanes", "virtqueues"),
];
/// The live tests run in lanes.
const MAY_SAY: [(&str, &str); 2] = [("tests/live/", "lane"), ("tests/live/", "lanes")];
/// Sources with older comments. The committed probe object holds the hash of their text, so rewrite them only together
/// with the object, and take them out of this list then.
const BOUND_TO_THE_OBJECT: [&str; 8] = [
    "crates/nestrace-abi/src/end_io.rs",
    "crates/nestrace-abi/src/layout.rs",
    "crates/nestrace-abi/src/lib.rs",
    "ebpf/src/caller.rs",
    "ebpf/src/file_io/native_aio.rs",
    "ebpf/src/light.rs",
    "ebpf/src/owner.rs",
    "ebpf/src/second_program.rs",
];

/// The rule's breaches, each with its line.
pub fn check_dialect(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources {
        let path = &source.path;
        let lines = refused_lines(source).into_iter();
        breaches.extend(lines.map(|(line, word, instead)| {
            format!("{path}:{line}: a comment says \"{word}\": {instead}")
        }));
    }
    breaches
}

/// Lines with a refused word: number, word and what to say instead. A line counts once.
fn refused_lines(source: &Source) -> Vec<(usize, &'static str, &'static str)> {
    // This file has to name the words.
    let path = source.path.as_str();
    if path == "xtask/src/tidy/dialect.rs" || BOUND_TO_THE_OBJECT.contains(&path) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in source.text.lines().enumerate() {
        let Some(comment) = comment(line) else {
            in_code = false;
            continue;
        };
        if comment.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        if begins_with_whose(comment) {
            let instead = "begin with the subject of the sentence";
            found.push((index + 1, "Whose", instead));
            continue;
        }
        let small = comment.to_lowercase();
        let may_say = |word: &str| {
            let mut all = MAY_SAY.iter();
            all.any(|(folder, known)| *known == word && source.path.starts_with(folder))
        };
        let mut refused = REFUSED.iter();
        let refused = refused.find(|(word, _)| says(&small, word) && !may_say(word));
        found.extend(refused.map(|(word, instead)| (index + 1, *word, *instead)));
    }
    found
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

/// Whether a text contains these words as whole words. Text in `backquotes` and parts of paths (`a::b`) are names.
fn says(text: &str, words: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(words).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + words.len()..]);
        let in_path = before.ends_with("::") || after.starts_with("::");
        let is_name = in_path || before.matches('`').count() % 2 == 1;
        !is_name && !before.ends_with(is_word) && !after.starts_with(is_word)
    })
}

/// Whether a sentence begins with "Whose" and is no question.
fn begins_with_whose(comment: &str) -> bool {
    says(comment, "Whose") && !comment.trim_end().ends_with('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(text: &str) -> Vec<String> {
        let source = Source {
            path: "crates/x/src/a.rs".to_owned(),
            text: text.to_owned(),
        };
        check_dialect(&[source])
    }

    #[test]
    fn a_comment_in_dialect_fails() {
        for line in [
            "/// What nobody has told it.",
            "    // The layer beneath.",
            "//! Whose file I/O is sent.",
            "/// Requests, of which some end.",
            "/// The device's hand-back.",
        ] {
            let found = breaches(&format!("fn f() {{}}\n{line}\n"));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert!(found[0].starts_with("crates/x/src/a.rs:2: "), "{found:?}");
        }
        let after_code = breaches("/// ```\n/// lane(0);\n/// ```\n/// The lane.\n");
        assert_eq!(after_code.len(), 1, "{after_code:?}");
    }

    #[test]
    fn names_and_code_are_no_dialect() {
        for text in [
            "let told = nobody(\"beneath\");",
            "/// See `told` and [`Self::stories`].",
            "/// See [the tree](crate::Story::segments) and [it](super::stories).",
            "/// A guest whose disk is gone.",
            "/// Planes and untold histories.",
            "//! ```\n//! Request { lane: 0 };\n//! ```\n",
        ] {
            assert_eq!(breaches(text), Vec::<String>::new(), "{text}");
        }
    }
}
