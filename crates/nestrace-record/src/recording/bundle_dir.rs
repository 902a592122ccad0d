//! The bundle's directory while it is written.
//!
//! Everything that the end of a recording needs is made at its beginning, so that neither a full
//! file system nor given-up privileges stand in the way: the manifest's second copy has its space
//! reserved and its owner set, and an update exchanges the two.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nestrace_trace::{
    Manifest,
    bundle::{HOST_STREAM, MANIFEST, index_of},
    writer::StreamWriter,
};
use nix::{
    fcntl::{FallocateFlags, RenameFlags, fallocate, renameat2},
    unistd::{Gid, Uid, chown},
};

/// Name of the manifest's second copy while recording.
const NEXT_MANIFEST: &str = "manifest.json.next";
/// Space kept for it: a manifest of a large host is some 30 KiB.
const MANIFEST_RESERVE: u64 = 256 << 10;

/// Why the bundle could not be created or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Something of that name is there.
    #[error("{0} exists")]
    Exists(PathBuf),
    /// `--force` does not remove what is not a bundle.
    #[error("{0} exists and is not a bundle")]
    NotABundle(PathBuf),
    /// A file operation failed.
    #[error("{action} {path}")]
    Io {
        /// What was tried: `create`, `write`, …
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The stream could not be started.
    #[error("start {0}")]
    Stream(PathBuf, #[source] nestrace_trace::writer::WriteError),
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> BundleError {
    move |source| BundleError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// The writer of the host's stream.
pub type HostStream = StreamWriter<File, File>;

/// A bundle that is being written.
pub struct BundleDir {
    path: PathBuf,
}

impl BundleDir {
    /// Creates the directory and its files. Under sudo they belong to the user who typed the command.
    /// `force` replaces a *bundle* that is there.
    ///
    /// # Errors
    /// [`BundleError`].
    pub fn create(path: &Path, force: bool) -> Result<(Self, HostStream), BundleError> {
        make_room(path, force)?;
        fs::DirBuilder::new()
            .mode(0o755)
            .create(path)
            .map_err(|error| {
                if error.kind() == io::ErrorKind::AlreadyExists {
                    BundleError::Exists(path.to_owned())
                } else {
                    io_error("create", path)(error)
                }
            })?;
        let dir = Self {
            path: path.to_owned(),
        };
        let stream = dir.new_file(HOST_STREAM)?;
        let index = dir.new_file(&index_of(HOST_STREAM))?;
        dir.new_file(MANIFEST)?;
        let next = dir.new_file(NEXT_MANIFEST)?;
        // Best effort: a file system without fallocate (NFS, 9p) records all the same.
        let _ = fallocate(
            &next,
            FallocateFlags::empty(),
            0,
            MANIFEST_RESERVE.cast_signed(),
        );
        dir.give_to_user(path);
        let writer = StreamWriter::new(stream, index)
            .map_err(|error| BundleError::Stream(path.join(HOST_STREAM), error))?;
        Ok((dir, writer))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn new_file(&self, name: &str) -> Result<File, BundleError> {
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&path)
            .map_err(io_error("create", &path))?;
        self.give_to_user(&path);
        Ok(file)
    }

    /// Under sudo: the user who typed the command owns what it made.
    fn give_to_user(&self, path: &Path) {
        let id = |name| {
            std::env::var(name)
                .ok()
                .and_then(|text| text.parse::<u32>().ok())
        };
        if let (true, Some(uid), Some(gid)) =
            (Uid::effective().is_root(), id("SUDO_UID"), id("SUDO_GID"))
        {
            let _ = chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        }
    }

    /// Writes the manifest as a whole: into the second copy, which then changes places with the first.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<(), BundleError> {
        let next = self.path.join(NEXT_MANIFEST);
        let failed = io_error("write", &next);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&next)
            .map_err(&failed)?;
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let text = manifest.to_json();
        file.write_all(text.as_bytes()).map_err(&failed)?;
        file.set_len(text.len() as u64).map_err(&failed)?;
        drop(file);
        let place = self.path.join(MANIFEST);
        let here = nix::fcntl::AT_FDCWD;
        renameat2(here, &next, here, &place, RenameFlags::RENAME_EXCHANGE)
            .map_err(io::Error::from)
            .or_else(|_| fs::rename(&next, &place))
            .map_err(&failed)
    }

    /// Writes the manifest for the last time and removes the second copy.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn close(&self, manifest: &Manifest) -> Result<(), BundleError> {
        self.write_manifest(manifest)?;
        let next = self.path.join(NEXT_MANIFEST);
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove", &next)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Removes an older bundle where the user allowed it. Only the files of a bundle are removed.
fn make_room(path: &Path, force: bool) -> Result<(), BundleError> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !force {
        return Err(BundleError::Exists(path.to_owned()));
    }
    let is_bundle = meta.is_dir()
        && (path.join(HOST_STREAM).exists()
            || path.join(MANIFEST).exists()
            || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()));
    if !is_bundle {
        return Err(BundleError::NotABundle(path.to_owned()));
    }
    for entry in fs::read_dir(path)
        .map_err(io_error("read", path))?
        .flatten()
    {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("manifest.json")
            || name.ends_with(".arrows")
            || name.ends_with(".arrows.idx")
        {
            fs::remove_file(entry.path()).map_err(io_error("remove", &entry.path()))?;
        }
    }
    fs::remove_dir(path).map_err(io_error("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_created_once_and_replaced_only_by_force() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.nest");
        let (dir, _) = BundleDir::create(&path, false).unwrap();
        dir.write_manifest(&Manifest::default()).unwrap();
        dir.write_manifest(&Manifest {
            tool_version: "x".into(),
            ..Manifest::default()
        })
        .unwrap();
        dir.close(&Manifest {
            tool_version: "y".into(),
            ..Manifest::default()
        })
        .unwrap();
        let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
        assert!(text.contains("\"y\"") && !path.join(NEXT_MANIFEST).exists());
        assert!(matches!(
            BundleDir::create(&path, false),
            Err(BundleError::Exists(_))
        ));
        assert!(BundleDir::create(&path, true).is_ok());
    }

    #[test]
    fn force_spares_what_is_not_a_bundle() {
        let root = tempfile::tempdir().unwrap();
        let precious = root.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("data"), "x").unwrap();
        assert!(matches!(
            BundleDir::create(&precious, true),
            Err(BundleError::NotABundle(_))
        ));
        fs::write(precious.join(MANIFEST), "{}").unwrap();
        assert!(
            BundleDir::create(&precious, true).is_err(),
            "foreign files keep the folder"
        );
        assert!(precious.join("data").exists());
    }
}
