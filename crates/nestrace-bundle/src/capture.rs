//! blktrace's files of a capture, found by name and opened.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use nestrace_analyzer::Identities;
use nestrace_blktrace::{Capture, Reader};
use nestrace_trace::{Damage, Diagnostic, Event, TimeOrdered, bundle::EXTENSION};

use crate::{
    Error, Notes,
    damage::DamageNotes,
    input_file, open_files,
    read_ahead::{Fill, each},
};

/// A capture whose files are open.
#[non_exhaustive]
pub struct CaptureFiles {
    /// One for each processor, or a single one.
    pub paths: Vec<PathBuf>,
    /// Their events.
    pub capture: Capture<File>,
}

/// Opens what is called so: a base name as for `blkparse -i`, one file, or a dump of `blkparse -d`.
///
/// # Errors
/// There is no such file, or it is not blktrace's.
pub fn open(name: &Path, notes: &mut Notes<'_>) -> Result<CaptureFiles, Error> {
    open_all(files_of(name, notes)?)
}

/// Opens these files as one capture.
///
/// # Errors
/// One of them cannot be opened or is not blktrace's, or they are more than may be open.
pub fn open_all(paths: Vec<PathBuf>) -> Result<CaptureFiles, Error> {
    open_files::allow(paths.len())?;
    let mut readers = Vec::new();
    for path in &paths {
        let file = input_file::open(path).map_err(|error| Error::at(path, error))?;
        let reader = Reader::new(file).map_err(|error| {
            Error::at(path, &error)
                .hint("a recording is a bundle (a directory NAME.nest) or blktrace's output")
        })?;
        readers.push(reader);
    }
    Ok(CaptureFiles {
        paths,
        capture: Capture::new(readers),
    })
}

/// `NAME.blktrace.0` and so on, or the file of that name itself.
///
/// # Errors
/// There is neither.
pub fn files_of(name: &Path, notes: &mut Notes<'_>) -> Result<Vec<PathBuf>, Error> {
    let beside = by_processor(name)?;
    if !beside.is_empty() {
        return Ok(beside.into_iter().map(|(_, path)| path).collect());
    }
    if !name.is_file() {
        match name.metadata() {
            Ok(_) => return Err(Error::at(name, "not a regular file")),
            // A name that is there but leads nowhere: a link to itself, or through a folder that may not be read.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::at(name, error));
            }
            Err(_) => {}
        }
        if name.extension().is_some_and(|it| it == EXTENSION) {
            return Err(Error::at(name, "there is no such bundle"));
        }
        return Err(Error::at(
            name,
            "there is neither a file of that name nor one with .blktrace.0 behind it",
        )
        .hint("give the name without .blktrace.N, as to blkparse -i"));
    }
    note_others(name, notes);
    Ok(vec![name.to_owned()])
}

/// The files of a base name, by processor.
///
/// # Errors
/// Their folder cannot be listed.
pub fn by_processor(basename: &Path) -> Result<Vec<(u32, PathBuf)>, Error> {
    let name = basename.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("{name}.blktrace.");
    let folder = match basename.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let entries = fs::read_dir(folder).map_err(|error| Error::at(basename, error))?;
    let mut files: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let cpu = name.strip_prefix(&prefix)?.parse().ok()?;
            Some((cpu, entry.path()))
        })
        .collect();
    files.sort();
    Ok(files)
}

/// One processor's file alone is seldom what was meant.
fn note_others(path: &Path, notes: &mut Notes<'_>) {
    let name = path.to_string_lossy();
    let Some((base, _)) = name.rsplit_once(".blktrace.") else {
        return;
    };
    let others = by_processor(Path::new(base)).unwrap_or_default();
    if others.len() > 1 {
        notes(&format_args!(
            "this is one processor of {}; give {base} to read all of them",
            others.len()
        ));
    }
}

/// The events of a capture in the order of time.
pub enum Ordered<'a> {
    /// Of one file for each processor, which the capture merges.
    Merged(&'a mut Capture<File>),
    /// Of one file: what blktrace writes to a pipe comes in runs.
    Sorted(Box<TimeOrdered<&'a mut Capture<File>>>),
}

impl Ordered<'_> {
    /// Events that came too late to be put in order.
    pub fn late(&self) -> u64 {
        match self {
            Self::Merged(_) => 0,
            Self::Sorted(sorted) => sorted.late(),
        }
    }

    /// Fills batches with events that have identities.
    pub fn identified(&mut self) -> impl Fill {
        let mut identities = Identities::default();
        move |batch: &mut Vec<Event>, most: usize| {
            match self {
                Self::Merged(capture) => capture.fill(batch, most),
                Self::Sorted(sorted) => each(sorted)(batch, most),
            }
            identities.identify(batch);
        }
    }
}

impl Iterator for Ordered<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        match self {
            Self::Merged(capture) => capture.next(),
            Self::Sorted(sorted) => sorted.next(),
        }
    }
}

impl CaptureFiles {
    /// Its events.
    pub fn events(&mut self) -> Ordered<'_> {
        if self.paths.len() > 1 {
            Ordered::Merged(&mut self.capture)
        } else {
            Ordered::Sorted(Box::new(TimeOrdered::new(&mut self.capture)))
        }
    }

    /// Notes the damage that reading the files has found.
    pub fn note_damage(&self, notes: &mut Notes<'_>) {
        let mut damage = DamageNotes::default();
        for (place, diagnostic) in self.capture.diagnostics() {
            let path = self.paths.get(place);
            let path = path.map_or_else(String::new, |path| path.display().to_string());
            damage.note(notes, &path, diagnostic);
        }
        damage.note_rest(notes);
        let ignored = self.capture.outline().ignored;
        if ignored > 0 {
            notes(&format_args!(
                "{ignored} events of further devices were left out"
            ));
        }
    }

    /// What was wrong with the files, added up.
    pub fn damage(&self) -> Damage {
        let diagnostics = self.capture.diagnostics();
        let diagnostics: Vec<Diagnostic> = diagnostics.map(|(_, told)| told.clone()).collect();
        Damage::of(&diagnostics)
    }

    /// What is wrong with a capture that has no event of I/O.
    #[must_use]
    pub fn no_events(&self) -> Error {
        let name = self.paths.first().map(|path| path.display().to_string());
        Error::input(format!(
            "{}: the capture holds no events",
            name.unwrap_or_default()
        ))
    }
}
