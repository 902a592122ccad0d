//! `nestrace lab` where something is missing or wrong: nothing is built, and one line says why.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `nestrace-lab WORDS…` in `folder` on a machine that seems to have hardly any programs.
fn lab(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace-lab"))
        .args(words)
        .env("PATH", "")
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("nestrace-lab runs")
}

#[test]
fn missing_packages_end_with_4_and_apts_line_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    // Without apt-get, --install has nothing to install with.
    for words in [
        &["run", "quick", "-o", "results"][..],
        &["run", "quick", "-o", "results", "--install"],
    ] {
        let output = lab(folder.path(), words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        let lines: Vec<&str> = stderr.lines().collect();
        let [first, hint] = lines.as_slice() else {
            panic!("{stderr}");
        };
        assert!(first.starts_with("nestrace: the lab needs the Debian packages "));
        assert!(
            hint.starts_with("hint: sudo apt-get update && sudo apt-get install -y ")
                && hint.contains(" qemu-system-x86 ")
                && hint.ends_with(", or --install as root"),
            "{hint}"
        );
        assert!(output.stdout.is_empty());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}

#[test]
fn a_plan_with_a_typo_ends_with_3_and_its_place_whatever_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name = 'p'\n[[workload]]\nname = 'randwrit'\n";
    std::fs::write(folder.path().join("p.toml"), text).unwrap();
    for command in ["plan", "run"] {
        let output = lab(folder.path(), &[command, "p.toml"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(
            stderr.starts_with("nestrace: p.toml: line 3, column 8: ")
                && stderr.contains("did you mean \"randwrite\"?"),
            "{stderr}"
        );
    }
}

/// Where the lab has what it needs it refuses the folder; elsewhere it says what is missing.
#[test]
fn a_folder_that_is_refused_stays_whose_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwd");
    std::fs::write(&file, "x").unwrap();
    let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
    let before = (owner(folder.path()), owner(&file));
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace-lab"))
        .args(["run", "quick", "-o"])
        .arg(folder.path())
        .envs([("SUDO_UID", "1234"), ("SUDO_GID", "1235")])
        .stdin(Stdio::null())
        .output()
        .expect("nestrace-lab runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(3 | 4)), "{stderr}");
    assert_eq!((owner(folder.path()), owner(&file)), before, "{stderr}");
}

#[test]
fn a_report_writes_into_its_folder_only() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    std::fs::create_dir(&results).unwrap();
    let recording =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/findings/qcow2-grows.nest");
    std::os::unix::fs::symlink(recording, folder.path().join("slow.nest")).unwrap();
    let cell = r#"{"id": "../slow", "recording": "../slow.nest"}"#;
    std::fs::write(results.join("slow.json"), cell).unwrap();
    let run = r#"{"schema": "nestrace-lab-run/1", "cells": ["slow"]}"#;
    std::fs::write(results.join("run.json"), run).unwrap();
    let output = lab(folder.path(), &["report", "results"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert_eq!(
        stderr,
        "nestrace: read results/slow.json: it is damaged, its cell is \"../slow\"\n\
         hint: without results/slow.json its runs are made again\n"
    );
    assert!(!folder.path().join("slow.html").exists());
    assert_eq!(results.read_dir().unwrap().count(), 2);
}
