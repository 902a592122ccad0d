//! A Hive-partitioned data set in Parquet (`docs/parquet.md`): what a fleet puts into object storage and
//! queries with an engine that it already runs.
//!
//! The events of every stream, as they are stored; and where a guest was recorded too, each of its bios with its
//! segments, and what each layer did for it. Row groups are written as they fill, so memory does not grow
//! with the recording.

mod chains;
mod data_set;
mod events;
mod file;
mod partition;
mod streams;

use std::{path::Path, rc::Rc};

use nestrace_analyzer::Identified;
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

use chains::ChainTables;
use data_set::DataSet;
use events::EventTable;
use partition::{Calendar, Partition};
use streams::{DeviceRow, StreamRow};

/// Writes everything that was recorded.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    if args.guest.is_some() || !args.device.is_empty() || args.for_btt {
        return Err(
            Failure::new(USAGE, "--format parquet writes the whole recording")
                .hint("leave out --guest, --device and --for-btt, and filter in the query"),
        );
    }
    let set = Rc::new(DataSet::begin(&args.output, args.force)?);
    let mut export = Export {
        recording: recording_name(&args.input, args.redact),
        redact: args.redact,
        set: Rc::clone(&set),
        streams: Vec::new(),
        devices: Vec::new(),
        bios: 0,
    };
    if args.input.is_dir() {
        export.bundle(&args.input)?;
    } else {
        export.capture(&args.input)?;
    }
    let (events, bios) = (export.n_events(), export.bios);
    export.describe()?;
    set.appear()?;
    say(format_args!("wrote {events} events and {bios} guest bios"));
    let path = args.output.display();
    say(format_args!(
        "next: duckdb -c \"SELECT kind, count(*) FROM read_parquet('{path}/events/**/*.parquet', \
         hive_partitioning = true) GROUP BY kind\""
    ));
    Ok(DONE)
}

/// What the recording is called in the rows.
fn recording_name(input: &Path, redacted: bool) -> String {
    let stem = input.file_stem().unwrap_or_default().to_string_lossy();
    if redacted || stem.is_empty() {
        "recording".to_owned()
    } else {
        stem.into_owned()
    }
}

/// An export under way.
struct Export {
    recording: String,
    redact: bool,
    set: Rc<DataSet>,
    streams: Vec<StreamRow>,
    devices: Vec<DeviceRow>,
    bios: u64,
}

impl Export {
    fn n_events(&self) -> u64 {
        self.streams.iter().map(|stream| stream.events).sum()
    }

    fn bundle(&mut self, path: &Path) -> Result<(), Failure> {
        let mut bundle = bundle::open(path)?;
        for diagnostic in &bundle.diagnostics {
            note(diagnostic);
        }
        if self.redact {
            bundle.manifest = redact::manifest(&bundle.manifest);
        }
        let host = bundle.manifest.host.hostname.clone();
        self.events_of_bundle(&mut bundle, &host)?;
        if bundle.manifest.guest_sides.is_empty() {
            return Ok(());
        }
        // A second look at the streams, in the order of time and side by side.
        let mut again = bundle::open(path)?;
        again.manifest = bundle.manifest;
        self.chains_of_bundle(again, &host)
    }

    fn events_of_bundle(&mut self, bundle: &mut Bundle, host: &str) -> Result<(), Failure> {
        let manifest = &bundle.manifest;
        let row = StreamRow::of_host(&self.recording, manifest);
        let calendar = Calendar::of_host(manifest);
        self.devices
            .extend(DeviceRow::of_host(&self.recording, manifest));
        self.stream(row, host, calendar, bundle.host.events())?;
        self.damage("", bundle.host.diagnostics());
        for guest in &mut bundle.guests {
            let Some(side) = manifest.guest_sides.get(guest.side) else {
                continue;
            };
            let row = StreamRow::of_guest(&self.recording, manifest, side);
            let calendar = Calendar::of_guest(side);
            self.devices
                .extend(DeviceRow::of_guest(&self.recording, side));
            self.stream(row, host, calendar, guest.stream.events())?;
            let place = format!("from inside {}", side.guest);
            self.damage(&place, guest.stream.diagnostics());
        }
        Ok(())
    }

    /// The events of one stream, in the order in which they are stored.
    fn stream(
        &mut self,
        mut row: StreamRow,
        host: &str,
        calendar: Calendar,
        events: impl Iterator<Item = Event>,
    ) -> Result<(), Failure> {
        let partition = Partition::new(host, row.guest.as_deref());
        let name = format!("{}-{}", row.file_stem(), self.streams.len());
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

    fn chains_of_bundle(&mut self, mut bundle: Bundle, host: &str) -> Result<(), Failure> {
        let manifest = &bundle.manifest;
        let calendar = Calendar::of_host(manifest);
        let stem = StreamRow::of_host(&self.recording, manifest).file_stem();
        let tables = ChainTables::new(&self.set, &self.recording, host, calendar, stem);
        let listener = tables.clone();
        stories::each(&mut bundle, move |story| listener.push(story));
        self.bios = tables.finish()?;
        Ok(())
    }

    fn capture(&mut self, path: &Path) -> Result<(), Failure> {
        let mut files = capture::open(path, &mut noted)?;
        // What names its first event's time of day may stand anywhere in it: a first look.
        let mut look = capture::open(path, &mut noted)?;
        let first_ns = look.events().find(|event| event.kind != Kind::Thread as u8);
        look.events().for_each(drop);
        let wall_clock = look.capture.outline().wall_clock;
        if look.capture.outline().n_events == 0 {
            return Err(look.no_events().into());
        }
        let mut manifest = capture_manifest(wall_clock, first_ns.map_or(0, |event| event.ts_ns));
        if self.redact {
            manifest = redact::manifest(&manifest);
        }
        let row = StreamRow::of_host(&self.recording, &manifest);
        let calendar = Calendar::of_host(&manifest);
        let devices = &look.capture.outline().devices;
        self.devices
            .extend(DeviceRow::unnamed(&self.recording, devices));
        let mut ordered = files.events();
        self.stream(row, "", calendar, Identified::new(ordered.by_ref()))?;
        files.note_damage(&mut noted);
        if let Some(row) = self.streams.last_mut() {
            row.damaged(files.damage());
        }
        Ok(())
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
