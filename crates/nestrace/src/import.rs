//! `nestrace import`: captures that were made elsewhere become a guest's side.
//!
//! Nothing here needs privileges. What is imported comes from a guest and is no more trusted than what
//! an agent sends: it names no file, and its events pass the same check. What is read is never replaced.

mod capture;
mod guest_bundle;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use nestrace_record::agent::event_check::EventCheck;
use nestrace_trace::{
    Damage, Event, Manifest, StreamWriter,
    address::Shift,
    bundle::{HOST_STREAM, IMAGE_MAPS, MANIFEST, guest_session_stream, index_of},
    manifest::{Addresses, GuestSide, Loss, RefusedInput, State, Stream},
};

use crate::{
    bundle::{is_file_name, left_out, repair_command, unnamed_streams},
    cli::{ImportArgs, ImportCommand, ImportInto},
    damage_notes::guest_stream_damaged,
    exit::{DONE, FAILURE, Failure, INPUT, USAGE, note, say},
    input_file,
    new_bundle::{self, NewBundle, not_written},
};

/// Largest manifest that is read.
const MAX_MANIFEST: u64 = 64 << 20;
/// Captures whose wall clock lies further from the host's recording were not made with it.
const FAR_NS: u64 = 3600 * 1_000_000_000;

/// Imports.
pub fn run(args: &ImportArgs) -> Result<u8, Failure> {
    match &args.command {
        ImportCommand::Blktrace { basename, into } => {
            let mut target = Target::open(into)?;
            capture::import(basename, &mut target)?;
            target.finish(into)
        }
        ImportCommand::Guest { bundle, into } => {
            new_bundle::refuse_input(&into.output, bundle, "the guest's recording")?;
            let mut target = Target::open(into)?;
            guest_bundle::import(bundle, &mut target)?;
            target.finish(into)
        }
    }
}

fn bad(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(INPUT, format!("{}: {why}", path.display()))
}

/// The bundle that is made: a copy of the host's recording, to which guests' sides are added.
struct Target {
    new: NewBundle,
    manifest: Manifest,
    guest: String,
    /// The recording of the host; `None`: there is none, and the guest's is the recording.
    host: Option<PathBuf>,
    n_events: u64,
}

/// A guest's side that is being written.
struct Writing {
    stream: StreamWriter<File, File>,
    check: EventCheck,
    latest_ns: u64,
    refused: Vec<(&'static str, u64)>,
    n_events: u64,
    /// How addresses are hidden; `None` where there are none.
    shift: Option<Shift>,
}

impl Target {
    /// Looks at what is quickly looked at, and begins the bundle. [`Target::write_host`] comes when the guest's input is
    /// known to be one: the host's recording may be large.
    fn open(into: &ImportInto) -> Result<Self, Failure> {
        let host = into.guest_of.as_deref();
        let manifest = match host {
            Some(host) => {
                new_bundle::refuse_input(&into.output, host, "the host's recording")?;
                manifest_of_host(host)?
            }
            None => manifest_without_host(),
        };
        Ok(Self {
            guest: choose_guest(into, &manifest)?,
            new: NewBundle::begin(&into.output, into.force)?,
            manifest,
            host: into.guest_of.clone(),
            n_events: 0,
        })
    }

    /// Copies the host's recording, before a side of the guest is begun.
    fn write_host(&self) -> Result<(), Failure> {
        let Some(host) = &self.host else {
            // Nothing was recorded on the host: a stream that was closed at once says so.
            let mut empty = self.new.new_stream(HOST_STREAM)?;
            return empty
                .finish()
                .map(drop)
                .map_err(|error| not_written(&error));
        };
        for stream in streams_of(&self.manifest) {
            self.copy(host, &stream, stream == HOST_STREAM)?;
            self.copy(host, &index_of(&stream), false)?;
        }
        self.copy(host, IMAGE_MAPS, false)
    }

    /// Copies a file of the host's. One that is not there is left out, unless it is `needed`.
    fn copy(&self, from: &Path, name: &str, needed: bool) -> Result<(), Failure> {
        let source = from.join(name);
        let mut file = match input_file::open(&source) {
            Ok(file) => file,
            Err(_) if !needed && !source.exists() => return Ok(()),
            Err(error) => return Err(bad(&source, error)),
        };
        let copied = io::copy(&mut file, &mut self.new.new_file(name)?);
        copied.map(drop).map_err(|error| {
            let source = source.display();
            Failure::new(FAILURE, format!("copy {source}: {error}"))
        })
    }

    /// Begins a side of the guest; its name and file are set here.
    fn begin(&self, side: &mut GuestSide) -> Result<Writing, Failure> {
        side.guest.clone_from(&self.guest);
        let taken = streams_of(&self.manifest);
        let mut names = (1..).map(|nth| guest_session_stream(&self.guest, nth));
        side.file = names.find(|name| !taken.contains(name)).unwrap_or_default();
        let stream = self.new.new_stream(&side.file)?;
        let mut check = EventCheck::new(side.start_mono_ns, 0);
        check.know(side.disks.iter().map(|disk| disk.dev));
        let end_ns = side.end_mono_ns;
        Ok(Writing {
            stream,
            latest_ns: if end_ns > 0 {
                check.latest_ns(end_ns.saturating_sub(side.start_mono_ns))
            } else {
                u64::MAX
            },
            check,
            refused: Vec::new(),
            n_events: 0,
            shift: None,
        })
    }

    /// Ends a side and adds it to the manifest.
    fn end(&mut self, mut writing: Writing, mut side: GuestSide) -> Result<(), Failure> {
        let finished = writing.stream.finish();
        finished.map_err(|error| not_written(&error))?;
        for (reason, times) in writing.refused {
            note(format_args!("{times} events were refused: {reason}"));
            side.refused.push(RefusedInput {
                reason: reason.to_owned(),
                times,
            });
        }
        self.n_events += writing.n_events;
        self.manifest.streams.push(Stream {
            file: side.file.clone(),
            side: "guest".to_owned(),
            guest: Some(self.guest.clone()),
            backend: side.backend.clone(),
            kernel: side.machine.kernel.clone(),
            addresses: match writing.shift {
                Some(_) => Addresses::Shifted,
                None => Addresses::Absent,
            },
        });
        self.note_time(&side);
        self.manifest.guest_sides.push(side);
        Ok(())
    }

    /// Clocks that are hours apart: probably not the same time, but only the I/O can tell.
    fn note_time(&self, side: &GuestSide) {
        let host_ns = self.manifest.start_unix_ns;
        let far = host_ns.abs_diff(side.start_unix_ns) > FAR_NS;
        if host_ns > 0 && side.start_unix_ns > 0 && far {
            note(
                "by their wall clocks, the capture and the host's recording are over an hour apart",
            );
        }
    }

    /// Writes down what could not be read of the guest's side, so that each later analysis says it.
    fn note_damage(&mut self, damage: Damage) {
        if damage.rows_lost > 0 {
            self.manifest.losses.push(Loss {
                source: "damaged".to_owned(),
                guest: Some(self.guest.clone()),
                events: damage.rows_lost,
            });
        }
        if damage.cut {
            self.manifest
                .notices
                .push(guest_stream_damaged(&self.guest));
            if self.host.is_none() {
                self.manifest.state = State::Repaired;
            }
        }
    }

    /// Everything is imported: the bundle appears.
    fn finish(mut self, into: &ImportInto) -> Result<u8, Failure> {
        if let Some(side) = self.manifest.guest_sides.first()
            && self.host.is_none()
        {
            // No host: the guest's times are the recording's.
            self.manifest.start_unix_ns = side.start_unix_ns;
            self.manifest.start_mono_ns = side.start_mono_ns;
            self.manifest.live_mono_ns = side.live_mono_ns;
            self.manifest.end_mono_ns = side.end_mono_ns;
            "import".clone_into(&mut self.manifest.end_reason);
        }
        self.new.appear(&self.manifest)?;
        let path = into.output.display();
        say(format_args!(
            "imported {} events of guest {} into {path}",
            self.n_events, self.guest
        ));
        say(format_args!("next: nestrace analyze {path}"));
        Ok(DONE)
    }
}

impl Writing {
    fn push(&mut self, mut event: Event) -> Result<(), Failure> {
        if let Err(refusal) = self.check.check(&mut event, self.latest_ns) {
            let reason = refusal.reason();
            match self.refused.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, times)) => *times += 1,
                None => self.refused.push((reason, 1)),
            }
            return Ok(());
        }
        self.n_events += 1;
        if let Some(shift) = &self.shift {
            shift.event(&mut event);
        }
        self.stream
            .push(&event)
            .map_err(|error| not_written(&error))
    }
}

/// The guest that the capture is of: the one that was named, or the only one of the recording.
fn choose_guest(into: &ImportInto, manifest: &Manifest) -> Result<String, Failure> {
    let names: Vec<&str> = manifest
        .topology
        .guests
        .iter()
        .map(|guest| guest.name.as_str())
        .collect();
    let list = || format!("the recording has {}", names.join(", "));
    match (&into.guest, into.guest_of.is_some(), names.as_slice()) {
        (Some(name), false, _) => Ok(name.clone()),
        (None, false, _) => Ok("guest".to_owned()),
        (Some(name), true, _) if names.contains(&name.as_str()) => Ok(name.clone()),
        (Some(name), true, _) => {
            Err(Failure::new(INPUT, format!("the recording has no guest {name}")).hint(list()))
        }
        (None, true, [only]) => Ok((*only).to_owned()),
        (None, true, []) => Err(Failure::new(INPUT, "no guest was recorded on the host")),
        (None, true, _) => Err(Failure::new(
            USAGE,
            "the recording has several guests: choose the capture's guest with --guest",
        )
        .hint(list())),
    }
}

/// The manifest of the host's recording. Of one that was not closed, something is missing in the new bundle too.
fn manifest_of_host(host: &Path) -> Result<Manifest, Failure> {
    let mut manifest = read_manifest(host)?;
    let unnamed = unnamed_streams(host, &manifest.guest_sides);
    let left_out = left_out(&unnamed);
    if manifest.state != State::Recording {
        if let Some(left_out) = left_out {
            let host = host.display();
            note(format_args!(
                "{host}: {left_out}: the manifest does not name it"
            ));
        }
        return Ok(manifest);
    }
    // They are of this recording, and would be in nothing that is made of it.
    if let Some(file) = unnamed.first() {
        let why = format!("its manifest does not name {}", file.escape_debug());
        return Err(bad(host, why).hint(repair_command(host)));
    }
    manifest.state = State::Repaired;
    Ok(manifest)
}

fn manifest_without_host() -> Manifest {
    let mut manifest = Manifest::default();
    manifest.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    manifest.state = State::Complete;
    manifest.detail = "full".to_owned();
    manifest.streams = vec![Stream {
        file: HOST_STREAM.to_owned(),
        side: "host".to_owned(),
        addresses: Addresses::Absent,
        ..Stream::default()
    }];
    manifest
}

/// The streams that a manifest names. It is input like any other: what it names has to be in its folder.
fn streams_of(manifest: &Manifest) -> BTreeSet<String> {
    let of_sides = manifest.guest_sides.iter().map(|side| &side.file);
    let files = manifest.streams.iter().map(|stream| &stream.file);
    let named = files
        .chain(of_sides)
        .filter(|file| is_file_name(file) && file.ends_with(".arrows"));
    let host = [HOST_STREAM.to_owned()].into_iter();
    host.chain(named.cloned()).collect()
}

fn read_manifest(bundle: &Path) -> Result<Manifest, Failure> {
    let path = bundle.join(MANIFEST);
    let file = input_file::open(&path).map_err(|error| {
        bad(&path, error).hint("a bundle is a directory NAME.nest; was it copied as a whole?")
    })?;
    let mut bytes = Vec::new();
    file.take(MAX_MANIFEST)
        .read_to_end(&mut bytes)
        .map_err(|error| bad(&path, error))?;
    let (manifest, odd) = Manifest::from_slice(&bytes).map_err(|error| {
        // Two bundles are on the line.
        Failure::caused(INPUT, &error).of(&path.display().to_string())
    })?;
    for diagnostic in odd {
        note(format_args!("{}: {}", path.display(), diagnostic.message));
    }
    Ok(manifest)
}
