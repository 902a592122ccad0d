//! A recording from attaching the probes to closing the bundle.
//!
//! [`Recorder`] is driven from outside: the caller calls [`Recorder::tick`] some twenty times a second
//! and [`Recorder::finish`] once. It writes facts only and never waits for a guest.

mod carriers;
mod closing;
mod error;
mod flight_recorder;
mod guest_sides;
mod guest_state;
mod limits_and_jobs;
mod open_manifest;
mod privileges;
mod setup;
mod sink;
mod summary;
pub mod watch;

pub use error::RecordError;
pub use guest_sides::AgentStatus;
pub use privileges::RunningCommand;
pub use summary::{Counters, Summary};

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use nestrace_abi::{Kind, Source};
use nestrace_kernel::{
    facts::KernelFacts,
    layout::Layout,
    plan::{Detail, Wanted as PlanWanted, plan},
};
use nestrace_output::{address_secret::new_shift, bundle_dir::BundleDir};
use nestrace_probes::{
    ProbeError, clock,
    collect::{Collector, translate::translation},
    globals::Globals,
    load::Probes,
    refusal::with_causes,
};
use nestrace_trace::{Event, Manifest, manifest::Topology};

use crate::{
    agent::Asked,
    agent_address::Choice,
    flight::Flight,
    guest::program::ParsedProgram,
    qemu_probes,
    roles::{keeper::Keeper, launcher::Launcher},
    topology::image_file::FileIdentity,
};
use flight_recorder::Flying;
use guest_sides::GuestSides;
use guest_state::Guests;
use limits_and_jobs::LimitsAndJobs;
use open_manifest::OpenManifest;
use privileges::Helpers;
use setup::{manifest, wanted};
use sink::Sink;

/// A batch is closed at this age even if it is small, so that a crash costs no more.
const BATCH_AGE: Duration = Duration::from_millis(250);
/// How long a probe may take that was running when the gate was shut.
const LAST_PROBE: Duration = Duration::from_millis(10);
/// How long the last words of the guests' agents are waited for.
const LAST_WORDS: Duration = Duration::from_secs(4);
/// How often losses, guests and disks are looked at.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bundle's directory.
    pub output: PathBuf,
    /// Whether a bundle that is there may be replaced.
    pub force: bool,
    /// Level of detail.
    pub detail: Detail,
    /// Whether it is recorded when the threads that carry I/O have a processor.
    pub cpu: bool,
    /// Whether QEMU is probed.
    pub qemu: bool,
    /// A file of QEMU's debug symbols.
    pub qemu_debug: Option<Arc<File>>,
    /// The recording ends when its stream has this many bytes. A flight recorder has a bound of its own.
    pub max_bytes: Option<u64>,
    /// Nothing is written but the last seconds, when a condition holds. [`Self::output`] is not used then.
    pub flight: Option<Flight>,
    /// Bytes of one processor's ring; `None`: by the number of processors.
    pub ring_bytes: Option<u32>,
    /// Guests and devices, as found just before.
    pub topology: Topology,
    /// For each guest of the topology: when its process started, in clock ticks since boot.
    pub start_ticks: Vec<u64>,
    /// For each guest of the topology: what its QEMU had open then, if it is known.
    pub open_files: Vec<Option<BTreeSet<FileIdentity>>>,
    /// For each guest of the topology: what its program's tables say, if they were read. Others' QEMUs are not probed.
    pub programs: Vec<Option<ParsedProgram>>,
    /// Which agents are listened to.
    pub agent: Choice,
    /// Whether the agents are asked for names of files.
    pub paths: bool,
    /// The command that [`Recorder::launch`] starts, and its arguments; empty: none.
    pub command: Vec<String>,
}

/// Why a recording has to end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The stream has reached its size.
    MaxSize,
    /// The stream could not be written (the file system is full).
    DiskFull,
    /// No traced guest runs any more.
    GuestsGone,
    /// A flight recorder has written its last bundle, but for the end.
    Flown,
}

/// A running recording.
pub struct Recorder {
    probes: Probes,
    collector: Collector,
    sink: Sink,
    dir: BundleDir,
    manifest: OpenManifest,
    guests: Guests,
    limits_and_jobs: LimitsAndJobs,
    sides: GuestSides,
    flying: Option<Flying>,
    keeper: Arc<Keeper>,
    launcher: Arc<Launcher>,
    command: Option<String>,
    /// Whether the older bundle was dealt with.
    is_settled: bool,
    dropped: BTreeMap<Source, u64>,
    correction: clock::Correction,
    max_bytes: Option<u64>,
    next_batch_ns: u64,
    next_look_ns: u64,
}

impl Recorder {
    /// Loads and attaches everything, gives up privileges for good, and begins to record. When this returns, every source is
    /// live, no program can be started any more but by [`Self::launch`], and a bundle that is replaced is kept until then.
    ///
    /// # Errors
    /// [`RecordError`]; nothing is left behind then.
    pub fn start(
        options: Options,
        facts: &KernelFacts,
        layout: &Layout,
    ) -> Result<Self, RecordError> {
        if !facts.btf {
            return Err(ProbeError::NoBtf.into());
        }
        if !facts.may_trace() {
            return Err(ProbeError::NoPrivilege.into());
        }
        if !options.topology.guests.is_empty() && !facts.may_follow_processes() {
            return Err(ProbeError::OtherPidNamespace.into());
        }
        // They come to life while the probes are loaded.
        let helpers = Helpers::start(&options)?;
        let globals = Globals::resolve(layout, false);
        let wanted = wanted(&options);
        let mut probes = Probes::load(&globals, &wanted)?;
        let plan_wanted = PlanWanted {
            detail: options.detail,
            processes: !wanted.processes.is_empty(),
            mounts: false,
            cpu: options.cpu,
        };
        if options.cpu {
            let guests = options.topology.guests.iter();
            carriers::add(&mut probes, guests.map(|guest| guest.pid))?;
        }
        probes.attach(&plan(facts, layout, plan_wanted));
        if options.qemu && options.detail != Detail::Light {
            let guests = options.topology.guests.iter();
            let mut programs = options.programs.iter();
            for (guest, start_ticks) in guests.zip(&options.start_ticks) {
                let parsed = programs.next().and_then(Option::as_ref);
                let process = (guest.pid, *start_ticks);
                let debug = options.qemu_debug.as_deref();
                let name = &guest.name;
                let of_no_use =
                    qemu_probes::attach(&mut probes, facts, process, parsed, name, debug, &|_| {
                        true
                    });
                if let Some(error) = of_no_use {
                    return Err(RecordError::QemuDebug {
                        guest: guest.name.clone(),
                        error,
                    });
                }
            }
        }
        if probes.attached.is_empty() {
            let reason = probes
                .refused
                .first()
                .map(|probe| probe.reason.clone())
                .unwrap_or_default();
            return Err(ProbeError::NothingAttached(reason).into());
        }
        let translation = translation(layout, &globals.end_io);
        let collector = Collector::new(probes.rings_mut().len(), translation);
        let manifest = manifest(&options, &probes);
        let places = GuestSides::places(&options.agent, &options.topology);
        let (mut dir, stream, mut flying) = match &options.flight {
            Some(flight) => flight_recorder::begin(flight, options.force, places.0.len())?,
            None => {
                let (dir, stream) = BundleDir::create(&options.output, options.force, &manifest)?;
                (dir, stream, None)
            }
        };
        let shift = new_shift().map_err(RecordError::Secret)?;
        let older_bytes = dir.older_bytes();
        let later = flying.iter_mut().flat_map(Flying::later_dirs);
        let mut dirs: Vec<&mut BundleDir> = [&mut dir].into_iter().chain(later).collect();
        let (helpers, unlent) = helpers.begin(&mut dirs, &options, &places.0)?;
        let asked = Asked {
            detail: manifest.detail.clone(),
            paths: options.paths,
            rings: flying.as_ref().map(Flying::rings),
            cpu: options.cpu,
        };
        let kept = flying.as_ref().and_then(Flying::of_host);
        let mut recorder = Self {
            sides: GuestSides::start(
                (&places.0, places.1),
                &helpers.keeper,
                (dir.held(), older_bytes),
                &asked,
                options.max_bytes,
            ),
            guests: Guests::new(
                &options,
                helpers.watcher,
                helpers.reader,
                helpers.has_images,
            ),
            limits_and_jobs: LimitsAndJobs::new(&options.topology, helpers.asker),
            keeper: helpers.keeper,
            launcher: helpers.launcher,
            command: options.command.first().cloned(),
            is_settled: false,
            manifest: OpenManifest::new(manifest),
            probes,
            collector,
            sink: Sink::new(stream, shift, kept),
            flying,
            dir,
            dropped: BTreeMap::new(),
            correction: clock::Correction::watch(),
            max_bytes: options.max_bytes.filter(|_| options.flight.is_none()),
            next_batch_ns: 0,
            next_look_ns: 0,
        };
        if let Some(message) = unlent {
            recorder.manifest.notice("privileges", &message);
        }
        if globals.addresses_hidden {
            recorder.manifest.notice(
                "addresses_hidden",
                "the kernel hides its symbols (kptr_restrict), so direct I/O cannot be linked to its control block",
            );
        }
        // From here on what guests send is read.
        if let Err(error) = helpers.sandbox.enter_last() {
            let error = with_causes(&error);
            let message = format!("failed to {error}; going on with all privileges");
            recorder.manifest.notice("privileges", &message);
        }
        match recorder.go_live() {
            Ok(()) => Ok(recorder),
            Err(error) => {
                recorder.abandon();
                Err(error)
            }
        }
    }

    fn go_live(&mut self) -> Result<(), RecordError> {
        self.guests
            .read_image_maps(&mut self.dir, &mut self.manifest)?;
        self.sides.listen();
        self.sides.wait_live();
        let now_ns = clock::monotonic_ns();
        self.sides.take_news(&mut self.manifest, now_ns);
        self.probes.set_gate(true)?;
        let live_ns = clock::monotonic_ns();
        self.manifest.value.live_mono_ns = live_ns;
        self.sides.host_is_live(live_ns);
        if self.flying.is_some() {
            flight_recorder::watch(self, live_ns);
            return Ok(());
        }
        self.manifest.write(&mut self.dir)?;
        Ok(())
    }

    /// Ends a recording without a result, and removes its bundle. One that it was to replace before
    /// [`Self::launch`] has its name again.
    pub fn abandon(mut self) {
        // The agents' threads make files in the bundle as long as they run.
        self.end_guest_sides();
        // Where the launcher is gone the bundle stays, and can be read.
        let _ = self.launcher.discard();
    }

    /// What is attached and what was refused, for messages.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest.value
    }

    /// What is to be said to the user since the last call.
    pub fn news(&mut self) -> Vec<String> {
        let mut news = self.sides.news();
        news.extend(self.flying.iter_mut().flat_map(Flying::news));
        news
    }

    /// A flight recorder writes what it has kept, as when its condition holds.
    pub fn write_flight(&mut self) {
        self.flying.iter_mut().for_each(Flying::ask);
    }

    /// Every guest's agent.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentStatus> {
        self.sides.status()
    }

    /// Drains the rings and does what is due. Returns why the recording has to end, if it has to.
    pub fn tick(&mut self) -> Option<End> {
        let now_ns = self.drain();
        if self.correction.look() {
            self.note_clock_correction();
            self.manifest.changed = true;
        }
        self.sides.take_news(&mut self.manifest, now_ns);
        let mut end = None;
        if now_ns >= self.next_look_ns {
            self.next_look_ns = now_ns + nanoseconds(LOOK_AROUND);
            self.note_losses();
            if self.flying.is_none() {
                self.sides.limit(&self.dir, self.max_bytes);
            }
            flight_recorder::look(self, now_ns);
            end = self.guests.look(&mut self.manifest);
            self.limits_and_jobs.look(&mut self.manifest);
        }
        self.guests
            .identify_backends(&mut self.sink, &mut self.manifest);
        self.guests
            .note_machine_states(&mut self.sink, &mut self.manifest);
        if self.flying.is_some() {
            end = flight_recorder::tick(self, now_ns).or(end);
        } else if self.sink.failed.is_none() {
            // A full disk must not end the recording before its stream does: the next tick tries again.
            self.manifest.write_changes(&mut self.dir);
        }
        if self.sink.failed.is_some() {
            return Some(End::DiskFull);
        }
        let full = self
            .max_bytes
            .is_some_and(|max| self.counters().bytes >= max);
        if full { Some(End::MaxSize) } else { end }
    }

    /// Takes what the rings hold and closes the batch if it is old enough; the time now.
    fn drain(&mut self) -> u64 {
        let now_ns = clock::monotonic_ns();
        let sink = &mut self.sink;
        sink.now_ns = now_ns;
        self.collector
            .drain(self.probes.rings_mut(), now_ns, |event| sink.take(&event));
        if now_ns >= self.next_batch_ns {
            self.next_batch_ns = now_ns + nanoseconds(BATCH_AGE);
            self.flush();
        }
        now_ns
    }

    fn flush(&mut self) {
        if let Err(error) = self.sink.stream.flush_batch() {
            self.sink.failed.get_or_insert(error);
        }
    }

    /// Totals so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let (guest_events, guest_bytes, guest_lost) = self.sides.totals();
        let dropped = self.dropped.iter();
        // Parts of a call that were not walked are no events.
        let events = dropped.filter(|(source, _)| **source != Source::Walk);
        let lost = events.map(|(_, lost)| lost).sum::<u64>() + self.sink.stream.rows_lost();
        let written = self.sink.stream.written().stream_bytes;
        let written = written.saturating_add(guest_bytes);
        Counters {
            events: self.sink.events,
            ios: self.sink.ios,
            lost: lost.saturating_add(guest_lost),
            bytes: self.flying.as_ref().map_or(written, Flying::bytes),
            guest_events,
            agents: self.sides.n_live(),
        }
    }

    /// Reads the kernel's loss counters; each change becomes an event, so that even a recording that
    /// was cut off knows what it lost. A counter that cannot be read is no reason to stop.
    fn note_losses(&mut self) {
        for source in Source::ALL {
            let Ok(total) = self.probes.lost(*source) else {
                let mut notices = self.manifest.value.notices.iter();
                if !notices.any(|notice| notice.what == "losses_unknown") {
                    self.manifest.notice(
                        "losses_unknown",
                        "the kernel's loss counters cannot be read",
                    );
                }
                return;
            };
            let before = self.dropped.insert(*source, total).unwrap_or(0);
            if total > before {
                self.sink.take(&Event {
                    ts_ns: clock::monotonic_ns(),
                    kind: Kind::Loss as u8,
                    sub: *source as u8,
                    object: total,
                    ..Event::default()
                });
            }
        }
    }

    /// Notes how far NTP has bent the clock.
    fn note_clock_correction(&mut self) {
        self.manifest.value.host_clock_correction_ppm = self.correction.most_ppm();
    }

    /// Lets the agents end while the host's side still records: each of their requests has its host's
    /// side then.
    fn end_guest_sides(&mut self) {
        self.sides.stop();
        let deadline_ns = clock::monotonic_ns() + nanoseconds(LAST_WORDS);
        while !self.sides.have_ended() && clock::monotonic_ns() < deadline_ns {
            self.drain();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
