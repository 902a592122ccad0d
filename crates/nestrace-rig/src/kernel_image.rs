//! Debian's kernels for guests: downloaded, unpacked, never installed.
//!
//! The full flavour is taken, not `cloud`, which lacks jfs and reiserfs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cache_dir::{self, CacheError};
use crate::debian_archive::{ArchiveError, PrivateApt, archives_in};
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
    /// Debian's archive cannot be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Suites with the kernels that the machine's own release does not have: 5.10, and 6.16 to the newest.
const OTHER_SUITES: [&str; 2] = ["bullseye", "trixie-backports"];
/// Suites where the newest kernel of all is.
const NEWEST_SUITES: [&str; 3] = ["trixie-backports", "sid", "experimental"];

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
    let Some(package) = newest(&known, series) else {
        return of_other_suites(&root, series, &known);
    };
    let folder = cache_dir::entry(&root, &package, |folder| {
        // `_apt` cannot write into root's cache; apt then downloads as root and warns.
        Tool::new("apt-get")
            .args(["download", "-q", &package])
            .current_dir(folder)
            .run()
            .and_then(|_| unpack(&package, folder, archives_in(folder)))
            .map_err(tool)?;
        describe(folder, &package).map(|_| ())
    })?;
    describe(&folder, &package)
}

/// The newest kernel of Debian's archive, whatever its series, downloaded unless the cache has just that one.
///
/// # Errors
/// As [`obtain`].
pub fn obtain_newest() -> Result<KernelImage, KernelImageError> {
    let root = cache_dir::root()?;
    let lists = Lists::read(&root, &NEWEST_SUITES)?;
    let all = lists.known("newest")?;
    let package = newest(&all, "").ok_or_else(|| KernelImageError::Unknown {
        series: "of any series".to_owned(),
        known: "none".to_owned(),
    })?;
    lists.obtain(&root, &package, "newest")
}

/// The newest kernel of a series that the machine's own release does not have.
fn of_other_suites(
    root: &Path,
    series: &str,
    own: &[String],
) -> Result<KernelImage, KernelImageError> {
    let lists = Lists::read(root, &OTHER_SUITES)?;
    let known = lists.known(series)?;
    let package = newest(&known, series).ok_or_else(|| KernelImageError::Unknown {
        series: series.to_owned(),
        known: known_series(&[own, &known].concat()),
    })?;
    lists.obtain(root, &package, series)
}

/// The lists of other suites, in a folder that goes with this value.
struct Lists {
    apt: PrivateApt,
    /// Removed at the end.
    _folder: tempfile::TempDir,
}

impl Lists {
    fn read(root: &Path, suites: &[&str]) -> Result<Self, KernelImageError> {
        let folder = tempfile::Builder::new()
            .prefix("kernel-lists-")
            .tempdir()
            .map_err(|source| CacheError::Io {
                path: root.to_owned(),
                source,
            })?;
        let apt = PrivateApt::new(folder.path(), suites)?;
        Ok(Self {
            apt,
            _folder: folder,
        })
    }

    fn known(&self, series: &str) -> Result<Vec<String>, KernelImageError> {
        let names = self.apt.names("linux-image-");
        names.map_err(|source| tool_failed(series, source))
    }

    /// From the cache or downloaded.
    fn obtain(
        &self,
        root: &Path,
        package: &str,
        series: &str,
    ) -> Result<KernelImage, KernelImageError> {
        let folder = cache_dir::entry(root, package, |folder| {
            self.download(package, folder)
                .map_err(|source| tool_failed(series, source))?;
            describe(folder, package).map(|_| ())
        })?;
        describe(&folder, package)
    }

    /// A kernel is one package, or four since 6.19: an empty one, the bootable file, the modules, and lists of these.
    fn download(&self, package: &str, folder: &Path) -> Result<(), ToolError> {
        let release = release_of(package);
        self.download_one(package, folder)?;
        let binary = format!("linux-binary-{release}");
        if let Some(version) = self.download_one(&binary, folder)? {
            for part in ["base", "modules"].map(|part| format!("linux-{part}-{release}")) {
                if self.download_one(&part, folder)?.is_none() {
                    self.download_from_pool(&part, &version, folder)?;
                }
            }
        }
        unpack(package, folder, archives_in(folder))
    }

    /// The version that was downloaded; `None` where the lists have no such package.
    fn download_one(&self, package: &str, folder: &Path) -> Result<Option<String>, ToolError> {
        if !self.apt.names(package)?.iter().any(|name| name == package) {
            return Ok(None);
        }
        let version = self.apt.version(package)?.unwrap_or_default();
        self.apt.download(&format!("{package}={version}"), folder)?;
        Ok(Some(version))
    }

    /// Parts of some kernels are in no list any more and still lie in the pool: Debian's own, asked by TLS because no list
    /// has their sums, or, where that is out of reach, that of this machine's mirror.
    fn download_from_pool(
        &self,
        package: &str,
        version: &str,
        folder: &Path,
    ) -> Result<(), ToolError> {
        let file = format!("{package}_{version}_amd64.deb");
        let get = |archive: &str| {
            Tool::new("curl")
                .args(["-fsS", "--retry", "2", "-o", &file])
                .arg(format!("{archive}/{POOL}/{file}"))
                .current_dir(folder)
                .run()
        };
        get(ARCHIVE).or_else(|_| get(self.apt.mirror()))?;
        Ok(())
    }
}

/// Debian's archive.
const ARCHIVE: &str = "https://deb.debian.org/debian";
/// Where an archive keeps all packages of `linux`.
const POOL: &str = "pool/main/l/linux";

fn tool_failed(series: &str, source: ToolError) -> KernelImageError {
    KernelImageError::Tool {
        series: series.to_owned(),
        source,
    }
}

/// Bytes that a kernel takes while it is unpacked, at most: its archive lies beside it.
pub const MAX_BYTES: u64 = 512 << 20;

/// The release of the kernel that [`obtain`] takes from a cache, if it has one of the series.
pub fn cached(root: &Path, series: &str) -> Option<String> {
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

/// Unpacks the archives into the folder and makes the list of modules.
fn unpack(package: &str, folder: &Path, archives: Vec<PathBuf>) -> Result<(), ToolError> {
    for archive in archives {
        Tool::new("dpkg-deb")
            .arg("-x")
            .arg(&archive)
            .arg(folder)
            .run()?;
        let _ = std::fs::remove_file(&archive);
    }
    // Where `/lib` is a link, packages have `/usr/lib`; depmod looks into `lib`.
    if !folder.join("lib").exists() {
        let _ = std::os::unix::fs::symlink("usr/lib", folder.join("lib"));
    }
    Tool::new("depmod")
        .arg("-b")
        .arg(folder)
        .arg(release_of(package))
        .run()?;
    Ok(())
}

fn release_of(package: &str) -> &str {
    package.trim_start_matches("linux-image-")
}

fn describe(folder: &Path, package: &str) -> Result<KernelImage, KernelImageError> {
    let release = release_of(package).to_owned();
    let modules = folder.join(format!("lib/modules/{release}"));
    let in_boot = folder.join(format!("boot/vmlinuz-{release}"));
    let image = KernelImage {
        vmlinuz: if in_boot.exists() {
            in_boot
        } else {
            modules.join("vmlinuz")
        },
        modules,
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

/// The newest plain amd64 package of a series; of all packages, where the series is empty.
fn newest(packages: &[String], series: &str) -> Option<String> {
    let of_series = |package: &&String| {
        let rest = plain_version(package).and_then(|version| version.strip_prefix(series));
        rest.is_some_and(|rest| rest.starts_with(['.', '-', '+']) || series.is_empty())
    };
    packages
        .iter()
        .filter(of_series)
        .max_by_key(|package| version_numbers(plain_version(package).unwrap_or_default()))
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
    let has_number = version.starts_with(|c: char| c.is_ascii_digit());
    (is_plain && has_number && version.ends_with('-')).then_some(version)
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

fn version_numbers(version: &str) -> Vec<u64> {
    version
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
            "linux-image-7.3.4+deb13-amd64",
            "linux-image-7.3-amd64",
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
        assert_eq!(
            newest(&packages, "7.3").unwrap(),
            "linux-image-7.3.4+deb13-amd64"
        );
        assert_eq!(
            newest(&packages, "").unwrap(),
            "linux-image-7.3.4+deb13-amd64"
        );
        assert_eq!(known_series(&packages), "6.1, 6.12, 7.3");
        assert_eq!(known_series(&packages[10..]), "none");
    }
}
