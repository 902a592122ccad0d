//! A rule about methods: a type's `impl` blocks lie in at most [`MAX_FILES`] files.
//!
//! Only inherent blocks count (`impl Type`), outside tests. A trait's `impl` often stands where the trait does, so it
//! is not counted. A block belongs to the type of its name that its own file defines, else to the one that is nearest
//! in the tree of modules: names are read, not resolved.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::{Code, code_of, tokens};
use super::sources::Source;

/// A reader of a type looks into no more files than this.
const MAX_FILES: usize = 3;

/// Every type with more files than it may have.
pub fn check_impls(sources: &[Source]) -> Vec<String> {
    let too_many = spread(sources)
        .into_iter()
        .filter(|it| it.1.len() > MAX_FILES);
    too_many
        .map(|((home, name), files)| {
            let n = files.len();
            let files: Vec<&str> = files.into_iter().collect();
            let files = files.join(", ");
            format!("{home}: impl {name} is in {n} files, at most {MAX_FILES}: {files}")
        })
        .collect()
}

/// The files of each type's blocks, by the file that defines the type and its name.
fn spread(sources: &[Source]) -> BTreeMap<(&str, String), BTreeSet<&str>> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        if let Some((folder, _)) = source.path.split_once("/src/")
            && !source.is_test()
        {
            crates.entry(folder).or_default().push(source);
        }
    }
    let mut spread: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for sources in crates.into_values() {
        let mut homes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut blocks: Vec<(String, &str)> = Vec::new();
        for source in &sources {
            let Code { text, .. } = code_of(&source.text);
            for name in defined(&text) {
                homes.entry(name).or_default().push(&source.path);
            }
            for name in extended(&text) {
                blocks.push((name, &source.path));
            }
        }
        for (name, file) in blocks {
            let home = homes.get(&name).and_then(|homes| nearest(homes, file));
            if let Some(home) = home {
                spread.entry((home, name)).or_default().insert(file);
            }
        }
    }
    spread
}

/// Of the files that define a type of this name, the one whose path agrees longest with this file's.
fn nearest<'s>(homes: &[&'s str], file: &str) -> Option<&'s str> {
    let parts = |path: &str| -> Vec<String> {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    };
    let own = parts(file);
    let agreeing = |home: &&&str| {
        let home = parts(home);
        let n = home.iter().zip(&own).take_while(|(a, b)| a == b).count();
        (n, home == own)
    };
    homes.iter().max_by_key(agreeing).copied()
}

/// Types that this code defines.
fn defined(code: &str) -> Vec<String> {
    let tokens = tokens(code);
    let names = tokens.windows(2).filter_map(|pair| match pair {
        ["struct" | "enum" | "union", name] => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

/// Types that this code has inherent blocks of.
fn extended(code: &str) -> Vec<String> {
    let tokens = tokens(code);
    let starts = tokens.iter().enumerate();
    let items = starts.filter(|(at, token)| {
        let before = at.checked_sub(1).map_or("}", |before| tokens[before]);
        // Elsewhere it is a type, as in `-> impl Trait`.
        **token == "impl" && ["}", ";", "{", "]", "unsafe"].contains(&before)
    });
    items
        .filter_map(|(at, _)| inherent(&tokens[at + 1..]))
        .collect()
}

/// The type of `impl<…> path::Type<…> where … {`; none of a trait's.
fn inherent(head: &[&str]) -> Option<String> {
    let (mut depth, mut name) = (0_u32, None);
    for token in head {
        match *token {
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            "{" | "where" if depth == 0 => return name,
            "for" if depth == 0 => return None,
            word if depth == 0 && word.starts_with(|c: char| c.is_alphabetic()) => {
                name = Some(word.to_owned());
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/x/src/{path}"),
            text: (*text).to_owned(),
        };
        files.iter().map(source).collect()
    }

    const FOUR: [(&str, &str); 4] = [
        (
            "a.rs",
            "pub struct A<'a>(&'a str);\nimpl<'a> A<'a> { fn f() {} }",
        ),
        ("a/b.rs", "impl super::A<'_> {}"),
        ("a/c.rs", "use super::A;\nimpl A<'static> {}\nimpl A<'_> {}"),
        (
            "d.rs",
            "fn f() {}\n#[rustfmt::skip]\nimpl<'x> A<'x> where A<'x>: Copy {}",
        ),
    ];

    #[test]
    fn a_type_has_at_most_three_files() {
        assert!(check_impls(&sources(&FOUR[..3])).is_empty());
        let four = "crates/x/src/a.rs: impl A is in 4 files, at most 3: crates/x/src/a.rs, crates/x/src/a/b.rs, \
                    crates/x/src/a/c.rs, crates/x/src/d.rs";
        assert_eq!(check_impls(&sources(&FOUR)), [four]);
        for other in [
            "impl Clone for A<'_> {}",
            "impl<T: Into<A<'static>>> From<T> for B {}",
            "fn f() -> impl A {}",
            "// impl A<'_> {}",
            "#[cfg(test)]\nmod tests { impl A<'_> {} }",
        ] {
            let mut files = FOUR;
            files[3].1 = other;
            assert_eq!(
                check_impls(&sources(&files)),
                Vec::<String>::new(),
                "{other}"
            );
        }
    }

    #[test]
    fn types_of_one_name_are_told_apart_by_their_modules() {
        let files = [
            ("a.rs", "pub struct S; impl S {}"),
            ("a/one.rs", "impl super::S {}"),
            ("b/mod.rs", "pub enum S {} impl S {}"),
            ("b/one.rs", "impl super::S {}"),
            ("b/two.rs", "impl super::S {}"),
        ];
        assert!(check_impls(&sources(&files)).is_empty());
    }
}
