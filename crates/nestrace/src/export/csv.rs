//! Tables (RFC 4180): one of requests, and where something was recorded inside a guest one of chains and one of calls.
//!
//! `docs/export.md` says what the columns hold.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    rc::Rc,
};

use nestrace_analyzer::analysis::{CallStory, Story};
use nestrace_analyzer::analysis::{StoryLayer, UnlinkedReason};
use nestrace_analyzer::{Identified, SEGMENT_NAMES, units::of};
use nestrace_trace::{Event, Kind, Manifest, TimeOrdered, device_number, flags, redact};

use super::{
    chosen::{device_name, devices_of},
    new_file::{NewFile, with_ending},
    requests::{Requests, Step},
    selection::Selection,
    stories,
};
use crate::{
    bundle::{self, Bundle},
    cli::ExportArgs,
    exit::{DONE, FAILURE, Failure, INPUT, note, noted, say},
};

mod calls;
mod table;

use table::Table;

/// Names of threads that are remembered; a guest can make up more.
const MAX_THREADS: usize = 1 << 17;

/// Columns of the requests.
const REQUESTS: [&str; 17] = [
    "side",
    "guest",
    "device",
    "dev",
    "op",
    "flags",
    "offset_bytes",
    "bytes",
    "moved_bytes",
    "issued_ns",
    "completed_ns",
    "d2c_ns",
    "bios",
    "requeues",
    "failed",
    "tid",
    "process",
];

/// Columns of the chains before those of the segments.
const CHAINS: [&str; 17] = [
    "guest",
    "disk",
    "guest_device",
    "io",
    "op",
    "offset_bytes",
    "bytes",
    "at_ns",
    "clock_bound_ns",
    "q2c_ns",
    "unlinked",
    "ambiguous",
    "guest_requests",
    "qemu_requests",
    "file_ios",
    "host_bios",
    "host_requests",
];

/// Writes `OUT.requests.csv` and, where something was recorded inside a guest, `OUT.chains.csv` and `OUT.calls.csv`.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    let selection = Rc::new(Selection::of(args, &mut bundle.manifest)?);
    let manifest = bundle.manifest.clone();
    let nested = bundle.guests.iter().any(|guest| {
        let side = manifest.guest_sides.get(guest.side);
        side.is_some_and(|side| selection.takes_any_of(&side.guest))
    });
    let mut requests = RequestTable {
        table: create(args, "requests", REQUESTS.to_vec())?,
        selection: &selection,
        redacted: args.redact,
    };
    let told = nested.then(|| Told::create(args, &selection)).transpose()?;
    requests.of_bundle(&mut bundle)?;
    bundle.note_damage(&mut noted);
    let requests = requests.table;
    if requests.rows() == 0 {
        let path = args.input.display();
        return Err(
            Failure::new(INPUT, format!("{path}: no requests were recorded"))
                .hint("nestrace analyze lists the recorded devices; choose one with --device"),
        );
    }
    let told = told.map(|told| told.tell(args, manifest)).transpose()?;
    let mut written = Vec::new();
    for table in std::iter::once(requests).chain(told.into_iter().flatten()) {
        let (rows, path) = (table.rows(), table.path().to_owned());
        table.finish()?;
        say(format_args!(
            "{}: {}",
            path.display(),
            of(rows, "row", "rows")
        ));
        written.push(path);
    }
    if args.force {
        // Those of an earlier recording would be taken for this one's.
        for old in ["chains", "calls"].map(|what| place(args, what)) {
            if !written.contains(&old) {
                remove(&old)?;
            }
        }
    }
    Ok(DONE)
}

/// `OUT.csv` and `OUT` mean the same.
fn place(args: &ExportArgs, what: &str) -> PathBuf {
    let base = match args.output.extension() {
        Some(ending) if ending == "csv" => args.output.with_extension(""),
        _ => args.output.clone(),
    };
    with_ending(&base, &format!(".{what}.csv"))
}

fn create(args: &ExportArgs, what: &str, columns: Vec<&str>) -> Result<Table, Failure> {
    let file = NewFile::create(&place(args, what), args.force)?;
    Table::create(file, columns)
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::new(
            FAILURE,
            format!("remove {}: {error}", path.display()),
        )),
        _ => Ok(()),
    }
}

/// The requests of the host and of the guests.
struct RequestTable<'a> {
    table: Table,
    selection: &'a Selection,
    redacted: bool,
}

/// One machine's devices.
struct Machine<'a> {
    guest: Option<&'a str>,
    devices: Vec<(String, u32)>,
    /// Times count from here, on the machine's own clock.
    start_ns: u64,
}

impl RequestTable<'_> {
    fn of_bundle(&mut self, bundle: &mut Bundle) -> Result<(), Failure> {
        let manifest = &bundle.manifest;
        let host = Machine {
            guest: None,
            devices: devices_of(manifest, None),
            start_ns: manifest.start_mono_ns,
        };
        let events = Identified::new(TimeOrdered::new(bundle.host.events()));
        self.of_machine(&host, Requests::of_host(manifest), events)?;
        for guest in &mut bundle.guests {
            let Some(side) = manifest.guest_sides.get(guest.side) else {
                continue;
            };
            let machine = Machine {
                guest: Some(&side.guest),
                devices: devices_of(manifest, Some(side)),
                start_ns: side.start_mono_ns,
            };
            let events = Identified::new(TimeOrdered::new(guest.stream.events()));
            self.of_machine(&machine, Requests::of_guest(), events)?;
        }
        Ok(())
    }

    fn of_machine(
        &mut self,
        machine: &Machine<'_>,
        mut requests: Requests,
        events: impl Iterator<Item = Event>,
    ) -> Result<(), Failure> {
        let mut threads = HashMap::new();
        let mut steps = Vec::new();
        for mut event in events {
            if event.kind() == Some(Kind::Thread) {
                if self.redacted {
                    redact::event(&mut event);
                }
                if threads.len() >= MAX_THREADS {
                    threads.clear();
                }
                threads.insert(event.tid, event.thread_name());
            }
            requests.push(&event, |step| steps.push(step));
            for step in steps.drain(..) {
                self.row(machine, &threads, &step)?;
            }
        }
        requests.finish(|step| steps.push(step));
        steps
            .iter()
            .try_for_each(|step| self.row(machine, &threads, step))
    }

    fn row(
        &mut self,
        machine: &Machine<'_>,
        threads: &HashMap<u32, String>,
        step: &Step,
    ) -> Result<(), Failure> {
        let (Step::Ended(request) | Step::Whole(request)) = step else {
            return Ok(());
        };
        let name = device_name(&machine.devices, request.dev);
        let wanted = match machine.guest {
            None => self.selection.takes_host(&name, request.dev),
            Some(guest) => self.selection.takes_guest(guest, &name, request.dev),
        };
        if !wanted {
            return Ok(());
        }
        let table = &mut self.table;
        table.text(if machine.guest.is_some() {
            "guest"
        } else {
            "host"
        });
        table.text(machine.guest.unwrap_or_default());
        table.text(&name);
        table.text(&device_number::text(request.dev));
        table.text(request.op.name());
        table.text(&flag_names(request.flags));
        table.known(request.place());
        table.number(request.bytes);
        table.number(request.moved);
        // Signed: a request of before the start can end after it.
        let since = |ns: u64| i128::from(ns) - i128::from(machine.start_ns);
        table.known(request.issued_ns.map(since));
        table.known(request.completed_ns.map(since));
        table.known(request.d2c_ns());
        table.known(Some(request.bios).filter(|bios| *bios > 0));
        table.number(request.requeues);
        table.number(u8::from(request.failed));
        table.known(Some(request.tid).filter(|tid| *tid > 0));
        table.text(threads.get(&request.tid).map_or("", String::as_str));
        table.end()
    }
}

/// `sync|meta`.
fn flag_names(bits: u32) -> String {
    let known = [
        (flags::SYNC, "sync"),
        (flags::META, "meta"),
        (flags::FUA, "fua"),
        (flags::PREFLUSH, "preflush"),
        (flags::RAHEAD, "readahead"),
        (flags::BACKGROUND, "background"),
        (flags::PRIO, "prio"),
    ];
    let set = known.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("|")
}

/// The tables that the chains and the calls are written to, one by one.
struct Told {
    chains: Table,
    calls: Table,
    selection: Rc<Selection>,
    failed: Option<Failure>,
}

impl Told {
    fn create(args: &ExportArgs, selection: &Rc<Selection>) -> Result<Self, Failure> {
        let segments = SEGMENT_NAMES.map(|name| format!("{name}_ns"));
        let segments = segments.iter().map(String::as_str);
        let of_calls = calls::columns();
        Ok(Self {
            chains: create(args, "chains", CHAINS.into_iter().chain(segments).collect())?,
            calls: create(args, "calls", of_calls.iter().map(String::as_str).collect())?,
            selection: Rc::clone(selection),
            failed: None,
        })
    }

    /// Writes a row for each bio and each call of a guest. Where no calls were recorded there is no table of them.
    fn tell(self, args: &ExportArgs, manifest: Manifest) -> Result<Vec<Table>, Failure> {
        let mut bundle = bundle::open(&args.input)?;
        bundle.manifest = manifest;
        let told = Rc::new(RefCell::new(Some(self)));
        let (of_chains, of_calls) = (Rc::clone(&told), Rc::clone(&told));
        let analysis = stories::each(
            &mut bundle,
            args.redact,
            move |story| Self::take(&of_chains, |told| told.chain(&story)),
            move |call| Self::take(&of_calls, |told| told.call(&call)),
        );
        let written = told.borrow_mut().take();
        match written {
            Some(Self {
                failed: Some(failure),
                ..
            }) => Err(failure),
            Some(told) => {
                let calls = analysis.calls.is_some().then_some(told.calls);
                Ok(std::iter::once(told.chains).chain(calls).collect())
            }
            None => Err(Failure::new(FAILURE, "the chains were given twice")),
        }
    }

    /// Adds a row, unless an earlier one failed.
    fn take(told: &RefCell<Option<Self>>, row: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        let mut told = told.borrow_mut();
        if let Some(told) = told.as_mut().filter(|told| told.failed.is_none()) {
            told.failed = row(told).err();
        }
    }

    fn call(&mut self, call: &CallStory) -> Result<(), Failure> {
        match self.selection.takes_call(call) {
            true => calls::row(&mut self.calls, call),
            false => Ok(()),
        }
    }

    fn chain(&mut self, story: &Story) -> Result<(), Failure> {
        if !self.selection.takes_story(story) {
            return Ok(());
        }
        let (table, tree) = (&mut self.chains, &story.tree);
        table.text(&story.guest);
        table.text(&story.disk);
        table.text(&story.guest_device);
        table.number(story.io);
        table.text(tree.what.name());
        table.number(tree.offset);
        table.number(tree.bytes);
        table.known(story.at_ns);
        let linked = story.unlinked.is_none();
        table.known(linked.then_some(story.clock_bound_ns));
        table.number(story.q2c_ns);
        table.text(story.unlinked.map_or("", UnlinkedReason::name));
        table.number(u8::from(story.ambiguous));
        for layer in [
            StoryLayer::GuestRequest,
            StoryLayer::Qemu,
            StoryLayer::FileIo,
            StoryLayer::HostBio,
            StoryLayer::HostRequest,
        ] {
            table.number(stories::count(tree, layer));
        }
        for name in SEGMENT_NAMES {
            let of_story = story.segments.iter().find(|segment| segment.name == name);
            table.known(linked.then(|| of_story.map_or(0, |segment| segment.ns)));
        }
        table.end()
    }
}
