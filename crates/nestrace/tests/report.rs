//! `nestrace analyze --report` and `--plots`, as a user runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::{sys::stat::Mode, unistd::mkfifo};

/// Longer than any of these commands takes; one that waits for a reader waits for ever.
const HANGS: Duration = Duration::from_secs(60);

fn capture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext4-mail-none-scsi/gt")
}

fn analyze(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .arg("analyze")
        .arg(capture())
        .args(arguments)
        .output()
        .expect("start nestrace")
}

#[test]
fn a_report_is_written_and_replaces_an_older_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    fs::write(&page, "").expect("an empty file, as mktemp makes it");
    for _ in 0..2 {
        let output = analyze(&[Path::new("--report"), &page]);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty(), "the text comes all the same");
        let html = fs::read_to_string(&page).expect("the report");
        assert!(html.contains("How long do writes take") && html.ends_with("</html>\n"));
    }
}

/// What QEMU adds for the image's tables lies between what was asked for and its file I/O, and is not taken for data of
/// the host that came from its cache.
#[test]
fn steps_of_the_amplification_lead_from_one_layer_to_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/findings/qcow2-grows.nest");
    let (code, stderr) = in_time(&[
        Path::new("analyze"),
        &bundle,
        Path::new("--plots"),
        folder.path(),
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    let files = fs::read_dir(folder.path()).expect("the plots");
    let path = files
        .map(|file| file.expect("a plot").path())
        .find(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|n| n.starts_with("amplification-") && n.ends_with(".csv"))
        })
        .expect("the plot's data");
    let text = fs::read_to_string(path).expect("the plot's data");
    let rows: Vec<(&str, f64, f64)> = text
        .lines()
        .skip(1)
        .map(|line| {
            let (line, to) = line.rsplit_once(',').expect("to_bytes");
            let (name, from) = line.rsplit_once(',').expect("from_bytes");
            (
                name,
                from.parse().expect("bytes"),
                to.parse().expect("bytes"),
            )
        })
        .collect();
    let place = |part: &str| rows.iter().position(|(name, ..)| name.contains(part));
    let tables = place("tables and copies").expect("tables of the image");
    assert_eq!(Some(tables - 1), place("asked for"));
    assert_eq!(Some(tables + 1), place("file I/O"));
    assert_eq!(place("cached"), None, "nothing was cached: {rows:?}");
    let asked = rows[tables - 1].2;
    for pair in rows.windows(2) {
        let (_, from, to) = pair[1];
        let is_total = from == 0.0;
        let begins = if is_total { to } else { from };
        assert!((begins - pair[0].2).abs() < 0.01 * asked, "{pair:?}");
    }
}

/// A report traces the slowest bios by itself; text, JSON and messages are as without it.
#[test]
fn the_slowest_bios_are_drawn_and_nothing_else_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/findings/direct-again.nest");
    let output = |arguments: &[&Path]| {
        let mut nestrace = Command::new(env!("CARGO_BIN_EXE_nestrace"));
        let output = nestrace
            .arg("analyze")
            .arg(&bundle)
            .args(arguments)
            .output();
        let output = output.expect("start nestrace");
        assert_eq!(output.status.code(), Some(0));
        (output.stdout, output.stderr)
    };
    let (plots, json) = (
        ["--plots".as_ref(), folder.path()],
        ["--format".as_ref(), "json".as_ref()],
    );
    assert_eq!(output(&plots), output(&[]));
    assert_eq!(output(&[plots, json].concat()), output(&json));
    for (name, is_there) in [
        ("bio-5.svg", true),
        ("bio-6.svg", false),
        ("call-1.svg", false),
    ] {
        assert_eq!(folder.path().join(name).exists(), is_there, "{name}");
    }
}

/// The exit code and what stands on stderr, of a command that ends.
fn in_time(words: &[&Path]) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start nestrace");
    let begun = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begun.elapsed() > HANGS {
            child.kill().expect("a child");
            panic!("{words:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("a child");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

#[test]
fn nothing_waits_for_the_reader_of_a_fifo() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fifo, capture) = (folder.path().join("fifo"), capture());
    mkfifo(&fifo, Mode::S_IRWXU).expect("a fifo");
    let commands = [
        "analyze CAPTURE --report FIFO",
        "analyze CAPTURE --report FIFO --force",
        "analyze CAPTURE --plots FIFO",
        "analyze CAPTURE --format btt --per-io FIFO",
        "analyze CAPTURE --format btt --iostat FIFO --force",
        "compare CAPTURE CAPTURE --report FIFO",
        "compare CAPTURE CAPTURE --report FIFO --force",
    ];
    for command in commands {
        let words: Vec<&Path> = command
            .split(' ')
            .map(|word| match word {
                "CAPTURE" => &*capture,
                "FIFO" => &*fifo,
                word => Path::new(word),
            })
            .collect();
        let (code, stderr) = in_time(&words);
        assert_eq!(code, Some(2), "{command}: {stderr}");
        assert!(stderr.starts_with("nestrace: "), "{command}: {stderr}");
    }
}

#[test]
fn a_fifo_that_is_read_gets_the_whole_listing() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    mkfifo(&at("fifo"), Mode::S_IRWXU).expect("a fifo");
    let fifo = at("fifo");
    let reader = std::thread::spawn(move || fs::read(fifo).expect("the listing"));
    // The reader has to be there first, and nothing tells when it is but that opening succeeds.
    let begun = Instant::now();
    let (capture, fifo) = (capture(), at("fifo"));
    let [analyze_word, format, btt, per_io] =
        ["analyze", "--format", "btt", "--per-io"].map(Path::new);
    loop {
        match in_time(&[analyze_word, &capture, format, btt, per_io, &fifo]) {
            (Some(0), _) => break,
            (_, stderr) => assert!(begun.elapsed() < HANGS, "{stderr}"),
        }
    }
    let listing = at("listing");
    let output = analyze(&[format, btt, per_io, &listing]);
    assert_eq!(output.status.code(), Some(0));
    let (read, written) = (reader.join(), fs::read(&listing));
    assert_eq!(read.expect("a reader"), written.expect("the listing"));
}

#[test]
fn what_is_not_a_report_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("index.html");
    fs::write(&page, "<!doctype html><title>mine</title>").expect("a page");
    let output = analyze(&[Path::new("--report"), &page]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.starts_with("nestrace: ") && stderr.contains("--force"),
        "{stderr}"
    );
    assert!(
        fs::read_to_string(&page)
            .expect("the page")
            .contains("mine")
    );
    let output = analyze(&[Path::new("--report"), &page, Path::new("--force")]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        !fs::read_to_string(&page)
            .expect("the report")
            .contains("mine")
    );
}

#[test]
fn each_plot_is_a_drawing_a_picture_and_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let plots = folder.path().join("plots");
    for _ in 0..2 {
        let output = analyze(&[Path::new("--plots"), &plots]);
        assert_eq!(output.status.code(), Some(0));
    }
    let names = |ending: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(&plots).expect("the plots");
        let mut names: Vec<PathBuf> = entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|it| it == ending))
            .map(|path| path.with_extension(""))
            .collect();
        names.sort();
        names
    };
    let drawings = names("svg");
    assert!(drawings.len() >= 8, "{drawings:?}");
    assert_eq!(drawings, names("png"));
    assert_eq!(drawings, names("csv"));
    let output = analyze(&[Path::new("--plots"), folder.path()]);
    assert_eq!(
        output.status.code(),
        Some(2),
        "a folder with something else in it"
    );
}

#[test]
fn btt_has_no_report() {
    let output = analyze(&[
        Path::new("--format"),
        Path::new("btt"),
        Path::new("--report"),
        Path::new("/nonexistent/report.html"),
    ]);
    assert_eq!(output.status.code(), Some(2));
}
