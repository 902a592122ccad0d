//! `cargo xtask bpf`: builds the probes into `ebpf/prebuilt/`; `--check` proves that what is committed
//! there was built from the sources beside it.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, bail, ensure};
use nestrace_rig::packages;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xtask::cargo_build::without_paths;

/// The committed object and what it was made from.
const OBJECT: &str = "ebpf/prebuilt/nestrace-probes.o";
const PROVENANCE: &str = "ebpf/prebuilt/provenance.json";
/// Everything whose change makes another object.
const SOURCES: &[&str] = &[
    "ebpf/src",
    "ebpf/Cargo.toml",
    "ebpf/Cargo.lock",
    "ebpf/.cargo/config.toml",
    "crates/nestrace-abi/src",
];
/// Debian's: a rustc with the BPF target's core library, and LLVM 22 for the linker.
const PACKAGES: [&str; 7] = [
    "rustc-web",
    "libstd-rust-web-dev-bpf",
    "llvm-22",
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
];
const RUSTC: &str = "/usr/bin/rustc";
/// LLVM of the linker.
const LLVM: &str = "/usr/lib/llvm-22";
/// The number of that LLVM.
pub const LLVM_MAJOR: u32 = 22;
const LINKER_VERSION: &str = "0.13.0";

/// Options.
#[derive(clap::Args)]
pub struct BpfArgs {
    /// Build beside the committed object and compare, instead of replacing it
    #[arg(long)]
    check: bool,
}

/// What the committed object was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Provenance {
    sources_sha256: String,
    object_sha256: String,
    toolchain: Toolchain,
}

/// The programs that make an object; with the same ones the bytes must be the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Toolchain {
    rustc: String,
    linker: String,
    llvm: String,
}

/// Builds, or checks.
pub fn run(args: &BpfArgs) -> anyhow::Result<ExitCode> {
    let root = root();
    let sources_sha256 = hash_sources(&root)?;
    if args.check {
        let committed = read_provenance(&root)?;
        ensure!(
            committed.sources_sha256 == sources_sha256,
            "check {OBJECT}: the probes' sources have changed since it was built; run cargo xtask bpf and commit"
        );
        let bytes = fs::read(root.join(OBJECT)).with_context(|| format!("read {OBJECT}"))?;
        ensure!(
            committed.object_sha256 == hex(&Sha256::digest(&bytes)),
            "check {OBJECT}: it is not the object that {PROVENANCE} describes"
        );
        return check(&root, &committed, &bytes);
    }
    let built = build(&root)?;
    let provenance = Provenance {
        sources_sha256,
        object_sha256: hex(&Sha256::digest(&built)),
        toolchain: toolchain()?,
    };
    fs::write(root.join(OBJECT), &built).with_context(|| format!("write {OBJECT}"))?;
    let text = serde_json::to_string_pretty(&provenance)? + "\n";
    fs::write(root.join(PROVENANCE), text).with_context(|| format!("write {PROVENANCE}"))?;
    println!(
        "{OBJECT}: {} bytes, {}",
        built.len(),
        provenance.object_sha256
    );
    Ok(ExitCode::SUCCESS)
}

fn check(root: &Path, committed: &Provenance, bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let built = build(root)?;
    let here = toolchain()?;
    if here == committed.toolchain {
        ensure!(
            built == bytes,
            "check {OBJECT}: the same toolchain built other bytes ({} instead of {})",
            hex(&Sha256::digest(&built)),
            committed.object_sha256
        );
        println!("{OBJECT}: rebuilt with the same toolchain, the bytes are the same");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{OBJECT}: built by {:?}, here is {here:?}; the rebuilt object must load",
        committed.toolchain
    );
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), &built)?;
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args([
            "run",
            "--quiet",
            "-p",
            "nestrace-probes",
            "--example",
            "load_probes",
            "--",
        ])
        .arg(file.path())
        .status()
        .context("run the load test")?;
    ensure!(
        status.success(),
        "check {OBJECT}: the rebuilt object does not load on this kernel"
    );
    println!("{OBJECT}: rebuilt with another toolchain, the object loads on this kernel");
    Ok(ExitCode::SUCCESS)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned)
        .unwrap_or_default()
}

fn read_provenance(root: &Path) -> anyhow::Result<Provenance> {
    let text = fs::read(root.join(PROVENANCE)).with_context(|| format!("read {PROVENANCE}"))?;
    serde_json::from_slice(&text).with_context(|| format!("read {PROVENANCE}"))
}

/// Builds the object: stripped of debug information, with BTF, and without this checkout's path.
pub fn build(root: &Path) -> anyhow::Result<Vec<u8>> {
    install_toolchain()?;
    let flags = [
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // Or else every value that is cleared is cleared byte by byte, by a call: half of what a plain probe executes.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
    ];
    let flags: Vec<String> = flags.into_iter().chain(without_paths(root)).collect();
    let target = root.join("target/bpf");
    let status = Command::new(env!("CARGO"))
        .current_dir(root.join("ebpf"))
        .args(["build", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", RUSTC)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env_remove("RUSTUP_TOOLCHAIN")
        .status()
        .context("run cargo for the probes")?;
    ensure!(status.success(), "build the probes");
    let built = target.join("bpfel-unknown-none/release/nestrace-probes");
    let object = tempfile::NamedTempFile::new()?;
    let symbols = output(
        &llvm("llvm-nm"),
        &["--format=just-symbols", &built.display().to_string()],
    )?;
    let mut strip = Command::new(llvm("llvm-objcopy"));
    strip.arg("--strip-debug");
    for symbol in symbols.lines() {
        if let Some(plain) = without_crate_hash(symbol) {
            strip.arg(format!("--redefine-sym={symbol}={plain}"));
        }
    }
    let status = strip
        .arg(&built)
        .arg(object.path())
        .status()
        .context("run llvm-objcopy")?;
    ensure!(status.success(), "strip {}", built.display());
    fs::read(object.path()).context("read the stripped object")
}

/// Where a program of that LLVM is, once it is installed.
pub fn llvm(program: &str) -> String {
    format!("{LLVM}/bin/{program}")
}

/// A mangled name (`_RNvNtCs4gl4UWREvYUG_15nestrace_probes…`) without the crate's hash, which depends
/// on the checkout's path.
fn without_crate_hash(symbol: &str) -> Option<String> {
    let (before, rest) = symbol.strip_prefix("_R")?.split_once("Cs")?;
    let (_, after) = rest.split_once('_')?;
    Some(format!("_R{before}C{after}"))
}

/// Installs the BPF toolchain where it is missing.
fn install_toolchain() -> anyhow::Result<()> {
    packages::install_packages(&PACKAGES, |message| eprintln!("xtask: {message}"))?;
    if output("bpf-linker", &["--version"]).is_ok_and(|version| version.contains(LINKER_VERSION)) {
        return Ok(());
    }
    eprintln!("xtask: building bpf-linker {LINKER_VERSION}");
    let status = Command::new(env!("CARGO"))
        .args([
            "install",
            "bpf-linker",
            "--locked",
            "--version",
            LINKER_VERSION,
            "--force",
        ])
        .args(["--no-default-features", "--features", "llvm-22"])
        .env("LLVM_PREFIX", LLVM)
        .env("LLVM_SYS_221_PREFIX", LLVM)
        .status()
        .context("install bpf-linker")?;
    ensure!(status.success(), "install bpf-linker {LINKER_VERSION}");
    Ok(())
}

fn toolchain() -> anyhow::Result<Toolchain> {
    Ok(Toolchain {
        rustc: output(RUSTC, &["--version"])?,
        linker: output("bpf-linker", &["--version"])?,
        llvm: output(&format!("{LLVM}/bin/llvm-config"), &["--version"])?,
    })
}

fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("run {program}: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn hash_sources(root: &Path) -> anyhow::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root.join(source), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        hash.update(name.to_string_lossy().as_bytes());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(hex(&hash.finalize()))
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
