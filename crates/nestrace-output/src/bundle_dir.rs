//! The bundle's directory while it is written.
//!
//! Everything that the end of a recording needs is made at its beginning, so that neither a full
//! file system nor given-up privileges stand in the way: both copies of the manifest are open and have their
//! space reserved and their owner set, and an update exchanges the two. The directory takes its name when all
//! of that is in it, so that a bundle is readable from the moment that it is there.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{held_dir::HeldDir, reserve::reserve};
use nestrace_trace::{
    Manifest,
    bundle::{HOST_STREAM, IMAGE_MAPS, MANIFEST, index_of},
    writer::StreamWriter,
};

/// Name of the manifest's second copy while recording.
const NEXT_MANIFEST: &str = "manifest.json.next";
/// Space kept for each copy: the topology of a large host is some 30 KiB, notices and clock rates up to 200.
const MANIFEST_RESERVE: u64 = 256 << 10;
/// And for each guest: an agent's clock samples alone come to 80 KiB.
const GUEST_RESERVE: u64 = 128 << 10;

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

/// Where a stream's bytes go: into a file, or into the memory of a flight recorder.
pub type StreamOutput = Box<dyn Write + Send>;
/// The writer of the host's stream.
pub type HostStream = StreamWriter<StreamOutput, StreamOutput>;

/// A bundle that is being written. One that is dropped before it has its name leaves nothing, and one that is
/// dropped before [`BundleDir::settle`] gives an older one its name back. What is killed in between leaves the
/// older one beside it, under a hidden name (`.NAME.PID`, or `.NAME.PID.old`).
pub struct BundleDir {
    path: PathBuf,
    /// The folder that it is in.
    around: HeldDir,
    dir: Arc<HeldDir>,
    /// Whether an older bundle may be replaced.
    force: bool,
    /// Whether nothing is to be removed when this is dropped: it has its name, or another process has it.
    has_name: bool,
    /// The name that it is to have.
    wanted: PathBuf,
    /// Where the bundle is that had the name before, until it need not be restored any more.
    older: Option<PathBuf>,
    /// The manifest that is read, and the copy that is written next.
    manifest: Option<File>,
    next: Option<File>,
}

/// A bundle for a process that keeps, names or removes it when its recorder may not.
#[derive(Debug)]
pub struct HandedOver {
    /// Its name.
    pub name: OsString,
    /// The hidden name of the bundle that it replaces.
    pub older: Option<OsString>,
    /// The name that it gets when there is something in it, and whether that replaces an older bundle. `None` where it has
    /// its name.
    pub unseen: Option<(OsString, bool)>,
    /// The folder with both.
    pub around: HeldDir,
    /// The bundle's.
    pub dir: HeldDir,
}

impl BundleDir {
    /// Leaves it to somebody else to settle or discard this bundle.
    ///
    /// # Errors
    /// Where the process has too many descriptors; nothing has changed then.
    pub fn hand_over(&mut self) -> io::Result<HandedOver> {
        let (around, dir) = (self.around.try_clone()?, self.dir.try_clone()?);
        let name = |path: &Path| name_of(path).as_os_str().to_owned();
        let unseen = !std::mem::replace(&mut self.has_name, true);
        Ok(HandedOver {
            name: name(&self.path),
            older: self.older.take().as_deref().map(name),
            unseen: unseen.then(|| (name(&self.wanted), self.force)),
            around,
            dir,
        })
    }

    /// This process settles or discards it after all.
    pub fn take_over(&mut self, bundle: HandedOver) {
        self.older = bundle.older.map(PathBuf::from);
        self.has_name = bundle.unseen.is_none();
    }

    /// The process that it was left to has given it its name.
    pub fn has_appeared(&mut self) {
        self.path.clone_from(&self.wanted);
    }

    /// The bundle that [`Self::hand_over`] left.
    #[must_use]
    pub fn taken_over(bundle: HandedOver) -> Self {
        let (wanted, force) = bundle.unseen.clone().unwrap_or_default();
        Self {
            path: bundle.name.into(),
            around: bundle.around,
            dir: Arc::new(bundle.dir),
            force,
            has_name: bundle.unseen.is_none(),
            wanted: wanted.into(),
            older: bundle.older.map(PathBuf::from),
            manifest: None,
            next: None,
        }
    }

    /// Creates the directory with the start of its stream and this manifest. Under sudo all of it belongs
    /// to the user who typed the command. `force` replaces a *bundle* that is there, which is kept until
    /// [`Self::settle`].
    ///
    /// # Errors
    /// [`BundleError`]; nothing is left behind then.
    pub fn create(
        path: &Path,
        force: bool,
        manifest: &Manifest,
    ) -> Result<(Self, HostStream), BundleError> {
        let mut dir = Self::begin_unseen(path, force)?;
        let stream = dir.new_file(HOST_STREAM)?;
        let index = dir.new_file(&index_of(HOST_STREAM))?;
        let outputs: [StreamOutput; 2] = [Box::new(stream), Box::new(index)];
        let [stream, index] = outputs;
        let writer = StreamWriter::new(stream, index)
            .map_err(|error| BundleError::Stream(path.join(HOST_STREAM), error))?;
        dir.begin_recording(path, manifest)?;
        Ok((dir, writer))
    }

    /// An empty directory that gets its name when all is in it ([`Self::appear`]) or when a recording
    /// into it begins ([`Self::begin_recording`]): until then whatever has that name stays as it is.
    /// `force` lets it replace a *bundle*.
    ///
    /// # Errors
    /// [`BundleError`]; nothing is left behind then.
    pub fn begin_unseen(path: &Path, force: bool) -> Result<Self, BundleError> {
        let Some(name) = path.file_name() else {
            return Err(BundleError::NotABundle(path.to_owned()));
        };
        let failed = io_error("create", path);
        let around = HeldDir::around(path).map_err(&failed)?;
        replaces_older(&around, path, force)?;
        let unfinished = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let dir = around.make_dir(&unfinished).map_err(failed)?;
        Ok(Self {
            path: path.with_file_name(unfinished),
            around,
            dir: Arc::new(dir),
            force,
            has_name: false,
            wanted: path.to_owned(),
            older: None,
            manifest: None,
            next: None,
        })
    }

    /// Reserves space for the manifest of the end, writes the first one and gives the directory its name:
    /// from here on it can be read while it grows. An older bundle of that name is kept unseen until
    /// [`Self::settle`].
    ///
    /// # Errors
    /// [`BundleError`]; the directory is still the unfinished one then.
    pub fn begin_recording(&mut self, path: &Path, manifest: &Manifest) -> Result<(), BundleError> {
        self.begin_manifest(manifest)?;
        self.take_place(path)
    }

    /// Reserves space for the manifest of the end and writes the first one: from here on it can be read, wherever it is.
    ///
    /// # Errors
    /// [`BundleError`].
    pub fn begin_manifest(&mut self, manifest: &Manifest) -> Result<(), BundleError> {
        let guests = manifest.topology.guests.len() as u64;
        let bytes = guests.saturating_mul(GUEST_RESERVE);
        let bytes = bytes.saturating_add(MANIFEST_RESERVE);
        // One that is long already may grow too.
        let length = manifest.to_json().len() as u64;
        let bytes = bytes.max(length.saturating_mul(2));
        self.manifest = Some(self.reserved(MANIFEST, bytes)?);
        self.next = Some(self.reserved(NEXT_MANIFEST, bytes)?);
        self.write_manifest(manifest)
    }

    /// Gives a bundle that was begun unseen its name, in one step; an older bundle of that name is removed after it.
    ///
    /// # Errors
    /// [`BundleError`]; unless removing the older one failed, the directory is still the unfinished one then.
    pub fn take_wanted_name(&mut self) -> Result<(), BundleError> {
        let wanted = self.wanted.clone();
        self.take_place(&wanted)?;
        self.settle()
    }

    /// Whether it waits for its name.
    #[must_use]
    pub const fn is_unseen(&self) -> bool {
        !self.has_name
    }

    /// Writes the manifest, puts everything on the disk and gives the directory its name, in one step;
    /// an older bundle of that name is removed after it.
    ///
    /// # Errors
    /// [`BundleError`]; unless removing the older one failed, the directory is still the unfinished one then.
    pub fn appear(&mut self, path: &Path, manifest: &Manifest) -> Result<(), BundleError> {
        let file = self.new_file(MANIFEST)?;
        file.write_all_at(manifest.to_json().as_bytes(), 0)
            .map_err(io_error("write", &self.path.join(MANIFEST)))?;
        self.manifest = Some(file);
        // The name never comes before what it names.
        self.dir.sync().map_err(io_error("write", &self.path))?;
        self.take_place(path)?;
        self.settle()
    }

    fn reserved(&self, name: &str, bytes: u64) -> Result<File, BundleError> {
        let file = self.new_file(name)?;
        reserve(&file, bytes);
        Ok(file)
    }

    /// Takes its name: a free one, or with `force` that of an older bundle.
    fn take_place(&mut self, path: &Path) -> Result<(), BundleError> {
        self.dir.give_to_user();
        // It was looked at when this began; what is there now is looked at again.
        if !replaces_older(&self.around, path, self.force)? {
            return self.take_name(path);
        }
        match self.around.exchange(name_of(&self.path), name_of(path)) {
            Ok(()) => {
                self.has_name = true;
                self.older = Some(std::mem::replace(&mut self.path, path.to_owned()));
                Ok(())
            }
            // A file system that cannot exchange two names.
            Err(_) => self.put_older_aside(path),
        }
    }

    /// Takes the name of an older bundle, which gets a hidden one, and its own back if that fails.
    fn put_older_aside(&mut self, path: &Path) -> Result<(), BundleError> {
        let mut aside = self.path.clone().into_os_string();
        aside.push(".old");
        let aside = PathBuf::from(aside);
        self.around
            .rename_new(name_of(path), name_of(&aside))
            .map_err(io_error("rename", path))?;
        let taken = self.take_name(path);
        if taken.is_ok() {
            self.older = Some(aside);
        } else {
            let _ = self.around.rename_new(name_of(&aside), name_of(path));
        }
        taken
    }

    /// Moves to the final name, never over something that has appeared there meanwhile.
    fn take_name(&mut self, path: &Path) -> Result<(), BundleError> {
        self.around
            .rename_new(name_of(&self.path), name_of(path))
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => BundleError::Exists(path.to_owned()),
                _ => io_error("create", path)(error),
            })?;
        self.has_name = true;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// The recording has begun for good: the older bundle is removed.
    ///
    /// # Errors
    /// [`BundleError::Io`]: it stays under its hidden name. This one is not touched by that.
    pub fn settle(&mut self) -> Result<(), BundleError> {
        let older = self.older.take();
        older.map_or(Ok(()), |older| remove_bundle(&self.around, &older))
    }

    /// Bytes that [`Self::settle`] will give back.
    #[must_use]
    pub fn older_bytes(&self) -> u64 {
        let older = self.older.as_deref();
        let older = older.and_then(|path| self.around.open_dir(name_of(path)).ok());
        older.map_or(0, |dir| dir.allocated_bytes())
    }

    /// Removes what was created: the recording did not begin. An older bundle has its name again.
    pub fn discard(&mut self) {
        let Some(older) = self.older.take() else {
            return self.remove();
        };
        let (hidden, seen) = (name_of(&older), name_of(&self.path));
        // Somebody may have put something else there, which stays.
        let is_there = self.around.open_dir(seen);
        let is_there = is_there.is_ok_and(|dir| dir.is_same_as(&self.dir));
        if is_there && self.around.exchange(hidden, seen).is_ok() {
            self.path = older;
            self.remove();
        } else {
            self.remove();
            let _ = self.around.rename_new(hidden, seen);
        }
    }

    fn remove(&self) {
        if remove_files(&self.dir, &self.path).is_ok() {
            let _ = self.around.remove_dir(name_of(&self.path));
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself, wherever it is.
    #[must_use]
    pub fn held(&self) -> &Arc<HeldDir> {
        &self.dir
    }

    /// Makes a file in it, which must not be there yet.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn new_file(&self, name: &str) -> Result<File, BundleError> {
        let failed = |error| io_error("create", &self.path.join(name))(error);
        self.dir.new_file(name).map_err(failed)
    }

    /// Writes the manifest as a whole: into the second copy, which then changes places with the first.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn write_manifest(&mut self, manifest: &Manifest) -> Result<(), BundleError> {
        self.exchange_manifest(manifest, false)
    }

    fn exchange_manifest(&mut self, manifest: &Manifest, last: bool) -> Result<(), BundleError> {
        let place = self.path.join(NEXT_MANIFEST);
        let failed = io_error("write", &place);
        let next = match self.next.take() {
            Some(next) => next,
            None => self.new_file(NEXT_MANIFEST)?,
        };
        let next = self.next.insert(next);
        overwrite(next, manifest.to_json().into_bytes(), last)
            // There may be room for the same without its indents.
            .or_else(|_| overwrite(next, serde_json::to_vec(manifest)?, last))
            .map_err(&failed)?;
        match self.dir.exchange(NEXT_MANIFEST, MANIFEST) {
            Ok(()) => std::mem::swap(&mut self.manifest, &mut self.next),
            // A file system that cannot: the first copy and its space are gone.
            Err(_) => {
                self.dir.rename(NEXT_MANIFEST, MANIFEST).map_err(failed)?;
                self.manifest = self.next.take();
            }
        }
        Ok(())
    }

    /// Writes the manifest for the last time and removes the second copy.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn close(&mut self, manifest: &Manifest) -> Result<(), BundleError> {
        self.exchange_manifest(manifest, true)?;
        self.dir
            .remove_file(NEXT_MANIFEST)
            .map_err(io_error("remove", &self.path.join(NEXT_MANIFEST)))
    }
}

impl Drop for BundleDir {
    fn drop(&mut self) {
        if !self.has_name || self.older.is_some() {
            self.discard();
        }
    }
}

fn name_of(path: &Path) -> &Path {
    Path::new(path.file_name().unwrap_or_default())
}

/// Puts a text in a file's place. An older, longer one is overwritten with spaces: cutting it would
/// give its space back, which is wanted for the last one only.
fn overwrite(file: &File, mut text: Vec<u8>, last: bool) -> io::Result<()> {
    let length = text.len();
    let before = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    text.resize(length.max(before), b' ');
    file.write_all_at(&text, 0)?;
    if last {
        file.set_len(length as u64)?;
    }
    Ok(())
}

/// Whether something is replaced by a bundle of this name: an older bundle that the user gives up, with
/// nothing in it but its own files. What may not be replaced is an error.
fn replaces_older(around: &HeldDir, path: &Path, force: bool) -> Result<bool, BundleError> {
    let name = name_of(path);
    if !around.has(name) {
        return Ok(false);
    }
    if !force {
        return Err(BundleError::Exists(path.to_owned()));
    }
    let foreign = || BundleError::NotABundle(path.to_owned());
    let failed = io_error("read", path);
    let older = around
        .open_dir(name)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => foreign(),
            _ => failed(error),
        })?;
    let names = older.names().map_err(&failed)?;
    let is_bundle = names.is_empty() || names.iter().any(|name| name == MANIFEST);
    if is_bundle && names.iter().all(|name| is_bundle_file(name)) {
        Ok(true)
    } else {
        Err(foreign())
    }
}

fn is_bundle_file(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with(MANIFEST)
        || name.ends_with(".arrows")
        || name.ends_with(".arrows.idx")
        || name == IMAGE_MAPS
}

/// Removes the files of a bundle, and the directory if nothing else is in it.
fn remove_bundle(around: &HeldDir, path: &Path) -> Result<(), BundleError> {
    let failed = io_error("remove", path);
    let dir = around.open_dir(name_of(path)).map_err(&failed)?;
    remove_files(&dir, path)?;
    around.remove_dir(name_of(path)).map_err(failed)
}

fn remove_files(dir: &HeldDir, path: &Path) -> Result<(), BundleError> {
    let names = dir.names().map_err(io_error("read", path))?;
    for name in names.iter().filter(|name| is_bundle_file(name)) {
        let failed = |error| io_error("remove", &path.join(name))(error);
        dir.remove_file(name).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
