//! The recordings in the current folder, for commands that are typed without an input.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nestrace_trace::bundle::MANIFEST;

use crate::{
    bundle,
    exit::{Failure, INPUT, note},
};

/// Entries of a folder that are looked at.
const MAX_ENTRIES: usize = 100_000;

/// The newest recording of the current folder, which is said.
///
/// # Errors
/// Where there is none.
pub fn newest() -> Result<PathBuf, Failure> {
    let mut newest = by_start(Path::new("."));
    match newest.len() {
        0 => Err(none()),
        n => {
            let path = newest.swap_remove(0);
            let others = match n {
                1 => String::new(),
                n => format!(", the newest of {n} here"),
            };
            note(format_args!("the recording is {}{others}", path.display()));
            Ok(path)
        }
    }
}

/// The two newest recordings of the current folder, the older one first, which is said.
///
/// # Errors
/// Where there are fewer than two.
pub fn two_newest() -> Result<(PathBuf, PathBuf), Failure> {
    let newest = by_start(Path::new("."));
    match newest.as_slice() {
        [] => Err(none()),
        [only] => Err(Failure::new(
            INPUT,
            format!("this folder has only one recording: {}", only.display()),
        )
        .hint("nestrace compare A.nest B.nest names both")),
        [newer, older, ..] => {
            note(format_args!(
                "A is {}, B is {}: the two newest recordings here",
                older.display(),
                newer.display()
            ));
            Ok((older.clone(), newer.clone()))
        }
    }
}

fn none() -> Failure {
    let folder = std::env::current_dir().unwrap_or_default();
    let message = format!(
        "no input was given, and {} has no recording (a folder NAME.nest with a {MANIFEST})",
        folder.display()
    );
    Failure::new(INPUT, message).hint("sudo nestrace record --guest NAME --duration 10 makes one")
}

/// The recordings of a folder, the one that began last first. One whose manifest cannot be read is left out.
fn by_start(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(u64, PathBuf)> = entries
        .take(MAX_ENTRIES)
        .filter(|entry| {
            // What a recorder has not finished making has a hidden name.
            !entry.file_name().as_encoded_bytes().starts_with(b".")
        })
        .filter_map(|entry| {
            let path = folder.join(entry.file_name());
            path.join(MANIFEST).is_file().then_some(path)
        })
        .filter_map(|path| Some((bundle::start_of(&path)?, path)))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    let shown = |path: PathBuf| path.strip_prefix(".").map_or(path.clone(), Path::to_owned);
    found.into_iter().map(|(_, path)| shown(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_decides_and_not_the_name_or_the_file_time() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, manifest: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(MANIFEST), manifest).unwrap();
        };
        let manifest = |start: u64| {
            let mut manifest = nestrace_trace::Manifest::default();
            manifest.start_unix_ns = start;

            serde_json::to_string(&manifest).unwrap()
        };
        make("b.nest", &manifest(30));
        make("z.nest", &manifest(10));
        make("a.nest", &manifest(20));
        make("broken.nest", "{");
        make(".unfinished.nest", &manifest(99));
        fs::create_dir(folder.path().join("no-recording")).unwrap();
        let names: Vec<_> = by_start(folder.path())
            .into_iter()
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["b.nest", "a.nest", "z.nest"]);
        assert!(by_start(&folder.path().join("no-recording")).is_empty());
    }
}
