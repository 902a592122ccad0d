//! `cargo xtask deny`: what the project depends on, held to `deny.toml`: licences, sources, bans, and advisories where
//! their database can be had. What has passed is noted in `xtask/deny.passed`.

use std::fs;
use std::process::{Command, ExitCode, Output};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use xtask::cargo_build::{install, workspace};

/// The digest of all that licences, sources and bans depend on, as it was when they last passed.
const PASSED: &str = "xtask/deny.passed";

/// Options.
#[derive(clap::Args)]
pub struct DenyArgs {
    /// Only if a manifest, a lock file or deny.toml has changed since the last time that passed
    #[arg(long)]
    changed: bool,
}

/// The version that CI uses.
const VERSION: &str = "0.20.2";
/// Every lock file of the repository stands beside one of these.
const MANIFESTS: [&str; 5] = [
    "Cargo.toml",
    "crates/nestrace-fleet/Cargo.toml",
    "ebpf/Cargo.toml",
    "fuzz/Cargo.toml",
    "examples/embedding/Cargo.toml",
];
/// What needs no network.
const LOCAL_CHECKS: [&str; 3] = ["bans", "licenses", "sources"];

/// Checks every manifest.
pub fn run(args: &DenyArgs) -> anyhow::Result<ExitCode> {
    let digest = digest()?;
    let passed = workspace().join(PASSED);
    if args.changed && fs::read_to_string(&passed).is_ok_and(|last| last.trim() == digest) {
        println!(
            "deny: licences, sources and bans passed with these manifests; advisories NOT CHECKED: cargo xtask deny does it"
        );
        return Ok(ExitCode::SUCCESS);
    }
    install("cargo-deny", VERSION, &["--version"])?;
    let mut good = true;
    for manifest in MANIFESTS {
        println!("deny: {manifest}");
        let output = deny(manifest, &LOCAL_CHECKS)?;
        // A line for each check on stdout, what is wrong on stderr.
        print!("{}", String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            good = false;
        }
    }
    if good {
        fs::write(&passed, digest + "\n").with_context(|| format!("write {PASSED}"))?;
    }
    good &= check_advisories()?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Of deny.toml, every manifest and every lock file that git knows.
fn digest() -> anyhow::Result<String> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--",
            "deny.toml",
            "*Cargo.toml",
            "*Cargo.lock",
        ])
        .current_dir(workspace())
        .output()
        .context("ask git for the manifests")?;
    ensure!(listed.status.success(), "list the manifests with git");
    let listed = String::from_utf8(listed.stdout).context("read the names of the manifests")?;
    let mut digest = Sha256::new();
    for name in listed.split_terminator('\0') {
        let bytes = fs::read(workspace().join(name)).with_context(|| format!("read {name}"))?;
        digest.update(format!("{name} {}\n", bytes.len()));
        digest.update(bytes);
    }
    let digest = digest.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Known vulnerabilities, by RustSec's database. Without the network this checks nothing, and says so.
fn check_advisories() -> anyhow::Result<bool> {
    let output = deny(MANIFESTS[0], &["advisories"])?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("deny: advisories ok");
        return Ok(true);
    }
    if let Some(reason) = no_database(&said) {
        println!(
            "deny: advisories NOT CHECKED: RustSec's database cannot be fetched here: {reason}"
        );
        return Ok(true);
    }
    eprint!("{said}");
    Ok(false)
}

/// Why the database could not be fetched, where that is what failed.
fn no_database(said: &str) -> Option<&str> {
    let failed = said.contains("failed to fetch advisory database")
        || said.contains("unable to fetch advisory database")
        || said.contains("failed to load advisory database");
    let reason = said
        .lines()
        .map(str::trim)
        .rfind(|line| line.contains("unable to access") || line.contains("resolve host"));
    failed.then(|| reason.unwrap_or_else(|| said.lines().next().unwrap_or_default()))
}

fn deny(manifest: &str, checks: &[&str]) -> anyhow::Result<Output> {
    Command::new("cargo-deny")
        .args(["--color", "never", "--locked", "--manifest-path", manifest])
        .arg("--config")
        .arg(workspace().join("deny.toml"))
        .arg("check")
        .args(checks)
        .current_dir(workspace())
        .output()
        .context("start cargo-deny")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_database_excuses() {
        let offline = "ERROR failed to fetch advisory database https://github.com/RustSec/advisory-db\n\
                       fatal: unable to access 'https://github.com/RustSec/advisory-db/': Could not resolve host\n";
        assert!(no_database(offline).is_some_and(|reason| reason.starts_with("fatal: unable")));
        let vulnerable = "error[vulnerability]: Use after free in example\n";
        assert_eq!(no_database(vulnerable), None);
    }
}
