//! The single pass: each event goes to the layer that it is about.

mod loss;
mod streams;

use std::cell::RefCell;
use std::rc::Rc;

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;
use nestrace_trace::manifest::Manifest;

use crate::analyzers::amplification::LayerCounts;
use crate::analyzers::call_listener::CallListener;
use crate::analyzers::data_path::DataPaths;
use crate::analyzers::options::Options;
use crate::analyzers::recording::Unreadable;
use crate::follow::block::{BlockLayer, Lent};
use crate::follow::cpu::CpuStates;
use crate::follow::file_io::FileIo;
use crate::follow::image::{Images, RecordedRpcs};
use crate::follow::image_observer::ImageObserver;
use crate::follow::qemu::{Disks, Qemu};
use crate::link::chains::Stories;
use crate::link::guest_side::Session;
use crate::link::served::{HostLayers, HostSide};
use crate::measure::layers_over_time::LayersOverTime;
use crate::measure::overlap::Activity;
use crate::model::chain::Chain;
use crate::model::clocks::{GuestNs, HostNs};
use crate::model::ids::DiskId;
use crate::model::plausible;
use crate::model::threads::Threads;
use crate::result::analysis::{Analysis, CallStory, Story};
use crate::result::loss_counts::LossCounts;
use crate::result::unlinked::Reasons;

pub use streams::GuestEvents;
use streams::SideBySide;

/// Takes the events of the host and of its guests and keeps only what is in flight.
///
/// Each stream comes in the order of its own time, the streams side by side as well as their clocks
/// are known: [`Analyzer::push_streams`] does that.
///
/// ```
/// use nestrace_analyzer::{Analyzer, Options};
/// use nestrace_trace::Manifest;
/// let mut analyzer = Analyzer::new(&Manifest::default(), Options::default());
/// // for event in bundle.events() { analyzer.push(&event); }
/// assert!(analyzer.finish().devices.is_empty());
/// ```
#[derive(Debug)]
pub struct Analyzer {
    pub(crate) manifest: Manifest,
    pub(crate) options: Options,
    pub(crate) block: BlockLayer,
    pub(crate) files: FileIo,
    pub(crate) qemu: Qemu,
    pub(crate) images: Images,
    pub(crate) activity: Vec<Activity>,
    pub(crate) threads: Threads,
    /// What the host's threads did.
    pub(crate) cpu: Rc<RefCell<CpuStates>>,
    reasons: Reasons,
    pub(crate) losses: LossCounts,
    pub(crate) unreadable: Unreadable,
    pub(crate) events: u64,
    pub(crate) unknown_events: u64,
    /// Events that neither kernel nor QEMU can have written.
    pub(crate) implausible: u64,
    pub(crate) first_ns: Option<u64>,
    pub(crate) last_ns: u64,
    pub(crate) bios_recorded: bool,
    /// By the numbers of `Manifest::guest_sides`.
    pub(crate) sessions: Vec<Session>,
    /// Time of the host at which they were looked at.
    looked_ns: HostNs,
    pub(crate) stories: Stories,
    pub(crate) call_listener: CallListener,
    pub(crate) layers: LayersOverTime,
    /// What the host did for the guests' requests; only where there is something to tie it to.
    pub(crate) host: Option<HostSide>,
}

/// A request of QEMU is known to have ended when its `block_acct_done` has come, which is this much
/// later than the completion notification to the guest at most; what comes later is linked less certainly.
const DONE_AFTER_PUSH_NS: u64 = 50_000_000;
/// How far the host is read between two looks at the sessions.
const LOOK_NS: u64 = 1_000_000;

impl Analyzer {
    /// Begins with what the manifest says of guests, disks, images and devices.
    #[must_use]
    pub fn new(manifest: &Manifest, options: Options) -> Self {
        let mut images = Images::new(&manifest.topology);
        images.rpcs_recorded = RecordedRpcs::of(&manifest.probes);
        let n_disks = images.disks.len();
        let lost = |source: &str| {
            manifest
                .losses
                .iter()
                .any(|loss| loss.source == source && loss.events > 0)
        };
        let mut block = BlockLayer::default();
        let mut files = FileIo::default();
        let mut qemu = Qemu::new(&manifest.topology.guests, &manifest.notices, n_disks);
        let is_followed =
            !manifest.guest_sides.is_empty() || !images.stacks.is_empty() || images.any_has_rpcs();
        let host = is_followed.then(|| {
            HostSide::follow(&mut HostLayers {
                block: &mut block,
                files: &mut files,
                qemu: &mut qemu,
                images: &images,
            });
            HostSide::new(manifest, &images, &options.image_maps)
        });
        let mut cpu = CpuStates::default();
        for (guest, index) in manifest.topology.guests.iter().zip(0u32..) {
            let threads = guest.threads.iter();
            let threads = threads.map(|thread| (thread.tid, thread.name.as_str()));
            cpu.watch(index, guest.pid, threads);
        }
        let cpu = Rc::new(RefCell::new(cpu));
        Self {
            qemu,
            host,
            activity: vec![Activity::default(); n_disks],
            reasons: Reasons {
                live_ns: manifest.live_mono_ns.max(manifest.start_mono_ns),
                lost_so_far: false,
                lost_sometime: lost(Source::Block.name()) || lost(Source::Walk.name()),
            },
            images,
            sessions: (0..manifest.guest_sides.len())
                .filter_map(|side| {
                    Session::new(
                        manifest,
                        side,
                        options.story.is_some(),
                        options.call_story,
                        &cpu,
                    )
                })
                .collect(),
            looked_ns: HostNs::default(),
            stories: Stories::new(options.story),
            call_listener: CallListener::default(),
            layers: LayersOverTime::default(),
            manifest: manifest.clone(),
            options,
            block,
            files,
            threads: Threads::default(),
            cpu,
            losses: LossCounts::default(),
            unreadable: Unreadable::default(),
            events: 0,
            unknown_events: 0,
            implausible: 0,
            first_ns: None,
            last_ns: 0,
            bios_recorded: false,
        }
    }

    /// Takes all of `events` and returns the result.
    #[must_use]
    pub fn analyze(
        manifest: &Manifest,
        options: Options,
        events: impl IntoIterator<Item = Event>,
    ) -> Analysis {
        let mut analyzer = Self::new(manifest, options);
        events.into_iter().for_each(|event| analyzer.push(&event));
        analyzer.finish()
    }

    /// Takes all events of the host and of its guests; each stream is in the order of time.
    ///
    /// ```
    /// use nestrace_analyzer::{Analyzer, GuestEvents, Options};
    /// use nestrace_trace::{Event, Kind, Manifest, manifest::GuestSide};
    ///
    /// let mut manifest = Manifest::default();
    /// manifest.guest_sides = vec![GuestSide::default()];
    /// let queue = Event { ts_ns: 7, kind: Kind::Queue as u8, object: 1, bytes: 512, ..Event::default() };
    /// let mut analyzer = Analyzer::new(&manifest, Options::default());
    /// let mut of_guest = [queue].into_iter();
    /// analyzer.push_streams([queue], vec![GuestEvents::new(0, &mut of_guest)]);
    /// let analysis = analyzer.finish();
    /// assert_eq!(analysis.devices.len(), 2);
    /// ```
    pub fn push_streams(
        &mut self,
        host: impl IntoIterator<Item = Event>,
        guests: Vec<GuestEvents<'_>>,
    ) {
        SideBySide::new(self, guests).push(host);
    }

    /// Takes one event of the host's stream; events come in the order of time.
    pub fn push(&mut self, event: &Event) {
        // A reader's mark is none that was recorded.
        self.events += u64::from(!event.is_gap());
        let Some(kind) = event.kind() else {
            self.unknown_events += 1;
            return;
        };
        match kind {
            Kind::Thread => return self.threads.name(event),
            Kind::Loss => return self.loss(event),
            _ => {}
        }
        if self.outside(event.ts_ns) {
            return;
        }
        if !plausible::of_host(kind, event) {
            self.implausible += 1;
            return;
        }
        if self.first_ns.is_none() {
            self.first_ns = Some(event.ts_ns);
            self.reasons.live_ns = self.reasons.live_ns.max(event.ts_ns);
        }
        self.last_ns = self.last_ns.max(event.ts_ns);
        if kind.source() == Source::Cpu {
            let mut states = self.cpu.borrow_mut();
            return states.event(kind, event, &self.threads);
        }
        if self.host.is_some() && self.layers.is_due(event.ts_ns) {
            let totals = self.layer_counts().all();
            self.layers.note(event.ts_ns, &totals);
        }
        match kind.source() {
            Source::Block => {
                self.bios_recorded |= kind == Kind::Queue;
                let mut lent = Lent {
                    observer: &mut ImageObserver {
                        images: &mut self.images,
                        activity: &mut self.activity,
                        files: &mut self.files,
                    },
                    threads: &self.threads,
                    reasons: self.reasons,
                };
                self.block.push(kind, event, &mut lent);
            }
            Source::File => self
                .files
                .push(kind, event, &mut self.images, &mut self.activity),
            Source::Qemu => {
                let mut disks = Disks {
                    images: &self.images,
                    activity: &mut self.activity,
                };
                self.qemu.push(kind, event, &mut disks);
            }
            // Read-ahead, page cache, journal and write-back explain chains and findings.
            Source::HostFs | Source::Meta | Source::Walk | Source::Cpu => {}
        }
        if self.host.is_some() {
            self.hand_on_served(kind, event);
        }
    }

    /// Takes one event of the guest session with this index in `Manifest::guest_sides`.
    pub fn push_guest(&mut self, side: usize, event: &Event) {
        let timed = self.options.is_stretch();
        let host_ns = self
            .sessions
            .get(side)
            .filter(|_| timed)
            .and_then(|session| session.host_time(GuestNs(event.ts_ns)));
        let within = host_ns.is_none_or(|host_ns| !self.outside(host_ns.0));
        if let Some(session) = self.sessions.get_mut(side) {
            session.push(event, within);
            self.look(side);
            self.report_calls(side, false);
        }
    }

    /// Where an event of a guest session belongs among the host's: its time on the host's clock, as far
    /// as that is known, else 0 or `u64::MAX`, whichever keeps the streams side by side.
    #[must_use]
    pub fn guest_time(&self, side: usize, guest_ns: u64) -> u64 {
        self.place_of(side, GuestNs(guest_ns)).0
    }

    /// The same; without a session the guest's clock is taken for the host's.
    fn place_of(&self, side: usize, guest_ns: GuestNs) -> HostNs {
        let session = self.sessions.get(side);
        session.map_or(HostNs(guest_ns.0), |session| session.place(guest_ns))
    }

    /// The session has no more events.
    pub(crate) fn guest_ended(&mut self, side: usize) {
        if let Some(session) = self.sessions.get_mut(side) {
            session.ended();
        }
    }

    /// The host has no more events.
    pub(crate) fn host_ended(&mut self) {
        self.host_read(HostNs::MAX);
    }

    /// Gives the requests that QEMU completed to the sessions of their guest.
    fn hand_on_served(&mut self, kind: Kind, event: &Event) {
        let Some(host) = &mut self.host else {
            return;
        };
        let mut layers = HostLayers {
            block: &mut self.block,
            files: &mut self.files,
            qemu: &mut self.qemu,
            images: &self.images,
        };
        host.after(kind, event, &mut layers);
        for served in host.served.drain(..) {
            let served = Rc::new(served);
            for session in &mut self.sessions {
                if !session.follows_another
                    && let Some(disk) = session.is_of(&self.images, DiskId(served.disk))
                {
                    session.served(&served, disk);
                }
            }
        }
        self.host_reached(HostNs(event.ts_ns));
    }

    /// Every host event before this time was read. Call it before the guests' events up to then
    /// are taken: where the host stood still with a paused guest, they are seconds of what seems to have
    /// no partner, and the clocks ask for the host's next events instead.
    pub(crate) fn host_reached(&mut self, host_ns: HostNs) {
        if host_ns >= self.looked_ns.saturating_add(LOOK_NS) {
            self.looked_ns = host_ns;
            self.host_read(host_ns.saturating_sub(DONE_AFTER_PUSH_NS));
        }
    }

    /// What ended on the host before this time was handed to the sessions.
    fn host_read(&mut self, host_ns: HostNs) {
        for side in 0..self.sessions.len() {
            if let Some(session) = self.sessions.get_mut(side)
                && !session.follows_another
            {
                session.host_read(host_ns);
            }
            self.look(side);
            self.pass_on(side);
        }
    }

    /// What a session of a guest does not claim may be the next one's.
    pub(crate) fn pass_on(&mut self, side: usize) {
        let Some((session, later)) = self
            .sessions
            .get_mut(side..)
            .and_then(<[Session]>::split_first_mut)
        else {
            return;
        };
        let next = later
            .iter_mut()
            .find(|next| next.side.guest == session.side.guest);
        match next {
            Some(next) => {
                for served in session.take_unclaimed() {
                    if let Some(disk) = next.is_of(&self.images, DiskId(served.disk)) {
                        next.served(&served, disk);
                    }
                }
                next.host_read(session.host_decided());
            }
            None => session.take_unclaimed().for_each(drop),
        }
    }

    /// Takes from a session the bios whose fate is known.
    pub(crate) fn look(&mut self, side: usize) {
        let Some(session) = self.sessions.get_mut(side) else {
            return;
        };
        if let Some(chains) = session.look() {
            chains
                .into_iter()
                .for_each(|chain| self.count_chain(side, chain));
        }
    }

    pub(crate) fn count_chain(&mut self, side: usize, chain: Chain) {
        let told = self.stories.wanted() && self.is_selected(side, chain.device, chain.disk);
        let Some(session) = self.sessions.get_mut(side) else {
            return;
        };
        if let Some(disk) = session.disks.get_mut(chain.device as usize) {
            match chain.unlinked {
                None => {
                    disk.chains.linked(&chain, &session.cpu);
                    disk.clues.chain(&chain);
                }
                Some(reason) => disk.chains.unlinked(reason),
            }
        }
        if session.calls_wait_for(&chain) {
            if !told {
                return session.link_calls(chain);
            }
            session.link_calls(chain.clone());
        }
        if !told {
            return;
        }
        if !self.stories.tells(&chain) {
            return self.stories.offer(side, chain);
        }
        if let Some(mut listener) = self.stories.listener.take() {
            self.with_names(|names| Stories::tell(&mut listener, side, &chain, names));
            self.stories.listener = Some(listener);
        }
    }

    /// Gives each I/O trace of [`Options::story`] to `listener` as soon as the bio's fate is known, instead of
    /// keeping it for [`Analysis::stories`]: memory stays flat whatever the recording's length. They come
    /// in the order in which the clock decided, which is nearly that of their ends. Of
    /// [`StoryChoice::Slowest`](crate::StoryChoice::Slowest) nothing is known before the end, and they are kept.
    pub fn each_story(&mut self, listener: impl FnMut(Story) + 'static) {
        self.stories.listener = Some(Box::new(listener));
    }

    /// Gives each call of [`Options::call_story`] to `listener` soon after its outcome is known, instead of keeping it for
    /// [`Analysis::call_stories`]; as with [`Analyzer::each_story`], the slowest ones are kept all the same. They come
    /// nearly in the order of their ends, and behind the bios that they waited for.
    pub fn each_call(&mut self, listener: impl FnMut(CallStory) + 'static) {
        self.call_listener.0 = Some(Box::new(listener));
        for session in &mut self.sessions {
            session.calls.one_by_one();
        }
    }

    /// Whether the guest and the device that were asked for are those of this disk.
    pub(crate) fn is_selected(&self, side: usize, device: u32, disk: Option<u32>) -> bool {
        let Some(session) = self.sessions.get(side) else {
            return false;
        };
        let known = session.about(device as usize);
        let devices = &self.manifest.topology.devices;
        self.options.takes_guest(&session.side.guest)
            && (known.is_some_and(|known| self.options.takes_device(&known.name, known.dev))
                || disk.is_some_and(|disk| self.options.takes_disk(disk, &self.images, devices))
                || self.options.device.is_none())
    }

    /// What says how far the disks' I/O was seen.
    pub(crate) fn data_paths(&self) -> DataPaths<'_> {
        DataPaths {
            manifest: &self.manifest,
            images: &self.images,
            activity: &self.activity,
            overlap: &self.qemu.overlap,
            file_io_recorded: self.files.recorded,
            bios_recorded: self.bios_recorded,
        }
    }

    /// What the host's layers have counted so far.
    pub(crate) fn layer_counts(&self) -> LayerCounts<'_> {
        LayerCounts {
            paths: self.data_paths(),
            qemu: &self.qemu,
            block: &self.block,
            host: self.host.as_ref(),
        }
    }

    fn outside(&self, ts_ns: u64) -> bool {
        self.options.leaves_out(ts_ns, self.start_ns())
    }

    pub(crate) fn end_ns(&self) -> u64 {
        let end = if self.manifest.end_mono_ns > 0 {
            self.manifest.end_mono_ns
        } else {
            self.last_ns
        };
        let end = end.max(self.last_ns).max(self.start_ns());
        self.options
            .to_ns
            .map_or(end, |to| end.min(self.start_ns().saturating_add(to)))
    }

    pub(crate) fn duration_ns(&self) -> u64 {
        (self.end_ns() - self.start_ns()).saturating_sub(self.options.from_ns.unwrap_or(0))
    }
}
