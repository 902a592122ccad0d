//! A newer QEMU from another suite of Debian: downloaded, unpacked, never installed.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cache_dir::{self, CacheError};
use crate::debian_archive::{ArchiveError, PrivateApt};
use crate::external_tool::{Tool, ToolError};

/// The program that starts the unpacked QEMU.
const LAUNCHER: &str = "qemu-system-x86_64";

/// Runs QEMU with the libraries, modules and firmware beside it; the process is QEMU itself.
const LAUNCHER_TEXT: &str = r#"#!/bin/sh
here=${0%/*}
export LD_LIBRARY_PATH="$here/usr/lib/x86_64-linux-gnu:$here/lib/x86_64-linux-gnu"
export QEMU_MODULE_DIR="$here/usr/lib/x86_64-linux-gnu/qemu"
exec "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
"#;

/// A QEMU could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QemuPackageError {
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The packages have another shape than expected.
    #[error("find usr/bin/{LAUNCHER} in the packages of {suite}")]
    Incomplete {
        /// `bookworm-backports`.
        suite: String,
    },
    /// A file of the cache entry.
    #[error("write {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program failed.
    #[error("download and unpack QEMU of {suite}")]
    Tool {
        /// `bookworm-backports`.
        suite: String,
        /// Which and why.
        source: ToolError,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// QEMU of `suite` (`bookworm-backports`) for a machine with Debian's release `base` (`bookworm`),
/// from the cache or downloaded: a program for [`GuestSpec::qemu`](crate::guest::GuestSpec::qemu).
///
/// What the suite's QEMU needs beyond the packages of this machine is unpacked beside it.
///
/// # Errors
/// No mirror, no network, or the packages do not hold what is expected.
pub fn obtain(base: &str, suite: &str) -> Result<PathBuf, QemuPackageError> {
    let root = cache_dir::root()?;
    let folder = cache_dir::entry(&root, &format!("qemu-{suite}"), |folder| {
        fill(folder, base, suite)
    })?;
    Ok(folder.join(LAUNCHER))
}

fn fill(folder: &Path, base: &str, suite: &str) -> Result<(), QemuPackageError> {
    let tool = |source| QemuPackageError::Tool {
        suite: suite.to_owned(),
        source,
    };
    let apt = PrivateApt::new(folder, &[base, suite])?;
    let wanted = ["--download-only", "--no-install-recommends", "-t", suite];
    apt.get(&[&["install", "-q", "-y"], &wanted[..], &["qemu-system-x86"]].concat())
        .map_err(tool)?;
    for archive in apt.archives() {
        Tool::new("dpkg-deb")
            .arg("-x")
            .arg(&archive)
            .arg(folder)
            .run()
            .map_err(tool)?;
    }
    apt.remove()?;
    if !folder.join("usr/bin").join(LAUNCHER).exists() {
        return Err(QemuPackageError::Incomplete {
            suite: suite.to_owned(),
        });
    }
    let launcher = folder.join(LAUNCHER);
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::write(&launcher, LAUNCHER_TEXT)
        .and_then(|()| std::fs::set_permissions(&launcher, executable))
        .map_err(|source| QemuPackageError::Io {
            path: launcher,
            source,
        })
}
