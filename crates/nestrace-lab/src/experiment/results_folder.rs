//! The folder of a run: the plan, a header, and for each cell its result and its recording.
//!
//! ```text
//! DIR/plan.toml     the plan, as it was run
//! DIR/run.json      what is common to all cells
//! DIR/CELL.json     result of a cell, written anew after each of its runs
//! DIR/CELL.nest/    its recording
//! DIR/work/         devices and images, while it runs
//! DIR/.nestrace-lab that the folder is the lab's, and locked while it runs
//! ```
//!
//! Files are replaced as a whole, so a run that was killed leaves whole files.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nestrace_report::lab::{Cell, RUN_SCHEMA, RunHeader};
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::folder_error::FolderError;
use super::work_folder::{self, Reader};
use crate::regular_file;

/// The plan, as it was run.
pub(super) const PLAN: &str = "plan.toml";
const HEADER: &str = "run.json";
/// A folder that the lab has accepted has it, and a run has it locked.
pub const MARK: &str = ".nestrace-lab";
/// Bytes of a file that the lab reads, at most: the largest that it writes have a hundredth of it.
const MAX_BYTES: u64 = 64 << 20;

/// The folder while a run works in it, or somebody looks at it.
#[derive(Debug)]
pub(super) struct ResultsFolder {
    path: PathBuf,
    /// Of a run.
    _lock: Option<Flock<File>>,
}

impl ResultsFolder {
    /// Begins or goes on.
    pub(super) fn open(path: &Path, plan_text: &str) -> Result<Self, FolderError> {
        std::fs::create_dir_all(path).map_err(|source| failed(path, source))?;
        // The loop devices and QEMU's command line want whole paths.
        let path = path.canonicalize().map_err(|source| failed(path, source))?;
        if !is_ours(&path) && !is_empty(&path)? {
            return Err(FolderError::NotOurs(path));
        }
        let lock_path = path.join(MARK);
        let lock = mark(&lock_path).map_err(|source| failed(&lock_path, source))?;
        let lock = locked(lock).ok_or_else(|| FolderError::Busy(path.clone()))?;
        if !has_plan(&path, plan_text)? {
            replace(&path.join(PLAN), plan_text.as_bytes())?;
        }
        Ok(Self {
            path,
            _lock: Some(lock),
        })
    }

    /// Looks at what is there and changes nothing; `None` where a run would begin.
    pub(super) fn look(path: &Path, plan_text: &str) -> Result<Option<Self>, FolderError> {
        if !path.exists() || is_empty(path)? {
            return Ok(None);
        }
        if !is_ours(path) {
            return Err(FolderError::NotOurs(path.to_owned()));
        }
        let is_there = has_plan(path, plan_text)?;
        Ok(is_there.then(|| Self {
            path: path.to_owned(),
            _lock: None,
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails where something else than the lab's own stands in the place of devices and images, before anything is
    /// removed there.
    pub(super) fn check_work(&self) -> Result<(), FolderError> {
        let place = self.path.join(work_folder::WORK);
        match work_folder::check(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_own(&place, error)),
            _ => Ok(()),
        }
    }

    /// The place of devices and images, made if need be.
    pub(super) fn work(&self, reader: Reader) -> Result<PathBuf, FolderError> {
        let place = self.path.join(work_folder::WORK);
        work_folder::make(&self.path, reader).map_err(|source| not_own(&place, source))
    }

    pub(super) fn header(&self) -> Result<Option<RunHeader>, FolderError> {
        read(&self.path.join(HEADER))
    }

    pub(super) fn write_header(&self, header: &RunHeader) -> Result<(), FolderError> {
        write(&self.path.join(HEADER), header)
    }

    pub(super) fn cell(&self, id: &str) -> Result<Option<Cell>, FolderError> {
        read_cell(&self.path, id)
    }

    pub(super) fn write_cell(&self, cell: &Cell) -> Result<(), FolderError> {
        write(&self.path.join(format!("{}.json", cell.id)), cell)
    }

    /// The place of a cell's recording.
    pub(super) fn bundle(&self, id: &str) -> PathBuf {
        self.path.join(bundle_name(id))
    }

    /// Removes a cell's recording, whole or not; the folder is the lab's own.
    pub(super) fn remove_bundle(&self, id: &str) -> Result<(), FolderError> {
        let bundle = self.bundle(id);
        match std::fs::remove_dir_all(&bundle) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&bundle, error)),
            _ => Ok(()),
        }
    }
}

/// Whether the folder has this plan. It may get it where nothing was run yet: a plan that was refused for its
/// size may become a smaller one.
fn has_plan(folder: &Path, plan_text: &str) -> Result<bool, FolderError> {
    let is_begun = folder.join(HEADER).symlink_metadata().is_ok();
    match regular_file::read(&folder.join(PLAN), MAX_BYTES) {
        Ok(text) if text == plan_text => Ok(true),
        Ok(text) if is_begun => Err(FolderError::OtherPlan {
            folder: folder.to_owned(),
            line: first_difference(&text, plan_text),
        }),
        // Results of unknown origin are not mixed with others.
        Err(source) if is_begun => Err(FolderError::NoPlan {
            folder: folder.to_owned(),
            source,
        }),
        _ => Ok(false),
    }
}

/// Of the folder of devices and images, which was not made or is no longer what it was.
pub(super) fn not_own(work: &Path, source: io::Error) -> FolderError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => FolderError::ForeignWork(work.to_owned()),
        _ => failed(work, source),
    }
}

/// The name of a cell's recording.
pub(super) fn bundle_name(id: &str) -> String {
    format!("{id}.nest")
}

/// Reads what a run left, finished or not: the header and the cells that have a result.
///
/// # Errors
/// There is no run, or a file of it is damaged.
pub fn read_results(folder: &Path) -> Result<(RunHeader, Vec<Cell>), FolderError> {
    let header: Option<RunHeader> = read(&folder.join(HEADER))?;
    let header = header.ok_or_else(|| FolderError::NoRun(folder.to_owned()))?;
    if header.schema != RUN_SCHEMA {
        return Err(FolderError::OtherSchema {
            path: folder.join(HEADER),
            schema: header.schema,
        });
    }
    let mut cells = Vec::new();
    for id in &header.cells {
        // The header is input like any other: it names files of the folder and no others.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if id.chars().all(is_plain) {
            cells.extend(read_cell(folder, id)?);
        }
    }
    Ok((header, cells))
}

/// A cell's file is input too: files are named after its id.
fn read_cell(folder: &Path, id: &str) -> Result<Option<Cell>, FolderError> {
    let path = folder.join(format!("{id}.json"));
    let cell: Option<Cell> = read(&path)?;
    match cell {
        Some(cell) if cell.id != id => Err(FolderError::OtherCell { path, id: cell.id }),
        cell => Ok(cell),
    }
}

fn failed(path: &Path, source: io::Error) -> FolderError {
    FolderError::File {
        path: path.to_owned(),
        source,
    }
}

/// The first line, from 1, that two texts do not have in common; the last one where only its end differs.
fn first_difference(one: &str, other: &str) -> usize {
    let (mut one, mut other) = (one.lines(), other.lines());
    let mut line = 1;
    loop {
        match (one.next(), other.next()) {
            (Some(a), Some(b)) if a == b => line += 1,
            (None, None) => return line.max(2) - 1,
            _ => return line,
        }
    }
}

/// Makes the mark, or opens the one that is there. The folder may be somebody else's: what a link of that name leads to
/// stays as it is, and nothing waits for the other end of a FIFO.
fn mark(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags.bits())
        .open(path)
}

/// Locks a file. A run that was killed while it started a program leaves it locked until that has begun.
fn locked(mut file: File) -> Option<Flock<File>> {
    const TRIES: u32 = 20;
    for _ in 0..TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err((back, _)) => file = back,
        }
        thread::sleep(Duration::from_millis(100));
    }
    None
}

/// Whether the lab made it. What others put there is never replaced, nor its `work` removed. A copy of results has no mark.
fn is_ours(folder: &Path) -> bool {
    let header = || read::<RunHeader>(&folder.join(HEADER)).ok().flatten();
    folder.join(MARK).exists() || header().is_some_and(|header| header.schema == RUN_SCHEMA)
}

fn is_empty(folder: &Path) -> Result<bool, FolderError> {
    let entries = folder.read_dir().map_err(|source| failed(folder, source));
    Ok(entries?.next().is_none())
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    let text = match regular_file::read(path, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(path, source)),
    };
    let content = |source| FolderError::Content {
        path: path.to_owned(),
        source,
    };
    serde_json::from_str(&text).map(Some).map_err(content)
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), FolderError> {
    let content = |source| FolderError::Content {
        path: path.to_owned(),
        source,
    };
    let mut text = serde_json::to_vec_pretty(value).map_err(content)?;
    text.push(b'\n');
    replace(path, &text)
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    replace_file(path, bytes).map_err(|source| failed(path, source))
}

/// Writes a file of a results folder: all or nothing, after a crash too. A link of its name is replaced, and what it
/// leads to stays as it is.
///
/// # Errors
/// What the system says.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_data()?;
    // Results are for everybody to read.
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::work_folder::WORK;
    use super::*;

    fn header() -> RunHeader {
        RunHeader {
            schema: RUN_SCHEMA.to_owned(),
            ..RunHeader::default()
        }
    }

    #[test]
    fn what_others_have_in_a_folder_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let work = root.path().join(WORK);
        std::fs::create_dir(&work).unwrap();
        std::fs::write(work.join("thesis"), "x").unwrap();
        std::fs::write(root.path().join(PLAN), "important = true").unwrap();
        let is_refused = || {
            let error = ResultsFolder::open(root.path(), "a").unwrap_err();
            assert!(matches!(error, FolderError::NotOurs(_)), "{error}");
            let error = ResultsFolder::look(root.path(), "a").unwrap_err();
            assert!(matches!(error, FolderError::NotOurs(_)), "{error}");
        };
        is_refused();
        std::fs::write(root.path().join(HEADER), "{}").unwrap();
        is_refused();
        let error = read_results(root.path()).unwrap_err();
        assert!(matches!(error, FolderError::OtherSchema { .. }), "{error}");
        let mut left: Vec<_> = root
            .path()
            .read_dir()
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        left.sort();
        assert_eq!(left, [PLAN, HEADER, WORK]);
        // Results that were copied are the lab's own.
        write(&root.path().join(HEADER), &header()).unwrap();
        std::fs::write(root.path().join(PLAN), "a").unwrap();
        assert!(ResultsFolder::open(root.path(), "a").is_ok());
    }

    #[test]
    fn what_a_link_in_the_folder_leads_to_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let precious = root.path().join("precious");
        std::fs::write(&precious, "x").unwrap();
        let place = root.path().join("results");
        drop(ResultsFolder::open(&place, "a").unwrap());
        std::fs::remove_file(place.join(MARK)).unwrap();
        std::os::unix::fs::symlink(&precious, place.join(MARK)).unwrap();
        let error = ResultsFolder::open(&place, "a").unwrap_err();
        assert!(matches!(error, FolderError::File { .. }), "{error}");
        let page = place.join("report.html");
        std::os::unix::fs::symlink(&precious, &page).unwrap();
        replace_file(&page, b"page").unwrap();
        assert_eq!(std::fs::read(&page).unwrap(), b"page");
        assert_eq!(std::fs::read(&precious).unwrap(), b"x");
    }

    #[test]
    fn a_folder_is_ours_or_empty_and_has_one_run_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("results");
        let folder = ResultsFolder::open(&place, "a").unwrap();
        assert!(matches!(
            ResultsFolder::open(&place, "a"),
            Err(FolderError::Busy(_))
        ));
        folder.write_header(&header()).unwrap();
        drop(folder);
        assert!(matches!(
            ResultsFolder::open(&place, "b"),
            Err(FolderError::OtherPlan { line: 1, .. })
        ));
        assert!(matches!(
            ResultsFolder::look(&place, "b"),
            Err(FolderError::OtherPlan { line: 1, .. })
        ));
        // Who looks is not in the way of a run, and makes nothing.
        let run = ResultsFolder::open(&place, "a").unwrap();
        assert!(ResultsFolder::look(&place, "a").unwrap().is_some());
        drop(run);
        let nothing = root.path().join("nothing");
        assert!(ResultsFolder::look(&nothing, "a").unwrap().is_none());
        assert!(!nothing.exists());
        std::fs::write(root.path().join("other"), "x").unwrap();
        let error = ResultsFolder::open(root.path(), "a").unwrap_err();
        assert!(matches!(error, FolderError::NotOurs(_)), "{error}");
    }

    #[test]
    fn a_plan_that_changed_is_told_with_the_line() {
        for (one, other, line) in [
            ("a", "b", 1),
            ("a\nb\n", "a\nc\n", 2),
            ("a\nb\n", "a\nb\nc\n", 3),
            ("a\nb\nc\n", "a\nb\n", 3),
            ("a\nb\n", "a\nb", 2),
            ("", "\n", 1),
        ] {
            assert_eq!(first_difference(one, other), line, "{one:?} {other:?}");
        }
        let root = tempfile::tempdir().unwrap();
        // As long as nothing was run, it may change.
        drop(ResultsFolder::open(root.path(), "name = 'a'\nseed = 0\n").unwrap());
        let folder = ResultsFolder::open(root.path(), "name = 'a'\nseed = 1\n").unwrap();
        folder.write_header(&header()).unwrap();
        drop(folder);
        let error = ResultsFolder::open(root.path(), "name = 'a'\nseed = 2\n").unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("this plan differs in line 2"), "{text}");
        // What was begun stays as it was.
        let kept = std::fs::read_to_string(root.path().join(PLAN)).unwrap();
        assert_eq!(kept, "name = 'a'\nseed = 1\n");
    }

    #[test]
    fn results_without_their_plan_are_neither_begun_anew_nor_gone_on_with() {
        let root = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::open(root.path(), "a").unwrap();
        folder.write_header(&header()).unwrap();
        drop(folder);
        let plan = root.path().join(PLAN);
        let unreadable: [&dyn Fn(); 3] = [&|| (), &|| std::fs::create_dir(&plan).unwrap(), &|| {
            std::fs::write(&plan, [0xff]).unwrap()
        }];
        for make in unreadable {
            let _ = std::fs::remove_file(&plan);
            let _ = std::fs::remove_dir(&plan);
            make();
            let opened = ResultsFolder::open(root.path(), "a").unwrap_err();
            let looked = ResultsFolder::look(root.path(), "a").unwrap_err();
            for error in [opened, looked] {
                assert!(matches!(error, FolderError::NoPlan { .. }), "{error}");
            }
        }
    }

    #[test]
    fn what_is_not_the_labs_is_not_removed_from_the_place_of_devices() {
        let root = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::open(root.path(), "a").unwrap();
        folder.check_work().unwrap();
        folder.work(Reader::Lab).unwrap();
        folder.check_work().unwrap();
        let work = root.path().join(WORK);
        std::fs::remove_dir(&work).unwrap();
        std::os::unix::fs::symlink("/etc", &work).unwrap();
        let error = folder.check_work().unwrap_err();
        assert!(matches!(error, FolderError::ForeignWork(_)), "{error}");
    }

    #[test]
    fn a_header_that_never_ends_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let header = root.path().join(HEADER);
        nix::unistd::mkfifo(&header, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = read_results(root.path()).unwrap_err();
        assert!(matches!(error, FolderError::File { .. }), "{error}");
        std::fs::remove_file(&header).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &header).unwrap();
        let error = read_results(root.path()).unwrap_err();
        assert!(matches!(error, FolderError::File { .. }), "{error}");
    }

    #[test]
    fn cells_that_have_a_result_are_read_back() {
        let root = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::open(root.path(), "a").unwrap();
        assert!(matches!(
            read_results(root.path()),
            Err(FolderError::NoRun(_))
        ));
        let header = RunHeader {
            cells: vec![
                String::from("one"),
                String::from("two"),
                String::from("../etc/x"),
            ],
            ..header()
        };
        folder.write_header(&header).unwrap();
        let cell = Cell {
            id: String::from("two"),
            ..Cell::default()
        };
        folder.write_cell(&cell).unwrap();
        let (read, cells) = read_results(root.path()).unwrap();
        assert_eq!((read, cells), (header, vec![cell]));
        std::fs::write(root.path().join("one.json"), "{").unwrap();
        assert!(matches!(
            read_results(root.path()),
            Err(FolderError::Content { .. })
        ));
    }

    #[test]
    fn a_cell_has_the_name_of_its_file() {
        let root = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::open(root.path(), "a").unwrap();
        let header = RunHeader {
            cells: vec![String::from("slow")],
            ..header()
        };
        folder.write_header(&header).unwrap();
        let other = Cell {
            id: String::from("../slow"),
            ..Cell::default()
        };
        let file = root.path().join("slow.json");
        write(&file, &other).unwrap();
        for error in [
            read_results(root.path()).unwrap_err(),
            folder.cell("slow").unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("/slow.json: it is damaged, its cell is \"../slow\""),
                "{text}"
            );
        }
    }
}
