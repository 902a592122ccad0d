//! What a nestrace that counts for a build by profile (`cargo xtask dist nestrace`) goes through: it records a load and analyses the
//! fixtures.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use anyhow::{Context, ensure};
use nestrace_rig::interrupt;
use xtask::cargo_build::workspace;

use crate::analyze_speed::CAPTURE as MEASURED_CAPTURE;
use crate::long_capture::ShortCapture;
use crate::record_cost;

const BUNDLES: &str = "fixtures/findings";
const CAPTURES: &str = "fixtures/blktrace";
/// What a capture's base name is followed by.
const FIRST_FILE: &str = ".blktrace.0";
/// Shorter ones show a single thing, such as a requeue.
const TYPICAL_RECORDS: usize = 300;
const LONG_RECORDS: u64 = 500_000;

/// Has it record a load and analyse the fixtures; its counts go to `counts`. What does not run here counts as seldom run and
/// is compiled for size. (Reports and exports are not among it, and take no longer than without a profile.)
///
/// Captures that are long enough to be like others are made longer, so that their records count for more than what a start
/// and an end take.
pub fn run(program: &Path, counts: &Path) -> anyhow::Result<()> {
    empty(counts).with_context(|| format!("empty {}", counts.display()))?;
    record_cost::record_reads(program)?;
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
