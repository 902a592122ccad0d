//! `cargo xtask dist`: programs as they are handed out, in `target/dist`, each with its checksum and what it is made of.

mod profiled;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use xtask::agent;
use xtask::cargo_build::{self, TARGET, cargo, workspace};

/// Options of `dist`.
#[derive(clap::Args)]
pub struct DistArgs {
    /// What to build
    #[arg(value_enum, default_value_t = Program::Agent)]
    program: Program,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Program {
    /// nestrace-agent for guests: static, with its unit and its udev rule
    Agent,
    /// nestrace, compiled by what a first build counts in use; needs root, and a quarter of an hour; installs fio and llvm
    Nestrace,
    /// nestrace-lab, which nestrace lab starts: it belongs beside nestrace
    Lab,
}

/// Builds one.
pub fn run(args: &DistArgs) -> anyhow::Result<ExitCode> {
    let folder = workspace().join("target/dist");
    fs::create_dir_all(&folder).context("create target/dist")?;
    let built = match args.program {
        Program::Agent => agent::make(&folder)?,
        Program::Nestrace => profiled::make()?,
        Program::Lab => lab()?,
    };
    check_that_it_runs(&built)?;
    let name = built.file_name().unwrap_or_default();
    let made = folder.join(name);
    fs::copy(&built, &made).context("copy the program")?;
    let bytes = fs::read(&made).with_context(|| format!("read {}", made.display()))?;
    let digest = Sha256::digest(&bytes);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = name.to_string_lossy();
    fs::write(
        folder.join(format!("{name}.sha256")),
        format!("{digest}  {name}\n"),
    )
    .context("write the checksum")?;
    let n_crates = sbom::write(&name, &folder)?;
    println!(
        "{}: {:.1} MB of {n_crates} crates ({name}.cdx.json), sha256 {digest}",
        made.display(),
        bytes.len() as f64 / 1e6
    );
    Ok(ExitCode::SUCCESS)
}

fn lab() -> anyhow::Result<PathBuf> {
    const PROGRAM: &str = "nestrace-lab";
    let mut command = cargo();
    command
        .args(["build", "--release", "--target", TARGET])
        .args(["--package", PROGRAM]);
    cargo_build::executable(command, PROGRAM)
}

fn check_that_it_runs(program: &Path) -> anyhow::Result<()> {
    let status = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(status.success(), "run {} --version", program.display());
    Ok(())
}
