//! The bundle's directory while it is written.
//!
//! Everything that the end of a recording needs is made at its beginning, so that neither a full
//! file system nor given-up privileges stand in the way: both copies of the manifest have their space
//! reserved and their owner set, and an update exchanges the two. The directory takes its name when all
//! of that is in it, so that a bundle is readable from the moment that it is there.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::privileges::sudo_user;
use nestrace_trace::{
    Manifest,
    bundle::{HOST_STREAM, IMAGE_MAPS, MANIFEST, index_of},
    writer::StreamWriter,
};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2},
    unistd::chown,
};

/// Name of the manifest's second copy while recording.
const NEXT_MANIFEST: &str = "manifest.json.next";
/// Space kept for it: a manifest of a large host is some 30 KiB, a guest's side up to 100.
const MANIFEST_RESERVE: u64 = 512 << 10;

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
    /// Creates the directory with the start of its stream and this manifest. Under sudo all of it belongs
    /// to the user who typed the command. `force` replaces a *bundle* that is there.
    ///
    /// # Errors
    /// [`BundleError`]; nothing is left behind then.
    pub fn create(
        path: &Path,
        force: bool,
        manifest: &Manifest,
    ) -> Result<(Self, HostStream), BundleError> {
        check_room(path, force)?;
        let unfinished = unfinished_name(path);
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&unfinished)
            .map_err(io_error("create", path))?;
        let mut dir = Self { path: unfinished };
        let made = dir.fill(manifest).and_then(|writer| {
            remove_bundle(path)?;
            dir.take_name(path)?;
            Ok(writer)
        });
        match made {
            Ok(writer) => Ok((dir, writer)),
            Err(error) => {
                dir.discard();
                Err(error)
            }
        }
    }

    /// An empty directory that gets its name when all is in it ([`Self::appear`]): until then whatever
    /// has that name stays as it is. `force` lets it replace a *bundle*.
    ///
    /// # Errors
    /// [`BundleError`]; nothing is left behind then.
    pub fn begin_unseen(path: &Path, force: bool) -> Result<Self, BundleError> {
        check_room(path, force)?;
        let unfinished = unfinished_name(path);
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&unfinished)
            .map_err(io_error("create", path))?;
        give_to_user(&unfinished);
        Ok(Self { path: unfinished })
    }

    /// Writes the manifest, puts everything on the disk and gives the directory its name, in one step;
    /// an older bundle of that name is removed after it.
    ///
    /// # Errors
    /// [`BundleError`]; the directory is still the unfinished one then.
    pub fn appear(&mut self, path: &Path, manifest: &Manifest) -> Result<(), BundleError> {
        let place = self.path.join(MANIFEST);
        self.new_file(MANIFEST)?
            .write_all(manifest.to_json().as_bytes())
            .map_err(io_error("write", &place))?;
        self.sync()?;
        if fs::symlink_metadata(path).is_err() {
            return self.take_name(path);
        }
        // It was looked at when this began; what is there now is looked at again.
        check_room(path, true)?;
        let exchange = RenameFlags::RENAME_EXCHANGE;
        match renameat2(AT_FDCWD, &self.path, AT_FDCWD, path, exchange) {
            Ok(()) => {
                let older = std::mem::replace(&mut self.path, path.to_owned());
                remove_bundle(&older)
            }
            // A file system that cannot exchange two names.
            Err(_) => {
                remove_bundle(path)?;
                self.take_name(path)
            }
        }
    }

    /// Puts the files on the disk, so that the name never comes before what it names.
    fn sync(&self) -> Result<(), BundleError> {
        let failed = io_error("write", &self.path);
        for entry in fs::read_dir(&self.path).map_err(&failed)?.flatten() {
            File::open(entry.path())
                .and_then(|file| file.sync_all())
                .map_err(io_error("write", &entry.path()))?;
        }
        Ok(())
    }

    fn fill(&self, manifest: &Manifest) -> Result<HostStream, BundleError> {
        let stream = self.new_file(HOST_STREAM)?;
        let index = self.new_file(&index_of(HOST_STREAM))?;
        for name in [MANIFEST, NEXT_MANIFEST] {
            let file = self.new_file(name)?;
            // Best effort: a file system without fallocate (NFS, 9p) records all the same.
            let _ = fallocate(
                &file,
                FallocateFlags::FALLOC_FL_KEEP_SIZE,
                0,
                MANIFEST_RESERVE.cast_signed(),
            );
        }
        give_to_user(&self.path);
        self.write_manifest(manifest)?;
        StreamWriter::new(stream, index)
            .map_err(|error| BundleError::Stream(self.path.join(HOST_STREAM), error))
    }

    /// Moves to the final name, never over something that has appeared there meanwhile.
    fn take_name(&mut self, path: &Path) -> Result<(), BundleError> {
        let renamed = renameat2(
            AT_FDCWD,
            &self.path,
            AT_FDCWD,
            path,
            RenameFlags::RENAME_NOREPLACE,
        );
        let renamed = match renamed {
            // A file system without that flag: a directory replaces an empty one at most.
            Err(Errno::EINVAL | Errno::ENOSYS) => fs::rename(&self.path, path),
            other => other.map_err(io::Error::from),
        };
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BundleError::Exists(path.to_owned()),
            _ => io_error("create", path)(error),
        })?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// Removes what was created: the recording did not begin.
    pub fn discard(&self) {
        let _ = remove_bundle(&self.path);
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a file in it, which must not be there yet.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn new_file(&self, name: &str) -> Result<File, BundleError> {
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&path)
            .map_err(io_error("create", &path))?;
        give_to_user(&path);
        Ok(file)
    }

    /// Writes the manifest as a whole: into the second copy, which then changes places with the first.
    /// An older, longer text is overwritten with spaces: cutting it would give its space back.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<(), BundleError> {
        self.exchange_manifest(manifest, false)
    }

    fn exchange_manifest(&self, manifest: &Manifest, last: bool) -> Result<(), BundleError> {
        let next = self.path.join(NEXT_MANIFEST);
        let failed = io_error("write", &next);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&next)
            .map_err(&failed)?;
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let mut text = manifest.to_json().into_bytes();
        let length = text.len();
        let before = file.metadata().map_err(&failed)?.len();
        text.resize(length.max(usize::try_from(before).unwrap_or(0)), b' ');
        file.write_all(&text).map_err(&failed)?;
        if last {
            file.set_len(length as u64).map_err(&failed)?;
        }
        drop(file);
        let place = self.path.join(MANIFEST);
        renameat2(
            AT_FDCWD,
            &next,
            AT_FDCWD,
            &place,
            RenameFlags::RENAME_EXCHANGE,
        )
        .map_err(io::Error::from)
        .or_else(|_| fs::rename(&next, &place))
        .map_err(&failed)
    }

    /// Writes the manifest for the last time and removes the second copy.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn close(&self, manifest: &Manifest) -> Result<(), BundleError> {
        self.exchange_manifest(manifest, true)?;
        let next = self.path.join(NEXT_MANIFEST);
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove", &next)(error))
            }
            _ => Ok(()),
        }
    }
}

/// What a bundle of this name is called while it cannot be read yet.
fn unfinished_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// Under sudo: the user who typed the command owns what it made.
fn give_to_user(path: &Path) {
    if let Some((uid, gid)) = sudo_user() {
        let _ = chown(path, Some(uid), Some(gid));
    }
}

/// Whether the bundle may be created: nothing is there, or an older bundle that the user gives up, with
/// nothing in it but its own files.
fn check_room(path: &Path, force: bool) -> Result<(), BundleError> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !force {
        return Err(BundleError::Exists(path.to_owned()));
    }
    let foreign = || BundleError::NotABundle(path.to_owned());
    if !meta.is_dir() {
        return Err(foreign());
    }
    let entries = fs::read_dir(path).map_err(io_error("read", path))?;
    let names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let is_bundle = names.is_empty() || names.iter().any(|name| name == MANIFEST);
    if is_bundle && names.iter().all(|name| is_bundle_file(name)) {
        Ok(())
    } else {
        Err(foreign())
    }
}

fn is_bundle_file(name: &str) -> bool {
    name.starts_with("manifest.json")
        || name.ends_with(".arrows")
        || name.ends_with(".arrows.idx")
        || name == IMAGE_MAPS
}

/// Removes the files of a bundle, and the directory if nothing else is in it.
fn remove_bundle(path: &Path) -> Result<(), BundleError> {
    let Ok(entries) = fs::read_dir(path) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if is_bundle_file(&entry.file_name().to_string_lossy()) {
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
        let (dir, _) = BundleDir::create(&path, false, &Manifest::default()).unwrap();
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
        let again = |force| BundleDir::create(&path, force, &Manifest::default());
        assert!(matches!(again(false), Err(BundleError::Exists(_))));
        assert!(again(true).is_ok());
        assert_eq!(
            fs::read_dir(root.path()).unwrap().count(),
            1,
            "no unfinished directory is left"
        );
    }

    #[test]
    fn an_unseen_bundle_appears_as_a_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.nest");
        let named = |name: &str| Manifest {
            tool_version: name.into(),
            ..Manifest::default()
        };
        for (force, name) in [(false, "first"), (true, "second")] {
            let mut dir = BundleDir::begin_unseen(&path, force).unwrap();
            assert_eq!(path.exists(), force, "the older one, or nothing");
            dir.new_file(HOST_STREAM).unwrap();
            dir.appear(&path, &named(name)).unwrap();
            let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
            assert_eq!(text, named(name).to_json());
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        }
        let again = BundleDir::begin_unseen(&path, false);
        assert!(matches!(again, Err(BundleError::Exists(_))));
        let dir = BundleDir::begin_unseen(&path, true).unwrap();
        dir.discard();
        assert!(path.join(MANIFEST).exists() && fs::read_dir(root.path()).unwrap().count() == 1);
    }

    #[test]
    fn a_shorter_manifest_replaces_a_longer_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.nest");
        let named = |name: &str| Manifest {
            tool_version: name.into(),
            ..Manifest::default()
        };
        let (dir, _) = BundleDir::create(&path, false, &named(&"x".repeat(5000))).unwrap();
        let read = || fs::read(path.join(MANIFEST)).unwrap();
        for name in ["long".repeat(1000), "short".to_owned(), "tiny".to_owned()] {
            dir.write_manifest(&named(&name)).unwrap();
            assert_eq!(Manifest::from_slice(&read()).unwrap().0.tool_version, name);
        }
        dir.close(&named("last")).unwrap();
        assert_eq!(String::from_utf8(read()).unwrap(), named("last").to_json());
    }

    #[test]
    fn force_spares_what_is_not_a_bundle() {
        let root = tempfile::tempdir().unwrap();
        let precious = root.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("data"), "x").unwrap();
        fs::write(precious.join(MANIFEST), "{}").unwrap();
        let created = BundleDir::create(&precious, true, &Manifest::default());
        assert!(matches!(created, Err(BundleError::NotABundle(_))));
        assert!(precious.join("data").exists() && precious.join(MANIFEST).exists());
        let file = precious.join("data");
        assert!(matches!(
            BundleDir::create(&file, true, &Manifest::default()),
            Err(BundleError::NotABundle(_))
        ));
    }

    #[test]
    fn what_cannot_be_created_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("missing/a.nest");
        assert!(matches!(
            BundleDir::create(&path, false, &Manifest::default()),
            Err(BundleError::Io { .. })
        ));
        let path = root.path().join("a.nest");
        let (dir, _) = BundleDir::create(&path, false, &Manifest::default()).unwrap();
        dir.discard();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
