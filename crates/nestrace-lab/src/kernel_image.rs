//! Debian's kernels for guests: downloaded, unpacked, never installed.
//!
//! The full flavour is taken, not `cloud`, which lacks jfs and reiserfs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cache_dir::{self, CacheError};
use crate::external_tool::{Tool, ToolError};
use crate::kernel_modules::KernelModules;
use crate::packages;

/// A kernel could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelImageError {
    /// apt knows no such kernel.
    #[error(
        "find a Debian kernel {series}: apt knows {known} (and what it learns by apt-get update)"
    )]
    Unknown {
        /// `6.1`, `6.12`.
        series: String,
        /// Those that it knows, or `none`.
        known: String,
    },
    /// The package has another shape than expected.
    #[error("find {what} in the kernel package {package}")]
    Incomplete {
        /// What is missing.
        what: String,
        /// Package's name.
        package: String,
    },
    /// The list of its modules cannot be read.
    #[error("read the list of modules in {path}")]
    Modules {
        /// Their folder.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("get Debian's kernel {series} for guests")]
    Tool {
        /// `6.1`, `6.12`.
        series: String,
        /// Which and why.
        source: ToolError,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// An unpacked kernel package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelImage {
    /// `uname -r` of it: `6.1.0-56-amd64`.
    pub release: String,
    /// The bootable file.
    pub vmlinuz: PathBuf,
    /// `lib/modules/RELEASE`, with `modules.dep`.
    pub modules: PathBuf,
}

impl KernelImage {
    /// Whether it has a module, as a file or built in.
    ///
    /// # Errors
    /// Its list of modules cannot be read.
    pub fn has_module(&self, name: &str) -> Result<bool, KernelImageError> {
        let modules = KernelModules::read(&self.modules);
        let modules = modules.map_err(|source| KernelImageError::Modules {
            path: self.modules.clone(),
            source,
        })?;
        Ok(modules.load_order(name).is_ok())
    }
}

/// The newest Debian kernel of a series (`6.1`, `6.12`), from the cache or downloaded.
///
/// The network is asked only when the cache has no kernel of the series.
///
/// # Errors
/// apt knows none, the download or the unpacking failed.
pub fn obtain(series: &str) -> Result<KernelImage, KernelImageError> {
    let root = cache_dir::root()?;
    if let Some(package) = newest(&cached_packages(&root), series) {
        return describe(&root.join(&package), &package);
    }
    let tool = |source| KernelImageError::Tool {
        series: series.to_owned(),
        source,
    };
    let mut known = known_packages().map_err(tool)?;
    if newest(&known, series).is_none() && nix::unistd::geteuid().is_root() {
        packages::update_lists().map_err(tool)?;
        known = known_packages().map_err(tool)?;
    }
    let package = newest(&known, series).ok_or_else(|| KernelImageError::Unknown {
        series: series.to_owned(),
        known: known_series(&known),
    })?;
    let folder = cache_dir::entry(&root, &package, |folder| {
        unpack(&package, folder).map_err(tool)?;
        describe(folder, &package).map(|_| ())
    })?;
    describe(&folder, &package)
}

/// Bytes that a kernel takes while it is unpacked, at most: its archive lies beside it.
pub(crate) const MOST_BYTES: u64 = 512 << 20;

/// The release of the kernel that [`obtain`] takes from a cache, if it has one of the series.
pub(crate) fn cached(root: &Path, series: &str) -> Option<String> {
    let package = newest(&cached_packages(root), series)?;
    package.strip_prefix("linux-image-").map(str::to_owned)
}

fn known_packages() -> Result<Vec<String>, ToolError> {
    let listing = Tool::new("apt-cache")
        .args(["pkgnames", "linux-image-"])
        .run()?;
    Ok(listing.lines().map(str::to_owned).collect())
}

fn cached_packages(root: &Path) -> Vec<String> {
    let entries = root.read_dir().into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn unpack(package: &str, folder: &Path) -> Result<(), ToolError> {
    // `_apt` cannot write into root's cache; apt then downloads as root and warns.
    Tool::new("apt-get")
        .args(["download", "-q", package])
        .current_dir(folder)
        .run()?;
    let archives = folder
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for archive in archives.filter(|path| path.extension().is_some_and(|ext| ext == "deb")) {
        Tool::new("dpkg-deb")
            .arg("-x")
            .arg(&archive)
            .arg(folder)
            .run()?;
        let _ = std::fs::remove_file(&archive);
    }
    let release = package.trim_start_matches("linux-image-");
    Tool::new("depmod")
        .arg("-b")
        .arg(folder)
        .arg(release)
        .run()?;
    Ok(())
}

fn describe(folder: &Path, package: &str) -> Result<KernelImage, KernelImageError> {
    let release = package.trim_start_matches("linux-image-").to_owned();
    let image = KernelImage {
        vmlinuz: folder.join(format!("boot/vmlinuz-{release}")),
        modules: folder.join(format!("lib/modules/{release}")),
        release,
    };
    for path in [&image.vmlinuz, &image.modules.join("modules.dep")] {
        if !path.exists() {
            let what = path.display().to_string();
            return Err(KernelImageError::Incomplete {
                what,
                package: package.to_owned(),
            });
        }
    }
    Ok(image)
}

/// The newest plain amd64 package of a series.
fn newest(packages: &[String], series: &str) -> Option<String> {
    let of_series = |package: &&String| {
        let rest = plain_version(package).and_then(|version| version.strip_prefix(series));
        rest.is_some_and(|rest| rest.starts_with(['.', '-', '+']))
    };
    packages
        .iter()
        .filter(of_series)
        .max_by_key(|package| version_numbers(package))
        .cloned()
}

/// `6.1.0-56-` of a package that is no special flavour's.
fn plain_version(package: &str) -> Option<&str> {
    let version = package
        .strip_prefix("linux-image-")?
        .strip_suffix("amd64")?;
    let is_plain = ["cloud", "rt", "dbg", "unsigned"]
        .iter()
        .all(|flavour| !version.contains(flavour));
    (is_plain && version.ends_with('-')).then_some(version)
}

/// The series of all plain packages, `6.1, 6.12`.
fn known_series(packages: &[String]) -> String {
    let versions = packages.iter().filter_map(|package| plain_version(package));
    let series: BTreeSet<(u64, u64)> = versions
        .filter_map(|version| match version_numbers(version)[..] {
            [major, minor, ..] => Some((major, minor)),
            _ => None,
        })
        .collect();
    let words = series
        .iter()
        .map(|(major, minor)| format!("{major}.{minor}"));
    let words: Vec<String> = words.collect();
    if words.is_empty() {
        return String::from("none");
    }
    words.join(", ")
}

fn version_numbers(package: &str) -> Vec<u64> {
    package
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_plain_kernel_of_a_series_is_taken() {
        let packages: Vec<String> = [
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-58-rt-amd64",
            "linux-image-6.1.0-59-amd64-dbg",
            "linux-image-6.1.0-59-amd64-unsigned",
            "linux-image-6.12.57+deb12-amd64",
            "linux-image-6.12.9+deb12-amd64",
            "linux-image-amd64",
        ]
        .map(str::to_owned)
        .to_vec();
        assert_eq!(
            newest(&packages, "6.1").unwrap(),
            "linux-image-6.1.0-56-amd64"
        );
        assert_eq!(
            newest(&packages, "6.12").unwrap(),
            "linux-image-6.12.57+deb12-amd64"
        );
        assert_eq!(newest(&packages, "5.15"), None);
        assert_eq!(known_series(&packages), "6.1, 6.12");
        assert_eq!(known_series(&packages[8..]), "none");
    }
}
