//! The block layer: every event finds its bio and its request by identity.
//!
//! A bio's life begins at Q (or as the front half of a split) and ends with the request that
//! carries it, or with its own completion event on devices that have no requests. Its address is
//! used again at once, so each life has a generation number, and a request remembers which
//! generation it carries. Which bios a request carries is read at every D from its own list.
//!
//! What handles an event is a function of its own (`inline(never)`): made into one, with all that seldom happens in between, the
//! code that most events take no longer fits into a processor's first-level cache.

mod again;
mod bio;
mod bound;
mod complete;
mod interrupted;
mod issue;
mod light;
mod observer;
mod spans;
mod without_requests;

use std::collections::VecDeque;

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use crate::measure::collects::Collects;
use crate::measure::device::DeviceMeter;
use crate::measure::machine::MachineStats;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::places::Places;
use crate::model::pointer::PointerMap;
use crate::model::spare::Spare;

use bio::{Bio, Way};
pub(crate) use issue::MOST_BIOS;
use issue::{LastIssue, Request};
pub(crate) use observer::{ClocksOf, Lent, Observed, Observer};
pub(crate) use spans::BlockSpans;

/// The state of one machine's block layer.
#[derive(Debug, Default)]
pub(crate) struct BlockLayer {
    pub devices: Vec<DeviceMeter>,
    /// What is collected of them.
    pub collects: Collects,
    by_dev: PointerMap<u32, u16>,
    last_device: u16,
    /// Boxed, as requests are: they are large, and what finds them is small and moves.
    bios: Places<Box<Bio>, { IN_FLIGHT }>,
    requests: Places<Box<Request>, { IN_FLIGHT }>,
    spare_bios: Spare<Bio>,
    spare_requests: Spare<Request>,
    /// By processor; for the order of requests, where spans are wanted.
    last_issues: PointerMap<u16, LastIssue>,
    generation: u32,
    /// The last request that went to a device for the first time.
    serial: u64,
    /// Zero-length flushes without an end yet, by device, in the order in which they came to the
    /// flush machinery. Their request has no D. Its completion names the bio; where it does not
    /// (blktrace's) the oldest is taken: count and mean are exact, single samples may be exchanged between flushes
    /// that overlap on a device with several hardware queues.
    flushes: Vec<VecDeque<EmptyFlush>>,
    /// Light recordings: requests whose data part within a flush sequence has been counted.
    flush_sequences: PointerMap<u64, ()>,
    /// Events of devices beyond [`MAX_DEVICES`].
    pub ignored: u64,
    /// What is counted across devices.
    pub machine: MachineStats,
    /// Spans of what has ended, for the caller to drain; `None` unless asked for.
    pub spans: Option<Box<BlockSpans>>,
}

/// A zero-length flush on its way.
#[derive(Clone, Copy, Debug)]
struct EmptyFlush {
    generation: u32,
    queued_ns: u64,
    /// Its request was allocated: from then on the flush machinery has it. Until then Q.
    ready_ns: u64,
}

/// Devices of one machine that are distinguished; damaged input may name any number.
pub(crate) const MAX_DEVICES: usize = 1 << 10;
/// Zero-length flushes remembered for one device. More are not in flight: completions were lost. They are
/// looked through in their order, so a guest that makes them wait must not make that long.
const MAX_FLUSHES: usize = 1 << 12;
/// Bios and requests that mostly are in flight at once, some times over.
const IN_FLIGHT: usize = 256;

impl BlockLayer {
    /// A block layer that also hands on spans.
    pub(crate) fn with_spans() -> Self {
        Self {
            spans: Some(Box::default()),
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn push<O: Observer>(&mut self, kind: Kind, event: &Event, lent: &mut Lent<'_, O>) {
        let Some(device) = self.device(event.dev) else {
            self.ignored += 1;
            return;
        };
        match kind {
            Kind::Queue => {
                let explained = lent.observer.explained(event);
                self.queue(device, explained.as_ref().unwrap_or(event), lent);
            }
            Kind::GetRequest | Kind::BackMerge | Kind::FrontMerge => {
                self.enter_request(kind, device, event, lent)
            }
            Kind::Split => self.split(device, event, lent),
            Kind::SleepRequest => self.sleep(event),
            Kind::BioRemap => self.remap(device, event),
            Kind::BioComplete => self.bio_complete(device, event, lent),
            Kind::Insert => self.insert(device, event, lent),
            Kind::Issue => self.issue(device, event, lent),
            Kind::Link => self.link(device, event, lent),
            Kind::Requeue => self.requeue(device, event, lent),
            Kind::Complete => self.complete(device, event, lent),
            Kind::RequestMerge => self.request_merged(device, event, lent),
            Kind::RequestRemap => self.meter(device).remaps += 1,
            Kind::Plug => self.meter(device).stats.plug.plug(event.ts_ns),
            Kind::Unplug => {
                let plug = &mut self.meter(device).stats.plug;
                plug.unplug(event.ts_ns, event.n_requests(), event.sub == 1);
            }
            Kind::RequestDone => self.request_done(device, event, lent.reasons.at(event.ts_ns)),
            _ => {}
        }
    }

    /// Forgets what only the order of events ties together: some of them were lost.
    pub(crate) fn events_were_lost(&mut self) {
        self.flushes.iter_mut().for_each(VecDeque::clear);
    }

    #[inline]
    fn device(&mut self, dev: u32) -> Option<u16> {
        if let Some(last) = self.devices.get(usize::from(self.last_device))
            && last.dev == dev
        {
            return Some(self.last_device);
        }
        let known = self.by_dev.get(&dev).copied();
        self.last_device = known.or_else(|| self.new_device(dev))?;
        Some(self.last_device)
    }

    /// A device that was not seen before. Apart: it is large, and would make room on the stack for every event.
    #[cold]
    #[inline(never)]
    fn new_device(&mut self, dev: u32) -> Option<u16> {
        if self.devices.len() >= MAX_DEVICES {
            return None;
        }
        let device = self.devices.len() as u16;
        self.by_dev.insert(dev, device);
        self.devices.push(DeviceMeter::new(dev, self.collects));
        self.flushes.push(VecDeque::new());
        if let [first, _] = self.devices.as_slice() {
            self.machine.take_over(first);
        }
        Some(device)
    }

    /// The meter of a device number that [`Self::device`] gave.
    #[inline]
    fn meter(&mut self, device: u16) -> &mut DeviceMeter {
        &mut self.devices[usize::from(device)]
    }

    fn dev_of(&self, device: u16) -> u32 {
        self.devices
            .get(usize::from(device))
            .map_or(0, |meter| meter.dev)
    }

    fn new_generation(&mut self, device: u16) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.meter(device).check.generations += 1;
        self.generation
    }

    #[inline(never)]
    fn queue<O: Observer>(&mut self, device: u16, event: &Event, lent: &mut Lent<'_, O>) {
        let operation = Operation::of(event.op());
        let empty_flush = event.bytes == 0
            && (event.op() == flags::OP_FLUSH || event.flags & flags::PREFLUSH != 0);
        let generation = self.new_generation(device);
        let meter = self.meter(device);
        meter.check.queued += 1;
        let mut owner = Owner::Thread(event.tid);
        let mut charged = owner;
        let mut counts_for = None;
        let mut process = None;
        if empty_flush {
            meter.check.empty_flushes += 1;
            meter.stats.flush_queued(event.ts_ns);
            let waiting = &mut self.flushes[usize::from(device)];
            if waiting.len() == MAX_FLUSHES {
                waiting.pop_front();
            }
            waiting.push_back(EmptyFlush {
                generation,
                queued_ns: event.ts_ns,
                ready_ns: event.ts_ns,
            });
        } else if operation != Operation::Other && event.bytes > 0 {
            meter.queued += 1;
            meter.figures.queued(event.ts_ns);
            if let Some(last) = meter.last_queued_ns.replace(event.ts_ns) {
                meter.q2q.record(event.ts_ns.saturating_sub(last));
            }
            meter.seek_q.io(event.offset, event.bytes);
            let meter = &mut self.devices[usize::from(device)];
            let place = (device, meter);
            process = Some(self.machine.queued(place, event, operation, lent.threads));
            let observed = lent.observer.queued(event, lent.threads);
            (owner, charged) = (observed.owner, observed.charged);
            counts_for = observed.clocks;
        }
        let spare = &mut self.spare_bios;
        let mut bio = spare.boxed(|| {
            let mut bio = Bio::new(generation, device, operation, event);
            bio.empty_flush = empty_flush;
            bio.owner = charged;
            bio.process = process.unwrap_or_default();
            bio.clocks = counts_for;
            bio
        });
        if counts_for.is_some() && lent.observer.stacking(event.dev).is_some() {
            bio.skip_queue();
        }
        if let Some(spans) = &mut self.spans
            && (empty_flush || operation != Operation::Other && event.bytes > 0)
        {
            spans.queued(&bio, owner, event, lent.observer.carrier(event));
        }
        self.begin_life(event.object, bio, event.ts_ns, lent);
    }

    /// Puts a new life in the place of an old one.
    fn begin_life<O: Observer>(
        &mut self,
        pointer: u64,
        bio: Box<Bio>,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        bio.enter_queue(ts_ns, lent);
        let Some(old) = self.bios.insert(pointer, bio) else {
            return;
        };
        // Zero-length flushes end by order, not by address, so an old one may still stand here.
        if old.empty_flush || old.queued_ns.is_none() {
            return;
        }
        if let Some(spans) = &mut self.spans {
            spans.forget(&old);
        }
        self.meter(old.device).check.reused_while_live += 1;
        let home = self.meter(old.home);
        if old.root.is_none() {
            home.stats.gone(ts_ns);
        }
        if old.waits() {
            home.stats.at_queue.leaves();
        }
        old.leave(ts_ns, lent);
        let Some(request) = self.requests.get_mut(old.request) else {
            return;
        };
        if request.forget(pointer, old.generation)
            && request.awaits_end()
            && let Some(request) = self.requests.remove(old.request)
        {
            self.completion_missed(&request, ts_ns, lent);
        }
    }

    #[inline(never)]
    fn enter_request<O: Observer>(
        &mut self,
        kind: Kind,
        device: u16,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let meter = self.meter(device);
        if kind != Kind::GetRequest {
            meter.figures.merged(event.ts_ns);
        }
        let check = &mut meter.check;
        let way = match kind {
            Kind::GetRequest => {
                check.get_requests += 1;
                Way::Got
            }
            Kind::BackMerge => {
                check.back_merges += 1;
                Way::Merged
            }
            _ => {
                check.front_merges += 1;
                Way::Merged
            }
        };
        let Some(bio) = self.bios.get_mut(event.object) else {
            let reason = lent.reasons.at(event.ts_ns);
            self.meter(device).unlinked.count(reason);
            return;
        };
        bio.way = way;
        bio.entered_ns = event.ts_ns;
        let (queued_ns, whose) = (bio.queued_here(device), (bio.operation, bio.process));
        let (empty, generation) = (bio.empty_flush, bio.generation);
        let slept_ns = bio.slept_ns.take();
        if empty {
            self.flush_is_ready(device, generation, event.ts_ns);
        }
        if empty {
            return;
        }
        let meter = self.meter(device);
        meter.stats.remapped.has_requests();
        if way == Way::Merged {
            meter.stats.merged(whose.0);
        }
        if let Some(queued_ns) = queued_ns {
            let waited_ns = event.ts_ns.saturating_sub(queued_ns);
            match way {
                Way::Got => meter.record(whose, |parts| &mut parts.q2g, waited_ns),
                _ => meter.record(whose, |parts| &mut parts.q2m, waited_ns),
            }
        }
        if let Some(slept_ns) = slept_ns {
            let slept_ns = event.ts_ns.saturating_sub(slept_ns);
            meter.record(whose, |parts| &mut parts.s2g, slept_ns);
        }
    }

    /// A request that waits is another's part now. One that still seems to be at the device had its completion
    /// lost: it is the next one at its address that waited.
    #[inline(never)]
    fn request_merged<O: Observer>(&mut self, device: u16, event: &Event, lent: &mut Lent<'_, O>) {
        let meter = self.meter(device);
        meter.request_merges += 1;
        meter.figures.merged(event.ts_ns);
        meter.stats.at_queue.leaves();
        if let Some(request) = self.requests.remove(event.object)
            && request.awaits_end()
        {
            self.completion_missed(&request, event.ts_ns, lent);
        }
    }

    /// No request is free: the bio's thread sleeps until there is one.
    #[inline(never)]
    fn sleep(&mut self, event: &Event) {
        if let Some(bio) = self.bios.get_mut(event.object) {
            bio.slept_ns.get_or_insert(event.ts_ns);
        }
    }

    /// A zero-length flush has its request: its place is now behind those that had one before.
    #[inline(never)]
    fn flush_is_ready(&mut self, device: u16, generation: u32, ts_ns: u64) {
        let waiting = &mut self.flushes[usize::from(device)];
        let its_own = |flush: &EmptyFlush| flush.generation == generation;
        if let Some(place) = waiting.iter().rposition(its_own)
            && let Some(mut flush) = waiting.remove(place)
        {
            flush.ready_ns = ts_ns;
            waiting.push_back(flush);
        }
    }

    #[inline(never)]
    fn remap(&mut self, device: u16, event: &Event) {
        self.meter(device).remaps += 1;
        self.remapped_from(event);
        // Partitions and dm remap before Q. A bio that lives already moves on without a second Q (md).
        if let Some(bio) = self.bios.get_mut(event.object)
            && bio.device != device
            && bio.way == Way::Unknown
            && !bio.empty_flush
        {
            let dev = self
                .devices
                .get(usize::from(bio.device))
                .map(|meter| meter.dev);
            if dev == Some(event.former_dev()) {
                bio.device = device;
            }
        }
    }

    /// A device without requests handed a bio, or a part of it, on to one below.
    fn remapped_from(&mut self, event: &Event) {
        let Some(source) = self.by_dev.get(&event.former_dev()) else {
            return;
        };
        let source = &mut self.devices[usize::from(*source)];
        let Some((queued_ns, process)) = source.stats.remapped.at(event.former_offset()) else {
            return;
        };
        let whose = (Operation::of(event.op()), process);
        let waited_ns = event.ts_ns.saturating_sub(queued_ns);
        source.record(whose, |parts| &mut parts.q2a, waited_ns);
    }

    /// Closes the books.
    pub(crate) fn finish(&mut self) {
        self.all_ended_unseen();
        let open: Vec<u16> = self
            .bios
            .values()
            .filter(|bio| !bio.empty_flush && bio.queued_ns.is_some() && bio.root.is_none())
            .map(|bio| bio.home)
            .collect();
        for device in open {
            self.meter(device).check.open_at_end += 1;
        }
    }
}
