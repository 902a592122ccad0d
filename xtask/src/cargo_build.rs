//! Builds the project's own programs and says where they are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// The target of what is handed out. It is named, so that flags for the program are not for build scripts and procedural
/// macros as well, which they would break or slow down.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The workspace's folder.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// The cargo that runs us.
pub fn cargo() -> Command {
    let mut command =
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(workspace());
    command
}

/// Installs a program of crates.io unless it is there in this version; `ask` are the arguments that make it print its own.
pub fn install(program: &str, version: &str, ask: &[&str]) -> anyhow::Result<()> {
    let printed = Command::new(program).args(ask).output();
    let is_there = printed.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .any(|word| word == version)
    });
    if is_there {
        return Ok(());
    }
    eprintln!("xtask: building {program} {version}, which takes some minutes");
    let status = cargo()
        .args(["install", program, "--locked", "--force"])
        .args(["--version", version])
        .status()
        .context("start cargo install")?;
    ensure!(status.success(), "install {program} {version}");
    Ok(())
}

/// Flags that keep the places of this checkout and of cargo's crates out of what is built.
pub fn without_paths(root: &Path) -> [String; 2] {
    let cargo_home = std::env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap_or_default()));
    [
        format!("--remap-path-prefix={}=nestrace", root.display()),
        format!("--remap-path-prefix={cargo_home}=cargo"),
    ]
}

/// A profile to build with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// What tests use: one profile for all of them.
    Dev,
    /// What users build.
    Release,
}

/// Builds the binary of `package`; cargo's own progress goes to stderr.
pub fn build(package: &str, profile: Profile) -> anyhow::Result<PathBuf> {
    build_with(package, &[], profile)
}

/// The same with the binaries of other packages beside it: in one build they share what they are made of.
pub fn build_with(package: &str, beside: &[&str], profile: Profile) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", package]);
    for package in beside {
        command.args(["--package", package]);
    }
    if profile == Profile::Release {
        command.arg("--release");
    }
    executable(command, package)
}

/// Builds nestrace in the tests' profile but for its export to Parquet, which takes as long to build as everything else.
pub fn build_without_parquet() -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", "nestrace", "--no-default-features"]);
    executable(command, "nestrace")
}

/// Builds a program with the features that the whole workspace has, which is what `cargo run --bin xtask` and the tests do:
/// nothing is compiled twice.
pub fn build_shared(program: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--bin", program]);
    executable(command, program)
}

/// Runs a cargo that builds a target with an executable, and says where that is.
pub fn executable(mut command: Command, target: &str) -> anyhow::Result<PathBuf> {
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !output.status.success() {
        bail!("build {target}");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let ours = message["target"]["name"] == target;
        message["executable"]
            .as_str()
            .filter(|_| ours)
            .map(PathBuf::from)
    };
    messages
        .lines()
        .rev()
        .find_map(executable)
        .with_context(|| format!("find the program {target}"))
}
