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
        "events",
        "streams",
        "devices",
        "kinds",
        "disks",
        "calls",
        "findings",
        "topology",
        "chains",
        "call_rows",
    ];
    assert_eq!(
        tables.map(of_table),
        [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
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

/// The first records of a capture under this name: a small recording of its own.
fn small_capture(folder: &Path, name: &str) -> PathBuf {
    const RECORDS: usize = 60;
    let all = std::fs::read(capture().with_file_name("gt.blktrace.0")).expect("a capture");
    let mut end = 0;
    for _ in 0..RECORDS {
        // A record has 48 bytes; the last two say how many more follow (`struct blk_io_trace`).
        let more = u16::from_le_bytes([all[end + 46], all[end + 47]]);
        end += 48 + usize::from(more);
    }
    std::fs::write(folder.join(format!("{name}.blktrace.0")), &all[..end]).expect("a capture");
    folder.join(name)
}

/// No file of a table is torn.
fn assert_whole(set: &Path) {
    let torn = |bytes: &Vec<u8>| !bytes.starts_with(b"PAR1") || !bytes.ends_with(b"PAR1");
    for file in tables(set) {
        let is_table = file.extension().is_some_and(|it| it == "parquet");
        // One that is just being replaced is not there.
        let Ok(bytes) = std::fs::read(&file) else {
            continue;
        };
        assert!(!is_table || !torn(&bytes), "{}", file.display());
    }
}

/// Two hundred recordings into one data set at once, half of the exports killed at some time.
#[test]
fn killed_exports_leave_no_torn_file_and_nothing_twice() {
    const EXPORTS: u64 = 200;
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, set) = (folder.path().join("whole"), folder.path().join("set"));
    let input = |nth: u64| folder.path().join(format!("host{nth}"));
    for nth in 0..EXPORTS {
        small_capture(folder.path(), &format!("host{nth}"));
    }
    let start = |nth: u64, set: &Path| {
        command(&input(nth), set, &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nestrace starts")
    };
    let begin = Instant::now();
    let mut random = 1_u64;
    let mut below = move |limit: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % limit
    };
    let (mut running, mut killed): (Vec<(u64, Child)>, Vec<u64>) = Default::default();
    for nth in 0..EXPORTS {
        running.push((nth, start(nth, &set)));
        if below(2) == 0 {
            continue;
        }
        std::thread::sleep(Duration::from_millis(below(8) as u64));
        let (nth, mut child) = running.swap_remove(below(running.len()));
        let _ = child.kill();
        if !child.wait().expect("an end").success() {
            killed.push(nth);
        }
        if nth % 16 == 0 {
            assert_whole(&set);
        }
    }
    for (nth, mut child) in running {
        assert!(child.wait().expect("an end").success(), "export {nth}");
    }
    assert_whole(&set);
    assert!(killed.len() >= 40, "{} were killed", killed.len());
    let names = |set: &Path| -> Vec<String> {
        let streams = files(&set.join("streams"));
        let names = streams.iter().map(|file| file.file_stem().expect("a name"));
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    let before = names(&set);
    assert!(before.len() as u64 >= EXPORTS - killed.len() as u64);
    // Again: what was killed becomes whole.
    let mut again: Vec<(u64, Child)> = killed.iter().map(|nth| (*nth, start(*nth, &set))).collect();
    for (nth, child) in &mut again {
        assert!(child.wait().expect("an end").success(), "export {nth}");
    }
    assert_eq!(names(&set).len() as u64, EXPORTS);
    // Each has the files that it has alone, once, and nothing else is there but hidden folders of the killed ones.
    let made = export(&input(0), &whole, &[]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let of_all = 2;
    let each = tables(&whole).len() - of_all;
    assert_eq!(tables(&set).len(), each * EXPORTS as usize + of_all);
    assert_whole(&set);
    println!("{} killed, {:?}", killed.len(), begin.elapsed());
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
