//! `cargo xtask dist`: programs and packages as they are handed out, in `target/dist`, with checksums and what they are made
//! of.

mod deb;
mod packages;
mod profiled;
mod sbom;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use xtask::cargo_build::{self, Profile, TARGET, cargo, workspace};
use xtask::{agent, guest_programs};

use deb::Packing;

/// Options of `dist`.
#[derive(clap::Args)]
pub struct DistArgs {
    /// Only this program, without packages. Without it: all programs and the Debian packages
    #[arg(value_enum)]
    program: Option<Program>,
    /// How the programs are built
    #[arg(
        long,
        value_enum,
        default_value = "release",
        conflicts_with = "program"
    )]
    profile: ProfileArg,
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

#[derive(Clone, Copy, clap::ValueEnum)]
enum ProfileArg {
    /// For users, in target/dist
    Release,
    /// As tests build them, for tests of the packages, in target/dist-dev
    Dev,
}

/// Builds.
pub fn run(args: &DistArgs) -> anyhow::Result<ExitCode> {
    match (args.program, args.profile) {
        (Some(program), _) => one(program)?,
        (None, ProfileArg::Release) => all(Profile::Release, "target/dist")?,
        (None, ProfileArg::Dev) => all(Profile::Dev, "target/dist-dev")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All programs, and packages of them.
fn all(profile: Profile, folder: &str) -> anyhow::Result<()> {
    deb::prepare()?;
    let packing = Packing {
        date: deb::date()?,
        // The smallest package takes a minute, and tests do not need it.
        level: if profile == Profile::Dev { 1 } else { 6 },
    };
    let folder = workspace().join(folder);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let beside = ["nestrace-lab", "nestrace-disk"];
    let nestrace = cargo_build::build_with("nestrace", &beside, profile)?;
    let beside = beside.map(|program| nestrace.with_file_name(program));
    let agent = match profile {
        Profile::Release => agent::make(&folder)?,
        Profile::Dev => guest_programs::agent()?,
    };
    let mut made = agent::put_beside(&folder)?;
    for built in [nestrace, agent].into_iter().chain(beside) {
        made.extend(put_program(&built, &folder)?);
    }
    made.push(packages::nestrace(&folder, &packing)?);
    made.push(packages::agent(&folder, &packing)?);
    let mut sums = String::new();
    for path in &made {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (sum, size) = sha256(path)?;
        sums.push_str(&format!("{sum}  {name}\n"));
        println!("{}: {:.2} MB, sha256 {sum}", path.display(), size / 1e6);
    }
    let path = folder.join("SHA256SUMS");
    fs::write(&path, sums).with_context(|| format!("write {}", path.display()))
}

/// A program without symbols, with what it is made of.
fn put_program(built: &Path, folder: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let name = built.file_name().unwrap_or_default().to_string_lossy();
    let made = folder.join(&*name);
    fs::copy(built, &made).with_context(|| format!("copy {name}"))?;
    fs::set_permissions(&made, Permissions::from_mode(0o755))
        .with_context(|| format!("set the mode of {name}"))?;
    deb::strip(&made)?;
    check_that_it_runs(&made)?;
    sbom::write(&name, folder)?;
    let bill = folder.join(format!("{name}.cdx.json"));
    Ok([made, bill])
}

/// The SHA-256 of a file, and its size in bytes.
fn sha256(path: &Path) -> anyhow::Result<(String, f64)> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let digest = Sha256::digest(&bytes);
    let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((digest, bytes.len() as f64))
}

fn one(program: Program) -> anyhow::Result<()> {
    let folder = workspace().join("target/dist");
    fs::create_dir_all(&folder).context("create target/dist")?;
    let built = match program {
        Program::Agent => agent::make(&folder)?,
        Program::Nestrace => profiled::make()?,
        Program::Lab => lab()?,
    };
    check_that_it_runs(&built)?;
    let name = built.file_name().unwrap_or_default();
    let made = folder.join(name);
    fs::copy(&built, &made).context("copy the program")?;
    let (digest, size) = sha256(&made)?;
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
        size / 1e6
    );
    Ok(())
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
