//! The block layer: every event finds its bio and its request by identity.
//!
//! A bio's life begins at Q (or as the front half of a split) and ends with the request that
//! carries it, or with its own completion event on devices that have no requests. Its address is
//! used again at once, so each life has a generation number, and a request remembers which
//! generation it carries. Which bios a request carries is read at every D from its own list.

mod bio;
mod complete;
mod issue;
mod light;

use std::collections::VecDeque;

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use crate::device::{DeviceMeter, Operation};
use crate::file_io::FileIo;
use crate::image::{Images, Owner};
use crate::overlap::Activity;
use crate::pointer::PointerMap;
use crate::threads::Threads;
use crate::unlinked::Reasons;

use bio::{Bio, Way};
use issue::Request;

/// What the block layer tells to, and asks from, the layers above it.
pub(crate) struct Above<'a> {
    pub images: &'a mut Images,
    pub activity: &'a mut [Activity],
    pub files: &'a mut FileIo,
    pub threads: &'a Threads,
    pub reasons: Reasons,
}

/// The state of one machine's block layer.
#[derive(Debug, Default)]
pub(crate) struct BlockLayer {
    pub devices: Vec<DeviceMeter>,
    by_dev: PointerMap<u32, u16>,
    last_device: u16,
    bios: PointerMap<u64, Bio>,
    requests: PointerMap<u64, Request>,
    generation: u32,
    /// Times of Q of zero-length flushes without an end yet, by device. Their request has no D and
    /// its completion names no bio, so the oldest is taken: count and mean are exact, single
    /// samples may be exchanged between flushes that overlap.
    flushes: Vec<VecDeque<u64>>,
    /// Light recordings: requests whose data part within a flush sequence has been counted.
    flush_sequences: PointerMap<u64, ()>,
}

/// Zero-length flushes remembered for one device. More are not in flight: completions were lost.
const MAX_FLUSHES: usize = 1 << 16;

impl BlockLayer {
    pub(crate) fn push(&mut self, kind: Kind, event: &Event, above: &mut Above<'_>) {
        let device = self.device(event.dev);
        match kind {
            Kind::Queue => self.queue(device, event, above),
            Kind::GetRequest | Kind::BackMerge | Kind::FrontMerge => {
                self.enter_request(kind, device, event, above)
            }
            Kind::Split => self.split(device, event, above),
            Kind::BioRemap => self.remap(device, event),
            Kind::BioComplete => self.bio_complete(device, event, above),
            Kind::Insert => self.insert(device, event),
            Kind::Issue => self.issue(device, event, above),
            Kind::Link => self.link(device, event, above),
            Kind::Requeue => self.requeue(device, event),
            Kind::Complete => self.complete(device, event, above),
            Kind::RequestMerge => {
                self.meter(device).request_merges += 1;
                self.requests.remove(&event.object);
            }
            Kind::RequestRemap => self.meter(device).remaps += 1,
            Kind::RequestDone => self.request_done(device, event, above.reasons.at(event.ts_ns)),
            _ => {}
        }
    }

    /// Forgets what only the order of events ties together: some of them were lost.
    pub(crate) fn events_were_lost(&mut self) {
        self.flushes.iter_mut().for_each(VecDeque::clear);
    }

    #[inline]
    fn device(&mut self, dev: u32) -> u16 {
        if let Some(last) = self.devices.get(usize::from(self.last_device))
            && last.dev == dev
        {
            return self.last_device;
        }
        let next = self.devices.len() as u16;
        let device = *self.by_dev.entry(dev).or_insert(next);
        if device == next {
            self.devices.push(DeviceMeter::new(dev));
            self.flushes.push(VecDeque::new());
        }
        self.last_device = device;
        device
    }

    /// The meter of a device number that [`Self::device`] gave.
    #[inline]
    fn meter(&mut self, device: u16) -> &mut DeviceMeter {
        &mut self.devices[usize::from(device)]
    }

    fn new_generation(&mut self, device: u16) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.meter(device).check.generations += 1;
        self.generation
    }

    fn queue(&mut self, device: u16, event: &Event, above: &mut Above<'_>) {
        let operation = Operation::of(event.op());
        let empty_flush = event.bytes == 0
            && (event.op() == flags::OP_FLUSH || event.flags & flags::PREFLUSH != 0);
        let meter = self.meter(device);
        meter.check.queued += 1;
        let mut owner = Owner::Thread(event.tid);
        let mut counts_for = None;
        if empty_flush {
            meter.check.empty_flushes += 1;
            let waiting = &mut self.flushes[usize::from(device)];
            if waiting.len() == MAX_FLUSHES {
                waiting.pop_front();
            }
            waiting.push_back(event.ts_ns);
        } else if operation != Operation::Other && event.bytes > 0 {
            meter.queued += 1;
            if let Some(last) = meter.last_queued_ns.replace(event.ts_ns) {
                meter.q2q.record(event.ts_ns.saturating_sub(last));
            }
            meter.seek_q.io(event.offset, event.bytes);
            owner = above.images.owner(event);
            if event.sub == flags::OWNER_ANONYMOUS
                && let Some(image) = above.files.submitting(event.tid)
                && above.images.lies_on(image, event.dev)
            {
                owner = Owner::Image(image);
            }
            counts_for = bio::clocks_of(owner, event, above);
            above.files.bio_queued(event);
        }
        let generation = self.new_generation(device);
        let mut bio = Bio::new(generation, device, operation, event);
        bio.empty_flush = empty_flush;
        bio.owner = owner;
        bio.clocks = counts_for;
        if counts_for.is_some() && above.images.is_stacked(event.dev) {
            bio.skip_queue();
        }
        self.begin_life(event.object, bio, event.ts_ns, above);
    }

    /// Puts a new life in the place of an old one.
    fn begin_life(&mut self, pointer: u64, bio: Bio, ts_ns: u64, above: &mut Above<'_>) {
        bio.enter_queue(ts_ns, above);
        let Some(old) = self.bios.insert(pointer, bio) else {
            return;
        };
        // Zero-length flushes end by order, not by address, so an old one may still stand here.
        if old.empty_flush || old.queued_ns.is_none() {
            return;
        }
        self.meter(old.device).check.reused_while_live += 1;
        old.leave(ts_ns, above);
        let Some(request) = self.requests.get_mut(&old.request) else {
            return;
        };
        if request.forget(pointer, old.generation)
            && request.at_device
            && let Some(request) = self.requests.remove(&old.request)
        {
            self.completion_missed(&request, ts_ns, above);
        }
    }

    fn enter_request(&mut self, kind: Kind, device: u16, event: &Event, above: &mut Above<'_>) {
        let check = &mut self.meter(device).check;
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
        let Some(bio) = self.bios.get_mut(&event.object) else {
            let reason = above.reasons.at(event.ts_ns);
            self.meter(device).unlinked.count(reason);
            return;
        };
        bio.way = way;
        bio.entered_ns = event.ts_ns;
        let (queued_ns, operation) = (bio.queued_here(device), bio.operation);
        let empty = bio.empty_flush;
        if let Some(queued_ns) = queued_ns
            && !empty
            && let Some(parts) = self.meter(device).parts(operation)
        {
            let waited = event.ts_ns.saturating_sub(queued_ns);
            match way {
                Way::Got => parts.q2g.record(waited),
                _ => parts.q2m.record(waited),
            }
        }
    }

    fn remap(&mut self, device: u16, event: &Event) {
        self.meter(device).remaps += 1;
        // Partitions and dm remap before Q. A bio that lives already moves on without a second Q (md).
        if let Some(bio) = self.bios.get_mut(&event.object)
            && bio.device != device
            && bio.way == Way::Unknown
            && !bio.empty_flush
        {
            let dev = self
                .devices
                .get(usize::from(bio.device))
                .map(|meter| meter.dev);
            if dev == Some(event.owner_dev) {
                bio.device = device;
            }
        }
    }

    /// Closes the books.
    pub(crate) fn finish(&mut self) {
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
