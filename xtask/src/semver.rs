//! `cargo xtask semver`: whether the public items of the library crates still fit programs that were written for the
//! committed baseline, by cargo-semver-checks.
//!
//! The baseline is what rustdoc says of each crate, as JSON, without the text of the documentation, compressed:
//! `xtask/semver/CRATE.json.zst`. rustdoc's JSON has a version of its own, so baseline and current state must come from
//! the same release of Rust: after a change of the toolchain, make the baseline again from the commit of the release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;
use xtask::cargo_build::{cargo, install, workspace};

/// The version whose checks the baseline is held to.
const VERSION: &str = "0.51.0";
/// The crates that other programs build on.
const CRATES: [&str; 5] = [
    "nestrace-analyzer",
    "nestrace-blktrace",
    "nestrace-bundle",
    "nestrace-report",
    "nestrace-trace",
];
/// Allows rustdoc's JSON.
const RUSTDOC: &str = "xtask/src/semver/rustdoc-json.sh";
/// Where the baselines lie.
const BASELINES: &str = "xtask/semver";
/// As small as it gets.
const LEVEL: i32 = 19;
/// A baseline is never larger, uncompressed.
const MAX_BASELINE: usize = 64 << 20;

/// Options of `cargo xtask semver`.
#[derive(Args)]
pub struct SemverArgs {
    /// Write the baseline from this checkout, after a release
    #[arg(long)]
    update: bool,
}

/// Checks every crate, or writes the baseline of every crate.
pub fn run(args: &SemverArgs) -> anyhow::Result<ExitCode> {
    if args.update {
        for name in CRATES {
            write_baseline(name)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    install(
        "cargo-semver-checks",
        VERSION,
        &["semver-checks", "--version"],
    )?;
    let folder = tempfile::Builder::new()
        .prefix("nestrace-semver-")
        .tempdir()
        .context("make a folder for the baselines")?;
    let mut fits = true;
    for name in CRATES {
        println!("semver: {name}");
        let baseline = read_baseline(name, folder.path())?;
        fits &= check(name, &baseline)?;
    }
    Ok(if fits {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whether what the crate is now fits programs that were written for the baseline.
fn check(name: &str, baseline: &Path) -> anyhow::Result<bool> {
    let current = rustdoc_json(name)?;
    let status = cargo()
        .args(["semver-checks", "check-release", "--release-type", "minor"])
        .arg("--baseline-rustdoc")
        .arg(baseline)
        .arg("--current-rustdoc")
        .arg(&current)
        .status()
        .context("start cargo semver-checks")?;
    Ok(status.success())
}

fn write_baseline(name: &str) -> anyhow::Result<()> {
    let path = rustdoc_json(name)?;
    let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let mut json: Value = serde_json::from_slice(&text).context("read rustdoc's JSON")?;
    leave_out_text(&mut json);
    let text = serde_json::to_vec(&json).context("write rustdoc's JSON")?;
    let packed = zstd::bulk::compress(&text, LEVEL).context("compress rustdoc's JSON")?;
    let path = baseline_path(name);
    fs::write(&path, &packed).with_context(|| format!("write {}", path.display()))?;
    println!("semver: {}: {} KiB", path.display(), packed.len() >> 10);
    Ok(())
}

/// Drops what no check looks at: the text of the documentation and its links.
fn leave_out_text(json: &mut Value) {
    let index = json.get_mut("index").and_then(Value::as_object_mut);
    for item in index.into_iter().flat_map(|index| index.values_mut()) {
        if let Some(item) = item.as_object_mut() {
            item.insert(String::from("docs"), Value::Null);
            item.insert(String::from("links"), Value::Object(Default::default()));
        }
    }
}

fn read_baseline(name: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let path = baseline_path(name);
    let packed = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let text = zstd::bulk::decompress(&packed, MAX_BASELINE)
        .with_context(|| format!("decompress {}", path.display()))?;
    let unpacked = folder.join(format!("{name}.json"));
    fs::write(&unpacked, text).with_context(|| format!("write {}", unpacked.display()))?;
    Ok(unpacked)
}

fn baseline_path(name: &str) -> PathBuf {
    workspace().join(BASELINES).join(format!("{name}.json.zst"))
}

/// What rustdoc says of a crate.
fn rustdoc_json(name: &str) -> anyhow::Result<PathBuf> {
    let status = cargo()
        .args(["rustdoc", "--quiet", "--locked", "--lib", "--package", name])
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .args(["--cap-lints", "allow"])
        .env("RUSTDOC", workspace().join(RUSTDOC))
        .status()
        .context("start cargo rustdoc")?;
    ensure!(status.success(), "make rustdoc's JSON of {name}");
    let file = format!("{}.json", name.replace('-', "_"));
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    Ok(workspace().join(target).join("doc").join(file))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_baseline_has_no_text() {
        let mut json =
            json!({ "index": { "7": { "name": "a", "docs": "Text.", "links": { "b": 8 } } } });
        leave_out_text(&mut json);
        let expected = json!({ "index": { "7": { "name": "a", "docs": null, "links": {} } } });
        assert_eq!(json, expected);
    }

    #[test]
    fn every_crate_has_a_baseline() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in CRATES {
            let path = read_baseline(name, folder.path()).expect("a baseline");
            let text = fs::read(path).expect("its text");
            let json: Value = serde_json::from_slice(&text).expect("JSON");
            assert!(json.get("index").is_some(), "{name}");
        }
    }
}
