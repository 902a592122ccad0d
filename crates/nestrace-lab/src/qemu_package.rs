//! A newer QEMU from another suite of Debian: downloaded, unpacked, never installed.
//!
//! apt works in a state folder of its own with a source list of its own, so the system's sources,
//! lists and packages stay as they are.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cache_dir::{self, CacheError};
use crate::external_tool::{Tool, ToolError};
use crate::packages;

/// The program that starts the unpacked QEMU.
const LAUNCHER: &str = "qemu-system-x86_64";

/// Runs QEMU with the libraries, modules and firmware beside it; the process is QEMU itself.
const LAUNCHER_TEXT: &str = r#"#!/bin/sh
here=${0%/*}
export LD_LIBRARY_PATH="$here/usr/lib/x86_64-linux-gnu:$here/lib/x86_64-linux-gnu"
export QEMU_MODULE_DIR="$here/usr/lib/x86_64-linux-gnu/qemu"
exec "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
"#;

/// Debian's own key, where the machine has it.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A QEMU could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QemuPackageError {
    /// apt is not configured for Debian.
    #[error("find a mirror of Debian in apt's sources")]
    NoMirror,
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
    let mirror = mirror().map_err(tool)?;
    let mirror = mirror.ok_or(QemuPackageError::NoMirror)?;
    let apt = PrivateApt::new(folder, &mirror, &[base, suite])?;
    apt.get(&["update", "-q"]).map_err(tool)?;
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

/// The mirror that this machine's apt uses for Debian.
fn mirror() -> Result<Option<String>, ToolError> {
    let ask = || {
        Tool::new("apt-get")
            .args(["indextargets", "--format", "$(REPO_URI)"])
            .args(["Origin: Debian", "Created-By: Packages"])
            .run()
    };
    let mut uris = ask()?;
    if uris.trim().is_empty() && nix::unistd::geteuid().is_root() {
        // A fresh machine: the origin is known only from the lists.
        packages::update_lists()?;
        uris = ask()?;
    }
    let is_main = |uri: &&str| !uri.contains("security");
    Ok(uris.lines().find(is_main).map(str::to_owned))
}

/// apt with lists, cache and sources in a folder.
struct PrivateApt {
    folder: PathBuf,
}

impl PrivateApt {
    fn new(parent: &Path, mirror: &str, suites: &[&str]) -> Result<Self, QemuPackageError> {
        let folder = parent.join("apt");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| QemuPackageError::Io { path, source }
        };
        for part in ["state/lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            std::fs::create_dir_all(&part).map_err(failed(&part))?;
        }
        let signed = if Path::new(KEYRING).exists() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new()
        };
        let list: String = suites
            .iter()
            .map(|suite| format!("deb {signed}{mirror} {suite} main\n"))
            .collect();
        let sources = folder.join("sources.list");
        std::fs::write(&sources, list).map_err(failed(&sources))?;
        Ok(Self { folder })
    }

    fn get(&self, args: &[&str]) -> Result<(), ToolError> {
        let at = |part: &str| self.folder.join(part).display().to_string();
        let options = [
            format!("Dir::State={}", at("state")),
            "Dir::State::status=/var/lib/dpkg/status".to_owned(),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::SourceList={}", at("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            // Nothing is installed, so dpkg's lock is not needed.
            "Debug::NoLocking=1".to_owned(),
            // `_apt` cannot write into root's cache.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let mut tool = Tool::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
        for option in options {
            tool = tool.arg("-o").arg(option);
        }
        tool.args(args).run()?;
        Ok(())
    }

    fn archives(&self) -> Vec<PathBuf> {
        let entries = self.folder.join("cache/archives").read_dir();
        entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .collect()
    }

    fn remove(self) -> Result<(), QemuPackageError> {
        std::fs::remove_dir_all(&self.folder).map_err(|source| QemuPackageError::Io {
            path: self.folder.clone(),
            source,
        })
    }
}
