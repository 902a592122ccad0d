//! A file that appears as a whole or not at all.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::exit::{FAILURE, Failure, USAGE};

/// Bytes that are written at once.
const BUFFER: usize = 1 << 18;

/// Written beside its place under a hidden name; [`NewFile::finish`] gives it its own. One that is dropped
/// before leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    file: BufWriter<File>,
    place: WholeFile,
}

/// One that is on the disk and closed, still under its hidden name. One that is dropped leaves nothing.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    hidden: PathBuf,
    force: bool,
    appeared: bool,
}

impl NewFile {
    /// Fails at once, not after a long recording was read, where the file is there and may not be replaced.
    pub fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        Self::with_buffer(path, force, BUFFER)
    }

    /// The same with a buffer of that many bytes.
    pub fn with_buffer(path: &Path, force: bool, buffer: usize) -> Result<Self, Failure> {
        if !force && path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let Some(name) = path.file_name() else {
            return Err(Failure::new(
                USAGE,
                format!("{} is not the name of a file", path.display()),
            ));
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let hidden = path.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&hidden)
            .map_err(|error| failed(path, &error))?;
        Ok(Self {
            file: BufWriter::with_capacity(buffer, file),
            place: WholeFile {
                path: path.to_owned(),
                hidden,
                force,
                appeared: false,
            },
        })
    }

    /// The name that it will have.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Everything is written: the file appears.
    pub fn finish(self) -> Result<(), Failure> {
        self.close()?.appear()
    }

    /// Everything is written and on the disk.
    pub fn close(mut self) -> Result<WholeFile, Failure> {
        let done = self.flush().and_then(|()| self.file.get_ref().sync_data());
        done.map_err(|error| failed(&self.place.path, &error))?;
        Ok(self.place)
    }

    /// Writes, naming the file where that fails.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file
            .write_all(bytes)
            .map_err(|error| failed(&self.place.path, &error))
    }
}

impl WholeFile {
    /// It gets its name.
    pub fn appear(mut self) -> Result<(), Failure> {
        let appeared = match self.force {
            true => fs::rename(&self.hidden, &self.path),
            // Unlike a rename, a link does not replace what came there meanwhile.
            false => fs::hard_link(&self.hidden, &self.path).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Err(error),
                // A file system without links.
                _ => fs::rename(&self.hidden, &self.path),
            }),
        };
        match appeared {
            Ok(()) => {
                // After a rename there is nothing left of that name.
                let _ = fs::remove_file(&self.hidden);
                self.appeared = true;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.path)),
            Err(error) => Err(failed(&self.path, &error)),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.appeared {
            // Nothing better can be done about a file that cannot be removed.
            let _ = fs::remove_file(&self.hidden);
        }
    }
}

/// The name with something added to it: `OUT` and `.vda.iolog`.
pub fn with_ending(base: &Path, ending: &str) -> PathBuf {
    let mut name = base.to_owned().into_os_string();
    name.push(ending);
    PathBuf::from(name)
}

fn exists(path: &Path) -> Failure {
    Failure::new(USAGE, format!("{} exists", path.display()))
        .hint("choose another name with -o, or replace it with --force")
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(FAILURE, format!("write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn it_appears_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.csv");
        let mut file = NewFile::create(&path, false).expect("there is nothing");
        file.put(b"one").expect("there is room");
        assert!(!path.exists());
        file.finish().expect("there is room");
        assert_eq!(names(folder.path()), ["out.csv"]);
        assert_eq!(fs::read(&path).expect("it is there"), b"one");
    }

    #[test]
    fn one_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.csv");
        let mut file = NewFile::create(&path, false).expect("there is nothing");
        file.put(b"one").expect("there is room");
        drop(file);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_is_there_is_replaced_by_force_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.csv");
        let early = NewFile::create(&path, false).expect("there is nothing");
        fs::write(&path, "mine").expect("it can be written");
        assert!(NewFile::create(&path, false).is_err());
        assert!(early.finish().is_err(), "it came meanwhile");
        assert_eq!(fs::read(&path).expect("it is there"), b"mine");
        let forced = NewFile::create(&path, true).expect("it may");
        forced.finish().expect("it may");
        assert_eq!(fs::read(&path).expect("it is there"), b"");
        assert_eq!(names(folder.path()), ["out.csv"]);
    }
}
