//! The paths that a source names: `crate::…`, `self::…` and `super::…`, in `use` trees as well as in code.
//!
//! The parser knows comments, strings and braces, and nothing of names that a macro makes.

/// A module, or anything else, by its path from the crate's root.
pub(super) type Module = Vec<String>;

/// A path that goes on behind a module.
pub(super) fn joined(module: &[String], rest: &[String]) -> Module {
    module.iter().chain(rest).cloned().collect()
}

/// A source without comments, strings and tests.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) text: String,
    /// Modules in files of their own that are tests.
    pub(super) tests: Vec<Module>,
}

pub(super) fn code_of(text: &str) -> Code {
    let mut rest = without_words(text);
    let mut code = Code::default();
    while let Some(at) = rest.find("#[cfg(test)]") {
        code.text.push_str(&rest[..at]);
        let item = &rest[at + "#[cfg(test)]".len()..];
        let end = end_of_item(item);
        let declared = item[..end].trim().strip_suffix(';');
        let name = declared.and_then(|item| item.rsplit_once("mod ").map(|(_, name)| name));
        code.tests.extend(name.map(|name| vec![name.to_owned()]));
        rest = item[end..].to_owned();
    }
    code.text.push_str(&rest);
    code
}

/// Where the item at the beginning ends.
fn end_of_item(text: &str) -> usize {
    let mut depth = 0_u32;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b';' if depth == 0 => return at + 1,
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// The text without comments, and with nothing in its strings.
fn without_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            end_of_string(rest)
        } else if first == '\'' {
            end_of_character(rest)
        } else if first == 'r' && !in_word {
            end_of_raw_string(rest)
        } else {
            0
        };
        if skipped == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.push(' ');
            rest = &rest[skipped..];
        }
    }
    out
}

fn end_of_string(text: &str) -> usize {
    let mut escaped = true;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// A lifetime is none: nothing of it is skipped.
fn end_of_character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            let end = text.get(3..).and_then(|rest| rest.find('\''));
            end.map_or(text.len(), |end| end + 4)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

fn end_of_raw_string(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    let Some(inside) = text[1 + hashes..].strip_prefix('"') else {
        return 0;
    };
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close);
    end.map_or(text.len(), |end| 2 + hashes + end + close.len())
}

/// The words, `::` and single signs of a code, in their order.
pub(super) fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    tokens
}

/// Paths from the root that the code of a module names.
pub(super) fn paths_in(code: &str, module: &Module) -> Vec<Module> {
    let tokens = tokens(code);
    let mut paths = Vec::new();
    // Modules within the file, each with the depth of braces outside of it.
    let mut inner: Vec<(&str, u32)> = Vec::new();
    let mut depth = 0_u32;
    for (at, token) in tokens.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).map_or("", |before| tokens[before]);
        match *token {
            "{" => {
                if before(2) == "mod" {
                    inner.push((before(1), depth));
                }
                depth += 1;
            }
            "}" => {
                depth = depth.saturating_sub(1);
                inner.retain(|(_, outside)| *outside < depth);
            }
            "crate" | "self" | "super"
                if tokens.get(at + 1) == Some(&"::")
                    && !["::", "$"].contains(&before(1))
                    // Visibility is no import.
                    && !(before(1) == "in" && before(2) == "(") =>
            {
                let mut own = module.clone();
                own.extend(inner.iter().map(|(name, _)| (*name).to_owned()));
                let found = trees(&tokens[at..], &[]).0;
                paths.extend(found.into_iter().map(|path| from_root(&own, &path)));
            }
            _ => {}
        }
    }
    paths
}

/// What `use` brings into the root, by name.
pub(super) fn brought_in(code: &str) -> Vec<(String, Module)> {
    let tokens = tokens(code);
    let uses = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| **token == "use");
    let paths = uses.flat_map(|(at, _)| trees(&tokens[at + 1..], &[]).0);
    let paths = paths.map(|path| from_root(&Module::new(), &path));
    paths
        .filter_map(|path| Some((path.last()?.clone(), path)))
        .collect()
}

/// The paths of a tree like `a::{b, c::d}`, and how many tokens it has.
fn trees(tokens: &[&str], head: &[&str]) -> (Vec<Vec<String>>, usize) {
    let mut path = head.to_vec();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                let mut paths = Vec::new();
                while let Some(token) = tokens.get(at) {
                    match *token {
                        "}" => return (paths, at + 1),
                        "," => at += 1,
                        _ => {
                            let (found, n) = trees(&tokens[at..], &path);
                            paths.extend(found);
                            at += n.max(1);
                        }
                    }
                }
                return (paths, at);
            }
            Some(word) => path.push(word),
            None => return (Vec::new(), at),
        }
        at += 1;
        let goes_on = tokens.get(at) == Some(&"::")
            && tokens
                .get(at + 1)
                .is_some_and(|next| *next != "<" && *next != "(");
        if !goes_on {
            // `as` gives it another name, which is nothing to us.
            at += 2 * usize::from(tokens.get(at) == Some(&"as"));
            let names = path.iter().map(|name| (*name).to_owned());
            return (vec![names.collect()], at);
        }
        at += 1;
    }
}

/// The path from the root of one that a module names.
fn from_root(module: &Module, path: &[String]) -> Module {
    let mut base = module.clone();
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => _ = base.pop(),
            _ => break,
        }
        rest = behind;
    }
    joined(&base, rest)
}
