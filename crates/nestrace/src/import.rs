//! `nestrace import`: captures that were made elsewhere become a guest's side.
//!
//! Nothing here needs privileges. What is imported comes from a guest and is no more trusted than what
//! an agent sends: it names no file, and its events pass the same check.

mod capture;

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::Path,
};

use nestrace_record::{
    agent::event_check::EventCheck,
    recording::bundle_dir::{BundleDir, BundleError},
};
use nestrace_trace::{
    Damage, Event, Manifest, StreamReader, StreamWriter,
    bundle::{HOST_STREAM, IMAGE_MAPS, MANIFEST, guest_session_stream, index_of},
    manifest::{GuestSide, Loss, State, Stream},
    wire::AgentHello,
};

use crate::{
    bundle::is_file_name,
    cli::{ImportArgs, ImportCommand, ImportInto},
    damage_notes::DamageNotes,
    exit::{DONE, Failure, INPUT, USAGE, say},
    input_file, output_place,
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
            let imported = capture::import(basename, &mut target);
            target.finish(imported)
        }
        ImportCommand::Guest { bundle, into } => {
            let mut target = Target::open(into)?;
            let imported = import_bundle(bundle, &mut target);
            target.finish(imported)
        }
    }
}

fn bad(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(INPUT, format!("{}: {why}", path.display()))
}

fn bundle_failure(error: &BundleError) -> Failure {
    match error {
        BundleError::Exists(path) => Failure::new(USAGE, format!("{} exists", path.display()))
            .hint("choose another name with -o, or replace the bundle with --force"),
        BundleError::NotABundle(_) => Failure::caused(USAGE, error),
        _ => Failure::caused(INPUT, error),
    }
}

/// The bundle that is made: a copy of the host's recording, to which guests' sides are added.
struct Target {
    dir: BundleDir,
    manifest: Manifest,
    guest: String,
    n_events: u64,
}

/// A guest's side that is being written.
struct Writing {
    stream: StreamWriter<File, File>,
    check: EventCheck,
    latest_ns: u64,
    refused: Vec<(&'static str, u64)>,
    n_events: u64,
}

impl Target {
    fn open(into: &ImportInto) -> Result<Self, Failure> {
        output_place::check(&into.output)?;
        let host = into.guest_of.as_deref();
        let manifest = match host {
            Some(host) => read_manifest(host)?,
            None => Manifest {
                tool_version: env!("CARGO_PKG_VERSION").to_owned(),
                detail: "full".to_owned(),
                streams: vec![Stream {
                    file: HOST_STREAM.to_owned(),
                    side: "host".to_owned(),
                    ..Stream::default()
                }],
                ..Manifest::default()
            },
        };
        let guest = choose_guest(into, &manifest)?;
        if let Some(host) = host
            && same_place(host, &into.output)
        {
            return Err(
                Failure::new(USAGE, "the output is the host's recording itself")
                    .hint("choose another name with -o; the recording stays as it is"),
            );
        }
        let (dir, mut empty) = BundleDir::create(&into.output, into.force, &manifest)
            .map_err(|error| bundle_failure(&error))?;
        let target = Self {
            dir,
            manifest,
            guest,
            n_events: 0,
        };
        let copied = match host {
            Some(host) => target.copy_host(host),
            // Nothing was recorded on the host: a stream that was closed at once says so.
            None => empty
                .finish()
                .map(drop)
                .map_err(|error| Failure::caused(INPUT, &error)),
        };
        if let Err(failure) = copied {
            target.dir.discard();
            return Err(failure);
        }
        Ok(target)
    }

    fn copy_host(&self, host: &Path) -> Result<(), Failure> {
        let streams = self.manifest.streams.iter().map(|s| s.file.as_str());
        for stream in streams.filter(|name| is_file_name(name)) {
            let is_host = stream == HOST_STREAM;
            self.copy(host, stream, is_host)?;
            self.copy(host, &index_of(stream), false)?;
        }
        self.copy(host, IMAGE_MAPS, false)
    }

    fn copy(&self, from: &Path, name: &str, needed: bool) -> Result<(), Failure> {
        let (source, place) = (from.join(name), self.dir.path().join(name));
        match input_file::open(&source).and_then(|_| fs::copy(&source, place)) {
            Ok(_) => Ok(()),
            Err(_) if !needed && !source.exists() => Ok(()),
            Err(error) => Err(bad(&source, error)),
        }
    }

    /// Begins a side of the guest; its name and file are set here.
    fn begin(&mut self, side: &mut GuestSide) -> Result<Writing, Failure> {
        let known = self.manifest.guest_sides.iter();
        let nth = known.filter(|s| s.guest == self.guest).count() + 1;
        let nth = u32::try_from(nth).unwrap_or(u32::MAX);
        side.guest.clone_from(&self.guest);
        side.file = guest_session_stream(&self.guest, nth);
        let new = |name: &str| {
            self.dir
                .new_file(name)
                .map_err(|error| bundle_failure(&error))
        };
        let stream = StreamWriter::new(new(&side.file)?, new(&index_of(&side.file))?)
            .map_err(|error| Failure::caused(INPUT, &error))?;
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
        })
    }

    /// Ends a side and adds it to the manifest.
    fn end(&mut self, mut writing: Writing, mut side: GuestSide) -> Result<(), Failure> {
        writing
            .stream
            .finish()
            .map_err(|error| Failure::caused(INPUT, &error))?;
        for (reason, times) in writing.refused {
            say(format_args!("note: {times} events were refused: {reason}"));
            side.refused.push(nestrace_trace::manifest::RefusedInput {
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
            say(
                "note: by their wall clocks, the capture and the host's recording are over an hour apart",
            );
        }
    }

    /// Closes the bundle, or removes it.
    fn finish(mut self, imported: Result<(), Failure>) -> Result<u8, Failure> {
        if let Err(failure) = imported {
            self.dir.discard();
            return Err(failure);
        }
        self.manifest.state = State::Complete;
        if let Some(side) = self.manifest.guest_sides.first()
            && self.manifest.start_mono_ns == 0
        {
            // No host: the guest's times are the recording's.
            self.manifest.start_unix_ns = side.start_unix_ns;
            self.manifest.start_mono_ns = side.start_mono_ns;
            self.manifest.live_mono_ns = side.live_mono_ns;
            self.manifest.end_mono_ns = side.end_mono_ns;
            "import".clone_into(&mut self.manifest.end_reason);
        }
        self.dir
            .close(&self.manifest)
            .map_err(|error| bundle_failure(&error))?;
        let path = self.dir.path().display();
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
        self.stream
            .push(&event)
            .map_err(|error| Failure::caused(INPUT, &error))
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
        (None, true, _) => {
            Err(Failure::new(USAGE, "say with --guest which guest the capture is of").hint(list()))
        }
    }
}

fn same_place(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
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
    let (manifest, odd) =
        Manifest::from_slice(&bytes).map_err(|error| Failure::caused(INPUT, &error))?;
    for diagnostic in odd {
        say(format_args!(
            "note: {}: {}",
            path.display(),
            diagnostic.message
        ));
    }
    Ok(manifest)
}

/// Imports what `nestrace-agent --output` wrote in the guest.
fn import_bundle(bundle: &Path, target: &mut Target) -> Result<(), Failure> {
    let manifest = read_manifest(bundle)?;
    if manifest.guest_sides.is_empty() {
        return Err(bad(bundle, "it was not made by an agent in a guest"));
    }
    for side in &manifest.guest_sides {
        if !is_file_name(&side.file) {
            return Err(bad(bundle, "its manifest names a file outside of it"));
        }
        import_side(&bundle.join(&side.file), side, target)?;
    }
    target
        .manifest
        .losses
        .extend(manifest.losses.into_iter().map(|loss| Loss {
            guest: Some(target.guest.clone()),
            ..loss
        }));
    Ok(())
}

fn import_side(path: &Path, told: &GuestSide, target: &mut Target) -> Result<(), Failure> {
    // Its texts end up on somebody's terminal: bounded as if an agent had sent them.
    let mut hello = AgentHello {
        agent_version: told.agent_version.clone(),
        backend: told.backend.clone(),
        backend_reason: told.backend_reason.clone(),
        machine: told.machine.clone(),
        unix_ns: told.start_unix_ns,
        mono_ns: told.start_mono_ns,
        disks: told.disks.clone(),
        mounts: told.mounts.clone(),
        ..AgentHello::default()
    };
    hello.bound();
    let mut side = hello.guest_side("", "");
    side.live_mono_ns = told.live_mono_ns;
    side.end_mono_ns = told.end_mono_ns;
    let file = input_file::open(path).map_err(|error| bad(path, error))?;
    let mut index = path.to_owned().into_os_string();
    index.push(".idx");
    let index = input_file::open(Path::new(&index)).ok().map(BufReader::new);
    let mut reader =
        StreamReader::new(file, index).map_err(|error| Failure::caused(INPUT, &error))?;
    let mut writing = target.begin(&mut side)?;
    for event in reader.events() {
        writing.push(event)?;
    }
    let mut notes = DamageNotes::default();
    for diagnostic in reader.diagnostics() {
        notes.say(&path.display().to_string(), diagnostic);
    }
    notes.say_rest();
    let damage = Damage::of(reader.diagnostics());
    if damage.rows_lost > 0 {
        target.manifest.losses.push(Loss {
            source: "damaged".to_owned(),
            guest: Some(target.guest.clone()),
            events: damage.rows_lost,
        });
    }
    target.end(writing, side)
}
