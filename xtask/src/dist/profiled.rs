//! nestrace, laid out for what it does most (profile-guided optimisation): a first build counts what recording a load and analysing
//! the fixtures runs through, a second is compiled by these counts.
//!
//! The capture that `cargo xtask bench analyze` measures with is not among them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use nestrace_rig::{packages, root};
use xtask::cargo_build::{self, TARGET, cargo, workspace};

use crate::bpf::{self, LLVM_MAJOR};
use crate::elsewhere;

const PROGRAM: &str = "nestrace";

/// Builds it.
pub fn make() -> anyhow::Result<PathBuf> {
    root::require()?;
    let profdata = profdata_tool()?;
    // At one place, or the build that counts would be made anew every time.
    let counts = workspace().join("target/profile");
    let flags = format!("-Cprofile-generate={}", counts.display());
    let counting = build(&flags).context("build the program that counts")?;
    elsewhere::train(&counting, &counts)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler() {
        let version = "rustc 1.95.0 (59807616e 2026-04-14)\nhost: x86_64\nLLVM version: 22.1.2\n";
        assert_eq!(llvm_major(version), Some(22));
        assert_eq!(llvm_major("rustc 1.95.0"), None);
    }
}
