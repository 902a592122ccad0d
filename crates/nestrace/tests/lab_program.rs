//! `nestrace lab` becomes the `nestrace-lab` beside it, or the one in the PATH; `nestrace fleet` does so with its own.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Says its arguments, and ends as the first one asks for.
const LAB: &str = "#!/bin/sh\necho \"$*\"\ncase $1 in term) kill -TERM $$ ;; *) exit 3 ;; esac\n";

/// A folder with a nestrace, which is the built one under another path.
fn installed() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = folder.path().join("nestrace");
    fs::hard_link(env!("CARGO_BIN_EXE_nestrace"), &program).expect("a link");
    (folder, program)
}

fn put_lab(folder: &Path) {
    put_script(folder, "nestrace-lab", LAB);
}

/// Installed by another process: a fork of a test beside would keep open what this one writes, and the kernel starts no such
/// program.
fn put_script(folder: &Path, name: &str, text: &str) {
    let written = folder.join(format!("{name}.sh"));
    fs::write(&written, text).expect("a script");
    let installed = Command::new("install")
        .arg(&written)
        .arg(folder.join(name))
        .status();
    assert!(installed.expect("install starts").success());
}

fn lab(program: &Path, path: &str, words: &[&str]) -> Output {
    Command::new(program)
        .arg("lab")
        .args(words)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .expect("nestrace runs")
}

#[test]
fn arguments_exit_code_and_signals_are_the_other_program_s() {
    let (folder, program) = installed();
    put_lab(folder.path());
    for words in [
        &["run", "p.toml", "-o", "x"][..],
        &["--help"],
        &["no-such"],
        &[],
    ] {
        let output = lab(&program, "/usr/bin:/bin", words);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (output.status.code(), said.trim_end()),
            (Some(3), words.join(" ").as_str())
        );
    }
    let output = lab(&program, "/usr/bin:/bin", &["term"]);
    assert_eq!(output.status.signal(), Some(15));
}

#[test]
fn where_none_lies_beside_it_the_path_has_it() {
    let (folder, program) = installed();
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    put_lab(&elsewhere);
    let path = format!("{}:/usr/bin:/bin", elsewhere.display());
    let output = lab(&program, &path, &["plan"]);
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(3), b"plan\n".to_vec())
    );
}

#[test]
fn where_it_is_not_installed_one_line_says_how_to_get_it() {
    let (folder, program) = installed();
    let nothing = folder.path().display().to_string();
    let output = lab(&program, &nothing, &["run", "quick"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    let [first, hint] = lines.as_slice() else {
        panic!("{stderr}");
    };
    assert!(
        first.starts_with("nestrace: ") && first.contains("nestrace-lab"),
        "{first}"
    );
    assert!(
        hint.starts_with("hint: cargo build ") && hint.contains("-p nestrace-lab"),
        "{hint}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn fleet_is_a_program_of_its_own_too() {
    let (folder, program) = installed();
    let start = || {
        Command::new(&program)
            .args(["fleet", "report", "x"])
            .env("PATH", folder.path())
            .output()
            .expect("nestrace runs")
    };
    let missing = start();
    let stderr = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(4), "{stderr}");
    assert!(
        stderr.contains("hint: cargo install --locked --path crates/nestrace-fleet "),
        "{stderr}"
    );
    put_script(folder.path(), "nestrace-fleet", "#!/bin/sh\necho \"$*\"\n");
    assert_eq!(start().stdout, b"report x\n");
}
