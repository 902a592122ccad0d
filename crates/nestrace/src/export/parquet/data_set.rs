//! The folder of a data set: it appears as a whole or not at all.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::exit::{FAILURE, Failure, USAGE};

use super::failed;

/// Says what a folder is; readers of Parquet pass over names with an underscore.
const MARK: &str = "_nestrace.json";
/// What stands in it. The number changes when a column is renamed or removed.
const ABOUT: &str = concat!(
    "{\n  \"schema\": \"nestrace-parquet/1\",\n  \"tool_version\": \"",
    env!("CARGO_PKG_VERSION"),
    "\"\n}\n"
);

/// A data set that is being made, in a hidden folder beside its place.
#[derive(Debug)]
pub struct DataSet {
    hidden: PathBuf,
    place: PathBuf,
    force: bool,
}

impl DataSet {
    /// Begins one. What is there stays until the new one is whole, and is replaced with `force` only, and
    /// only if it is a data set of nestrace.
    pub fn begin(place: &Path, force: bool) -> Result<Self, Failure> {
        check(place, force)?;
        let Some(name) = place.file_name() else {
            return Err(Failure::new(
                USAGE,
                format!("{} names no folder", place.display()),
            ));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let hidden = place.with_file_name(hidden);
        fs::create_dir(&hidden).map_err(|error| {
            Failure::new(FAILURE, format!("write {}: {error}", place.display()))
        })?;
        Ok(Self {
            hidden,
            place: place.to_owned(),
            force,
        })
    }

    /// A folder of a table, made if it is not there.
    pub fn folder(&self, table: &str, partition: &Path) -> Result<PathBuf, Failure> {
        let folder = self.hidden.join(table).join(partition);
        fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
        Ok(folder)
    }

    /// Puts the data set in its place.
    pub fn appear(&self) -> Result<(), Failure> {
        let mark = self.hidden.join(MARK);
        fs::write(&mark, ABOUT).map_err(|error| failed(&mark, error))?;
        check(&self.place, self.force)?;
        let mut old = self.hidden.clone().into_os_string();
        old.push(".old");
        let old = PathBuf::from(old);
        let replaces = match fs::rename(&self.place, &old) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(failed(&self.place, error)),
        };
        if let Err(error) = fs::rename(&self.hidden, &self.place) {
            if replaces {
                let _ = fs::rename(&old, &self.place);
            }
            return Err(failed(&self.place, error));
        }
        if replaces {
            fs::remove_dir_all(&old).map_err(|error| failed(&old, error))?;
        }
        Ok(())
    }
}

impl Drop for DataSet {
    /// Of one that did not become whole nothing is left; of one that did, nothing is here any more.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.hidden);
    }
}

/// Whether a data set may be put there.
fn check(place: &Path, force: bool) -> Result<(), Failure> {
    match fs::symlink_metadata(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(place, error)),
        Ok(_) if !force => Err(Failure::new(USAGE, format!("{} exists", place.display()))
            .hint("choose another name with -o, or replace the data set with --force")),
        Ok(_) if place.join(MARK).is_file() => Ok(()),
        Ok(_) => Err(Failure::new(
            USAGE,
            format!("{} is not a data set of nestrace", place.display()),
        )
        .hint("choose another name with -o: --force replaces data sets only")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_is_whole_or_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("set");
        let names = || -> Vec<_> {
            let entries = fs::read_dir(folder.path()).expect("its entries");
            entries.flatten().map(|entry| entry.file_name()).collect()
        };
        let set = DataSet::begin(&place, false).expect("begin");
        set.folder("events", Path::new("host=a")).expect("a table");
        assert!(!place.exists());
        drop(set);
        assert_eq!(names().len(), 0);

        DataSet::begin(&place, false)
            .and_then(|set| set.appear())
            .expect("the first");
        assert!(place.join(MARK).exists());
        assert!(DataSet::begin(&place, false).is_err());
        let set = DataSet::begin(&place, true).expect("another");
        set.folder("chains", Path::new("host=b")).expect("a table");
        set.appear().expect("replaced");
        drop(set);
        assert!(place.join("chains/host=b").is_dir());
        assert_eq!(names(), ["set"]);

        fs::remove_file(place.join(MARK)).expect("not ours any more");
        assert!(DataSet::begin(&place, true).is_err());
        assert!(place.join("chains").is_dir());
    }
}
