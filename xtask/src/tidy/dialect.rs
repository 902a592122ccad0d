//! A rule about comments: no new line in a private dialect of English.
//!
//! The words are those that the style refuses wherever they stand. Lines that begin as comments are read, of every
//! source; texts that users see are not. Lines from before this rule are counted by file in `dialect.txt`. A count
//! only goes down: with `--lower`, tidy writes the lower ones.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;

use super::sources::Source;

/// Where the counts are, from the workspace.
const COUNTS: &str = "xtask/src/tidy/dialect.txt";

/// What no comment says, and what it says instead; in small letters.
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

/// The rule's breaches. With `lower`, counts that are too high are written down instead.
pub fn check_dialect(sources: &[Source], root: &Path, lower: bool) -> anyhow::Result<Vec<String>> {
    let path = root.join(COUNTS);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {COUNTS}"))?;
    let (breaches, lowered) = check(sources, &text)?;
    if !lower {
        return Ok(breaches);
    }
    std::fs::write(&path, &lowered).with_context(|| format!("write {COUNTS}"))?;
    Ok(check(sources, &lowered)?.0)
}

/// The breaches, and the counts with the lower ones.
fn check(sources: &[Source], counts: &str) -> anyhow::Result<(Vec<String>, String)> {
    let mut known = BTreeMap::new();
    for line in counts.lines() {
        let (path, n) = line
            .rsplit_once(' ')
            .with_context(|| format!("read {COUNTS}: {line}"))?;
        let n: usize = n
            .parse()
            .with_context(|| format!("read {COUNTS}: {line}"))?;
        known.insert(path, n);
    }
    let mut breaches = Vec::new();
    let mut lowered = String::new();
    for source in sources {
        let found = refused_lines(source);
        let allowed = known.remove(source.path.as_str()).unwrap_or(0);
        if found.len() > allowed {
            let lines = found.iter().map(|(line, word, instead)| {
                format!(
                    "{}:{line}: a comment says \"{word}\": {instead}",
                    source.path
                )
            });
            breaches.extend(lines);
            breaches.push(format!(
                "{}: {} comments in dialect, at most {allowed}",
                source.path,
                found.len()
            ));
        } else if found.len() < allowed {
            breaches.push(format!(
                "{}: {} comments in dialect, no longer {allowed}: lower the count (cargo xtask tidy --lower)",
                source.path,
                found.len()
            ));
        }
        let n = found.len().min(allowed);
        if n > 0 {
            lowered.push_str(&format!("{} {n}\n", source.path));
        }
    }
    let gone = known.into_keys();
    breaches.extend(gone.map(|path| {
        format!(
            "{path}: it is not there any more: take it out of {COUNTS} (cargo xtask tidy --lower)"
        )
    }));
    Ok((breaches, lowered))
}

/// Lines with a refused word: number, word and what to say instead. A line counts once.
fn refused_lines(source: &Source) -> Vec<(usize, &'static str, &'static str)> {
    // This file has to name them.
    if source.path == "xtask/src/tidy/dialect.rs" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let Some(comment) = comment(line) else {
            continue;
        };
        if begins_with_whose(comment) {
            let instead = "begin with what the sentence is about";
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

/// Whether a text says this, as words of their own; what is in `backquotes` is a name.
fn says(text: &str, words: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(words).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + words.len()..]);
        let is_name = before.matches('`').count() % 2 == 1;
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

    fn breaches(text: &str, counts: &str) -> Vec<String> {
        let source = Source {
            path: "crates/x/src/a.rs".to_owned(),
            text: text.to_owned(),
        };
        check(&[source], counts).expect("counts").0
    }

    #[test]
    fn a_new_line_in_dialect_fails() {
        for line in [
            "/// What nobody has told it.",
            "    // The layer beneath.",
            "//! Whose file I/O is sent.",
            "/// Requests, of which some end.",
            "/// The device's hand-back.",
        ] {
            let found = breaches(&format!("fn f() {{}}\n{line}\n"), "");
            assert_eq!(found.len(), 2, "{line}: {found:?}");
            assert!(found[0].starts_with("crates/x/src/a.rs:2: "), "{found:?}");
            assert_eq!(
                found[1],
                "crates/x/src/a.rs: 1 comments in dialect, at most 0"
            );
        }
        for line in [
            "let told = nobody(\"beneath\");",
            "/// See `told` and [`Self::stories`].",
            "/// A guest whose disk is gone.",
            "/// Planes and untold histories.",
        ] {
            assert_eq!(breaches(line, ""), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn counts_only_go_down() {
        let two = "// told\n/// nobody has told it\n";
        assert!(breaches(two, "crates/x/src/a.rs 2\n").is_empty());
        assert_eq!(breaches(two, "crates/x/src/a.rs 1\n").len(), 3);
        let lower = "crates/x/src/a.rs: 2 comments in dialect, no longer 3: lower the count (cargo xtask tidy --lower)";
        assert_eq!(breaches(two, "crates/x/src/a.rs 3\n"), [lower]);
        assert_eq!(breaches("", "crates/x/src/b.rs 3\n").len(), 1);
        let source = Source {
            path: "crates/x/src/a.rs".to_owned(),
            text: two.to_owned(),
        };
        let counts = "crates/x/src/a.rs 5\ncrates/x/src/b.rs 1\n";
        let (_, lowered) = check(&[source], counts).expect("counts");
        assert_eq!(lowered, "crates/x/src/a.rs 2\n");
    }
}
