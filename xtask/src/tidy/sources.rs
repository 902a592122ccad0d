//! Rules about source files.

use std::io;
use std::path::{Path, PathBuf};

/// Crates that get everything from their caller: no files, clock, environment or `/proc`.
const PURE: [&str; 11] = [
    "crates/nestrace-abi/",
    "crates/nestrace-kernel/",
    "crates/nestrace-trace/",
    "crates/nestrace-blktrace/",
    "crates/nestrace-wire/",
    "crates/nestrace-analyzer/",
    "crates/nestrace-report/",
    "crates/nestrace-stuck/",
    "crates/nestrace-sums/",
    "crates/nestrace-top/",
    "crates/nestrace-condition/",
];
/// What a pure crate does not say.
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::env",
    "std::process",
    "std::net",
    "Instant::now",
    "SystemTime",
    "std::thread::sleep",
    "\"/proc",
    "\"/sys",
];
/// The same in a grouped `use std::{…}`.
const IMPURE_MODULES: [&str; 4] = ["fs", "env", "process", "net"];
/// Names that say nothing.
const EMPTY_NAMES: [&str; 7] = [
    "util", "utils", "common", "helper", "helpers", "misc", "stuff",
];
/// Words that have no place in committed code.
const FORBIDDEN_WORDS: [&str; 2] = ["TODO", "FIXME"];
/// Lines of code in a file, its tests not counted.
const MAX_LINES: usize = 500;
/// Files that may be longer, and why.
const MAY_BE_LONGER: [(&str, &str); 0] = [];
/// Folders without sources of ours.
const SKIPPED: [&str; 5] = ["target", ".git", "prebuilt", "fixtures", "corpus"];

/// One Rust source.
#[derive(Debug)]
pub struct Source {
    /// Relative to the workspace.
    pub(super) path: String,
    pub(super) text: String,
}

/// Every Rust source of the workspace, the probes and the fuzz targets.
pub fn read_all(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for folder in ["crates", "xtask", "tests", "benches", "ebpf", "fuzz"] {
        let folder = root.join(folder);
        if folder.is_dir() {
            visit(root, &folder, &mut sources)?;
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn visit(root: &Path, folder: &Path, sources: &mut Vec<Source>) -> io::Result<()> {
    for entry in folder.read_dir()? {
        let path: PathBuf = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            visit(root, &path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let path = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            sources.push(Source { path, text });
        }
    }
    Ok(())
}

impl Source {
    /// Every breach in this file, with its place.
    pub fn check(&self) -> Vec<String> {
        let mut breaches = self.check_name();
        breaches.extend(self.check_length());
        breaches.extend(self.check_words());
        if self.is_pure() {
            breaches.extend(self.check_purity());
        }
        breaches
    }

    /// Lines before the file's own test module.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_code = |line: &&str| line.trim_end() != "#[cfg(test)]";
        self.text
            .lines()
            .take_while(is_code)
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    pub(super) fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/benches/")
    }

    fn is_pure(&self) -> bool {
        let in_source = |folder: &&str| {
            self.path
                .strip_prefix(*folder)
                .is_some_and(|rest| rest.starts_with("src/"))
        };
        PURE.iter().any(in_source) && !self.is_test()
    }

    fn check_name(&self) -> Vec<String> {
        let parts = self.path.trim_end_matches(".rs").split('/');
        let empty = parts.filter(|part| EMPTY_NAMES.contains(part));
        empty
            .map(|part| format!("{}: the name {part} says nothing", self.path))
            .collect()
    }

    fn check_length(&self) -> Option<String> {
        let exempt = MAY_BE_LONGER
            .iter()
            .any(|(path, _reason)| *path == self.path);
        let n = self.code().count();
        let too_long = n > MAX_LINES && !exempt && !self.is_test();
        too_long.then(|| format!("{}: {n} lines of code, at most {MAX_LINES}", self.path))
    }

    fn check_words(&self) -> Vec<String> {
        // This file has to name them.
        if self.path == "xtask/src/tidy/sources.rs" {
            return Vec::new();
        }
        let mut breaches = Vec::new();
        for (index, line) in self.text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric());
            for word in words.filter(|word| FORBIDDEN_WORDS.contains(word)) {
                breaches.push(format!("{}:{}: {word}", self.path, index + 1));
            }
        }
        breaches
    }

    fn check_purity(&self) -> Vec<String> {
        let mut breaches = Vec::new();
        for (number, line) in self.code() {
            let code = line.split("//").next().unwrap_or_default();
            let named = IMPURE.iter().copied().find(|word| code.contains(word));
            let grouped = grouped_imports(code);
            let grouped = IMPURE_MODULES
                .iter()
                .copied()
                .find(|module| grouped.contains(module));
            if let Some(word) = named.or(grouped) {
                breaches.push(format!("{}:{number}: a pure crate uses {word}", self.path));
            }
        }
        breaches
    }
}

/// First parts of what a `use std::{…}` on one line brings in.
fn grouped_imports(line: &str) -> Vec<&str> {
    let Some((_, group)) = line.split_once("use std::{") else {
        return Vec::new();
    };
    let parts = group.split([',', '}', '{']);
    parts
        .map(|part| part.trim().split("::").next().unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
        .check()
    }

    #[test]
    fn pure_crates_get_everything_from_their_caller() {
        let path = "crates/nestrace-trace/src/a.rs";
        for line in [
            "use std::fs;",
            "let t = Instant::now();",
            "use std::{env, io};",
            "x(\"/proc/1\")",
        ] {
            assert_eq!(check(path, line).len(), 1, "{line}");
            assert!(
                check("crates/nestrace-record/src/a.rs", line).is_empty(),
                "{line}"
            );
        }
        for line in [
            "// std::fs is for others",
            "use std::io;",
            "#[cfg(test)]\nuse std::fs;",
        ] {
            assert!(check(path, line).is_empty(), "{line}");
        }
        assert!(check("crates/nestrace-trace/tests/a.rs", "use std::fs;").is_empty());
    }

    #[test]
    fn names_lengths_and_words() {
        assert_eq!(check("crates/nestrace-record/src/utils.rs", "").len(), 1);
        assert_eq!(check("crates/nestrace-record/src/common/a.rs", "").len(), 1);
        let long = "x\n".repeat(MAX_LINES + 1);
        assert_eq!(check("crates/nestrace-record/src/a.rs", &long).len(), 1);
        assert!(check("crates/nestrace-record/tests/a.rs", &long).is_empty());
        let tested = format!("x\n#[cfg(test)]\n{long}");
        assert!(check("crates/nestrace-record/src/a.rs", &tested).is_empty());
        let word = ["TO", "DO"].concat();
        assert_eq!(
            check("xtask/src/a.rs", &format!("// {word}: later")).len(),
            1
        );
    }
}
