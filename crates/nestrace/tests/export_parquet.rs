//! `nestrace export --format parquet`: each file appears as a whole, and recordings are added to a data set. What
//! stands in it, DuckDB and pyarrow read (`cargo xtask test --only export`, `data-set`).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn capture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext4-mail-none-scsi/gt")
}

fn other_capture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext3-seqw-mq-ide/gt")
}

fn command(input: &Path, set: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nestrace"));
    command
        .args(["export", "--format", "parquet"])
        .arg(input)
        .arg("-o")
        .arg(set)
        .args(more);
    command
}

fn export(input: &Path, set: &Path, more: &[&str]) -> Output {
    command(input, set, more).output().expect("nestrace starts")
}

fn sorted(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.sort_unstable();
    files
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Those in which files are made go while others look.
    let Ok(entries) = std::fs::read_dir(folder) else {
        return found;
    };
    for entry in entries.flatten() {
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
    let tables = [
        "events", "streams", "devices", "kinds", "disks", "findings", "topology", "chains",
    ];
    assert_eq!(
        tables.map(of_table),
        [1, 1, 1, 1, 1, 1, 1, 0],
        "{written:?}"
    );
    // Nothing is left beside it.
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );

    let again = export(&capture(), &set, &[]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!(sorted(files(&set)), sorted(written.clone()));
    // Another recording is added, and all that was there stays.
    let other = export(&other_capture(), &set, &[]);
    assert_eq!(other.status.code(), Some(0), "{}", stderr(&other));
    let both = files(&set);
    assert!(written.iter().all(|file| both.contains(file)), "{both:?}");
    // Everything but the mark and the kinds of events is of one recording.
    assert_eq!(both.len(), 2 * written.len() - 2, "{both:?}");
}

/// Tables of a data set, as readers see them: without what is being made.
fn tables(set: &Path) -> Vec<PathBuf> {
    let is_seen = |file: &PathBuf| {
        let mut parts = file.components();
        !parts.any(|part| part.as_os_str().to_string_lossy().starts_with(".partial-"))
    };
    sorted(files(set).into_iter().filter(is_seen).collect())
}

#[test]
fn killed_exports_leave_no_torn_file_and_nothing_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, set) = (folder.path().join("whole"), folder.path().join("set"));
    let inputs = [capture(), other_capture()];
    for input in &inputs {
        let made = export(input, &whole, &[]);
        assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    }
    // Side by side, each killed after another time.
    let mut running: Vec<(Child, Instant)> = Vec::new();
    for nth in 0..24u64 {
        let input = &inputs[usize::from(nth % 3 == 0)];
        let child = command(input, &set, &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nestrace starts");
        running.push((
            child,
            Instant::now() + Duration::from_millis(nth * 37 % 700),
        ));
    }
    while let Some((mut child, deadline)) = running.pop() {
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        let _ = child.kill();
        let _ = child.wait();
        let torn = |bytes: &Vec<u8>| !bytes.starts_with(b"PAR1") || !bytes.ends_with(b"PAR1");
        for file in tables(&set) {
            // One that is just being replaced is not there.
            let Ok(bytes) = std::fs::read(&file) else {
                continue;
            };
            let is_table = file.extension().is_some_and(|it| it == "parquet");
            assert!(!is_table || !torn(&bytes), "{}", file.display());
        }
    }
    for input in &inputs {
        let made = export(input, &set, &[]);
        assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    }
    let below = |of: &Path| -> Vec<PathBuf> {
        let names = tables(of).into_iter();
        names
            .map(|file| file.strip_prefix(of).expect("below").to_owned())
            .collect()
    };
    assert_eq!(below(&set), below(&whole));
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
    // Nothing is added to what is no data set of ours.
    std::fs::create_dir(&set).expect("a folder");
    std::fs::write(set.join("mine"), "").expect("a file");
    let forced = export(&capture(), &set, &["--force"]);
    assert_eq!(forced.status.code(), Some(2), "{}", stderr(&forced));
    assert!(set.join("mine").exists());
}
