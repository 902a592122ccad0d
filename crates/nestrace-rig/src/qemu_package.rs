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

/// A root as in a container, with this machine's files but for its programs and libraries. It is in memory and goes with the
/// process.
macro_rules! enter_root {
    () => {
        r#"exec unshare --mount --propagation slave sh -c '
here=$1
shift
root=$here/root
mount -t tmpfs tmpfs "$root"
for folder in /*; do
    case $folder in
    /bin | /etc | /lib* | /sbin | /usr) ;;
    *)
        if [ -d "$folder" ] && [ ! -L "$folder" ]; then
            mkdir "$root$folder"
            mount --rbind "$folder" "$root$folder"
        fi
        ;;
    esac
done
mkdir "$root/usr"
mount --bind "$here/usr" "$root/usr"
for link in bin lib lib64 sbin; do
    ln -s "usr/$link" "$root/$link"
done
exec chroot "$root" "$@"' sh "$@"
"#
    };
}

/// Runs QEMU in a root of its own; the process is QEMU itself.
const ROOT_LAUNCHER_TEXT: &str = concat!(
    "#!/bin/sh\nset -- \"${0%/*}\" /usr/bin/qemu-system-x86_64 \"$@\"\n",
    enter_root!()
);

/// Shell that runs a program in the root that [`obtain_root`] made: the folder of its launcher is the first argument, the program and
/// what it is given are the others.
pub const ENTER_ROOT: &str = enter_root!();

/// QEMU of `suite` (`trixie-backports`) with all that it needs of Debian's release `base` (`trixie`), in a root of its own,
/// from the cache or downloaded: a program for [`GuestSpec::qemu`](crate::guest::GuestSpec::qemu). Only root can start it.
///
/// # Errors
/// No mirror, no network, or the packages do not hold what is expected.
pub fn obtain_root(base: &str, suite: &str) -> Result<PathBuf, QemuPackageError> {
    let root = cache_dir::root()?;
    let folder = cache_dir::entry(&root, &format!("qemu-root-{suite}"), |folder| {
        let apt = PrivateApt::for_new_root(folder, &[base, suite])?;
        let inner = folder.join("root");
        let made = std::fs::create_dir(&inner);
        made.map_err(|source| QemuPackageError::Io {
            path: inner,
            source,
        })?;
        unpack(folder, &apt, suite, ROOT_LAUNCHER_TEXT)?;
        Ok::<_, QemuPackageError>(apt.remove()?)
    })?;
    Ok(folder.join(LAUNCHER))
}

fn fill(folder: &Path, base: &str, suite: &str) -> Result<(), QemuPackageError> {
    let apt = PrivateApt::new(folder, &[base, suite])?;
    unpack(folder, &apt, suite, LAUNCHER_TEXT)?;
    Ok(apt.remove()?)
}

fn unpack(
    folder: &Path,
    apt: &PrivateApt,
    suite: &str,
    launcher_text: &str,
) -> Result<(), QemuPackageError> {
    let tool = |source| QemuPackageError::Tool {
        suite: suite.to_owned(),
        source,
    };
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
    if !folder.join("usr/bin").join(LAUNCHER).exists() {
        return Err(QemuPackageError::Incomplete {
            suite: suite.to_owned(),
        });
    }
    let launcher = folder.join(LAUNCHER);
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::write(&launcher, launcher_text)
        .and_then(|()| std::fs::set_permissions(&launcher, executable))
        .map_err(|source| QemuPackageError::Io {
            path: launcher,
            source,
        })
}
