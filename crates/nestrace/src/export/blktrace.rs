//! Files that blkparse and btt read: a host that refuses blktrace can then be traced for their users.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs, io,
    path::{Path, PathBuf},
};

use nestrace_analyzer::units;
use nestrace_blktrace::{Records, Trace, Writer};
use nestrace_trace::{Event, Kind, Source, TimeOrdered, redact};

use super::{
    chosen::Chosen,
    new_file::{NewFile, WholeFile, with_ending},
};
use crate::{
    bundle::{self, Bundle},
    capture::by_processor,
    cli::ExportArgs,
    exit::{DONE, FAILURE, Failure, INPUT, USAGE, note, noted, say},
    open_files,
};

/// Processors of one machine; each up to the last one has a file.
const MAX_CPUS: u16 = 4096;
/// Bytes that wait in all files together before they are written, and in one.
const ALL_BUFFERS: usize = 64 << 20;
const LEAST_BUFFER: usize = 8 << 10;
const MAX_BUFFER: usize = 256 << 10;

/// The files of all processors.
struct Files<'a> {
    args: &'a ExportArgs,
    /// Of those that have a record: a guest may be on any processor.
    by_cpu: BTreeMap<u32, Writer<NewFile>>,
    /// Numbers that devices get, where they get new ones.
    numbers: BTreeMap<u32, u32>,
    n_records: u64,
    /// Bytes of each file's.
    buffer: usize,
}

impl<'a> Files<'a> {
    /// Fails where a file of any processor is there: blkparse, btt and nestrace read all of a name as one capture.
    fn begin(args: &'a ExportArgs) -> Result<Self, Failure> {
        if !args.force
            && let Some((_, path)) = by_processor(&args.output)?.first()
        {
            return Err(Failure::new(USAGE, format!("{} exists", path.display()))
                .hint("choose another name with -o, or replace the files with --force"));
        }
        Ok(Self {
            args,
            by_cpu: BTreeMap::new(),
            numbers: BTreeMap::new(),
            n_records: 0,
            buffer: MAX_BUFFER,
        })
    }

    /// So many will be open at once.
    fn expect(&mut self, n: usize) -> Result<(), Failure> {
        self.buffer = (ALL_BUFFERS / n.max(1)).clamp(LEAST_BUFFER, MAX_BUFFER);
        Ok(open_files::allow(n)?)
    }

    fn of(&mut self, cpu: u32) -> Result<&mut Writer<NewFile>, Failure> {
        Ok(match self.by_cpu.entry(cpu) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Writer::new(create(self.args, cpu, self.buffer)?)),
        })
    }

    fn write(&mut self, mut trace: Trace) -> Result<(), Failure> {
        trace.device = self.number(trace.device);
        self.n_records += 1;
        let written = self.of(trace.cpu)?.write(&trace);
        written.map_err(|error| failed("write", &path(self.args, trace.cpu), &error))
    }

    /// The number that a device has in the files.
    fn number(&mut self, device: u32) -> u32 {
        if !self.args.for_btt {
            return device;
        }
        let next = self.numbers.len() as u32;
        // sda, sdb, …: sixteen minor numbers each.
        *self
            .numbers
            .entry(device)
            .or_insert(8 << 20 | ((next * 16) & 0xf_ffff))
    }

    /// The files appear when all are on the disk; how many they are. blkparse stops at the first one that is missing,
    /// so that each processor up to the last gets one, and what an export of more processors left behind would be read
    /// as a part of this one.
    fn finish(&mut self) -> Result<u32, Failure> {
        let n_files = self.by_cpu.last_key_value().map_or(0, |(cpu, _)| cpu + 1);
        let mut whole = Vec::new();
        for cpu in 0..n_files {
            let file = match self.by_cpu.remove(&cpu) {
                Some(writer) => writer.into_inner(),
                None => create(self.args, cpu, LEAST_BUFFER)?,
            };
            whole.push(file.close()?);
        }
        whole.into_iter().try_for_each(WholeFile::appear)?;
        let mut others = by_processor(&self.args.output)?;
        others.retain(|(cpu, _)| *cpu >= n_files);
        for (_, path) in &others {
            fs::remove_file(path).map_err(|error| failed("remove", path, &error))?;
        }
        if let [(_, first), ..] = &others[..] {
            let n = units::of(others.len() as u64, "file", "files");
            say(format_args!(
                "removed {n} of another capture, from {} on",
                first.display()
            ));
        }
        Ok(n_files)
    }
}

fn failed(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(FAILURE, format!("{action} {}: {error}", path.display()))
}

fn path(args: &ExportArgs, cpu: u32) -> PathBuf {
    with_ending(&args.output, &format!(".blktrace.{cpu}"))
}

fn create(args: &ExportArgs, cpu: u32, buffer: usize) -> Result<NewFile, Failure> {
    NewFile::with_buffer(&path(args, cpu), args.force, buffer)
}

/// Writes the block events of the host, or of one guest.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    let chosen = Chosen::of(args, &bundle)?;
    let mut files = Files::begin(args)?;
    let mut records = Records::default();
    let again = bundle::open(&args.input)?;
    let n_cpus = look_ahead(&mut records, again, &chosen, args)?;
    files.expect(n_cpus)?;
    let written = match chosen.guest {
        None => {
            let events = TimeOrdered::new(bundle.host.events());
            write(events, records, &chosen, &mut files)
        }
        Some(place) => {
            let events = TimeOrdered::new(bundle.guests[place].stream.events());
            write(events, records, &chosen, &mut files)
        }
    }?;
    bundle.note_damage(&mut noted);
    if written == 0 {
        let path = args.input.display();
        return Err(Failure::new(
            INPUT,
            format!("{path}: no single block events were recorded"),
        )
        .hint(
            "a light recording holds only completed requests; record with --detail full to export",
        ));
    }
    let n_files = files.finish()?;
    for (device, number) in &files.numbers {
        let name = |dev: &u32| format!("{},{}", dev >> 20, dev & 0xf_ffff);
        let (is, was) = (name(number), name(device));
        say(format_args!("device {was} is {is} in the files"));
    }
    say(format_args!(
        "wrote {} records of {n_files} processors",
        files.n_records
    ));
    let base = args.output.display();
    say(format_args!(
        "next: blkparse -i {base} -d {base}.bin -O && btt -i {base}.bin"
    ));
    Ok(DONE)
}

fn takes(chosen: &Chosen, event: &Event, kind: Kind) -> bool {
    kind.source() != Source::Block || chosen.takes(event.dev)
}

/// Reads the names of all threads first, and the numbers of processors: what a guest says of its own may be anything.
/// How many processors there are.
fn look_ahead(
    records: &mut Records,
    mut bundle: Bundle,
    chosen: &Chosen,
    args: &ExportArgs,
) -> Result<usize, Failure> {
    let mut cpus = BTreeSet::new();
    let mut look = |mut event: Event| {
        let Some(kind) = event.kind().filter(|kind| takes(chosen, &event, *kind)) else {
            return;
        };
        if matches!(kind.source(), Source::Block | Source::Meta) {
            cpus.insert(event.cpu);
        }
        if kind == Kind::Thread {
            if args.redact {
                redact::event(&mut event);
            }
            records.know(&event);
        }
    };
    match chosen.guest {
        None => bundle.host.events().for_each(&mut look),
        Some(place) => bundle.guests[place].stream.events().for_each(&mut look),
    }
    let last_cpu = cpus.last().copied().unwrap_or(0);
    if last_cpu < MAX_CPUS {
        return Ok(cpus.len());
    }
    let path = args.input.display();
    let message = format!("{path}: an event names processor {last_cpu}, more than any machine has");
    Err(Failure::new(INPUT, message)
        .hint("use --format csv or parquet: they do not write a file per processor"))
}

/// Writes the records of these events; how many events had one.
fn write(
    events: impl Iterator<Item = Event>,
    mut records: Records,
    chosen: &Chosen,
    files: &mut Files<'_>,
) -> Result<u64, Failure> {
    let (mut n_events, mut lost, mut last_device) = (0, 0, 0);
    let mut traces = Vec::new();
    for mut event in events {
        let Some(kind) = event.kind().filter(|kind| takes(chosen, &event, *kind)) else {
            continue;
        };
        match kind {
            Kind::Thread if files.args.redact => redact::event(&mut event),
            Kind::Loss if event.sub == Source::Block as u8 && event.lost_so_far() > lost => {
                // The kernel counts lost events, but does not name their device.
                let number = files.number(last_device);
                let cpu = u32::from(event.cpu);
                files.of(cpu)?.lose(number, cpu, event.lost_so_far() - lost);
                lost = event.lost_so_far();
            }
            _ => {}
        }
        if kind.source() == Source::Block {
            last_device = event.dev;
        }
        records.push(&event, |trace| traces.push(trace));
        if n_events == 0 && !traces.is_empty() && chosen.start_unix_ns > 0 {
            let (mono_ns, unix_ns) = (chosen.start_mono_ns, chosen.start_unix_ns);
            files.write(Records::wall_clock(mono_ns, unix_ns, event.dev))?;
        }
        n_events += u64::from(kind.source() == Source::Block && !traces.is_empty());
        for trace in traces.drain(..) {
            files.write(trace)?;
        }
    }
    Ok(n_events)
}
