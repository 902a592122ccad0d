//! Builds the project's own programs and says where they are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

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
    let mut command = cargo();
    command.args([
        "build",
        "--package",
        package,
        "--message-format=json-render-diagnostics",
    ]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !output.status.success() {
        bail!("build {package}");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let ours = message["target"]["name"] == package;
        message["executable"]
            .as_str()
            .filter(|_| ours)
            .map(PathBuf::from)
    };
    messages
        .lines()
        .rev()
        .find_map(executable)
        .with_context(|| format!("find the program {package}"))
}
