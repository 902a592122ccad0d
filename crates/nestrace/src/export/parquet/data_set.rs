//! The folder of a data set. Many recordings are added to one, from many hosts at once: each has files of its own, and
//! each file appears as a whole.

use std::{
    cell::RefCell,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::exit::{Failure, USAGE};

use super::{failed, partition::host_folder};

/// Says what a folder is; readers of Parquet pass over names with an underscore.
const MARK: &str = "_nestrace.json";
/// What the tables look like. The number changes when a column is renamed or removed.
pub const SCHEMA: &str = "nestrace-parquet/2";
/// Beginning of the names of folders in which files are made.
const HIDDEN: &str = ".partial-";
/// An export that began this long ago has been killed.
const STALE: Duration = Duration::from_secs(86_400);

/// The files of one recording, which are being made in a hidden folder of the data set.
#[derive(Debug)]
pub struct DataSet {
    hidden: PathBuf,
    place: PathBuf,
    /// Nothing was there.
    is_new: bool,
    /// What the recording's files are called, up to a number.
    stem: String,
    /// The folder of its host in every table that has such folders.
    host: String,
    /// Of every file: its folder below the data set, and its name.
    files: RefCell<Vec<(PathBuf, String)>>,
}

impl DataSet {
    /// Begins to add a recording of a host, whose files begin with `stem`. Where there is no data set yet, one appears with
    /// its first recording.
    pub fn begin(place: &Path, stem: &str, host: &str) -> Result<Self, Failure> {
        check(place)?;
        let is_new = !place.exists();
        remove_stale(place);
        let hidden = place.join(format!("{HIDDEN}{stem}-{}", std::process::id()));
        // What a killed export left, which had this process' number.
        let _ = fs::remove_dir_all(&hidden);
        fs::create_dir_all(&hidden).map_err(|error| failed(place, error))?;
        Ok(Self {
            hidden,
            place: place.to_owned(),
            is_new,
            stem: stem.to_owned(),
            host: host_folder(host),
            files: RefCell::default(),
        })
    }

    /// Where a file of this table is made, called `name` and the recording's.
    pub fn file(&self, table: &str, partition: &Path, name: &str) -> Result<PathBuf, Failure> {
        let folder = Path::new(table).join(partition);
        let hidden = self.hidden.join(&folder);
        fs::create_dir_all(&hidden).map_err(|error| failed(&hidden, error))?;
        let name = format!("{name}.parquet");
        let path = hidden.join(&name);
        self.files.borrow_mut().push((folder, name));
        Ok(path)
    }

    /// What the recording's files are called, up to a number.
    pub fn stem(&self) -> &str {
        &self.stem
    }

    /// Puts the files in their places. What an earlier export of the same recording left goes first: then a reader may
    /// miss rows for a moment, and never has them twice.
    pub fn appear(&self) -> Result<(), Failure> {
        self.mark()?;
        let files = self.files.borrow();
        let is_new = |path: &Path| {
            let new = files.iter();
            new.map(|(folder, name)| self.place.join(folder).join(name))
                .any(|new| new == path)
        };
        let mut earlier = Vec::new();
        self.earlier(&self.place, 0, &mut earlier)?;
        for path in earlier.iter().filter(|path| !is_new(path)) {
            fs::remove_file(path).map_err(|error| failed(path, error))?;
        }
        for (folder, name) in files.iter() {
            let to = self.place.join(folder);
            fs::create_dir_all(&to).map_err(|error| failed(&to, error))?;
            let (from, to) = (self.hidden.join(folder).join(name), to.join(name));
            fs::rename(&from, &to).map_err(|error| failed(&to, error))?;
        }
        Ok(())
    }

    /// Files of the same recording below a folder of the data set.
    fn earlier(
        &self,
        folder: &Path,
        depth: usize,
        found: &mut Vec<PathBuf>,
    ) -> Result<(), Failure> {
        let entries = fs::read_dir(folder).map_err(|error| failed(folder, error))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Below a table are folders of hosts, which may be very many.
            let is_of_it = match depth {
                0 => !name.starts_with('.'),
                1 => name == self.host,
                _ => depth < MAX_FOLDERS,
            };
            if is_folder && is_of_it {
                self.earlier(&entry.path(), depth + 1, found)?;
            } else if !is_folder && depth > 0 && self.is_own(&name) {
                found.push(entry.path());
            }
        }
        Ok(())
    }

    /// Whether a file is called as this recording's are.
    fn is_own(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.stem);
        rest.is_some_and(|rest| rest.starts_with('-') || rest == ".parquet")
    }

    fn mark(&self) -> Result<(), Failure> {
        let about = serde_json::json!({
            "schema": SCHEMA,
            "tool_version": env!("CARGO_PKG_VERSION"),
        });
        let (from, to) = (self.hidden.join(MARK), self.place.join(MARK));
        fs::write(&from, format!("{about:#}\n"))
            .and_then(|()| fs::rename(&from, &to))
            .map_err(|error| failed(&to, error))
    }
}

/// Folders in each other: a table, `host=`, `guest=`, `date=`.
const MAX_FOLDERS: usize = 4;

impl Drop for DataSet {
    /// What is not in its place by now is nowhere.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.hidden);
        if self.is_new {
            // Only where nothing has appeared in it.
            let _ = fs::remove_dir(&self.place);
        }
    }
}

/// Removes what exports that were killed have left.
fn remove_stale(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let is_hidden = entry.file_name().to_string_lossy().starts_with(HIDDEN);
        let changed = entry.metadata().and_then(|about| about.modified());
        let age = changed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
        if is_hidden && age.is_ok_and(|age| age > STALE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a recording may be added there: to a data set of nestrace, or where nothing is.
fn check(place: &Path) -> Result<(), Failure> {
    let refused = |why: &str| {
        Failure::new(USAGE, format!("{} {why}", place.display()))
            .hint("choose another name with -o: recordings are added to data sets of nestrace only")
    };
    match fs::read_dir(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(refused("is no folder")),
        Err(error) => Err(failed(place, error)),
        Ok(entries) => {
            // Another export may be making this data set right now. It writes the mark before all that is not hidden, so
            // the mark is there if the list has such a name. Hence the list comes first.
            let mut names = entries.flatten().map(|entry| entry.file_name());
            let is_new = names.all(|name| name.to_string_lossy().starts_with(HIDDEN));
            match place.join(MARK).is_file() {
                true => check_schema(place),
                false if is_new => Ok(()),
                false => Err(refused("is not a data set of nestrace")),
            }
        }
    }
}

/// Whether the tables there look like ours: readers would take files of two kinds for one table.
fn check_schema(place: &Path) -> Result<(), Failure> {
    let path = place.join(MARK);
    let text = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
    let about: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match about["schema"].as_str() {
        Some(SCHEMA) => Ok(()),
        other => {
            let other = other.unwrap_or("an unknown schema");
            let message = format!(
                "{} has {other}, this nestrace writes {SCHEMA}",
                place.display()
            );
            Err(Failure::new(USAGE, message).hint("choose another name with -o"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files below a folder, by their names from there on.
    fn files(folder: &Path) -> Vec<String> {
        let mut all = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).expect("a folder").flatten() {
                match entry.file_type().expect("its type").is_dir() {
                    true => folders.push(entry.path()),
                    false => all.push(entry.path()),
                }
            }
        }
        let short = |path: &PathBuf| {
            path.strip_prefix(folder)
                .expect("below")
                .display()
                .to_string()
        };
        let mut names: Vec<String> = all.iter().map(short).collect();
        names.sort_unstable();
        names
    }

    fn put(set: &DataSet, partition: &str, name: &str) {
        let path = set
            .file("events", Path::new(partition), name)
            .expect("a file");
        fs::write(path, name).expect("its bytes");
    }

    #[test]
    fn a_recording_is_added_and_replaces_only_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("set");
        let first = DataSet::begin(&place, "a-1", "h").expect("the first");
        put(&first, "host=h/guest=-/date=x", "a-1-0");
        put(&first, "host=h/guest=-/date=x", "a-1-1");
        let other = DataSet::begin(&place, "a-12", "h").expect("at the same time");
        put(&other, "host=h/guest=-/date=x", "a-12-0");
        assert!(!place.join("events").exists());
        first.appear().expect("appears");
        other.appear().expect("appears");
        drop((first, other));
        let of = |name: &str| format!("events/host=h/guest=-/date=x/{name}.parquet");
        let mark = MARK.to_owned();
        assert_eq!(
            files(&place),
            [mark.clone(), of("a-1-0"), of("a-1-1"), of("a-12-0")]
        );

        let again = DataSet::begin(&place, "a-1", "h").expect("again");
        put(&again, "host=h/guest=-/date=x", "a-1-0");
        drop(DataSet::begin(&place, "b-1", "h").expect("one that does not become whole"));
        again.appear().expect("appears");
        drop(again);
        assert_eq!(files(&place), [mark, of("a-1-0"), of("a-12-0")]);
    }

    #[test]
    fn nothing_is_added_to_what_is_no_data_set() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("photo.jpg"), "x").expect("a file");
        assert!(DataSet::begin(folder.path(), "a", "h").is_err());
        assert!(DataSet::begin(&folder.path().join("photo.jpg"), "a", "h").is_err());
        let older = folder.path().join("older");
        fs::create_dir(&older).expect("a folder");
        fs::write(older.join(MARK), r#"{"schema": "nestrace-parquet/1"}"#).expect("its mark");
        let refused = DataSet::begin(&older, "a", "h").expect_err("another schema");
        assert!(refused.message().contains("nestrace-parquet/1"));
        fs::remove_dir_all(&older).expect("removed");
        assert_eq!(files(folder.path()), ["photo.jpg"]);
    }
}
