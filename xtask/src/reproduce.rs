//! `cargo xtask reproduce`: builds the static agent and the probes in this checkout and in a copy of it in another folder,
//! and holds the bytes against each other.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use xtask::agent;
use xtask::cargo_build::workspace;

use crate::bpf;

/// Builds both twice.
pub fn run() -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new()
        .prefix("nestrace-built-elsewhere-")
        .tempdir()
        .context("make a folder for the copy")?;
    let copy = folder.path().join("a/longer/path/to/the/copy");
    copy_sources(workspace(), &copy)?;
    let probes = [workspace(), &copy].map(bpf::build);
    compare("probes", probes)?;
    let agents = [workspace(), &copy].map(|root| {
        let program = agent::build_in(root)?;
        fs::read(&program).with_context(|| format!("read {}", program.display()))
    });
    compare("agent", agents)?;
    Ok(ExitCode::SUCCESS)
}

/// The files that git knows, as they are now.
fn copy_sources(from: &Path, to: &Path) -> anyhow::Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--", "*.rs", "*.toml", "*.lock"])
        .args(["ebpf", "crates", "xtask"])
        .current_dir(from)
        .output()
        .context("ask git for the sources")?;
    ensure!(listed.status.success(), "list the sources with git");
    let listed = String::from_utf8(listed.stdout).context("read the names of the sources")?;
    for name in listed.split_terminator('\0') {
        let (source, target) = (from.join(name), to.join(name));
        // Removed, and not committed yet.
        if !source.is_file() {
            continue;
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).context("make a folder of the copy")?;
        }
        fs::copy(&source, &target).with_context(|| format!("copy {name}"))?;
    }
    Ok(())
}

fn compare(what: &str, built: [anyhow::Result<Vec<u8>>; 2]) -> anyhow::Result<()> {
    let [here, elsewhere] = built;
    let (here, elsewhere) = (here?, elsewhere?);
    let differs = here
        .iter()
        .zip(&elsewhere)
        .position(|(a, b)| a != b)
        .unwrap_or(here.len().min(elsewhere.len()));
    ensure!(
        here == elsewhere,
        "build the {what} twice: {} and {} bytes, and they differ from byte {differs} on",
        here.len(),
        elsewhere.len()
    );
    let digest = Sha256::digest(&here);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    println!(
        "{what}: {} bytes in both folders, sha256 {digest}",
        here.len()
    );
    Ok(())
}
