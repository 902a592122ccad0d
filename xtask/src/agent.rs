//! The static agent, ready to be copied into guests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::cargo_build::{self, TARGET, cargo, without_paths, workspace};

const PROGRAM: &str = "nestrace-agent";
/// What a guest gets besides the program.
const BESIDE: [&str; 2] = ["nestrace-agent.service", "99-nestrace-agent.rules"];
/// More than this is no "few MB" any more.
const MAX_BYTES: usize = 8 << 20;

/// Builds and checks the agent, and puts what belongs to it into `folder`.
pub fn make(folder: &Path) -> anyhow::Result<PathBuf> {
    let program = build()?;
    check(&fs::read(&program).context("read the program")?)?;
    put_beside(folder)?;
    Ok(program)
}

/// Puts the unit and the udev rule into `folder`; their places.
pub fn put_beside(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let put = |name: &str| {
        let place = folder.join(name);
        fs::copy(workspace().join("packaging").join(name), &place)
            .with_context(|| format!("copy {name}"))?;
        Ok(place)
    };
    BESIDE.into_iter().map(put).collect()
}

/// The agent as users get it: static, and optimised.
pub fn build() -> anyhow::Result<PathBuf> {
    build_in(workspace())
}

/// The same of the checkout at `root`, with the same bytes wherever that is.
pub fn build_in(root: &Path) -> anyhow::Result<PathBuf> {
    let flags = ["-Ctarget-feature=+crt-static".to_owned()];
    let flags: Vec<String> = flags.into_iter().chain(without_paths(root)).collect();
    let mut command = cargo();
    command
        .current_dir(root)
        .args(["build", "--release", "--target", TARGET])
        .args(["--package", PROGRAM, "--bin", PROGRAM])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    cargo_build::executable(command, PROGRAM)
}

/// It must need no loader, and be small.
fn check(bytes: &[u8]) -> anyhow::Result<()> {
    let interpreter = needs_interpreter(bytes).context("read the program's ELF headers")?;
    ensure!(!interpreter, "link {PROGRAM} without shared libraries");
    ensure!(
        bytes.len() <= MAX_BYTES,
        "keep {PROGRAM} small: it has {} bytes",
        bytes.len()
    );
    Ok(())
}

/// Whether a 64-bit little-endian ELF file has a PT_INTERP header; `None` if it is none.
pub fn needs_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    let offset = u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?);
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    let headers = elf.get(usize::try_from(offset).ok()?..)?;
    let mut types = headers.chunks(size.max(4)).take(count).map(|header| {
        let bytes = header.get(..4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    });
    Some(types.any(|kind| kind == Some(PT_INTERP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_told_from_one_without() {
        // The tests themselves are linked against the C library.
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(needs_interpreter(&own), Some(true));
        let mut without = own.clone();
        let at = usize::try_from(u64::from_le_bytes(own[32..40].try_into().unwrap())).unwrap();
        let size = usize::from(u16::from_le_bytes(own[54..56].try_into().unwrap()));
        let count = usize::from(u16::from_le_bytes(own[56..58].try_into().unwrap()));
        for header in without[at..].chunks_mut(size).take(count) {
            if header.starts_with(&[3, 0, 0, 0]) {
                header[0] = 1;
            }
        }
        assert_eq!(needs_interpreter(&without), Some(false));
        assert_eq!(needs_interpreter(b"#!/bin/sh"), None);
        assert_eq!(needs_interpreter(b"\x7fELF\x02\x01"), None);
    }
}
