//! Our own programs for guests, built without shared libraries.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::agent::needs_interpreter;
use crate::cargo_build::{cargo, executable, workspace};

/// Links programs statically. With flags for everything (`RUSTFLAGS`) cargo would compile all that they are
/// made of once more; with this it takes that from the other builds.
const STATIC_RUSTC: &str = "xtask/src/guest_programs/static-rustc.sh";
/// Where they are kept: other builds make programs of the same names that are not static.
const FOLDER: &str = "target/guest";

/// The agent.
pub fn agent() -> anyhow::Result<PathBuf> {
    build("--bin", "nestrace-agent")
}

/// The program that writes stamped blocks.
pub fn stamp_writer() -> anyhow::Result<PathBuf> {
    build("--bin", "stamp-writer")
}

/// The program that makes calls of every kind on files.
pub fn call_writer() -> anyhow::Result<PathBuf> {
    build("--bin", "call-writer")
}

/// The agent that means no good.
pub fn hostile_agent() -> anyhow::Result<PathBuf> {
    build("--example", "hostile-agent")
}

/// Builds a target so that it runs in any x86-64 Linux guest.
fn build(kind: &str, program: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    // No `--package`: what it is made of has the features of the whole workspace, as in the other builds.
    command
        .args(["build", "--quiet", kind, program])
        .env("RUSTC_WORKSPACE_WRAPPER", workspace().join(STATIC_RUSTC));
    let built = executable(command, program)?;
    let bytes = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    let is_dynamic = needs_interpreter(&bytes).context("read the program's ELF headers")?;
    ensure!(
        !is_dynamic,
        "build {program} alone: another build has replaced it"
    );
    let folder = workspace().join(FOLDER);
    fs::create_dir_all(&folder).context("make a folder for guests' programs")?;
    let place = folder.join(program);
    let kept = || -> anyhow::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&folder)?;
        file.write_all(&bytes)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(0o755))?;
        file.persist(&place)?;
        Ok(())
    };
    kept().with_context(|| format!("write {}", place.display()))?;
    Ok(place)
}
