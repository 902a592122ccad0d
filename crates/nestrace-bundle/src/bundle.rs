//! A bundle's files, opened.

use std::{
    collections::HashSet,
    fmt,
    fs::{self, File},
    io::{self, BufReader, ErrorKind, Read},
    path::{Component, Path, PathBuf},
    thread,
};

use nestrace_analyzer::{Analyzer, GUEST_STREAM_DAMAGED, GuestEvents, analysis::UnreadStream};
use nestrace_trace::{
    Batch, Damage, Diagnostic, ImageMap, Manifest, TimeOrdered,
    bundle::{HOST_STREAM, IMAGE_MAPS, MANIFEST, guest_of_stream, index_of},
    image_map::MAX_IMAGE_MAPS_BYTES,
    index,
    manifest::{GuestSide, MAX_MANIFEST_BYTES, ManifestError, Notice, State},
    reader::{OpenError, StreamReader},
};

use crate::{
    Error, Notes,
    damage::note_stream,
    input_file,
    read_ahead::{each, read_ahead},
};

/// A stream of a bundle.
pub type Stream = StreamReader<File, BufReader<File>>;

/// A bundle that was opened.
pub struct Bundle {
    /// Its manifest, or an empty one.
    pub manifest: Manifest,
    /// The host's events.
    pub host: Stream,
    /// The streams of the guests' sessions that can be read.
    pub guests: Vec<GuestStream>,
    /// Those that cannot be.
    pub unread: Vec<UnreadStream>,
    /// Where the images keep the guests' data.
    pub image_maps: Vec<ImageMap>,
    /// What was wrong with it so far.
    pub diagnostics: Vec<String>,
    path: PathBuf,
    /// Guests' streams of this recording that the manifest does not name, because it was lost or never
    /// written to its end. They are left out; `nestrace repair` takes them in.
    unnamed: Vec<String>,
}

/// The word of the notice that the manifest was lost.
pub const MANIFEST_MISSING: &str = "manifest_missing";
/// What a lost manifest costs.
pub const MANIFEST_LOST: &str = "the manifest was lost: guests, disks and devices have no names, and what was \
                                 lost while recording is not known";

impl Bundle {
    /// Gives the analyzer every event of every stream, in the order of time; each stream is read by a thread of its own. How
    /// many came too late to be put in order.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn push_into(&mut self, analyzer: &mut Analyzer) -> io::Result<u64> {
        let mut host = TimeOrdered::new(self.host.events());
        let mut ordered: Vec<_> = self
            .guests
            .iter_mut()
            .map(|guest| (guest.side, TimeOrdered::new(guest.stream.events())))
            .collect();
        thread::scope(|scope| -> io::Result<()> {
            let host = read_ahead(scope, each(host.by_ref()))?;
            let mut guests = Vec::new();
            for (side, events) in &mut ordered {
                guests.push((*side, read_ahead(scope, each(events.by_ref()))?));
            }
            let guests = guests
                .iter_mut()
                .map(|(side, events)| GuestEvents::new(*side, events))
                .collect();
            analyzer.push_streams(host, guests);
            Ok(())
        })?;
        Ok(host.late() + ordered.iter().map(|(_, events)| events.late()).sum::<u64>())
    }

    /// The guests whose streams are left out, and how many events these hold.
    pub fn left_out(&self) -> Vec<(String, u64)> {
        let streams = self.unnamed.iter().filter_map(|file| {
            let mut stream = open_stream(&self.path, file).ok()?;
            Some((guest_of_stream(file)?, stream.events().count() as u64))
        });
        streams.collect()
    }

    /// Notes the damage that reading the streams has found.
    pub fn note_damage(&self, notes: &mut Notes<'_>) {
        note_stream(notes, None, self.host.diagnostics());
        for guest in &self.guests {
            let side = self.manifest.guest_sides.get(guest.side);
            let name = side.map(|side| side.guest.as_str());
            note_stream(notes, name, guest.stream.diagnostics());
        }
    }

    /// Whether it was not closed, or a stream of it breaks off; what a full disk cut was counted.
    pub fn is_cut(&self) -> bool {
        let is_cut = |guest: Option<&str>, diagnostics: &[Diagnostic]| {
            Damage::of(diagnostics).cut && !self.manifest.disk_was_full(guest)
        };
        let mut notices = self.manifest.notices.iter();
        self.manifest.state != State::Complete
            || notices.any(|notice| notice.what == GUEST_STREAM_DAMAGED)
            || is_cut(None, self.host.diagnostics())
            || self.guests.iter().any(|guest| {
                let side = self.manifest.guest_sides.get(guest.side);
                is_cut(
                    side.map(|side| side.guest.as_str()),
                    guest.stream.diagnostics(),
                )
            })
    }

    /// Reads all streams to their ends: what is damaged in them is known then.
    pub fn read_to_the_end(&mut self) {
        let guests = self.guests.iter_mut().map(|guest| &mut guest.stream);
        let mut batch = Batch::default();
        for stream in guests.chain([&mut self.host]) {
            while stream.read_into(&mut batch) {}
        }
    }

    /// Events that are known to lie in what is damaged, or left out because of it.
    pub fn damaged_events(&self) -> u64 {
        let guests = self.guests.iter().map(|guest| guest.stream.diagnostics());
        let damaged = guests
            .chain([self.host.diagnostics()])
            .map(|diagnostics| Damage::of(diagnostics).rows_lost);
        let left_out = self.left_out().into_iter().map(|(_, events)| events);
        let unread = self.unread.iter().filter_map(|stream| stream.events);
        damaged
            .chain(left_out)
            .chain(unread)
            .fold(0, u64::saturating_add)
    }
}

/// The stream of a guest's session.
#[non_exhaustive]
pub struct GuestStream {
    /// Index into `Manifest::guest_sides`.
    pub side: usize,
    /// Its events.
    pub stream: Stream,
}

/// Opens a bundle for reading.
///
/// # Errors
/// It is not there, is none, or a newer release wrote it.
pub fn open(path: &Path) -> Result<Bundle, Error> {
    let how = "a bundle is a directory NAME.nest; `nestrace import blktrace BASENAME -o NAME.nest` makes one \
               of what blktrace wrote";
    let meta = fs::metadata(path).map_err(|error| Error::at(path, error).hint(how))?;
    if !meta.is_dir() {
        return Err(Error::at(path, "not a bundle").hint(how));
    }
    let mut diagnostics = Vec::new();
    let manifest = read_manifest(path, &mut diagnostics)?;
    let host = open_stream(path, HOST_STREAM).map_err(|why| {
        let failure = Error::at(&path.join(HOST_STREAM), &why);
        match why {
            Unreadable::Io(_) => failure.hint(why_not_opened(path)),
            _ => failure,
        }
    })?;
    let notices = manifest
        .is_none()
        .then(|| Notice::new(MANIFEST_MISSING, MANIFEST_LOST));
    let mut manifest = manifest.unwrap_or_default();
    manifest.notices.extend(notices);
    let unnamed = note_unnamed(path, &mut manifest, &mut diagnostics);
    let (guests, unread) = open_guests(path, &manifest, &mut diagnostics);
    Ok(Bundle {
        path: path.to_owned(),
        unnamed,
        host,
        guests,
        unread,
        image_maps: read_image_maps(path, &mut diagnostics),
        manifest,
        diagnostics,
    })
}

/// What to do about a folder whose stream of the host cannot be opened.
fn why_not_opened(bundle: &Path) -> String {
    let host = input_file::open(&bundle.join(HOST_STREAM));
    if host.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        return "it belongs to another user, who can read it or give it to you (chown)".to_owned();
    }
    let entries = fs::read_dir(bundle).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let capture = names.filter_map(|name| {
        let (base, cpu) = name.rsplit_once(".blktrace.")?;
        cpu.parse::<u32>().ok().map(|_| base.to_owned())
    });
    match capture.min() {
        Some(base) => {
            let input = bundle.join(base);
            format!(
                "it holds a capture of blktrace: nestrace analyze {}",
                input.display()
            )
        }
        None => {
            "a bundle holds host.arrows and manifest.json; was it copied as a whole?".to_owned()
        }
    }
}

/// Takes note of streams of guests that the manifest does not name. Where it was lost, or stands as it did when
/// the recorder was killed, they are of this recording and given back; else they are another's.
fn note_unnamed(
    bundle: &Path,
    manifest: &mut Manifest,
    diagnostics: &mut Vec<String>,
) -> Vec<String> {
    let unnamed = unnamed_streams(bundle, &manifest.guest_sides);
    let Some(left_out) = left_out(&unnamed) else {
        return unnamed;
    };
    if manifest.state != State::Recording {
        diagnostics.push(format!("{left_out}: the manifest does not name it"));
        return Vec::new();
    }
    let message = format!(
        "{left_out}, because no manifest names it; to take it in: {}",
        repair_command(bundle)
    );
    diagnostics.push(message.clone());
    let notice = Notice::new("guest_stream_left_out", message);
    manifest.notices.push(notice);
    unnamed
}

/// Streams of guests in a bundle's folder that no side of its manifest has.
pub fn unnamed_streams(bundle: &Path, sides: &[GuestSide]) -> Vec<String> {
    let named = |name: &String| sides.iter().any(|side| side.file == *name);
    let entries = fs::read_dir(bundle).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut unnamed: Vec<String> = names
        .filter(|name| guest_of_stream(name).is_some() && !named(name))
        .collect();
    unnamed.sort();
    unnamed
}

/// That such streams are left out; `None` without any.
pub fn left_out(unnamed: &[String]) -> Option<String> {
    let first = unnamed.first()?.escape_debug();
    let others = match unnamed.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    Some(format!("{first}{others} is left out"))
}

/// What takes such streams in.
pub fn repair_command(bundle: &Path) -> String {
    let name = bundle.file_stem().unwrap_or_default().to_string_lossy();
    let repaired = bundle.with_file_name(format!("{name}-repaired.nest"));
    format!(
        "nestrace repair {} -o {}",
        bundle.display(),
        repaired.display()
    )
}

/// Why a stream of a bundle cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unreadable {
    /// A newer release wrote it.
    Newer(String),
    /// It is no stream.
    Foreign(String),
    /// It is not there, or cannot be opened.
    Io(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(why) | Self::Foreign(why) | Self::Io(why) => f.write_str(why),
        }
    }
}

/// Opens a stream of a bundle with its index.
///
/// # Errors
/// It is not there, is no stream, or a newer release wrote it.
pub fn open_stream(bundle: &Path, file: &str) -> Result<Stream, Unreadable> {
    let stream =
        input_file::open(&bundle.join(file)).map_err(|error| Unreadable::Io(error.to_string()))?;
    StreamReader::new(stream, open_index(bundle, file)).map_err(|error| {
        let text = failure_text(&error);
        match error {
            OpenError::NewerFormat { .. } => Unreadable::Newer(text),
            OpenError::Io { .. } => Unreadable::Io(text),
            _ => Unreadable::Foreign(text),
        }
    })
}

fn open_index(bundle: &Path, stream: &str) -> Option<BufReader<File>> {
    input_file::open(&bundle.join(index_of(stream)))
        .ok()
        .map(BufReader::new)
}

/// Opens the guests' streams. One that cannot be read is noted and left out: the host's analysis does
/// not need it.
fn open_guests(
    bundle: &Path,
    manifest: &Manifest,
    diagnostics: &mut Vec<String>,
) -> (Vec<GuestStream>, Vec<UnreadStream>) {
    let mut guests = Vec::new();
    let mut unread = Vec::new();
    for (side, about) in manifest.guest_sides.iter().enumerate() {
        match open_guest(bundle, &about.file) {
            Ok(stream) => guests.push(GuestStream { side, stream }),
            Err(reason) => {
                diagnostics.push(format!(
                    "{}: {reason}; nothing was read from inside {}",
                    about.file, about.guest
                ));
                unread.push(UnreadStream::new(
                    about.file.clone(),
                    about.guest.clone(),
                    reason,
                    events_by_index(bundle, &about.file),
                ));
            }
        }
    }
    (guests, unread)
}

/// How many events a stream had that cannot be read, if its index is there.
pub fn events_by_index(bundle: &Path, file: &str) -> Option<u64> {
    if !is_file_name(file) {
        return None;
    }
    index::rows(open_index(bundle, file)?).ok().flatten()
}

fn open_guest(bundle: &Path, file: &str) -> Result<Stream, String> {
    if !is_file_name(file) {
        return Err(String::from("not a file of the bundle"));
    }
    open_stream(bundle, file).map_err(|why| why.to_string())
}

/// Names in their order, each once.
pub fn each_once<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut seen: HashSet<&'a str> = HashSet::new();
    let mut once = Vec::new();
    for name in names {
        if !name.is_empty() && seen.insert(name) {
            once.push(name.as_str());
        }
    }
    once
}

/// Which names there are, for someone who asked for another.
pub fn known_names(manifest: &Manifest, known: &[&str]) -> String {
    let lost = manifest
        .notices
        .iter()
        .any(|it| it.what == MANIFEST_MISSING);
    match known {
        [] if lost => {
            "the manifest was lost, and with it all names; devices can be given as MAJ:MIN"
                .to_owned()
        }
        [] => "nothing of that kind has a name in this recording".to_owned(),
        _ => format!("the recording has: {}", known.join(", ")),
    }
}

/// A name without a folder: a manifest is input like any other, it names files of the bundle and no
/// others.
pub fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(
        (parts.next(), parts.next()),
        (Some(Component::Normal(_)), None)
    )
}

fn failure_text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Reads the manifest; `None` where it is missing or damaged, which costs names and not events. One of a
/// newer release is refused.
///
/// # Errors
/// A newer release wrote it.
pub fn read_manifest(
    path: &Path,
    diagnostics: &mut Vec<String>,
) -> Result<Option<Manifest>, Error> {
    let path = path.join(MANIFEST);
    let lost = "guests, disks and devices have no names";
    let file = match input_file::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            diagnostics.push(format!("{MANIFEST} is missing: {lost}"));
            return Ok(None);
        }
        Err(error) => {
            diagnostics.push(format!("{MANIFEST} cannot be read: {error}; {lost}"));
            return Ok(None);
        }
    };
    let mut bytes = Vec::new();
    let limit = MAX_MANIFEST_BYTES as u64 + 1;
    if let Err(error) = file.take(limit).read_to_end(&mut bytes) {
        diagnostics.push(format!("{MANIFEST} cannot be read: {error}; {lost}"));
        return Ok(None);
    }
    match Manifest::from_slice(&bytes) {
        Ok((manifest, odd)) => {
            diagnostics.extend(
                odd.into_iter()
                    .map(|diagnostic| format!("{MANIFEST}: {}", diagnostic.message)),
            );
            Ok(Some(manifest))
        }
        Err(error @ ManifestError::NewerFormat { .. }) => {
            Err(Error::at(&path, failure_text(&error)))
        }
        Err(error) => {
            diagnostics.push(format!("{MANIFEST}: {}; {lost}", failure_text(&error)));
            Ok(None)
        }
    }
}

/// When a recording began (`CLOCK_REALTIME`); `None` where its manifest cannot be read.
pub fn start_of(path: &Path) -> Option<u64> {
    let manifest = read_manifest(path, &mut Vec::new()).ok()??;
    Some(manifest.start_unix_ns)
}

/// Without the maps, an image's metadata is not distinguished from its data: a note, no failure.
pub fn read_image_maps(path: &Path, diagnostics: &mut Vec<String>) -> Vec<ImageMap> {
    let file = match input_file::open(&path.join(IMAGE_MAPS)) {
        Ok(file) => file,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                diagnostics.push(format!("{IMAGE_MAPS} cannot be read: {error}"));
            }
            return Vec::new();
        }
    };
    // It is kept ready from the start and filled at the end.
    if file.metadata().is_ok_and(|about| about.len() == 0) {
        return Vec::new();
    }
    let maps = BufReader::new(file.take(MAX_IMAGE_MAPS_BYTES));
    serde_json::from_reader(maps).unwrap_or_else(|error| {
        diagnostics.push(format!(
            "{IMAGE_MAPS}: {error}; image metadata counts as data"
        ));
        Vec::new()
    })
}
