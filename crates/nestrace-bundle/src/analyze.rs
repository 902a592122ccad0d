//! From a path to its analysis.

use std::{fmt::Display, io, path::Path, thread};

use nestrace_analyzer::{
    Analysis, Analyzer, StoryChoice,
    analysis::{FlightMoment, GuestCalls},
    units,
};
use nestrace_blktrace::Outline;
use nestrace_trace::{
    Damage, Kind, Manifest, device_number,
    manifest::{State, Stream},
    redact,
};

use crate::{
    Error, Notes, bundle, capture,
    damage::note_stream,
    read_ahead::{ReadAhead, read_ahead},
};

/// What is analysed of a recording: everything, unless something is chosen.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Only this guest.
    pub guest: Option<String>,
    /// Only this device, by its name or number (`MAJ:MIN`).
    pub device: Option<String>,
    /// From here on, in seconds after the recording's start.
    pub from: Option<f64>,
    /// To here.
    pub to: Option<f64>,
    /// Bios to trace step by step, as `--io` and `--slowest` do.
    pub story: Option<StoryChoice>,
    /// Calls of the guests' programs to trace step by step, as `--call` and `--slowest N --calls` do.
    pub call_story: Option<StoryChoice>,
    /// How many of the slowest bios and of the slowest calls to trace for pictures, where neither field above chooses any. A
    /// recording without calls or guest bios gives no note then.
    pub pictured: Option<usize>,
    /// Under the names that `repair --redact` leaves of a bundle's guests, disks and files.
    pub redact: bool,
}

impl Options {
    fn of_analyzer(&self, path: &Path) -> nestrace_analyzer::Options {
        let device = self.device.as_deref();
        let is_chosen = self.story.is_some() || self.call_story.is_some();
        let pictured = self.pictured.filter(|_| !is_chosen);
        let pictured = pictured.map(StoryChoice::Slowest);
        let mut options = nestrace_analyzer::Options::default();
        options.path = path.display().to_string();
        options.guest = self.guest.clone();
        options.device = device.map(|wanted| device_number::normal(wanted).into_owned());
        options.from_ns = self.from.map(nanoseconds);
        options.to_ns = self.to.map(nanoseconds);
        options.story = self.story.or(pictured);
        options.call_story = self.call_story.or(pictured);
        options
    }
}

/// Analyses a bundle (a directory), or a capture of blktrace by its base name or one of its files, as `nestrace analyze` does.
///
/// # Errors
/// The input is not there or is none, or does not have what the options ask for.
pub fn analyze(path: impl AsRef<Path>, options: &Options) -> Result<Analysis, Error> {
    analyze_noting(path, options, &mut |_: &dyn Display| {})
}

/// Like [`analyze`], and passes on notes.
///
/// # Errors
/// Those of [`analyze`].
pub fn analyze_noting(
    path: impl AsRef<Path>,
    options: &Options,
    notes: &mut Notes<'_>,
) -> Result<Analysis, Error> {
    let path = path.as_ref();
    if !path.is_dir() {
        return of_capture(path, options, notes);
    }
    let mut analysis = of_bundle(path, options, notes)?;
    if let Some(moment) = &mut analysis.flight
        && options.from.is_none()
        && options.to.is_none()
        && moment.split_ns < analysis.trace.duration_ns
    {
        compare_moment(path, options, moment)?;
    }
    Ok(analysis)
}

/// What a flight recorder wrote is read twice more: the minute before what it wrote for, and from there to the end.
fn compare_moment(path: &Path, options: &Options, moment: &mut FlightMoment) -> Result<(), Error> {
    let split = moment.split_ns as f64 / 1e9;
    let minute = FlightMoment::BEFORE_NS as f64 / 1e9;
    let stretch = |from: f64, to: Option<f64>| {
        let stretch = Options {
            guest: options.guest.clone(),
            device: options.device.clone(),
            redact: options.redact,
            from: Some(from),
            to,
            ..Options::default()
        };
        // What is to be noted of the streams was.
        of_bundle(path, &stretch, &mut |_: &dyn Display| {})
    };
    let before = stretch((split - minute).max(0.0), Some(split))?;
    let then = stretch(split, None)?;
    moment.compare(&before, &then);
    Ok(())
}

fn of_bundle(path: &Path, options: &Options, notes: &mut Notes<'_>) -> Result<Analysis, Error> {
    let mut bundle = bundle::open(path)?;
    if options.redact {
        bundle.manifest = redact::manifest(&bundle.manifest);
    }
    check_guest(path, options, &bundle.manifest)?;
    check_device(path, options, &bundle.manifest)?;
    check_from(path, options, &bundle.manifest)?;
    let mut of_analyzer = options.of_analyzer(path);
    of_analyzer.truncated = bundle.manifest.state != State::Complete;
    of_analyzer.image_maps = std::mem::take(&mut bundle.image_maps);

    let mut analyzer = Analyzer::new(&bundle.manifest, of_analyzer);
    let late = bundle.push_into(&mut analyzer)?;
    note_late(late, notes);
    for diagnostic in &bundle.diagnostics {
        notes(diagnostic);
    }
    // What the reader found damaged or cut belongs beside the numbers, like any other loss.
    let mut damaged = |guest: Option<&str>, diagnostics| {
        note_stream(notes, guest, diagnostics);
        analyzer.damaged(guest, Damage::of(diagnostics));
    };
    damaged(None, bundle.host.diagnostics());
    for guest in &bundle.guests {
        let side = bundle.manifest.guest_sides.get(guest.side);
        let name = side.map(|side| side.guest.as_str());
        damaged(name, guest.stream.diagnostics());
    }
    for (guest, rows_lost) in bundle.left_out() {
        let left_out = Damage::rows(rows_lost);
        analyzer.damaged(Some(&guest), left_out);
    }
    for stream in std::mem::take(&mut bundle.unread) {
        analyzer.unread(stream);
    }
    let analysis = analyzer.finish();
    check_number(path, options, &bundle.manifest, &analysis)?;
    check_stories(path, options, &analysis, notes)?;
    check_call_stories(path, options, &analysis, notes)?;
    Ok(analysis)
}

/// A bio that is not there is a mistake, and the error says which are. That there are several of a number, or
/// that none took long, is said.
fn check_stories(
    path: &Path,
    options: &Options,
    analysis: &Analysis,
    notes: &mut Notes<'_>,
) -> Result<(), Error> {
    let stories = &analysis.stories;
    let io = match options.story {
        Some(StoryChoice::Io(io)) => Some(io),
        _ => None,
    };
    if stories.len() > 1 && io.is_some() {
        notes(&"each disk has a bio of that number; choose one by guest and device");
    }
    if !stories.is_empty() || options.story.is_none() {
        return Ok(());
    }
    let disks: Vec<String> = analysis
        .chains
        .iter()
        .map(|chains| {
            let disk = format!("{} of {}", chains.guest_device, chains.guest);
            match chains.guest_bios {
                0 => format!("{disk} has none"),
                1 => format!("{disk} has bio 1 only"),
                n => format!("{disk} has bios 1 to {n}"),
            }
        })
        .collect();
    let known = if disks.is_empty() {
        "nothing was recorded inside a guest".to_owned()
    } else {
        disks.join(", ")
    };
    let Some(io) = io else {
        notes(&format_args!("no bio to print: {known}"));
        return Ok(());
    };
    let path = path.display();
    let there = |bios: u64| io <= bios;
    if analysis.chains.iter().any(|it| there(it.guest_bios)) {
        // Only one that the guest's block layer gave back before it was a request is counted and has no I/O trace.
        let message = format!("{path}: bio {io} was returned at once and queued again later");
        return Err(Error::input(message).hint("its data is in one of the next bios"));
    }
    let error = Error::input(format!("{path}: no bio {io}: {known}"));
    Err(match options.from.is_some() || options.to.is_some() {
        true => error.hint("with --from or --to, only the bios of that range are counted"),
        false => error,
    })
}

/// So is a call that is not there.
fn check_call_stories(
    path: &Path,
    options: &Options,
    analysis: &Analysis,
    notes: &mut Notes<'_>,
) -> Result<(), Error> {
    let call = match options.call_story {
        Some(StoryChoice::Io(call)) => Some(call),
        _ => None,
    };
    if analysis.call_stories.len() > 1 && call.is_some() {
        notes(&"each guest has a call of that number; choose one with --guest");
    }
    if !analysis.call_stories.is_empty() || options.call_story.is_none() {
        return Ok(());
    }
    let why = |guest: &GuestCalls| {
        let why = guest.why_none.as_deref();
        let why = why.unwrap_or("its calls have other numbers, or had not ended");
        format!("{}: {why}", guest.guest)
    };
    let whys: Vec<String> = analysis.guest_calls.iter().map(why).collect();
    let why = match whys.as_slice() {
        [] => String::from("nothing was recorded inside a guest"),
        whys => whys.join("; "),
    };
    let Some(call) = call else {
        notes(&format_args!("no call to tell of: {why}"));
        return Ok(());
    };
    let error = Error::input(format!("{}: no call {call}: {why}", path.display()));
    Err(error.hint("nestrace analyze --slowest 10 --calls shows numbers of calls"))
}

/// A guest that is not in the recording is a mistake, not an empty result.
pub fn check_guest(path: &Path, options: &Options, manifest: &Manifest) -> Result<(), Error> {
    let guests = manifest.topology.guests.iter().map(|guest| &guest.name);
    let sides = manifest.guest_sides.iter().map(|side| &side.guest);
    let known = bundle::each_once(guests.chain(sides));
    match &options.guest {
        Some(name) if !known.contains(&name.as_str()) => {
            Err(no(path, "guest", name).hint(bundle::known_names(manifest, &known)))
        }
        _ => Ok(()),
    }
}

/// So is a device. One that goes by its number may be in the streams all the same.
pub fn check_device(path: &Path, options: &Options, manifest: &Manifest) -> Result<(), Error> {
    let topology = &manifest.topology;
    let of_host = topology.devices.iter().map(|device| &device.name);
    let of_guests = manifest.guest_sides.iter().flat_map(|side| &side.disks);
    let disks = topology.guests.iter().flat_map(|guest| &guest.disks);
    let known = bundle::each_once(
        of_host
            .chain(of_guests.map(|disk| &disk.name))
            .chain(disks.map(|disk| &disk.name)),
    );
    match &options.device {
        Some(name) if !known.contains(&name.as_str()) && device_number::parse(name).is_none() => {
            Err(no(path, "device", name).hint(bundle::known_names(manifest, &known)))
        }
        _ => Ok(()),
    }
}

/// A number that neither the manifest nor an event has.
fn check_number(
    path: &Path,
    options: &Options,
    manifest: &Manifest,
    analysis: &Analysis,
) -> Result<(), Error> {
    let Some(wanted) = options
        .device
        .as_ref()
        .filter(|_| analysis.devices.is_empty())
    else {
        return Ok(());
    };
    let of_guests = manifest.guest_sides.iter().flat_map(|side| &side.disks);
    let of_host = manifest.topology.devices.iter().map(|device| device.dev);
    let mut known = of_host.chain(of_guests.map(|disk| disk.dev));
    match device_number::parse(wanted) {
        Some(dev) if !known.any(|it| it == dev) => Err(no(path, "device", wanted)
            .hint("without --device, nestrace analyze shows which there are")),
        _ => Ok(()),
    }
}

fn no(path: &Path, what: &str, name: &str) -> Error {
    Error::at(path, format_args!("no {what} {name}"))
}

/// So is a stretch that begins when the recording is over. One that was not closed does not say how long it is.
pub fn check_from(path: &Path, options: &Options, manifest: &Manifest) -> Result<(), Error> {
    let duration_ns = manifest.end_mono_ns.saturating_sub(manifest.start_mono_ns);
    let closed = manifest.state == State::Complete && duration_ns > 0;
    match options.from {
        Some(from) if closed && nanoseconds(from) >= duration_ns => {
            Err(after_end(path, from, duration_ns))
        }
        _ => Ok(()),
    }
}

/// A stretch that begins when a recording is over.
#[must_use]
pub fn after_end(input: &Path, from: f64, lasts_ns: u64) -> Error {
    let (input, lasts) = (input.display(), units::time(lasts_ns));
    Error::input(format!(
        "{input}: second {from} is after its end: it lasts {lasts}"
    ))
}

fn note_late(late: u64, notes: &mut Notes<'_>) {
    if late > 0 {
        notes(&format_args!("{late} events are out of order"));
    }
}

/// Reads a capture once.
fn of_capture(path: &Path, options: &Options, notes: &mut Notes<'_>) -> Result<Analysis, Error> {
    let mut files = capture::open(path, notes)?;
    let of_bundles = [
        ("a guest", options.guest.is_some()),
        ("a bio", options.story.is_some()),
    ];
    if let Some((what, _)) = of_bundles.iter().find(|(_, given)| *given) {
        let message = format!(
            "{what} can be chosen in a bundle only: a capture of blktrace holds one machine"
        );
        return Err(Error::options(message));
    }
    let mut ordered = files.events();
    let (mut analyzer, first_ns) = thread::scope(|scope| -> io::Result<_> {
        let events = read_ahead(scope, ordered.identified())?;
        Ok(take(path, options, events))
    })?;
    note_late(ordered.late(), notes);
    let outline = files.capture.outline().clone();
    if outline.n_events == 0 {
        files.note_damage(notes);
        return Err(files.no_events());
    }
    analyzer.damaged(None, files.damage());
    analyzer.left_out(outline.ignored);
    let mut analysis = analyzer.finish();
    if let Some((clock_ns, unix_ns)) = outline.wall_clock {
        let since_ns = i128::from(first_ns) - i128::from(clock_ns);
        analysis.trace.start_unix_ns = u64::try_from(i128::from(unix_ns) + since_ns).ok();
    }
    files.note_damage(notes);
    if analysis.devices.is_empty() {
        check_capture_from(path, options, &outline)?;
        if let Some(device) = &options.device {
            return Err(no_device(path, device, &outline));
        }
    }
    Ok(analysis)
}

/// Where nothing is left of a capture: a stretch that begins when it is over is a mistake.
///
/// # Errors
/// It is.
pub fn check_capture_from(path: &Path, options: &Options, outline: &Outline) -> Result<(), Error> {
    let first_ns = outline.first_ns.unwrap_or(outline.last_ns);
    let lasts_ns = outline.last_ns.saturating_sub(first_ns);
    match options.from {
        Some(from) if nanoseconds(from) > lasts_ns => Err(after_end(path, from, lasts_ns)),
        _ => Ok(()),
    }
}

/// The device that was asked for is not in the capture; what is.
#[must_use]
pub fn no_device(input: &Path, device: &str, outline: &Outline) -> Error {
    let known = outline.devices.iter();
    let known: Vec<String> = known.map(|dev| device_number::text(*dev)).collect();
    no(input, "device", device).hint(format!("the capture has: {}", known.join(", ")))
}

/// Takes every event; the time of the first of I/O.
fn take(path: &Path, options: &Options, mut events: ReadAhead<'_>) -> (Analyzer, u64) {
    // Times count from the first event of I/O: the names before it are older.
    let mut names = Vec::new();
    let first = loop {
        match events.next() {
            Some(name) if name.kind == THREAD => names.push(name),
            first => break first,
        }
    };
    let first_ns = first.map_or(0, |event| event.ts_ns);
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;
    manifest.detail = "full".to_owned();
    manifest.start_mono_ns = first_ns;
    let stream = Stream::new(path.display().to_string(), "host", "blktrace");
    manifest.streams = vec![stream];

    let mut analyzer = Analyzer::new(&manifest, options.of_analyzer(path));
    let names_and_first = names.iter().chain(&first);
    names_and_first.for_each(|event| analyzer.push(event));
    while let Some(batch) = events.next_batch() {
        batch.iter().for_each(|event| analyzer.push(event));
    }
    (analyzer, first_ns)
}

const THREAD: u8 = Kind::Thread as u8;

/// Seconds as nanoseconds.
#[must_use]
pub fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
