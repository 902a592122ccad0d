//! Packages of other suites of Debian, downloaded with lists and sources of their own: the system's sources, lists and
//! packages stay as they are.

use std::io;
use std::path::{Path, PathBuf};

use crate::external_tool::{Tool, ToolError};
use crate::packages;

/// Debian's own key, where the machine has it.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The archive could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// apt is not configured for Debian.
    #[error("find a mirror of Debian in apt's sources")]
    NoMirror,
    /// A file of apt's own folder.
    #[error("write {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// apt failed.
    #[error("read the lists of Debian's {suites}")]
    Tool {
        /// `bookworm, bookworm-backports`.
        suites: String,
        /// Which program and why.
        source: ToolError,
    },
}

/// apt with lists, cache and sources in a folder of its own, whose lists have been read.
pub struct PrivateApt {
    folder: PathBuf,
    /// dpkg's list of what is there already.
    installed: PathBuf,
    /// Where it downloads from.
    mirror: String,
}

impl PrivateApt {
    /// For these suites of the mirror that this machine uses, in the folder `parent/apt`, beside the packages of this machine.
    pub fn new(parent: &Path, suites: &[&str]) -> Result<Self, ArchiveError> {
        Self::beside(parent, suites, Path::new("/var/lib/dpkg/status"))
    }

    /// The same for a root of its own, where no package is.
    pub fn for_new_root(parent: &Path, suites: &[&str]) -> Result<Self, ArchiveError> {
        Self::beside(parent, suites, Path::new("/dev/null"))
    }

    fn beside(parent: &Path, suites: &[&str], installed: &Path) -> Result<Self, ArchiveError> {
        let tool = |source| ArchiveError::Tool {
            suites: suites.join(", "),
            source,
        };
        let mirror = mirror().map_err(tool)?.ok_or(ArchiveError::NoMirror)?;
        let folder = parent.join("apt");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ArchiveError::Io { path, source }
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
        let apt = Self {
            folder,
            installed: installed.to_owned(),
            mirror,
        };
        apt.get(&["update", "-q"]).map_err(tool)?;
        Ok(apt)
    }

    /// The mirror's address, without a slash at its end.
    pub fn mirror(&self) -> &str {
        self.mirror.trim_end_matches('/')
    }

    /// Runs `apt-get` with these arguments.
    pub fn get(&self, args: &[&str]) -> Result<(), ToolError> {
        self.tool("apt-get").args(args).run()?;
        Ok(())
    }

    /// Downloads a package (`NAME=VERSION`) into a folder.
    pub fn download(&self, package: &str, folder: &Path) -> Result<(), ToolError> {
        let tool = self.tool("apt-get").current_dir(folder);
        tool.args(["download", "-q", package]).run()?;
        Ok(())
    }

    /// The names of all packages that begin like this.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>, ToolError> {
        let listing = self.tool("apt-cache").args(["pkgnames", prefix]).run()?;
        Ok(listing.lines().map(str::to_owned).collect())
    }

    /// The newest version of a package that is in the lists.
    pub fn version(&self, package: &str) -> Result<Option<String>, ToolError> {
        let text = self
            .tool("apt-cache")
            .args(["show", "--no-all-versions", package])
            .run()?;
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        Ok(version.map(str::to_owned))
    }

    fn tool(&self, program: &str) -> Tool {
        let at = |part: &str| self.folder.join(part).display().to_string();
        let options = [
            format!("Dir::State={}", at("state")),
            format!("Dir::State::status={}", self.installed.display()),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::SourceList={}", at("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            // Nothing is installed, so dpkg's lock is not needed.
            "Debug::NoLocking=1".to_owned(),
            // `_apt` cannot write into root's cache.
            "APT::Sandbox::User=root".to_owned(),
            // What software centres show, where a machine reads it by default, is larger than the list itself.
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        let mut tool = Tool::new(program).env("DEBIAN_FRONTEND", "noninteractive");
        for option in options {
            tool = tool.arg("-o").arg(option);
        }
        tool
    }

    /// What was downloaded.
    pub fn archives(&self) -> Vec<PathBuf> {
        archives_in(&self.folder.join("cache/archives"))
    }

    /// Removes lists and archives.
    pub fn remove(self) -> Result<(), ArchiveError> {
        std::fs::remove_dir_all(&self.folder).map_err(|source| ArchiveError::Io {
            path: self.folder.clone(),
            source,
        })
    }
}

/// The packages that lie in a folder.
pub fn archives_in(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect()
}

/// The mirror that this machine's apt uses for Debian; reads the lists if there are none and this is root.
///
/// # Errors
/// apt failed.
pub fn mirror() -> Result<Option<String>, ToolError> {
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
