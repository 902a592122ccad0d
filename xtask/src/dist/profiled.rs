//! nestrace, laid out for what it does most (profile-guided optimisation): a first build counts what recording a load and analysing
//! the fixtures runs through, a second is compiled by these counts.
//!
//! The capture that `cargo xtask bench analyze` measures with is not among them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use anyhow::{Context, ensure};
use nestrace_rig::{interrupt, packages};

use super::TARGET;
use crate::bench::{self, MEASURED_CAPTURE};
use crate::bpf::{self, LLVM_MAJOR};
use crate::cargo_build::{self, cargo, workspace};
use crate::live;
use crate::long_capture::ShortCapture;

const PROGRAM: &str = "nestrace";
const BUNDLES: &str = "fixtures/findings";
const CAPTURES: &str = "fixtures/blktrace";
/// What a capture's base name is followed by.
const FIRST_FILE: &str = ".blktrace.0";
/// Shorter ones show a single thing, such as a requeue.
const TYPICAL_RECORDS: usize = 300;
const LONG_RECORDS: u64 = 500_000;

/// Builds it.
pub fn make() -> anyhow::Result<PathBuf> {
    live::require_root()?;
    let profdata = profdata_tool()?;
    // At one place, or the build that counts would be made anew every time.
    let counts = workspace().join("target/profile");
    let flags = format!("-Cprofile-generate={}", counts.display());
    let counting = build(&flags).context("build the program that counts")?;
    train(&counting, &counts)?;
    let profile = workspace().join("target/nestrace.profdata");
    let status = Command::new(profdata)
        .args(["merge", "-o"])
        .arg(&profile)
        .arg(&counts)
        .status()
        .context("start llvm-profdata")?;
    ensure!(
        status.success(),
        "put the counts in {} together",
        counts.display()
    );
    let flags = format!("-Cprofile-use={}", profile.display());
    build(&flags).context("build by what was counted")
}

/// The program that reads what this rustc's programs count; its format changes with LLVM.
fn profdata_tool() -> anyhow::Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("-vV").output();
    let said = said.context("ask rustc for its LLVM")?.stdout;
    let major = llvm_major(&String::from_utf8_lossy(&said)).context("find rustc's LLVM")?;
    ensure!(
        major == LLVM_MAJOR,
        "build {PROGRAM} by a profile: rustc has LLVM {major}; use one that has {LLVM_MAJOR}, whose profiles can be read"
    );
    let package = format!("llvm-{LLVM_MAJOR}");
    packages::install_packages(&[&package], |line| eprintln!("xtask: {line}"))?;
    Ok(PathBuf::from(bpf::llvm("llvm-profdata")))
}

fn llvm_major(version: &str) -> Option<u32> {
    let llvm = version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?;
    llvm.split('.').next()?.parse().ok()
}

fn build(flags: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["build", "--release", "--target", TARGET])
        .args(["--package", PROGRAM])
        // Unlike RUSTFLAGS it may have spaces, and nothing takes its place.
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        // Names stay, for backtraces and perf.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    cargo_build::executable(command, PROGRAM)
}

/// Has it record a load and analyse the fixtures; its counts go to `counts`. What does not run here counts as seldom run and
/// is compiled for size. (Reports and exports are not among it, and take no longer than without a profile.)
///
/// Captures that are long enough to be like others are made longer, so that their records count for more than what a start
/// and an end take.
fn train(program: &Path, counts: &Path) -> anyhow::Result<()> {
    empty(counts).with_context(|| format!("empty {}", counts.display()))?;
    bench::record_reads(program)?;
    let n_files = entries(counts)?.len();
    ensure!(
        n_files > 0,
        "find what the recorder counted in {}",
        counts.display()
    );
    for capture in captures(&workspace().join(CAPTURES))? {
        let short = ShortCapture::read(&capture)?;
        let folder = tempfile::tempdir().context("make a folder for a long capture")?;
        let is_typical = short.actions().count() >= TYPICAL_RECORDS;
        let input = if is_typical {
            short.write_repeated(folder.path(), "long", LONG_RECORDS)?;
            folder.path().join("long")
        } else {
            capture
        };
        in_each_form(program, &input, &["text", "json", "btt"])?;
    }
    for bundle in bundles(&workspace().join(BUNDLES))? {
        in_each_form(program, &bundle, &["text", "json"])?;
    }
    Ok(())
}

/// Counts of another time are of another program. The recorder writes its own when it has given up root's rights.
fn empty(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o777))
}

fn in_each_form(program: &Path, input: &Path, formats: &[&str]) -> anyhow::Result<()> {
    for format in formats {
        interrupt::check()?;
        analyze(program, input, format)?;
    }
    Ok(())
}

fn analyze(program: &Path, input: &Path, format: &str) -> anyhow::Result<()> {
    let output = Command::new(program)
        .arg("analyze")
        .arg(input)
        .args(["--format", format])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .context("start the program that counts")?;
    ensure!(
        output.status.success(),
        "analyse {}: {}",
        input.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn bundles(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let all = entries(folder)?;
    let bundles = all.into_iter().filter(|path| has_ending(path, ".nest"));
    Ok(bundles.collect())
}

/// Base names of the captures in a folder and below, but for that which is measured.
fn captures(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            found.extend(captures(&path)?);
        } else if has_ending(&path, FIRST_FILE) && !path.starts_with(measured()) {
            let name = path.to_string_lossy();
            found.push(PathBuf::from(name.trim_end_matches(FIRST_FILE)));
        }
    }
    Ok(found)
}

fn measured() -> PathBuf {
    let capture = workspace().join(MEASURED_CAPTURE);
    capture.parent().map(Path::to_owned).unwrap_or_default()
}

/// In one order everywhere.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let look = || format!("look into {}", folder.display());
    let entries = fs::read_dir(folder).with_context(look)?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths
        .collect::<io::Result<Vec<PathBuf>>>()
        .with_context(look)?;
    paths.sort();
    Ok(paths)
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.to_string_lossy().ends_with(ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler() {
        let version = "rustc 1.95.0 (59807616e 2026-04-14)\nhost: x86_64\nLLVM version: 22.1.2\n";
        assert_eq!(llvm_major(version), Some(22));
        assert_eq!(llvm_major("rustc 1.95.0"), None);
    }

    #[test]
    fn it_is_made_for_all_fixtures_but_the_one_that_is_measured() {
        let captures = captures(&workspace().join(CAPTURES)).unwrap();
        let has = |name: &str| {
            let capture = workspace().join(CAPTURES).join(name);
            captures.contains(&capture)
        };
        assert!(has("schedulers/bfq/gt") && has("ext3-seqw-mq-ide/gt"));
        assert!(
            workspace()
                .join(MEASURED_CAPTURE)
                .with_extension("blktrace.0")
                .exists()
        );
        assert!(!captures.contains(&workspace().join(MEASURED_CAPTURE)));
        assert!(!bundles(&workspace().join(BUNDLES)).unwrap().is_empty());
    }
}
