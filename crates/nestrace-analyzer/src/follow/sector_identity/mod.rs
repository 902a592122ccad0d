//! Identities for events that have none: the kernel's own blktrace names devices and sectors, not
//! bios and requests.
//!
//! Each Q and each G gets an address of its own; later events find it by device, first sector,
//! length and operation, the oldest first. A request is the bios that G, M and F put together, or,
//! where such an event is missing, the bios that lie in its range at D. What a probe would have read
//! in the request (its bios at D, whether it is part of a flush's sequence, the bytes that remain
//! after a C) is added to the events.
//!
//! G, M, F and X are traced in the task that queued the bio, so its own bio comes before others that are the same.
//!
//! This is a heuristic in one case: of several I/Os of the same kind, place and length in flight at
//! once, the one that began first is taken to end first. Counts and sums do not depend on it; which bio had
//! which request does, so all of these bios are marked ([`SectorIdentity::was_guessed`]) and none is linked.
//! After events were lost everything in flight is forgotten, so that no later I/O takes the place of
//! an earlier one.
//!
//! Where btt differs: it keeps one I/O for each sector, so it loses concurrent ones, the fragments of
//! split bios, and everything without a length (flushes).

mod bound;
mod by_sector;
mod disk;
mod flushes;
mod guesses;
mod identified;
mod line;

use nestrace_abi::{Kind, Source, flags};
use nestrace_trace::Event;

use crate::follow::block::MAX_DEVICES;
use crate::model::pointer::PointerMap;
use crate::model::spare::Spare;
use by_sector::{OnItsWay, Request};
use disk::Disk;
use guesses::Guesses;
pub use identified::{Identified, Identities};

/// Gives addresses to the block events of one machine.
#[derive(Debug, Default)]
pub(crate) struct SectorIdentity {
    disks: Vec<Disk>,
    by_dev: PointerMap<u32, usize>,
    /// The disk of the event before: mostly the next one's, too.
    last: usize,
    addresses: Addresses,
    losses: u64,
    events: u64,
    /// This kernel may write no C of a flush request.
    flush_ends_untold: bool,
}

/// Addresses that no kernel has: they count up from 1.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    last: u64,
    /// Those that may be another one's.
    guesses: Guesses,
    ended: Spare<OnItsWay>,
}

impl Addresses {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A request that carries nothing yet.
    fn request(&mut self, since_ns: u64, extent: Extent) -> Request {
        let address = self.next();
        match self.ended.take() {
            Some(ended) => Request::empty_in(ended, address, since_ns, extent),
            None => Request::empty(address, since_ns, extent),
        }
    }

    /// The address of a request that has ended; a new one where its beginning was not seen.
    fn of_ended(&mut self, request: Option<Request>) -> u64 {
        let Some(request) = request else {
            return self.next();
        };
        let address = request.address;
        self.ended.keep(request.into_memory());
        address
    }
}

/// Start, length and operation of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub offset: u64,
    pub bytes: u64,
    pub op: u32,
}

impl Extent {
    fn of(event: &Event) -> Self {
        Self {
            offset: event.offset,
            bytes: event.bytes,
            op: event.op(),
        }
    }

    fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

impl SectorIdentity {
    /// For what a kernel of this release recorded, flush requests among it (a capture of blktrace's own tool has none where
    /// their ends could be missing).
    pub(crate) fn of_kernel(release: &str) -> Self {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut number = || numbers.next()?.parse::<u32>().ok();
        let version = number().zip(number());
        Self {
            flush_ends_untold: version.is_some_and(|version| version < (3, 18)),
            ..Self::default()
        }
    }

    /// Gives `event` its identity, and to `further` the events that this takes besides: they come right after it.
    /// Events that have one, or need none, stay as they are. An event that shows the end of a flush that the kernel
    /// did not tell comes after that end, which takes its place.
    pub(crate) fn identify(&mut self, event: &mut Event, mut further: impl FnMut(Event)) {
        let Some(kind) = event.kind() else {
            return;
        };
        if kind == Kind::Loss {
            self.lost(event);
        }
        if event.object != 0 || kind.source() != Source::Block {
            return;
        }
        self.bound();
        if self
            .disks
            .get(self.last)
            .is_none_or(|disk| disk.dev != event.dev)
            && !self.turn_to(event.dev)
        {
            return;
        }
        let Self {
            disks, addresses, ..
        } = self;
        let Some(disk) = disks.get_mut(self.last) else {
            return;
        };
        disk.forget_before(event.ts_ns);
        if self.flush_ends_untold
            && let Some(end) = disk.untold_flush_end(kind, event, addresses)
        {
            let (mut shows, mut links) = (std::mem::replace(event, end), Vec::new());
            disk.identify(kind, &mut shows, addresses, |link| links.push(link));
            further(shows);
            return links.into_iter().for_each(further);
        }
        disk.identify(kind, event, addresses, further);
    }

    /// Makes this disk the last one; whether there is room for it.
    #[cold]
    fn turn_to(&mut self, dev: u32) -> bool {
        if let Some(known) = self.by_dev.get(&dev) {
            self.last = *known;
            return true;
        }
        if self.disks.len() >= MAX_DEVICES {
            return false;
        }
        self.last = self.disks.len();
        self.by_dev.insert(dev, self.last);
        self.disks.push(Disk::new(dev));
        true
    }

    /// Whether the bio with this address, which has ended, may have been another one of the same kind, place and length
    /// that was in flight with it. Said once.
    pub(crate) fn was_guessed(&mut self, bio: u64) -> bool {
        self.addresses.guesses.take(bio)
    }

    fn lost(&mut self, event: &Event) {
        if event.sub == Source::Block as u8 && event.object > self.losses {
            self.losses = event.object;
            self.disks.iter_mut().for_each(Disk::forget);
        }
    }
}

/// Whether a bio goes through the kernel's flush machinery with data: it asked for a flush before
/// it, or needs one after it. Disks without a volatile cache are not in question: their bios lose
/// both flags before Q.
fn in_flush_sequence(at_queue: u32, at_issue: u32) -> bool {
    at_queue & flags::PREFLUSH != 0 || needs_flush_behind(at_queue, at_issue)
}

/// Whether a bio asked for its data to be on the medium, which the device cannot do with the write itself
/// (`blk-flush.c`: the request keeps REQ_FUA only where the device has it).
fn needs_flush_behind(at_queue: u32, at_issue: u32) -> bool {
    at_queue & flags::FUA != 0 && at_issue & flags::FUA == 0
}

#[cfg(test)]
mod tests;
