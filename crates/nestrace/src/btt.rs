//! `nestrace analyze --format btt`.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    thread,
};

use nestrace_analyzer::{
    BlockAnalyzer, BlockOptions, Identified, analysis::BlockAnalysis, incomplete::ends_missed,
    losses, units,
};
use nestrace_bundle::{
    check_capture_from, check_device, check_from, check_guest, nanoseconds, no_device,
};
use nestrace_report::btt::{IoListing, IostatTable, render};
use nestrace_trace::{
    Event, Kind, Source, TimeOrdered, device_number,
    manifest::{Device, GuestSide, Topology},
    printable,
};

use crate::{
    analysis_options::{check_options, options},
    bundle::{self, Bundle},
    capture,
    cli::AnalyzeArgs,
    exit::{DONE, Failure, INPUT, LOST, USAGE, note, noted, print},
    output_place,
    read_ahead::{Fill, ReadAhead, each, read_ahead},
};

/// What is written while reading.
struct Files {
    per_io: Option<BufWriter<File>>,
    listing: IoListing,
    iostat: Option<BufWriter<File>>,
}

/// What is there is replaced with `--force` only. An empty file, as mktemp makes it, and a device are not
/// something that is there.
fn create(path: &Path, force: bool) -> Result<BufWriter<File>, Failure> {
    if !force && fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() > 0) {
        return Err(Failure::new(USAGE, format!("{} exists", path.display()))
            .hint("choose another name, or replace it with --force"));
    }
    Ok(BufWriter::with_capacity(1 << 16, output_place::open(path)?))
}

impl Files {
    fn create(args: &AnalyzeArgs) -> Result<Self, Failure> {
        let open = |path: &Option<PathBuf>| {
            let path = path.as_deref();
            path.map(|path| create(path, args.force)).transpose()
        };
        Ok(Self {
            per_io: open(&args.per_io)?,
            listing: IoListing::default(),
            iostat: open(&args.iostat)?,
        })
    }

    /// Begins a machine's part: its times count from its own first I/O, and its device numbers are its own.
    fn begin(&mut self, heading: &str) -> Result<(), Failure> {
        for file in [&mut self.per_io, &mut self.iostat].into_iter().flatten() {
            file.write_all(heading.as_bytes())?;
        }
        if let Some(iostat) = &mut self.iostat {
            iostat.write_all(IostatTable::header().as_bytes())?;
        }
        Ok(())
    }

    fn drain(&mut self, analyzer: &mut BlockAnalyzer, start_ns: u64) -> Result<(), Failure> {
        if let Some(per_io) = &mut self.per_io {
            self.listing.start_ns = start_ns;
            for io in analyzer.drain_ios() {
                per_io.write_all(self.listing.add(&io).as_bytes())?;
            }
        }
        if let Some(iostat) = &mut self.iostat {
            for row in analyzer.drain_rows() {
                let line = IostatTable { start_ns }.row(&row, false);
                iostat.write_all(line.as_bytes())?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, analyzer: &mut BlockAnalyzer, start_ns: u64) -> Result<(), Failure> {
        self.drain(analyzer, start_ns)?;
        if let Some(iostat) = &mut self.iostat {
            writeln!(iostat, "\n{}", IostatTable::header().trim_end())?;
            for row in analyzer.total_rows() {
                let line = IostatTable { start_ns }.row(&row, true);
                iostat.write_all(line.as_bytes())?;
            }
        }
        if let Some(per_io) = &mut self.per_io {
            let listing = std::mem::take(&mut self.listing);
            per_io.write_all(listing.finish().as_bytes())?;
        }
        for file in [&mut self.per_io, &mut self.iostat].into_iter().flatten() {
            file.flush()?;
        }
        Ok(())
    }
}

/// The number of a device, which is called as the kernel calls it, or by its number.
fn number(wanted: &str, topology: &Topology) -> Option<u32> {
    let mut known = topology.devices.iter();
    let named = known.find(|device| device.name == wanted);
    named.map_or_else(|| device_number::parse(wanted), |device| Some(device.dev))
}

/// The first event that is wanted, and of those before it what the analyzer takes: nearly all of a recording may be
/// before it, and is passed over.
fn first_of(
    events: &mut impl Iterator<Item = Event>,
    wanted: impl Fn(&Event) -> bool,
) -> Vec<Event> {
    let is_taken = |event: &Event| is_aside(event) || wanted(event);
    let mut taken = Vec::new();
    for event in events.filter(is_taken) {
        taken.push(event);
        if !is_aside(&event) {
            break;
        }
    }
    taken
}

/// Names of threads, and losses: they are of no device.
fn is_aside(event: &Event) -> bool {
    matches!(event.kind(), Some(Kind::Thread | Kind::Loss))
}

/// One machine's events, from start to end.
struct Machine<'a> {
    args: &'a AnalyzeArgs,
    /// The guest, and the place of its session among the streams; `None` is the host.
    guest: Option<(String, usize)>,
    topology: Topology,
    /// The device that was asked for.
    device: Option<u32>,
    /// Where `--from` and `--to` count from; the first event where it is not known.
    start_ns: Option<u64>,
}

impl Machine<'_> {
    fn guest_name(&self) -> Option<&str> {
        self.guest.as_ref().map(|(guest, _)| guest.as_str())
    }

    /// What stands above its part, where there are several.
    fn heading(&self) -> String {
        match self.guest_name() {
            None => String::from("######## host ########\n\n"),
            Some(guest) => format!("######## guest {} ########\n\n", printable(guest)),
        }
    }

    /// Analyses events that another thread reads.
    fn analyze(&self, fill: impl Fill, files: &mut Files) -> Result<BlockAnalysis, Failure> {
        thread::scope(|scope| self.analyze_read(read_ahead(scope, fill)?, files))
    }

    fn analyze_read(
        &self,
        mut events: ReadAhead<'_>,
        files: &mut Files,
    ) -> Result<BlockAnalysis, Failure> {
        let of_device = |event: &Event| self.device.is_none_or(|dev| event.dev == dev);
        let wanted = |event: &Event| {
            let is_block = |kind: Kind| kind.source() == Source::Block;
            event.kind().is_some_and(is_block) && of_device(event)
        };
        let first = first_of(&mut events, wanted);
        let first_ns = first.last().filter(|event| wanted(event));
        let first_ns = first_ns.map_or(0, |event| event.ts_ns);
        let start_ns = self.start_ns.unwrap_or(first_ns);
        let at = |seconds: Option<f64>| seconds.map(|s| start_ns.saturating_add(nanoseconds(s)));
        let mut options = BlockOptions::default();
        options.topology = self.topology.clone();
        options.from_ns = at(self.args.from);
        options.to_ns = at(self.args.to);
        options.figures = false;
        options.list_ios = files.per_io.is_some();
        options.interval_ns = files
            .iostat
            .as_ref()
            .map(|_| nanoseconds(self.args.interval));
        let mut analyzer = BlockAnalyzer::new(options);
        analyzer.push_all(&first);
        while let Some(batch) = events.next_batch() {
            let batch = batch.iter();
            // What is not of the block layer the analyzer passes over.
            analyzer.push_all(batch.filter(|event| of_device(event) || is_aside(event)));
            files.drain(&mut analyzer, first_ns)?;
        }
        files.finish(&mut analyzer, first_ns)?;
        if analyzer.implausible() > 0 {
            note(format_args!(
                "{} with an impossible size or place: not used",
                units::of(analyzer.implausible(), "event", "events")
            ));
        }
        Ok(analyzer.finish())
    }
}

/// A capture of blktrace.
pub fn of_capture(args: &AnalyzeArgs) -> Result<u8, Failure> {
    let mut capture = capture::open(args.input(), &mut noted)?;
    check_options(args)?;
    let topology = Topology::default();
    let device = args.device.as_ref();
    let machine = Machine {
        args,
        guest: None,
        // One that does not exist: no event is about it.
        device: device.map(|it| number(it, &topology).unwrap_or(u32::MAX)),
        topology,
        start_ns: None,
    };
    let mut ordered = capture.events();
    let mut files = Files::create(args)?;
    files.begin("")?;
    let blocks = machine.analyze(ordered.identified(), &mut files)?;
    let late = ordered.late();
    if late > 0 {
        note(format_args!("{late} events are out of order"));
    }
    let outline = capture.capture.outline();
    if outline.n_events == 0 {
        capture.note_damage(&mut noted);
        return Err(capture.no_events().into());
    }
    capture.note_damage(&mut noted);
    if blocks.devices.is_empty() {
        check_capture_from(args.input(), &options(args), outline)?;
        return Err(match device {
            Some(device) => no_device(args.input(), device, outline).into(),
            None => nothing_recorded(args),
        });
    }
    let lost = outline.lost;
    if lost > 0 {
        note(format_args!("{lost} records are missing by their numbers"));
    }
    print(&render(&blocks))?;
    let left_out = outline.ignored;
    Ok(code(args, lost > 0 || left_out > 0, &[blocks]))
}

/// Reports requests without a recorded end, which no loss counter holds; returns the exit code.
fn code<'a>(
    args: &AnalyzeArgs,
    lost: bool,
    blocks: impl IntoIterator<Item = &'a BlockAnalysis>,
) -> u8 {
    let devices = blocks.into_iter().flat_map(|blocks| &blocks.devices);
    let missed = ends_missed(devices.map(|device| &device.device));
    if missed > 0 {
        note(format_args!(
            "{} no recorded end: nestrace analyze says where",
            units::of(missed, "request has", "requests have")
        ));
    }
    if args.strict && (lost || missed > 0) {
        LOST
    } else {
        DONE
    }
}

/// A bundle: the host's block layer and that of each guest, or of the guest that was asked for.
pub fn of_bundle(args: &AnalyzeArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(args.input())?;
    let chosen = options(args);
    check_guest(args.input(), &chosen, &bundle.manifest)?;
    check_device(args.input(), &chosen, &bundle.manifest)?;
    check_from(args.input(), &chosen, &bundle.manifest)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    let machines = machines(args, &bundle)?;
    let mut reports = Vec::new();
    let mut files = Files::create(args)?;
    for machine in &machines {
        let heading = machine.heading();
        files.begin(if machines.len() > 1 {
            heading.as_str()
        } else {
            ""
        })?;
        let stream = match machine.guest {
            None => &mut bundle.host,
            Some((_, place)) => &mut bundle.guests[place].stream,
        };
        let events = Identified::new(TimeOrdered::new(stream.events()));
        reports.push((heading, machine.analyze(each(events), &mut files)?));
    }
    let told = machines.iter().zip(&reports);
    let told = told.map(|(machine, (_, blocks))| (machine.guest_name(), blocks.losses));
    let losses = losses(&bundle.manifest, told);
    // Machines that were not asked for are not shown, and belong to the recording.
    bundle.read_to_the_end();
    bundle.note_damage(&mut noted);
    reports.retain(|(_, blocks)| !blocks.devices.is_empty());
    if reports.is_empty() {
        return Err(nothing_recorded(args));
    }
    let several = reports.len() > 1;
    for (heading, blocks) in &reports {
        if several {
            print(heading)?;
        }
        print(&render(blocks))?;
    }
    let recorder = losses.iter().map(|loss| loss.events);
    let lost = recorder.fold(bundle.damaged_events(), u64::saturating_add);
    if lost > 0 {
        note(format_args!(
            "{} lost: nestrace analyze says where, and which numbers are too low",
            units::of(lost, "event", "events")
        ));
    }
    let is_cut = bundle.is_cut();
    if is_cut {
        note("the recording was not closed, or a file of it is cut: the last events are missing");
    }
    let lost = lost > 0 || is_cut || !bundle.unread.is_empty();
    Ok(code(args, lost, reports.iter().map(|(_, blocks)| blocks)))
}

/// Nothing is left to be shown.
fn nothing_recorded(args: &AnalyzeArgs) -> Failure {
    let (path, device) = (args.input().display(), args.device.as_ref());
    let of_device = device.map_or_else(String::new, |device| format!(" on {device}"));
    let then = match (args.from, args.to) {
        (None, None) => "",
        _ => " in that time",
    };
    Failure::new(
        INPUT,
        format!("{path}: no I/O was recorded{of_device}{then}"),
    )
}

/// The machines that are looked at, as far as they have the device that was asked for.
fn machines<'a>(args: &'a AnalyzeArgs, bundle: &Bundle) -> Result<Vec<Machine<'a>>, Failure> {
    let manifest = &bundle.manifest;
    let machine = |guest, topology: Topology, start_ns: u64| Machine {
        args,
        guest,
        device: args.device.as_ref().and_then(|it| number(it, &topology)),
        topology,
        start_ns: Some(start_ns).filter(|start_ns| *start_ns > 0),
    };
    let mut machines = Vec::new();
    if args.guest.is_none() {
        machines.push(machine(
            None,
            manifest.topology.clone(),
            manifest.start_mono_ns,
        ));
    }
    for (place, guest) in bundle.guests.iter().enumerate() {
        if let Some(side) = manifest.guest_sides.get(guest.side)
            && args
                .guest
                .as_ref()
                .is_none_or(|wanted| *wanted == side.guest)
        {
            let guest = Some((side.guest.clone(), place));
            machines.push(machine(guest, topology(side), side.start_mono_ns));
        }
    }
    let Some(wanted) = &args.device else {
        return Ok(machines);
    };
    let has_it = |machine: &Machine<'_>| machine.device.is_some();
    if machines.iter().any(has_it) {
        machines.retain(has_it);
        return Ok(machines);
    }
    let devices = machines
        .iter()
        .flat_map(|machine| &machine.topology.devices);
    let mut known: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
    known.dedup();
    let path = args.input().display();
    let message = format!("{path}: no device {wanted}: --format btt accepts kernel names only");
    let failure = Failure::new(INPUT, message);
    Err(match known[..] {
        [] => failure.hint("no device has a name in this recording: give its number, as MAJ:MIN"),
        _ => failure.hint(format!("the recording has: {}", known.join(", "))),
    })
}

/// A guest's disks as the host's devices are described.
fn topology(side: &GuestSide) -> Topology {
    let devices = side.disks.iter().map(|disk| Device {
        name: disk.name.clone(),
        dev: disk.dev,
        scheduler: disk.scheduler.clone(),
        ..Device::default()
    });
    Topology {
        devices: devices.collect(),
        ..Topology::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_comes_before_the_first_io_only_names_and_losses_are_kept() {
        let event = |kind: Kind, dev| Event {
            kind: kind as u8,
            dev,
            ..Event::default()
        };
        let events = [
            event(Kind::SyscallEnter, 7),
            event(Kind::Thread, 0),
            event(Kind::Queue, 8),
            event(Kind::AcctStart, 7),
            event(Kind::Loss, 0),
            event(Kind::Queue, 7),
            event(Kind::Issue, 7),
        ];
        let is_of_7 = |event: &Event| event.kind() == Some(Kind::Queue) && event.dev == 7;
        let mut rest = events.into_iter();
        let first = first_of(&mut rest, is_of_7);
        assert_eq!(first, [events[1], events[4], events[5]]);
        assert_eq!(rest.len(), 1);
    }
}
