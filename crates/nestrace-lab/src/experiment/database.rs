//! Databases that are filled here, once, for guests: a disk with them, MariaDB's server and sysbench.
//!
//! The disk is kept in the cache and shared by plans with databases of the same sizes. Guests only read it: a run copies
//! a database onto the file system under test.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use nestrace_rig::cache_dir::{self, CacheError, Key};
use nestrace_rig::external_tool::{Tool, ToolError, find_program};
use nestrace_rig::guest::DiskSpec;
use nestrace_rig::initramfs;
use nestrace_rig::interrupt::Interrupted;
use nestrace_rig::stack::DiskStack;

use crate::plan::oltp::{self, DATABASE_DISK, FILE_OPTIONS, OWN_BYTES};
use crate::plan::{Plan, sysbench};
use server::Server;

/// Programs of the disk and of its making, and the packages that have them.
pub(super) const PROGRAMS: [(&str, &str); 4] = [
    (SERVER, "mariadb-server-core"),
    ("mariadb-install-db", "mariadb-server-core"),
    ("my_print_defaults", "mariadb-client-core"),
    (CLIENT, "sysbench"),
];
const SERVER: &str = "mariadbd";
const CLIENT: &str = sysbench::PROGRAM;
/// Messages and character sets of the server.
const SHARE: &str = "/usr/share/mysql";
/// sysbench's tests.
const TESTS: &str = "/usr/share/sysbench";
/// Goes up with every change to what is on the disk that the options below and the programs' files do not tell.
const FORMAT: u32 = 1;
/// What makes an empty database, besides [`FILE_OPTIONS`].
const EMPTY_OPTIONS: [&str; 2] = ["--auth-root-authentication-method=normal", "--skip-test-db"];
/// How sysbench fills it; with a seed of its own choice it would be another one each time.
const FILL_OPTIONS: [&str; 3] = ["--threads=2", "--rand-seed=1", "prepare"];
/// Programs and settings of this machine that the disk is made with and does not hold.
const MAKERS: [&str; 3] = ["mariadb-install-db", "my_print_defaults", "mke2fs"];
const FS_SETTINGS: &str = "/etc/mke2fs.conf";

/// The disk could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// A program is not on this machine.
    #[error("find the program {0} for the database of a guest")]
    NoProgram(&'static str),
    /// A file.
    #[error("write {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program failed.
    #[error("fill a database")]
    Tool(#[from] ToolError),
    /// The server ended, or does not answer.
    #[error("start {SERVER}: {0}")]
    Server(String),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Whether a plan needs one.
pub(super) fn is_wanted(plan: &Plan) -> bool {
    plan.cells.iter().any(|cell| cell.workload.oltp().is_some())
}

/// What a disk with databases is made of.
#[derive(Debug)]
pub struct DatabaseDisk {
    /// The cache's entry.
    pub(super) name: String,
    /// Rows of each table, of each database.
    rows: BTreeSet<u64>,
    /// Programs with their libraries, messages and tests: place on the disk → file of this machine.
    files: BTreeMap<PathBuf, PathBuf>,
}

impl DatabaseDisk {
    /// The disk with all databases of a plan.
    ///
    /// # Errors
    /// A program or one of its files is not on this machine.
    pub(super) fn of(plan: &Plan) -> Result<Self, DatabaseError> {
        let cells = plan.cells.iter();
        let rows = cells.filter_map(|cell| Some(cell.workload.oltp()?.rows));
        Self::with(rows.collect())
    }

    /// The disk with databases of so many rows in each table.
    ///
    /// # Errors
    /// A program or one of its files is not on this machine.
    pub fn with(rows: BTreeSet<u64>) -> Result<Self, DatabaseError> {
        let files = files()?;
        Ok(Self {
            name: name(&rows, &files)?,
            rows,
            files,
        })
    }

    /// Its image from the cache, made if it is not there.
    ///
    /// # Errors
    /// A program failed, there is no room, or Ctrl-C.
    pub fn obtain(&self, cache: &Path) -> Result<PathBuf, DatabaseError> {
        let made = cache_dir::entry(cache, &self.name, |folder| {
            let content = folder.join("content");
            self.gather(&content)?;
            for &rows in &self.rows {
                fill(&content.join(oltp::folder(rows)), rows)?;
            }
            pack(&content, &folder.join(IMAGE))?;
            std::fs::remove_dir_all(&content).map_err(|source| failed(&content, source))
        })?;
        Ok(made.join(IMAGE))
    }

    fn gather(&self, content: &Path) -> Result<(), DatabaseError> {
        for (place, file) in &self.files {
            let place = content.join(place);
            let folder = place.parent().unwrap_or(content);
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::copy(file, &place))
                .map_err(|source| failed(&place, source))?;
        }
        Ok(())
    }
}

/// The file of an entry.
const IMAGE: &str = "database.raw";

/// The disk as a guest gets it: no run writes to it.
#[must_use]
pub fn database_spec(image: &Path) -> DiskSpec {
    let mut disk = DiskSpec::new(DATABASE_DISK, image, DiskStack::RAW_CACHED);
    disk.read_only = true;
    disk
}

fn failed(path: &Path, source: io::Error) -> DatabaseError {
    DatabaseError::File {
        path: path.to_owned(),
        source,
    }
}

/// What the disk holds besides databases: place there → file of this machine.
fn files() -> Result<BTreeMap<PathBuf, PathBuf>, DatabaseError> {
    let mut files = BTreeMap::new();
    let mut add = |folder: &str, file: PathBuf| {
        let name = file.file_name().unwrap_or_default();
        files.insert(Path::new(folder).join(name), file);
    };
    for program in [SERVER, CLIENT] {
        let path = find_program(program).ok_or(DatabaseError::NoProgram(program))?;
        for library in initramfs::libraries_of_any(&path) {
            add("lib", library);
        }
        add("bin", path);
    }
    for test in listed(Path::new(TESTS))? {
        let name = test.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with("oltp_") {
            add("lua", test);
        }
    }
    for part in ["english", "charsets"] {
        for file in listed(&Path::new(SHARE).join(part))? {
            add(&format!("share/{part}"), file);
        }
    }
    Ok(files)
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, DatabaseError> {
    let entries = folder.read_dir().map_err(|source| failed(folder, source))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.is_file()).collect())
}

/// The cache's entry for databases of these sizes.
fn name(rows: &BTreeSet<u64>, files: &BTreeMap<PathBuf, PathBuf>) -> Result<String, DatabaseError> {
    let mut key = Key::default();
    key.add(&(FORMAT, FILE_OPTIONS, EMPTY_OPTIONS, FILL_OPTIONS, OWN_BYTES));
    for &rows in rows {
        key.add(&(oltp::folder(rows), oltp::client_options("", rows)));
    }
    for (place, file) in files {
        key.add_file(place, file)?;
    }
    for program in MAKERS {
        let path = find_program(program).ok_or(DatabaseError::NoProgram(program))?;
        key.add_file(&program, &path)?;
    }
    let settings = Path::new(FS_SETTINGS);
    if settings.exists() {
        key.add_file(&FS_SETTINGS, settings)?;
    }
    Ok(key.name("database"))
}

/// Makes a database with sysbench's tables.
fn fill(data: &Path, rows: u64) -> Result<(), DatabaseError> {
    Tool::new("mariadb-install-db")
        .args(FILE_OPTIONS)
        .arg(format!("--datadir={}", data.display()))
        .args(EMPTY_OPTIONS)
        .run()?;
    // A folder is a database.
    let tables = data.join("sbtest");
    std::fs::create_dir_all(&tables).map_err(|source| failed(&tables, source))?;
    let server = Server::start(data)?;
    let options = oltp::client_options(&server.socket().display().to_string(), rows);
    Tool::new(CLIENT)
        .arg("oltp_read_write")
        .args(options.split(' '))
        .args(FILL_OPTIONS)
        .run()?;
    server.stop()
}

/// A file system with what is in `folder`.
fn pack(folder: &Path, image: &Path) -> Result<(), DatabaseError> {
    let listing = Tool::new("du")
        .args(["-s", "-B1M", "--apparent-size"])
        .arg(folder)
        .run()?;
    let mib: u64 = listing
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    Tool::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .arg(folder)
        .arg(image)
        .arg(format!("{}M", mib + mib / 8 + (OWN_BYTES >> 20)))
        .run()?;
    Ok(())
}

#[cfg(test)]
mod tests;
