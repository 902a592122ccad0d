//! Requests of block devices, from D to their last C: what is exported of a device.
//!
//! Paired by identity alone, as the analyzer does it, and counted as it counts: `devices[].counts` and
//! `bytes` of the JSON are the sums of what comes from here. As there, a C ends the request whose data it
//! lies at, and none that was in flight while a guest's stream lost events.

mod in_flight;

use std::collections::{BTreeSet, HashMap};

use nestrace_trace::{Event, Kind, Manifest, Source, flags};

use in_flight::InFlight;

/// Requests in flight that are remembered; more are no queue but lost completions, or a guest's mischief.
const MAX_OPEN: usize = 1 << 16;

/// What a request does, as the kernel's statistics group it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// A read.
    Read,
    /// A write, of zeroes too.
    Write,
    /// A discard.
    Discard,
    /// A flush of the device's cache.
    Flush,
    /// A driver's command, a zone operation.
    #[default]
    Other,
}

impl Op {
    fn of(event: &Event) -> Self {
        match event.op() {
            flags::OP_READ => Self::Read,
            flags::OP_WRITE | flags::OP_WRITE_ZEROES | flags::OP_SECURE_ERASE => Self::Write,
            flags::OP_DISCARD => Self::Discard,
            flags::OP_FLUSH => Self::Flush,
            _ => Self::Other,
        }
    }

    /// `read`, `write`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// A request (of dm and md, which have none: a bio).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// What it does.
    pub op: Op,
    /// [`nestrace_trace::flags`].
    pub flags: u32,
    /// Byte offset on the device; [`Event::NOWHERE`] of a flush and of a driver's command.
    pub offset: u64,
    /// Bytes at D; of one whose D was not recorded, what its completions moved.
    pub bytes: u64,
    /// Bytes that its completions moved.
    pub moved: u64,
    /// First D; `None`: not recorded.
    pub issued_ns: Option<u64>,
    /// Last C; `None`: not recorded.
    pub completed_ns: Option<u64>,
    /// Bios that it carried; 0: not recorded.
    pub bios: u32,
    /// How often it was put back.
    pub requeues: u32,
    /// The device reported an error.
    pub failed: bool,
    /// Thread at D.
    pub tid: u32,
}

impl Request {
    /// Byte offset on the device, where it has a place there.
    pub fn place(&self) -> Option<u64> {
        Some(self.offset).filter(|offset| *offset != Event::NOWHERE)
    }

    /// D to C, where both were recorded.
    pub fn d2c_ns(&self) -> Option<u64> {
        Some(self.completed_ns?.saturating_sub(self.issued_ns?))
    }
}

/// What became of a request with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its first D, as it happens. Light recordings have none.
    Issued(Request),
    /// Its last C, or it is known that none will come.
    Ended(Request),
    /// A light recording's request, at its C.
    Whole(Request),
}

/// The requests of one machine.
#[derive(Debug, Default)]
pub struct Requests {
    /// By the address of the request.
    open: HashMap<u64, InFlight>,
    /// Devices that have no requests.
    stacked: BTreeSet<u32>,
    in_guest: bool,
    /// Events of the block layer that were lost so far.
    lost: u64,
}

impl Requests {
    /// Of a machine whose dm and md devices are known.
    pub fn of_host(manifest: &Manifest) -> Self {
        let devices = manifest.topology.devices.iter();
        let stacked = devices.filter(|device| matches!(device.kind.as_str(), "dm" | "md"));
        Self {
            stacked: stacked.map(|device| device.dev).collect(),
            ..Self::default()
        }
    }

    /// Of a guest.
    pub fn of_guest() -> Self {
        Self {
            in_guest: true,
            ..Self::default()
        }
    }

    /// Takes the next event; gives what it changes to `out`.
    pub fn push(&mut self, event: &Event, mut out: impl FnMut(Step)) {
        match event.kind() {
            Some(Kind::Issue) => self.issue(event, &mut out),
            Some(Kind::Complete) => self.complete(event, &mut out),
            Some(Kind::Requeue) => self.put_back(event, &mut out),
            // Another request has what it was put back with; one that seems to be at the device has lost its C.
            Some(Kind::RequestMerge) => {
                let merged = self.open.remove(&event.object);
                merged.into_iter().map(ended).for_each(out);
            }
            Some(Kind::Loss)
                if event.sub == Source::Block as u8 && event.lost_so_far() > self.lost =>
            {
                self.lost = event.lost_so_far();
                // On the host an I/O would seem to have no request at all.
                if self.in_guest {
                    self.finish(out);
                }
            }
            Some(Kind::RequestDone) => light(event, &mut out),
            Some(Kind::Queue) if self.stacked.contains(&event.dev) => self.issue(event, &mut out),
            Some(Kind::BioComplete) => {
                if let Some(InFlight {
                    request: mut bio, ..
                }) = self.open.remove(&event.object)
                {
                    bio.completed_ns = Some(event.ts_ns);
                    bio.failed = event.status() != 0;
                    bio.moved = if bio.failed { 0 } else { bio.bytes };
                    out(Step::Ended(bio));
                }
            }
            _ => {}
        }
    }

    /// Nothing more comes: what is still in flight has no end.
    pub fn finish(&mut self, mut out: impl FnMut(Step)) {
        let left = self.open.drain().map(|(_, in_flight)| in_flight.request);
        let mut left: Vec<Request> = left.collect();
        left.sort_by_key(|request| (request.issued_ns, request.offset));
        left.into_iter()
            .for_each(|request| out(Step::Ended(request)));
    }

    fn issue(&mut self, event: &Event, out: &mut impl FnMut(Step)) {
        if let Some(waiting) = self.open.get_mut(&event.object)
            && waiting.put_back
            && waiting.goes_on(event)
        {
            return waiting.issued_again(event);
        }
        let bio = event.kind() == Some(Kind::Queue);
        let request = Request {
            dev: event.dev,
            op: Op::of(event),
            flags: event.flags,
            offset: event.offset,
            bytes: event.bytes,
            issued_ns: Some(event.ts_ns),
            bios: match (bio, event.first_bio()) {
                (true, _) => 1,
                (false, 0) => 0,
                (false, _) => 1 + u32::from(event.sub),
            },
            tid: event.tid,
            ..Request::default()
        };
        // dm and md hand an empty flush on: it is a request of the devices below.
        if bio && event.bytes == 0 {
            return;
        }
        out(Step::Issued(request));
        // The address serves another by now: the completion of the one before was not seen.
        let lost = self.open.insert(event.object, InFlight::issued(request));
        lost.into_iter().map(ended).for_each(&mut *out);
        self.bound(out);
    }

    fn put_back(&mut self, event: &Event, out: &mut impl FnMut(Step)) {
        let Some(mut known) = self.open.remove(&event.object) else {
            return;
        };
        if !known.goes_on(event) {
            // The address serves another by now.
            return out(ended(known));
        }
        known.request.requeues = known.request.requeues.saturating_add(1);
        known.put_back = true;
        self.open.insert(event.object, known);
    }

    fn complete(&mut self, event: &Event, out: &mut impl FnMut(Step)) {
        let mut known = self.open.remove(&event.object);
        if let Some(other) = known.take_if(|known| known.is_another_s(event)) {
            // Its C was not seen.
            out(ended(other));
        }
        let mut in_flight = match known {
            Some(known) => known,
            // The flush machinery's last C moves nothing and is of no request at the device.
            None if event.bytes == 0 => return,
            None => InFlight::unseen(event),
        };
        in_flight.moves(event);
        if event.remaining_bytes() != 0 {
            self.open.insert(event.object, in_flight);
            return self.bound(out);
        }
        let mut request = in_flight.request;
        request.completed_ns = Some(event.ts_ns);
        if request.issued_ns.is_none() {
            request.bytes = request.moved;
        }
        out(Step::Ended(request));
    }

    /// Gives up the older half of too many.
    fn bound(&mut self, out: &mut impl FnMut(Step)) {
        if self.open.len() <= MAX_OPEN {
            return;
        }
        let ages = self.open.iter();
        let ages = ages.map(|(pointer, in_flight)| (in_flight.request.issued_ns, *pointer));
        let mut ages: Vec<(Option<u64>, u64)> = ages.collect();
        ages.sort_unstable();
        for (_, pointer) in ages.into_iter().take(MAX_OPEN / 2) {
            let given_up = self.open.remove(&pointer);
            given_up.into_iter().map(ended).for_each(&mut *out);
        }
    }
}

/// It is known that no further C will come, or none that can be distinguished from another's.
const fn ended(in_flight: InFlight) -> Step {
    Step::Ended(in_flight.request)
}

/// A light recording has one event for a whole request.
fn light(event: &Event, out: &mut impl FnMut(Step)) {
    let op = Op::of(event);
    // The end of a flush sequence, which is no request of its own.
    if event.bytes == 0 && op != Op::Flush {
        return;
    }
    out(Step::Whole(Request {
        dev: event.dev,
        op,
        flags: event.flags,
        offset: event.offset,
        bytes: event.bytes,
        moved: event.bytes,
        issued_ns: event.issued_ns(),
        completed_ns: Some(event.ts_ns),
        failed: event.sub != 0,
        ..Request::default()
    }));
}

#[cfg(test)]
mod tests;
