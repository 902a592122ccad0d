//! `nestrace analyze --report` and `--plots`, as a user runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
