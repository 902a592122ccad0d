//! One set of features for the program and for its tests: what differs is compiled twice.

use std::collections::BTreeSet;

use super::crates::cargo_tree;

/// A package with its features as they stand in a line.
const LINE: [&str; 2] = ["--format", "{p} {f}"];

/// `cargo test --workspace`, `cargo build -p nestrace` and the chores share what they are built of.
///
/// Tests switch features of dependencies on that the program does not ask for; named by the program too, they
/// spare it minutes of arrow and polars.
pub fn check_features() -> anyhow::Result<Vec<String>> {
    let tests = lines(&["--workspace", "--edges", "normal,build,dev"])?;
    let program = lines(&["--package", "nestrace", "--edges", "normal,build"])?;
    // `cargo run --bin xtask` in the workspace's folder.
    let chores = lines(&["--workspace", "--edges", "normal,build"])?;
    let mut breaches = compiled_twice(&program, &tests, "the program");
    breaches.extend(compiled_twice(&chores, &tests, "the chores"));
    Ok(breaches)
}

fn lines(args: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    let tree = cargo_tree(&[&LINE, args].concat())?;
    let bare = |line: &str| line.trim_end_matches(" (*)").to_owned();
    Ok(tree.lines().map(bare).collect())
}

fn compiled_twice(own: &BTreeSet<String>, tests: &BTreeSet<String>, whose: &str) -> Vec<String> {
    own.difference(tests)
        .map(|line| {
            let package = line.split(' ').next().unwrap_or(line);
            let other = tests
                .iter()
                .find(|line| line.split(' ').next() == Some(package));
            let other = other.map_or("nothing", String::as_str);
            format!("{package} is compiled twice: {whose} has {line}, tests have {other}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_other_features_is_compiled_twice() {
        let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let tests: BTreeSet<String> = set(&["a v1 std,serde", "b v1 ", "c v2 "]);
        assert!(
            compiled_twice(&set(&["b v1 ", "a v1 std,serde"]), &tests, "the program").is_empty()
        );
        assert_eq!(
            compiled_twice(&set(&["a v1 std", "b v1 "]), &tests, "the program"),
            ["a is compiled twice: the program has a v1 std, tests have a v1 std,serde"]
        );
    }
}
