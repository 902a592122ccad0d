//! `nestrace export --format parquet`: the folder appears as a whole. What stands in it, DuckDB and pyarrow read
//! (`cargo xtask test --only export`).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn capture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext4-mail-none-scsi/gt")
}

fn export(input: &Path, set: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(["export", "--format", "parquet"])
        .arg(input)
        .arg("-o")
        .arg(set)
        .args(more)
        .output()
        .expect("nestrace starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn a_capture_becomes_a_whole_data_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let set = folder.path().join("set");
    let made = export(&capture(), &set, &[]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let written = files(&set);
    for file in written
        .iter()
        .filter(|file| file.extension().is_some_and(|ending| ending == "parquet"))
    {
        let bytes = std::fs::read(file).expect("a file");
        assert!(
            bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"),
            "{}",
            file.display()
        );
    }
    let of_table = |table: &str| {
        written
            .iter()
            .filter(|file| file.starts_with(set.join(table)))
            .count()
    };
    let counts = ["events", "streams", "devices", "kinds", "chains"].map(of_table);
    assert_eq!(counts, [1, 1, 1, 1, 0], "{written:?}");
    // Nothing is left beside it.
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );

    let again = export(&capture(), &set, &[]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    assert!(
        stderr(&again).starts_with("nestrace: "),
        "{}",
        stderr(&again)
    );
    let forced = export(&capture(), &set, &["--force"]);
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
    assert_eq!(files(&set).len(), written.len());
}

#[test]
fn a_failure_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let set = folder.path().join("set");
    let foreign = folder.path().join("foreign.blktrace.0");
    std::fs::write(&foreign, "no capture").expect("a file");
    for (input, more, code) in [
        (folder.path().join("missing"), &[][..], 3),
        (foreign.clone(), &[], 3),
        (folder.path().to_owned(), &[], 3),
        (capture(), &["--device", "sda"], 2),
    ] {
        let failed = export(&input, &set, more);
        assert_eq!(
            failed.status.code(),
            Some(code),
            "{}: {}",
            input.display(),
            stderr(&failed)
        );
        assert!(
            stderr(&failed).starts_with("nestrace: "),
            "{}",
            stderr(&failed)
        );
        let left = files(folder.path());
        assert_eq!(left, std::slice::from_ref(&foreign));
    }
    // What is no data set of ours is not replaced.
    std::fs::create_dir(&set).expect("a folder");
    std::fs::write(set.join("mine"), "").expect("a file");
    let forced = export(&capture(), &set, &["--force"]);
    assert_eq!(forced.status.code(), Some(2), "{}", stderr(&forced));
    assert!(set.join("mine").exists());
}
