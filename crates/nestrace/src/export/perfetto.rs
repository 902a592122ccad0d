//! A trace for Perfetto's UI (<https://ui.perfetto.dev>): what happened when, layer by layer.
//!
//! Perfetto's own format (`TracePacket`, protocol buffers) and not Chrome's JSON: JSON's arrows bind to slices
//! of threads only, which must not overlap, so every row of a track would have to pose as a thread; its times are
//! floating-point microseconds; and it is several times as large.
//!
//! Two passes: the chains of guests and the calls of their programs, then the requests of the host's devices, whoever's
//! they are. Memory is
//! what the analysis needs and a bounded number of slices that wait for their place in time.

mod calls;
mod chains;
mod depth;
mod message;
mod packets;
mod tracks;
mod waiting;

use std::{cell::RefCell, rc::Rc};

use nestrace_analyzer::analysis::{CallStory, Story};
use nestrace_analyzer::{Identified, units::of};
use nestrace_trace::{Event, Manifest, TimeOrdered};

use super::{
    chosen::{device_name, devices_of},
    new_file::NewFile,
    requests::{Request, Requests, Step},
    selection::Selection,
    stories,
};
use crate::{
    bundle::{self, Bundle},
    cli::ExportArgs,
    exit::{DONE, FAILURE, Failure, INPUT, note, noted, say},
};
use calls::Calls;
use chains::{Chains, Clocks, title};
use depth::Depths;
use packets::{Note, Packets, Slice};
use tracks::{Place, Tracks};
use waiting::{Identity, Waiting};

/// Writes the trace.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    let selection = Rc::new(Selection::of(args, &mut bundle.manifest)?);
    let manifest = bundle.manifest.clone();
    let file = NewFile::create(&args.output, args.force)?;
    let drawing = Drawing {
        packets: Packets::create(file, manifest.start_mono_ns, manifest.start_unix_ns)?,
        tracks: Tracks::default(),
        waiting: Waiting::default(),
        depths: Depths::default(),
        clocks: Clocks::new(manifest.clone()),
        chains: Chains::default(),
        calls: Calls::new(),
        selection,
        n_requests: 0,
    };
    let mut drawing = match bundle.guests.is_empty() {
        true => drawing,
        false => drawing.tell(&mut bundle, args.redact)?,
    };
    let mut again = bundle::open(&args.input)?;
    drawing.requests(&manifest, &mut again)?;
    again.note_damage(&mut noted);
    drawing.finish(args)
}

/// The trace that is being written.
struct Drawing {
    packets: Packets,
    tracks: Tracks,
    waiting: Waiting,
    depths: Depths,
    clocks: Clocks,
    chains: Chains,
    calls: Calls,
    selection: Rc<Selection>,
    n_requests: u64,
}

/// A drawing that the listeners of chains and calls have a part in.
struct Told {
    drawing: Drawing,
    failed: Option<Failure>,
}

impl Drawing {
    /// Draws every chain and every call.
    fn tell(self, bundle: &mut Bundle, redacted: bool) -> Result<Self, Failure> {
        let told = Rc::new(RefCell::new(Some(Told {
            drawing: self,
            failed: None,
        })));
        let (of_chains, of_calls) = (Rc::clone(&told), Rc::clone(&told));
        let draw = |told: &RefCell<Option<Told>>,
                    one: &dyn Fn(&mut Self) -> Result<(), Failure>| {
            if let Some(told) = told.borrow_mut().as_mut()
                && told.failed.is_none()
            {
                told.failed = one(&mut told.drawing).err();
            }
        };
        stories::each(
            bundle,
            redacted,
            move |story| draw(&of_chains, &|drawing| drawing.chain(&story)),
            move |call| draw(&of_calls, &|drawing| drawing.call(&call)),
        );
        let told = told.borrow_mut().take();
        match told {
            Some(Told {
                failed: Some(failure),
                ..
            }) => Err(failure),
            Some(told) => Ok(told.drawing),
            None => Err(Failure::new(FAILURE, "the chains were given twice")),
        }
    }

    fn chain(&mut self, story: &Story) -> Result<(), Failure> {
        if self.selection.takes_story(story) {
            let Self {
                chains,
                clocks,
                waiting,
                depths,
                ..
            } = self;
            chains.add(story, clocks, waiting, depths);
            self.draw(false)?;
        }
        Ok(())
    }

    fn call(&mut self, call: &CallStory) -> Result<(), Failure> {
        if self.selection.takes_call(call) {
            let Self {
                calls,
                clocks,
                waiting,
                ..
            } = self;
            calls.add(call, clocks, waiting);
            self.draw(false)?;
        }
        Ok(())
    }

    /// Draws the requests of the host's devices.
    fn requests(&mut self, manifest: &Manifest, bundle: &mut Bundle) -> Result<(), Failure> {
        self.draw(true)?;
        let devices = devices_of(manifest, None);
        let mut requests = Requests::of_host(manifest);
        let mut steps = Vec::new();
        for event in Identified::new(TimeOrdered::new(bundle.host.events())) {
            let event: Event = event;
            requests.push(&event, |step| steps.push(step));
            for step in steps.drain(..) {
                if let Step::Ended(request) | Step::Whole(request) = step {
                    self.request(&devices, &request)?;
                }
            }
        }
        // What has no end has no length to be drawn.
        self.draw(true)
    }

    fn request(&mut self, devices: &[(String, u32)], request: &Request) -> Result<(), Failure> {
        let name = device_name(devices, request.dev);
        let (Some(start_ns), Some(end_ns)) = (request.issued_ns, request.completed_ns) else {
            return Ok(());
        };
        if !self.selection.takes_host(&name, request.dev) {
            return Ok(());
        }
        let place = |what: &str, rank| Place {
            group: format!("host {name}"),
            name: what.to_owned(),
            rank,
        };
        self.n_requests += 1;
        self.depths.add(place("queue depth", 0), start_ns, end_ns);
        let mut notes = vec![(2, Note::Number(request.bytes))];
        // What lies nowhere has no notes of a place: 0 would be one.
        if let Some(offset) = request.place() {
            notes.push((1, Note::Number(offset)));
            notes.push((3, Note::Number(offset / 512)));
        }
        if request.requeues > 0 {
            notes.push((8, Note::Number(u64::from(request.requeues))));
        }
        let slice = Slice {
            start_ns,
            end_ns,
            name: title(request.op.name(), request.offset, request.bytes),
            notes,
            ..Slice::default()
        };
        let identity = Identity {
            place: place("requests", 1),
            ts_ns: start_ns,
            lasted_ns: end_ns.saturating_sub(start_ns),
            offset: request.offset,
            bytes: request.bytes,
        };
        self.waiting.add(identity, slice);
        self.draw(false)
    }

    fn draw(&mut self, all: bool) -> Result<(), Failure> {
        while let Some((place, slice)) = self.waiting.next(all) {
            self.tracks.draw(&mut self.packets, &place, &slice)?;
        }
        while let Some((place, slice)) = self.calls.waiting.next(all) {
            self.tracks.draw(&mut self.packets, &place, &slice)?;
        }
        self.depths.write(&mut self.packets, &mut self.tracks, all)
    }

    fn finish(self, args: &ExportArgs) -> Result<u8, Failure> {
        if self.chains.n + self.calls.n + self.n_requests == 0 {
            let path = args.input.display();
            let failure = Failure::new(INPUT, format!("{path}: no requests were recorded"));
            return Err(failure
                .hint("nestrace analyze lists the recorded devices; choose one with --device"));
        }
        if self.tracks.left_out > 0 {
            let n = self.tracks.left_out;
            note(format_args!("{n} slices were left out: too many at once"));
        }
        self.packets.finish()?;
        let output = args.output.display();
        say(format_args!(
            "{output}: {} of guests, {} of their programs, {} of the host's devices",
            of(self.chains.n, "bio", "bios"),
            of(self.calls.n, "call", "calls"),
            of(self.n_requests, "request", "requests")
        ));
        say("next: open it at https://ui.perfetto.dev (the file stays on your machine)");
        Ok(DONE)
    }
}
