//! Files that blkparse and btt read: a host that refuses blktrace can then be traced for their users.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::BufWriter,
    path::{Path, PathBuf},
};

use nestrace_trace::{
    Event, Kind, Source, TimeOrdered,
    blktrace::{Records, Trace, Writer},
    redact,
};

use super::chosen::Chosen;
use crate::{
    bundle::{self, Bundle},
    cli::ExportArgs,
    exit::{DONE, FAILURE, Failure, INPUT, USAGE, say},
};

/// Processors of one machine; their files are open at once.
const MAX_CPUS: u32 = 4096;

/// The files of all processors.
struct Files<'a> {
    args: &'a ExportArgs,
    by_cpu: Vec<Writer<BufWriter<File>>>,
    /// Numbers that devices get, where they get new ones.
    numbers: BTreeMap<u32, u32>,
    n_records: u64,
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(FAILURE, format!("{}: {error}", path.display()))
}

impl Files<'_> {
    fn path(&self, cpu: usize) -> PathBuf {
        let mut name = self.args.output.clone().into_os_string();
        name.push(format!(".blktrace.{cpu}"));
        PathBuf::from(name)
    }

    /// The file of a processor. blkparse stops at the first one that is missing, so all before it are made.
    fn of(&mut self, cpu: usize) -> Result<&mut Writer<BufWriter<File>>, Failure> {
        while self.by_cpu.len() <= cpu {
            let path = self.path(self.by_cpu.len());
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .create_new(!self.args.force)
                .truncate(true)
                .open(&path);
            let file = match file {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    return Err(Failure::new(USAGE, format!("{} exists", path.display()))
                        .hint("choose another name with -o, or replace the files with --force"));
                }
                other => other.map_err(|error| failed(&path, error))?,
            };
            self.by_cpu.push(Writer::new(BufWriter::new(file)));
        }
        Ok(&mut self.by_cpu[cpu])
    }

    fn write(&mut self, mut trace: Trace) -> Result<(), Failure> {
        trace.device = self.number(trace.device);
        let cpu = trace.cpu.min(MAX_CPUS) as usize;
        self.n_records += 1;
        self.of(cpu)?.write(&trace)?;
        Ok(())
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

    fn finish(&mut self) -> Result<(), Failure> {
        for place in 0..self.by_cpu.len() {
            let path = self.path(place);
            self.by_cpu[place]
                .flush()
                .map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }
}

/// Writes the block events of the host, or of one guest.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    for diagnostic in &bundle.diagnostics {
        say(format_args!("note: {diagnostic}"));
    }
    let chosen = Chosen::of(args, &bundle)?;
    let mut files = Files {
        args,
        by_cpu: Vec::new(),
        numbers: BTreeMap::new(),
        n_records: 0,
    };
    let mut records = Records::default();
    know_names(
        &mut records,
        bundle::open(&args.input)?,
        &chosen,
        args.redact,
    );
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
    files.finish()?;
    bundle.say_damage();
    if written == 0 {
        let path = args.input.display();
        return Err(Failure::new(
            INPUT,
            format!("{path}: no single block events were recorded"),
        )
        .hint(
            "a light recording has whole requests only; one with --detail full can be exported",
        ));
    }
    for (device, number) in &files.numbers {
        let name = |dev: &u32| format!("{},{}", dev >> 20, dev & 0xf_ffff);
        let (is, was) = (name(number), name(device));
        say(format_args!("device {was} is {is} in the files"));
    }
    say(format_args!(
        "wrote {} records of {} processors",
        files.n_records,
        files.by_cpu.len()
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

/// Reads the names of all threads first.
fn know_names(records: &mut Records, mut bundle: Bundle, chosen: &Chosen, redacted: bool) {
    let mut know = |mut event: Event| {
        if event.kind() == Some(Kind::Thread) {
            if redacted {
                redact::event(&mut event);
            }
            records.know(&event);
        }
    };
    match chosen.guest {
        None => bundle.host.events().for_each(&mut know),
        Some(place) => bundle.guests[place].stream.events().for_each(&mut know),
    }
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
            Kind::Loss if event.sub == Source::Block as u8 && event.object > lost => {
                // The kernel says how many, not of which device.
                let number = files.number(last_device);
                let cpu = u32::from(event.cpu);
                let file = files.of(usize::from(event.cpu))?;
                file.lose(number, cpu, event.object - lost);
                lost = event.object;
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
