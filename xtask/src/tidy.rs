//! `cargo xtask tidy`: the project's conventions as failures.
//!
//! What clippy and rustfmt check is left to them.

mod crates;
mod dialect;
mod features;
mod floors;
mod impls;
mod paths;
mod sources;

use std::process::ExitCode;

use anyhow::Context;
use xtask::cargo_build::workspace;

/// Checks everything and prints each breach with its place.
pub fn run() -> anyhow::Result<ExitCode> {
    let sources = sources::read_all(workspace()).context("read the sources")?;
    let graph = crates::CrateGraph::read()?;
    let mut breaches = Vec::new();
    breaches.extend(graph.check_direction());
    breaches.extend(crates::check_polars()?);
    breaches.extend(graph.check_screen());
    breaches.extend(crates::check_engine()?);
    breaches.extend(graph.check_anyhow());
    breaches.extend(features::check_features()?);
    for source in &sources {
        breaches.extend(source.check());
    }
    breaches.extend(floors::check_floors(&sources));
    breaches.extend(impls::check_impls(&sources));
    breaches.extend(dialect::check_dialect(&sources));
    breaches.extend(check_lock_file()?);
    for breach in &breaches {
        println!("tidy: {breach}");
    }
    println!(
        "tidy: {} sources, {} breaches",
        sources.len(),
        breaches.len()
    );
    Ok(if breaches.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A build has to be the same everywhere: the lock files are committed.
fn check_lock_file() -> anyhow::Result<Vec<String>> {
    let tracked = std::process::Command::new("git")
        .args(["ls-files", "Cargo.lock", "ebpf/Cargo.lock"])
        .current_dir(workspace())
        .output()
        .context("ask git for the tracked files")?;
    let tracked = String::from_utf8_lossy(&tracked.stdout).into_owned();
    let missing = ["Cargo.lock", "ebpf/Cargo.lock"]
        .into_iter()
        .filter(|file| !tracked.lines().any(|line| line == *file));
    Ok(missing
        .map(|file| format!("{file} is not committed"))
        .collect())
}
