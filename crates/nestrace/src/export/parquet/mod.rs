//! A Hive-partitioned data set in Parquet (`docs/parquet.md`): what a fleet puts into object storage and
//! queries with an engine that it already runs.
//!
//! The events of every stream, as they are stored; where a guest was recorded too, each of its bios with its
//! segments, what each layer did for it, and each call of its programs; and what `nestrace analyze` says, by minute. Row
//! groups are written as they fill, so memory does not grow with the recording.

mod data_set;
mod events;
mod file;
mod guest_rows;
mod partition;
mod streams;
mod summary;

use std::{cell::RefCell, path::Path, rc::Rc};

use nestrace_analyzer::{
    Analysis, Identified,
    analysis::{CallStory, Story},
    dataframe::CallMinutes,
};
use nestrace_output::address_secret::new_shift;
use nestrace_trace::{Damage, Diagnostic, Event, Kind, Manifest, manifest, redact};

use crate::{
    bundle::{self, Bundle},
    capture,
    cli::ExportArgs,
    damage::DamageNotes,
    exit::{DONE, FAILURE, Failure, USAGE, note, noted, say},
    export::stories,
};

use data_set::DataSet;
use events::EventTable;
use guest_rows::GuestRows;
use partition::{Calendar, Partition};
use streams::{DeviceRow, StreamRow};
use summary::Summary;

/// Writes everything that was recorded.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    if args.guest.is_some() || !args.device.is_empty() || args.for_btt {
        return Err(
            Failure::new(USAGE, "--format parquet writes the whole recording")
                .hint("leave out --guest, --device and --for-btt, and filter in the query"),
        );
    }
    let export = match args.input.is_dir() {
        true => of_bundle(args)?,
        false => of_capture(args)?,
    };
    let (events, bios, calls) = (export.n_events(), export.bios, export.calls);
    let set = Rc::clone(&export.set);
    export.describe()?;
    set.appear()?;
    say(format_args!(
        "wrote {events} events, {bios} guest bios and {calls} calls of guests' programs"
    ));
    let path = args.output.display();
    say(format_args!(
        "next: duckdb -c \"SELECT kind, count(*) FROM read_parquet('{path}/events/**/*.parquet', \
         hive_partitioning = true) GROUP BY kind\""
    ));
    Ok(DONE)
}

/// What a recording is called by itself.
fn recording_name(input: &Path, redacted: bool) -> String {
    let stem = input.file_stem().unwrap_or_default().to_string_lossy();
    if redacted || stem.is_empty() {
        "recording".to_owned()
    } else {
        stem.into_owned()
    }
}

/// A name in which nothing has a meaning to a file system.
fn file_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    name.chars().take(60).map(plain).collect()
}

/// An export under way.
struct Export {
    /// What the recording is called in the rows and in the names of its files: like no other one.
    recording: String,
    host: String,
    redact: bool,
    set: Rc<DataSet>,
    streams: Vec<StreamRow>,
    devices: Vec<DeviceRow>,
    bios: u64,
    calls: u64,
}

/// A bundle's tables.
fn of_bundle(args: &ExportArgs) -> Result<Export, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    let identity = identity_of(&bundle.manifest);
    if args.redact {
        bundle.manifest = redact::manifest(&bundle.manifest);
    }
    let mut export = Export::begin(args, &bundle.manifest, identity)?;
    export.events_of_bundle(&mut bundle)?;
    let analysis = export.analysis(args)?;
    let mut calls = CallMinutes::new(&analysis);
    if !bundle.manifest.guest_sides.is_empty() {
        // A second look at the streams, in the order of time and side by side.
        let mut again = bundle::open(&args.input)?;
        again.manifest = bundle.manifest.clone();
        calls = export.rows_of_guests(again, calls)?;
    }
    export.summary(&bundle.manifest, &analysis, &calls)?;
    Ok(export)
}

/// The tables of a capture of blktrace.
fn of_capture(args: &ExportArgs) -> Result<Export, Failure> {
    let path = &args.input;
    let mut files = capture::open(path, &mut noted)?;
    // What names its first event's time of day may stand anywhere in it: a first look.
    let mut look = capture::open(path, &mut noted)?;
    let first_ns = look.events().find(|event| event.kind != Kind::Thread as u8);
    let first_ns = first_ns.map_or(0, |event| event.ts_ns);
    look.events().for_each(drop);
    let outline = look.capture.outline();
    if outline.n_events == 0 {
        return Err(look.no_events().into());
    }
    let mut manifest = capture_manifest(outline.wall_clock, first_ns);
    let identity = (outline.wall_clock, first_ns, outline.n_events);
    let identity = crc32fast::hash(format!("{identity:?}").as_bytes());
    if args.redact {
        manifest = redact::manifest(&manifest);
    }
    let mut export = Export::begin(args, &manifest, identity)?;
    let row = StreamRow::of_host(&export.recording, &manifest);
    let calendar = Calendar::of_host(&manifest);
    export
        .devices
        .extend(DeviceRow::unnamed(&export.recording, &outline.devices));
    let mut ordered = files.events();
    export.stream(row, calendar, Identified::new(ordered.by_ref()))?;
    files.note_damage(&mut noted);
    if let Some(row) = export.streams.last_mut() {
        row.damaged(files.damage());
    }
    let analysis = export.analysis(args)?;
    export.summary(&manifest, &analysis, &CallMinutes::new(&analysis))?;
    Ok(export)
}

/// What tells a recording from all others, whatever it is called: the boot that it was made in, and when it began.
fn identity_of(manifest: &Manifest) -> u32 {
    let identity = (&manifest.host.boot_id, manifest.start_mono_ns);
    crc32fast::hash(format!("{identity:?}").as_bytes())
}

impl Export {
    fn begin(args: &ExportArgs, manifest: &Manifest, identity: u32) -> Result<Self, Failure> {
        let name = file_name(&recording_name(&args.input, args.redact));
        let recording = format!("{name}-{}-{identity:08x}", manifest.start_unix_ns);
        let host = &manifest.host.hostname;
        let set = DataSet::begin(&args.output, &recording, host)?;
        Ok(Self {
            recording,
            host: host.clone(),
            redact: args.redact,
            set: Rc::new(set),
            streams: Vec::new(),
            devices: Vec::new(),
            bios: 0,
            calls: 0,
        })
    }

    fn n_events(&self) -> u64 {
        self.streams.iter().map(|stream| stream.events).sum()
    }

    /// What `nestrace analyze` says of it.
    fn analysis(&self, args: &ExportArgs) -> Result<Analysis, Failure> {
        let mut options = nestrace_bundle::Options::default();
        options.redact = self.redact;
        Ok(nestrace_bundle::analyze(&args.input, &options)?)
    }

    /// The tables that are kept for years.
    fn summary(
        &self,
        manifest: &Manifest,
        analysis: &Analysis,
        calls: &CallMinutes,
    ) -> Result<(), Failure> {
        Summary {
            recording: &self.recording,
            redact: self.redact,
            manifest,
            analysis,
        }
        .write(&self.set, calls)
    }

    fn events_of_bundle(&mut self, bundle: &mut Bundle) -> Result<(), Failure> {
        let manifest = &bundle.manifest;
        let row = StreamRow::of_host(&self.recording, manifest);
        let calendar = Calendar::of_host(manifest);
        self.devices
            .extend(DeviceRow::of_host(&self.recording, manifest));
        self.stream(row, calendar, bundle.host.events())?;
        self.damage("", bundle.host.diagnostics());
        for guest in &mut bundle.guests {
            let Some(side) = manifest.guest_sides.get(guest.side) else {
                continue;
            };
            let row = StreamRow::of_guest(&self.recording, manifest, side);
            let calendar = Calendar::of_guest(side);
            self.devices
                .extend(DeviceRow::of_guest(&self.recording, side));
            self.stream(row, calendar, guest.stream.events())?;
            let place = format!("from inside {}", side.guest);
            self.damage(&place, guest.stream.diagnostics());
        }
        Ok(())
    }

    /// The events of one stream, in the order in which they are stored.
    fn stream(
        &mut self,
        mut row: StreamRow,
        calendar: Calendar,
        events: impl Iterator<Item = Event>,
    ) -> Result<(), Failure> {
        let partition = Partition::new(&self.host, row.guest.as_deref());
        let name = format!("{}-{}", self.set.stem(), self.streams.len());
        let mut table = EventTable::new(&self.set, &self.recording, partition, calendar, name);
        let shift = self.redact.then(new_shift).transpose()?;
        for mut event in events {
            if let Some(shift) = &shift {
                shift.event(&mut event);
                redact::event(&mut event);
            }
            table.push(event)?;
        }
        row.events = table.finish()?;
        self.streams.push(row);
        Ok(())
    }

    /// A row for each bio and for each call; the calls are summed by minute, too.
    fn rows_of_guests(
        &mut self,
        mut bundle: Bundle,
        minutes: CallMinutes,
    ) -> Result<CallMinutes, Failure> {
        let calendar = Calendar::of_host(&bundle.manifest);
        let (set, recording, host) = (&self.set, &self.recording, &self.host);
        let chains: GuestRows<Story> = GuestRows::new(set, recording, host, calendar);
        let calls: GuestRows<CallStory> = GuestRows::new(set, recording, host, calendar);
        let minutes = Rc::new(RefCell::new(minutes));
        let (of_chains, of_calls, of_minutes) =
            (chains.clone(), calls.clone(), Rc::clone(&minutes));
        stories::each(
            &mut bundle,
            self.redact,
            move |story| of_chains.push(story),
            move |mut call: CallStory| {
                let unix_ns = call.at_ns.and_then(|ns| calendar.unix_ns_after(ns));
                of_minutes.borrow_mut().push(&call, unix_ns);
                // What it waited for is in no column.
                call.tree.children = Vec::new();
                of_calls.push(call);
            },
        );
        self.bios = chains.finish()?;
        self.calls = calls.finish()?;
        Ok(minutes.take())
    }

    /// What is damaged in the stream that was written last is said, and stands beside its events.
    fn damage(&mut self, place: &str, diagnostics: &[Diagnostic]) {
        let mut notes = DamageNotes::default();
        diagnostics
            .iter()
            .for_each(|diagnostic| notes.note(&mut noted, place, diagnostic));
        notes.note_rest(&mut noted);
        if let Some(row) = self.streams.last_mut() {
            row.damaged(Damage::of(diagnostics));
        }
    }

    fn describe(self) -> Result<(), Failure> {
        streams::write(&self.set, &self.streams, &self.devices)
    }
}

/// What stands in the place of a manifest.
fn capture_manifest(wall_clock: Option<(u64, u64)>, first_ns: u64) -> Manifest {
    let stream = manifest::Stream {
        side: "host".to_owned(),
        backend: "blktrace".to_owned(),
        ..manifest::Stream::default()
    };
    let (start_mono_ns, start_unix_ns) = wall_clock.unwrap_or((first_ns, 0));
    let mut manifest = Manifest::default();
    manifest.state = manifest::State::Complete;
    manifest.detail = "full".to_owned();
    manifest.start_mono_ns = start_mono_ns;
    manifest.start_unix_ns = start_unix_ns;
    manifest.streams = vec![stream];
    manifest
}

/// A failure at writing `path`.
fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(FAILURE, format!("{}: {error}", path.display()))
}
