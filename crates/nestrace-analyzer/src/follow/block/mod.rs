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
mod bios;
mod bound;
mod complete;
mod empty_flushes;
mod gathered;
mod handed_on;
mod interrupted;
mod issue;
mod light;
mod observer;
mod requests;
mod spans;
mod stripes;
mod without_requests;

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::BioSpan;

use bio::Bio;
use bios::Bios;
use gathered::Gathered;
use interrupted::has_no_end;
pub(crate) use issue::MAX_BIOS;
use light::LightRequests;
pub(crate) use observer::{ClocksOf, Lent, Observed, Observer};
use requests::Requests;
pub(crate) use spans::BlockSpans;

/// The state of one machine's block layer.
#[derive(Debug, Default)]
pub(crate) struct BlockLayer {
    pub gathered: Gathered,
    bios: Bios,
    requests: Requests,
    light: LightRequests,
}

/// Devices of one machine that are distinguished; damaged input may name any number.
pub(crate) const MAX_DEVICES: usize = 1 << 10;
/// Bios and requests that mostly are in flight at once, some times over.
const IN_FLIGHT: usize = 256;

impl BlockLayer {
    /// A block layer that also hands on spans.
    pub(crate) fn with_spans() -> Self {
        let mut layer = Self::default();
        layer.gathered.spans = Some(Box::default());
        layer
    }

    #[inline]
    pub(crate) fn push<O: Observer>(&mut self, kind: Kind, event: &Event, lent: &mut Lent<'_, O>) {
        let Some(device) = self.gathered.device(event.dev) else {
            self.gathered.ignored += 1;
            return;
        };
        match kind {
            Kind::Queue => {
                let explained = lent.observer.explained(event);
                self.queue(device, explained.as_ref().unwrap_or(event), lent);
            }
            Kind::GetRequest | Kind::BackMerge | Kind::FrontMerge => {
                let gathered = &mut self.gathered;
                self.bios.enter_request(kind, device, event, gathered, lent)
            }
            Kind::Split => {
                let replaced = self.bios.split(device, event, &mut self.gathered, lent);
                if let Some(replaced) = replaced {
                    self.replaced(event.object, &replaced, event.ts_ns, lent);
                }
            }
            Kind::SleepRequest => self.bios.sleep(event),
            Kind::BioRemap => {
                self.bios.remap(device, event, &mut self.gathered);
                let former = event.former_dev();
                if let Some(spans) = &mut self.gathered.spans
                    && lent.observer.stacking(former).is_some()
                {
                    spans.remapped(event, lent.observer.has_parity(former));
                }
            }
            Kind::BioMade => {
                if let Some(spans) = &mut self.gathered.spans {
                    spans.made(event);
                }
            }
            Kind::BioComplete => {
                let (requests, gathered) = (&mut self.requests, &mut self.gathered);
                self.bios.complete(device, event, requests, gathered, lent);
            }
            Kind::Insert => self.insert(device, event, lent),
            Kind::Issue => self.issue(device, event, lent),
            Kind::Link => self.link(device, event, lent),
            Kind::Requeue => {
                let others = (&mut self.bios, &mut self.gathered);
                self.requests.requeue(device, event, others, lent);
            }
            Kind::Complete => self.complete(device, event, lent),
            Kind::RequestMerge => self.request_merged(device, event, lent),
            Kind::RequestRemap => self.gathered.meter(device).remaps += 1,
            Kind::Plug => self.gathered.meter(device).stats.plug.plug(event.ts_ns),
            Kind::Unplug => {
                let plug = &mut self.gathered.meter(device).stats.plug;
                plug.unplug(event.ts_ns, event.n_requests(), event.sub == 1);
            }
            Kind::RequestDone => {
                let reason = lent.reasons.at(event.ts_ns);
                self.light.done(device, event, reason, &mut self.gathered);
            }
            _ => {}
        }
    }

    /// Forgets what only the order of events ties together: some of them were lost.
    pub(crate) fn events_were_lost(&mut self) {
        self.bios.flushes.clear();
    }

    #[inline(never)]
    fn queue<O: Observer>(&mut self, device: u16, event: &Event, lent: &mut Lent<'_, O>) {
        let operation = Operation::of(event.op());
        let empty_flush = event.bytes == 0
            && (event.op() == flags::OP_FLUSH || event.flags & flags::PREFLUSH != 0);
        let generation = self.bios.new_generation(device, &mut self.gathered);
        let meter = self.gathered.meter(device);
        meter.check.queued += 1;
        let mut owner = Owner::Thread(event.tid);
        let mut charged = owner;
        let mut counts_for = None;
        let mut process = None;
        if empty_flush {
            meter.check.empty_flushes += 1;
            meter.stats.flush_queued(event.ts_ns);
            self.bios.flushes.queued(device, generation, event.ts_ns);
        } else if operation != Operation::Other && event.bytes > 0 {
            meter.queued += 1;
            meter.figures.queued(event.ts_ns);
            if let Some(last) = meter.last_queued_ns.replace(event.ts_ns) {
                meter.q2q.record(event.ts_ns.saturating_sub(last));
            }
            meter.seek_q.io(event.offset, event.bytes);
            let meter = &mut self.gathered.devices[usize::from(device)];
            let place = (device, meter);
            process = Some(
                self.gathered
                    .machine
                    .queued(place, event, operation, lent.threads),
            );
            let observed = lent.observer.queued(event, lent.threads);
            (owner, charged) = (observed.owner, observed.charged);
            counts_for = observed.clocks;
        }
        let spare = &mut self.bios.spare;
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
        if let Some(spans) = &mut self.gathered.spans
            && (empty_flush || operation != Operation::Other && event.bytes > 0)
        {
            let carrier = lent.observer.carrier(event);
            if let Some(above) = spans.queued(&bio, owner, event, carrier) {
                bio.owner = above;
            }
            if lent.observer.stacking(event.dev).is_some() {
                spans.on_stacked(&bio);
            }
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
        if let Some(old) = self.bios.begin(pointer, bio, ts_ns, lent) {
            self.replaced(pointer, &old, ts_ns, lent);
        }
    }

    /// A life ended unseen: another one is in its place.
    fn replaced<O: Observer>(
        &mut self,
        pointer: u64,
        old: &Bio,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        // Zero-length flushes end by order, not by address, so an old one may still stand here.
        if old.empty_flush || old.queued_ns.is_none() {
            return;
        }
        if let Some(spans) = &mut self.gathered.spans {
            spans.forget(old);
        }
        self.gathered.meter(old.device).check.reused_while_live += 1;
        let home = self.gathered.meter(old.home);
        if old.root.is_none() {
            home.stats.gone(ts_ns);
        }
        if old.waits() {
            home.stats.at_queue.leaves();
        }
        old.leave(ts_ns, lent);
        let Some(request) = self.requests.live.get_mut(old.request) else {
            return;
        };
        if request.forget(pointer, old.generation)
            && request.awaits_end()
            && let Some(request) = self.requests.live.remove(old.request)
        {
            self.gathered.completion_missed(&request, ts_ns, lent);
        }
    }

    /// A request that waits is another's part now. One that still seems to be at the device had its completion
    /// lost: it is the next one at its address that waited.
    #[inline(never)]
    fn request_merged<O: Observer>(&mut self, device: u16, event: &Event, lent: &mut Lent<'_, O>) {
        let meter = self.gathered.meter(device);
        meter.request_merges += 1;
        meter.figures.merged(event.ts_ns);
        meter.stats.at_queue.leaves();
        if let Some(request) = self.requests.live.remove(event.object)
            && request.awaits_end()
        {
            self.gathered.completion_missed(&request, event.ts_ns, lent);
        }
    }

    /// Forgets what is in flight. Gives the spans of the bios, which have no end. Bios count as open.
    pub(crate) fn interrupted<O: Observer>(
        &mut self,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) -> Vec<BioSpan> {
        for (device, meter) in self.gathered.devices.iter_mut().enumerate() {
            (0..self.bios.flushes.forget(device)).for_each(|_| meter.stats.gone(ts_ns));
            meter.last_queued_ns = None;
            meter.stats.interrupted();
        }
        self.requests.interrupt(ts_ns, &mut self.gathered, lent);
        for bio in std::mem::take(&mut self.bios.live).into_values() {
            has_no_end(&bio, &mut self.gathered.devices, ts_ns, lent);
        }
        self.requests.last_issues.clear();
        let spans = self.gathered.spans.as_mut();
        spans.map_or_else(Vec::new, |spans| spans.give_up(|_| true))
    }

    /// Gives up the oldest of what is in flight where it is more than `most`, so that at most half of
    /// that is left: bios, their spans and flushes by their age, requests and the lists of what they carry by
    /// their D (or insert). Gives
    /// the spans, which have no end. Requests count as completions that were missed, bios as open. Of bios
    /// that are split again and again, those with the most requests go first.
    pub(crate) fn give_up_beyond<O: Observer>(
        &mut self,
        most: usize,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) -> Vec<BioSpan> {
        if self.requests.n_held() > most {
            self.requests
                .give_up(most / 2, ts_ns, &mut self.gathered, lent);
        }
        self.light.give_up_beyond(most);
        let flushes = self.bios.flushes.len();
        let spans = self
            .gathered
            .spans
            .as_ref()
            .map_or(0, |spans| spans.n_open());
        let mut given_up = if self.bios.live.len().max(flushes).max(spans) > most {
            self.bios.give_up(most / 2, ts_ns, &mut self.gathered, lent)
        } else {
            Vec::new()
        };
        if let Some(spans) = &mut self.gathered.spans
            && spans.n_requests() > most
        {
            given_up.extend(spans.give_up_heaviest(most / 2));
        }
        given_up
    }

    /// Closes the books.
    pub(crate) fn finish(&mut self) {
        self.requests.all_ended_unseen(&mut self.gathered);
        let open: Vec<u16> = self
            .bios
            .live
            .values()
            .filter(|bio| !bio.empty_flush && bio.queued_ns.is_some() && bio.root.is_none())
            .map(|bio| bio.home)
            .collect();
        for device in open {
            self.gathered.meter(device).check.open_at_end += 1;
        }
    }
}
