//! `nestrace analyze --format btt`.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    thread,
};

use nestrace_analyzer::{BlockAnalyzer, BlockOptions, Identified, analysis::BlockAnalysis, units};
use nestrace_report::btt::{IoListing, IostatTable, render};
use nestrace_trace::{
    Event, Source, TimeOrdered,
    manifest::{Device, GuestSide, Topology},
};

use crate::{
    analyze::{check_from, check_names, nanoseconds},
    blktrace_files, bundle,
    capture_analysis::with_colon,
    cli::AnalyzeArgs,
    exit::{DONE, FAILURE, Failure, INPUT, LOST, USAGE, print, say},
    read_ahead::{ReadAhead, read_ahead},
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
    let file = File::create(path)
        .map_err(|error| Failure::new(FAILURE, format!("write {}: {error}", path.display())))?;
    Ok(BufWriter::with_capacity(1 << 16, file))
}

impl Files {
    fn create(args: &AnalyzeArgs) -> Result<Self, Failure> {
        let open = |path: &Option<PathBuf>| {
            let path = path.as_deref();
            path.map(|path| create(path, args.force)).transpose()
        };
        let mut iostat = open(&args.iostat)?;
        if let Some(iostat) = &mut iostat {
            iostat.write_all(IostatTable::header().as_bytes())?;
        }
        Ok(Self {
            per_io: open(&args.per_io)?,
            listing: IoListing::default(),
            iostat,
        })
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

/// One machine's events, from start to end.
struct Machine<'a> {
    args: &'a AnalyzeArgs,
    topology: Topology,
    /// Where `--from` and `--to` count from; the first event where it is not known.
    start_ns: Option<u64>,
}

impl Machine<'_> {
    /// The number of the device that was asked for.
    fn device(&self) -> Option<u32> {
        let wanted = with_colon(self.args.device.as_deref()?);
        let known = self.topology.devices.iter();
        let known = known.filter(|device| device.name == wanted);
        let number = || {
            let (major, minor) = wanted.split_once(':')?;
            Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
        };
        // A device that does not exist: no event is about it.
        known
            .map(|device| device.dev)
            .next()
            .or_else(number)
            .or(Some(u32::MAX))
    }

    /// Analyses events that another thread reads.
    fn analyze(
        &self,
        events: impl Iterator<Item = Event> + Send,
        files: &mut Files,
    ) -> Result<BlockAnalysis, Failure> {
        thread::scope(|scope| self.analyze_read(read_ahead(scope, events)?, files))
    }

    fn analyze_read(
        &self,
        mut events: ReadAhead,
        files: &mut Files,
    ) -> Result<BlockAnalysis, Failure> {
        let device = self.device();
        let block = |event: &Event| {
            event
                .kind()
                .is_some_and(|kind| kind.source() == Source::Block)
        };
        let wanted =
            |event: &Event| device.is_none_or(|device| event.dev == device || !block(event));
        let mut names = Vec::new();
        let first = loop {
            match events.next() {
                Some(name) if !block(&name) => names.push(name),
                Some(other) if !wanted(&other) => {}
                first => break first,
            }
        };
        let first_ns = first.map_or(0, |event| event.ts_ns);
        let start_ns = self.start_ns.unwrap_or(first_ns);
        let at = |seconds: Option<f64>| seconds.map(|s| start_ns.saturating_add(nanoseconds(s)));
        let mut analyzer = BlockAnalyzer::new(BlockOptions {
            topology: self.topology.clone(),
            from_ns: at(self.args.from),
            to_ns: at(self.args.to),
            list_ios: files.per_io.is_some(),
            interval_ns: files
                .iostat
                .as_ref()
                .map(|_| nanoseconds(self.args.interval)),
        });
        let names_and_first = names.iter().chain(&first);
        names_and_first.for_each(|event| analyzer.push(event));
        for batch in events.batches() {
            let batch = batch.iter().filter(|event| wanted(event));
            batch.for_each(|event| analyzer.push(event));
            files.drain(&mut analyzer, first_ns)?;
        }
        files.finish(&mut analyzer, first_ns)?;
        if analyzer.implausible() > 0 {
            say(format_args!(
                "note: {} with a size or place that nothing has: not used",
                units::of(analyzer.implausible(), "event", "events")
            ));
        }
        Ok(analyzer.finish())
    }
}

/// A capture of blktrace.
pub fn of_capture(args: &AnalyzeArgs) -> Result<u8, Failure> {
    let mut capture = blktrace_files::open(&args.input)?;
    let machine = Machine {
        args,
        topology: Topology::default(),
        start_ns: None,
    };
    let mut ordered = capture.events();
    let mut files = Files::create(args)?;
    let blocks = machine.analyze(Identified::new(ordered.by_ref()), &mut files)?;
    let late = ordered.late();
    if late > 0 {
        say(format_args!("note: {late} events are out of order"));
    }
    if blocks.devices.is_empty() {
        return Err(capture.no_events());
    }
    capture.say_damage();
    let lost = capture.capture.outline().lost;
    if lost > 0 {
        say(format_args!(
            "note: {lost} records are missing by their numbers"
        ));
    }
    print(&render(&blocks))?;
    Ok(code(args, lost))
}

fn code(args: &AnalyzeArgs, lost: u64) -> u8 {
    if args.strict && lost > 0 { LOST } else { DONE }
}

/// A bundle: the host's block layer and that of each guest, or of the guest that was asked for.
pub fn of_bundle(args: &AnalyzeArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    check_names(args, &bundle.manifest)?;
    check_from(args, &bundle.manifest)?;
    for diagnostic in &bundle.diagnostics {
        say(format_args!("note: {diagnostic}"));
    }
    let manifest = bundle.manifest.clone();
    let mut reports = Vec::new();
    let mut files = Files::create(args)?;
    if args.guest.is_none() {
        let machine = Machine {
            args,
            topology: manifest.topology.clone(),
            start_ns: Some(manifest.start_mono_ns).filter(|start_ns| *start_ns > 0),
        };
        let events = Identified::new(TimeOrdered::new(bundle.host.events()));
        let blocks = machine.analyze(events, &mut files)?;
        reports.push((String::from("host"), blocks));
    }
    for guest in &mut bundle.guests {
        let Some(side) = manifest.guest_sides.get(guest.side) else {
            continue;
        };
        if args
            .guest
            .as_ref()
            .is_some_and(|wanted| *wanted != side.guest)
        {
            continue;
        }
        let machine = Machine {
            args,
            topology: topology(side),
            start_ns: Some(side.start_mono_ns).filter(|start_ns| *start_ns > 0),
        };
        let events = Identified::new(TimeOrdered::new(guest.stream.events()));
        let blocks = machine.analyze(events, &mut files)?;
        reports.push((format!("guest {}", side.guest), blocks));
    }
    bundle.say_damage();
    reports.retain(|(_, blocks)| !blocks.devices.is_empty());
    if reports.is_empty() {
        let path = args.input.display();
        return Err(Failure::new(INPUT, format!("{path}: no I/O was recorded")));
    }
    let several = reports.len() > 1;
    for (title, blocks) in &reports {
        if several {
            print(&format!("######## {title} ########\n\n"))?;
        }
        print(&render(blocks))?;
    }
    let recorder = manifest.losses.iter().map(|loss| loss.events);
    let lost = recorder.fold(bundle.damaged_events(), u64::saturating_add);
    if lost > 0 {
        say(format_args!(
            "note: {} lost: nestrace analyze says where, and what is short of them",
            units::of(lost, "event", "events")
        ));
    }
    Ok(code(args, lost))
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
        guests: Vec::new(),
        devices: devices.collect(),
    }
}
