//! The folder of a data set: what it is, its hosts, and the files of each.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nestrace_report::fleet::LeftOut;
use thiserror::Error;

use crate::tables::Table;

/// Says what a folder is.
const MARK: &str = "_nestrace.json";
/// What a value that is null is called in the name of a folder.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";
/// Files that are left out; a data set with more of them is not asked.
pub const MAX_LEFT_OUT: usize = 10_000;
/// Beginning of the names of schemas.
const SCHEMA: &str = "nestrace-parquet/";
/// Numbers of the schemas that can be read: what was renamed since the first is in none of the tables here.
const SCHEMAS: [u32; 2] = [1, 2];

/// Why a data set cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataSetError {
    /// The folder cannot be opened.
    #[error("open the data set {}", .place.display())]
    Folder {
        /// Its name.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a data set of nestrace: it has no _nestrace.json", .0.display())]
    NoDataSet(PathBuf),
    /// No recording is in it.
    #[error("the data set {} is empty: it has no recording with any I/O", .0.display())]
    Empty(PathBuf),
    /// Every file is damaged.
    #[error("no file of the data set {} can be read; the first is {}: {}", .place.display(), .first.file, .first.reason)]
    AllDamaged {
        /// Its name.
        place: PathBuf,
        /// The first file.
        first: LeftOut,
    },
    /// Nearly every file is.
    #[error("more than {MAX_LEFT_OUT} files of the data set {} cannot be read; the first is {}: {}", .place.display(), .first.file, .first.reason)]
    ManyDamaged {
        /// Its name.
        place: PathBuf,
        /// The first file.
        first: LeftOut,
    },
    /// There is no place for what was read.
    #[error("keep what was read in the folder for temporary files ($TMPDIR)")]
    Temporary {
        /// Why.
        source: io::Error,
    },
    /// A file has tables that look otherwise.
    #[error(
        "the data set has mixed schemas: {file} is {schema}, this nestrace-fleet reads {SCHEMA}1 and {SCHEMA}2"
    )]
    Mixed {
        /// Its name.
        file: String,
        /// What it says of itself.
        schema: String,
    },
}

/// A data set, as it was when it was opened.
#[derive(Debug)]
pub struct DataSet {
    place: PathBuf,
    /// What appears later is not looked at: all questions see the same files. Seconds since 1970, nanoseconds.
    opened: (i64, i64),
    /// By table: names of hosts and of their folders, in the order of the first.
    hosts: BTreeMap<Table, Vec<(String, String)>>,
    left_out: Mutex<BTreeMap<String, String>>,
    n_later: AtomicU64,
}

/// A file of a table.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its name from the data set's folder on.
    pub name: String,
    /// The host.
    pub host: String,
    /// The day.
    pub date: Option<String>,
}

impl DataSet {
    /// Opens a folder.
    ///
    /// # Errors
    /// If there is none, or it is something else, or holds no recording.
    pub fn open(place: &Path) -> Result<Self, DataSetError> {
        let failed = |source| DataSetError::Folder {
            place: place.to_owned(),
            source,
        };
        fs::read_dir(place).map_err(failed)?;
        if !place.join(MARK).is_file() {
            return Err(DataSetError::NoDataSet(place.to_owned()));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or(Duration::MAX);
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let opened = (seconds, i64::from(now.subsec_nanos()));
        let mut hosts = BTreeMap::new();
        for table in Table::ALL {
            hosts.insert(table, hosts_of(&place.join(table.name())).map_err(failed)?);
        }
        if hosts.get(&Table::Disks).is_none_or(Vec::is_empty) {
            return Err(DataSetError::Empty(place.to_owned()));
        }
        Ok(Self {
            place: place.to_owned(),
            opened,
            hosts,
            left_out: Mutex::default(),
            n_later: AtomicU64::new(0),
        })
    }

    /// The folder.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// How many hosts a table has.
    pub fn n_hosts(&self, table: Table) -> usize {
        self.hosts.get(&table).map_or(0, Vec::len)
    }

    /// The files of one of `of` equal parts of a table's hosts, host by host in the order of their names.
    pub fn files(
        &self,
        table: Table,
        part: usize,
        of: usize,
    ) -> impl Iterator<Item = TableFile> + '_ {
        let hosts = self.hosts.get(&table).map_or(&[][..], Vec::as_slice);
        let from = hosts.len() * part / of;
        let to = hosts.len() * (part + 1) / of;
        let hosts = hosts.get(from..to).unwrap_or_default();
        hosts
            .iter()
            .flat_map(move |(host, folder)| self.files_of(table, host, folder))
    }

    fn files_of(&self, table: Table, host: &str, folder: &str) -> Vec<TableFile> {
        let below = format!("{}/{folder}", table.name());
        let mut files = Vec::new();
        for day in self.or_left_out(&below, folders) {
            let Some(date) = day.strip_prefix("date=") else {
                continue;
            };
            let date = (date != NULL).then(|| decoded(date));
            let below = format!("{below}/{day}");
            for name in self.or_left_out(&below, files_in) {
                let path = self.place.join(&below).join(&name);
                let name = format!("{below}/{name}");
                if !self.is_later(&path) && !self.is_left_out(&name) {
                    files.push(TableFile {
                        path,
                        name,
                        host: host.to_owned(),
                        date: date.clone(),
                    });
                }
            }
        }
        files
    }

    /// What is in a folder; nothing, and the folder is named, where it cannot be read.
    fn or_left_out(
        &self,
        below: &str,
        list: impl Fn(&Path) -> io::Result<Vec<String>>,
    ) -> Vec<String> {
        list(&self.place.join(below)).unwrap_or_else(|error| {
            self.leave_out(below, error.to_string());
            Vec::new()
        })
    }

    fn is_later(&self, path: &Path) -> bool {
        let is_later =
            fs::metadata(path).is_ok_and(|about| (about.ctime(), about.ctime_nsec()) > self.opened);
        if is_later {
            self.n_later.fetch_add(1, Ordering::Relaxed);
        }
        is_later
    }

    /// How many files were passed over since this was asked because they are newer than the look at the data set.
    pub fn take_later(&self) -> u64 {
        self.n_later.swap(0, Ordering::Relaxed)
    }

    /// Names a file or folder that cannot be read.
    pub fn leave_out(&self, name: &str, reason: String) {
        let mut left_out = self.all_left_out();
        if left_out.len() <= MAX_LEFT_OUT {
            left_out.insert(name.to_owned(), reason);
        }
    }

    fn is_left_out(&self, name: &str) -> bool {
        self.all_left_out().contains_key(name)
    }

    /// What was left out, by name.
    pub fn left_out(&self) -> Vec<LeftOut> {
        let all = self.all_left_out();
        let files = all.iter().map(|(file, reason)| LeftOut {
            file: file.clone(),
            reason: reason.clone(),
        });
        files.collect()
    }

    fn all_left_out(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether tables of this schema can be read: `nestrace-parquet/2`. Columns that were added since are null in older files.
pub fn is_known(schema: &str) -> bool {
    let number = schema
        .strip_prefix(SCHEMA)
        .and_then(|number| number.parse().ok());
    number.is_some_and(|number: u32| SCHEMAS.contains(&number))
}

/// Hosts of a table: their names, and those of their folders. None where there is no such table.
fn hosts_of(table: &Path) -> io::Result<Vec<(String, String)>> {
    let mut hosts: Vec<(String, String)> = folders(table)?
        .into_iter()
        .filter_map(|folder| Some((decoded(folder.strip_prefix("host=")?), folder.clone())))
        .collect();
    hosts.sort_unstable();
    Ok(hosts)
}

/// Names of the folders in one, in order. None where it is not there.
fn folders(place: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in listed(place)? {
        let entry = entry?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Names of the tables' files in a folder, in order. What an export has under way is hidden.
fn files_in(place: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in listed(place)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".parquet") && !name.starts_with(['.', '_']) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// None where there is no such folder: it may have been removed meanwhile.
fn listed(place: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match fs::read_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        entries => Ok(Some(entries?).into_iter().flatten()),
    }
}

/// A value as Hive writes it in the name of a folder, read back.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let hex = behind
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let (b'%', Some(byte)) = (first, byte) {
            bytes.push(byte);
            rest = behind.get(2..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_are_read_back() {
        for (folder, name) in [
            ("vm", "vm"),
            ("h%2F..%2Fx", "h/../x"),
            ("a%3Db%20c", "a=b c"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%C3%A4", "ä"),
        ] {
            assert_eq!(decoded(folder), name);
        }
    }

    #[test]
    fn schemas_have_numbers() {
        for (schema, expected) in [
            ("nestrace-parquet/1", true),
            ("nestrace-parquet/2", true),
            ("nestrace-parquet/3", false),
            ("nestrace-parquet/", false),
            ("other/1", false),
        ] {
            assert_eq!(is_known(schema), expected, "{schema}");
        }
    }

    #[test]
    fn what_is_no_data_set_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |place: &Path| DataSet::open(place).expect_err("no data set").to_string();
        assert!(open(&folder.path().join("none")).starts_with("open the data set"));
        assert!(open(folder.path()).contains("is not a data set"));
        fs::write(folder.path().join(MARK), "{}").expect("a mark");
        assert!(open(folder.path()).contains("is empty"));
    }
}
