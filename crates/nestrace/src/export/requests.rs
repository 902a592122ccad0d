//! Requests of block devices, from D to their last C: what is exported of a device.
//!
//! Paired by identity alone, as the analyzer does it, and counted as it counts: `devices[].counts` and
//! `bytes` of the JSON are the sums of what comes from here. As there, a C ends the request whose data it
//! lies at, and none that was in flight while a guest's stream lost events.

use std::collections::{BTreeSet, HashMap};

use nestrace_trace::{Event, Kind, Manifest, Source, flags};

/// Requests in flight that are remembered; more are no queue but lost completions, or a guest's mischief.
const MOST_OPEN: usize = 1 << 16;

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
    /// A light recording's request, told at its C.
    Whole(Request),
}

/// The requests of one machine.
#[derive(Debug, Default)]
pub struct Requests {
    open: HashMap<u64, Request>,
    /// Put back, and not at the device.
    waiting: HashMap<u64, Request>,
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
            Some(Kind::Requeue) => {
                if let Some(mut request) = self.open.remove(&event.object) {
                    request.requeues += 1;
                    self.waiting.insert(event.object, request);
                }
            }
            // Another request has what it was put back with; one that seems to be at the device has lost its C.
            Some(Kind::RequestMerge) => {
                let merged =
                    [&mut self.open, &mut self.waiting].map(|map| map.remove(&event.object));
                merged.into_iter().flatten().map(Step::Ended).for_each(out);
            }
            Some(Kind::Loss) if event.sub == Source::Block as u8 && event.object > self.lost => {
                self.lost = event.object;
                // On the host an I/O would seem to have no request at all.
                if self.in_guest {
                    self.finish(out);
                }
            }
            Some(Kind::RequestDone) => light(event, &mut out),
            Some(Kind::Queue) if self.stacked.contains(&event.dev) => self.issue(event, &mut out),
            Some(Kind::BioComplete) => {
                if let Some(mut bio) = self.open.remove(&event.object) {
                    bio.completed_ns = Some(event.ts_ns);
                    bio.failed = event.aux != 0;
                    bio.moved = if bio.failed { 0 } else { bio.bytes };
                    out(Step::Ended(bio));
                }
            }
            _ => {}
        }
    }

    /// Nothing more comes: what is still in flight has no end.
    pub fn finish(&mut self, mut out: impl FnMut(Step)) {
        let mut left: Vec<Request> = self.open.drain().map(|(_, request)| request).collect();
        left.extend(self.waiting.drain().map(|(_, request)| request));
        left.sort_by_key(|request| (request.issued_ns, request.offset));
        left.into_iter()
            .for_each(|request| out(Step::Ended(request)));
    }

    fn issue(&mut self, event: &Event, out: &mut impl FnMut(Step)) {
        if let Some(request) = self.waiting.remove(&event.object) {
            self.open.insert(event.object, request);
            return;
        }
        let bio = event.kind() == Some(Kind::Queue);
        let request = Request {
            dev: event.dev,
            op: Op::of(event),
            flags: event.flags,
            offset: event.offset,
            bytes: event.bytes,
            issued_ns: Some(event.ts_ns),
            bios: match (bio, event.related) {
                (true, _) => 1,
                (false, 0) => 0,
                (false, _) => 1 + u32::from(event.sub),
            },
            tid: event.tid,
            ..Request::default()
        };
        // dm and md hand an empty flush on: it is a request of the devices beneath.
        if bio && event.bytes == 0 {
            return;
        }
        out(Step::Issued(request));
        // The address serves another by now: the completion of the one before was not seen.
        if let Some(lost) = self.open.insert(event.object, request) {
            out(Step::Ended(lost));
        }
        self.bound(out);
    }

    fn complete(&mut self, event: &Event, out: &mut impl FnMut(Step)) {
        // The flush machinery's last C moves nothing and is of no request at the device.
        if !self.open.contains_key(&event.object) && event.bytes == 0 {
            return;
        }
        if event.bytes == 0 && self.ends_another(event) {
            // The C of this request was not seen; its address serves a flush without data by now.
            self.open.remove(&event.object).map(Step::Ended).map(out);
            return;
        }
        if self.lies_elsewhere(event) {
            self.open
                .remove(&event.object)
                .map(Step::Ended)
                .map(&mut *out);
        }
        let request = self.open.entry(event.object).or_insert_with(|| Request {
            dev: event.dev,
            op: Op::of(event),
            flags: event.flags,
            offset: event.offset,
            ..Request::default()
        });
        request.moved = request.moved.saturating_add(event.bytes);
        request.failed |= event.sub != 0;
        if event.related != 0 {
            return;
        }
        if let Some(mut request) = self.open.remove(&event.object) {
            request.completed_ns = Some(event.ts_ns);
            if request.issued_ns.is_none() {
                request.bytes = request.moved;
            }
            out(Step::Ended(request));
        }
    }

    /// Whether a last C without data comes for a request that had some and is of no flush sequence.
    fn ends_another(&self, event: &Event) -> bool {
        let in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        let last = event.related == 0 && !in_sequence;
        self.open.get(&event.object).is_some_and(|request| {
            last && request.bytes > 0 && request.moved == 0 && request.flags & flags::FLUSH_SEQ == 0
        })
    }

    /// Whether a C moves other data than what the request at its address still has to move: that is of another
    /// request, whose D was not seen.
    fn lies_elsewhere(&self, event: &Event) -> bool {
        self.open.get(&event.object).is_some_and(|request| {
            let next = request.offset.saturating_add(request.moved);
            event.bytes > 0 && request.bytes > 0 && (event.dev, event.offset) != (request.dev, next)
        })
    }

    /// Gives up the older half of too many.
    fn bound(&mut self, out: &mut impl FnMut(Step)) {
        for map in [&mut self.open, &mut self.waiting] {
            if map.len() <= MOST_OPEN {
                continue;
            }
            let mut ages: Vec<(Option<u64>, u64)> = map
                .iter()
                .map(|(pointer, request)| (request.issued_ns, *pointer))
                .collect();
            ages.sort_unstable();
            for (_, pointer) in ages.into_iter().take(MOST_OPEN / 2) {
                if let Some(request) = map.remove(&pointer) {
                    out(Step::Ended(request));
                }
            }
        }
    }
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
        issued_ns: Some(event.related).filter(|issued_ns| *issued_ns > 0),
        completed_ns: Some(event.ts_ns),
        failed: event.sub != 0,
        ..Request::default()
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ts_ns: u64, kind: Kind, object: u64) -> Event {
        Event {
            ts_ns,
            kind: kind as u8,
            object,
            dev: 8 << 20,
            flags: flags::OP_WRITE,
            offset: 4096,
            bytes: 8192,
            related: u64::from(kind == Kind::Issue),
            ..Event::default()
        }
    }

    fn steps(events: &[Event]) -> Vec<Step> {
        let (mut requests, mut steps) = (Requests::default(), Vec::new());
        for event in events {
            requests.push(event, |step| steps.push(step));
        }
        requests.finish(|step| steps.push(step));
        steps
    }

    fn ended(events: &[Event]) -> Vec<Request> {
        let ended = |step| match step {
            Step::Ended(request) | Step::Whole(request) => Some(request),
            Step::Issued(_) => None,
        };
        steps(events).into_iter().filter_map(ended).collect()
    }

    #[test]
    fn a_request_ends_with_its_last_completion() {
        let part = Event {
            bytes: 4096,
            related: 4096,
            ..event(30, Kind::Complete, 1)
        };
        let last = Event {
            bytes: 4096,
            related: 0,
            ..event(40, Kind::Complete, 1)
        };
        let found = ended(&[event(10, Kind::Issue, 1), part, last]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].d2c_ns(), found[0].moved), (Some(30), 8192));
        assert_eq!((found[0].op.name(), found[0].bios), ("write", 1));
    }

    #[test]
    fn one_that_was_put_back_is_issued_once() {
        let found = steps(&[
            event(10, Kind::Issue, 1),
            event(11, Kind::Requeue, 1),
            event(20, Kind::Issue, 1),
            event(30, Kind::Complete, 1),
        ]);
        let [Step::Issued(_), Step::Ended(request)] = found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((request.requeues, request.d2c_ns()), (1, Some(20)));
    }

    #[test]
    fn what_has_no_partner_is_there_all_the_same() {
        let found = ended(&[
            event(5, Kind::Complete, 9),
            event(10, Kind::Issue, 1),
            event(20, Kind::Issue, 1),
        ]);
        let times: Vec<_> = found
            .iter()
            .map(|request| (request.issued_ns, request.completed_ns))
            .collect();
        assert_eq!(times, [(None, Some(5)), (Some(10), None), (Some(20), None)]);
        assert_eq!(found[0].bytes, 8192);
    }

    #[test]
    fn the_end_of_a_flush_sequence_is_no_request() {
        let data = Event {
            flags: flags::OP_WRITE | flags::FLUSH_SEQ,
            ..event(20, Kind::Complete, 1)
        };
        let last = Event {
            bytes: 0,
            ..event(30, Kind::Complete, 1)
        };
        let found = ended(&[event(10, Kind::Issue, 1), data, last]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].completed_ns, Some(20));
    }

    #[test]
    fn a_completion_without_data_is_another_s() {
        let empty = Event {
            bytes: 0,
            ..event(30, Kind::Complete, 1)
        };
        let found = ended(&[event(10, Kind::Issue, 1), empty]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].completed_ns, found[0].moved), (None, 0));
    }

    #[test]
    fn a_completion_elsewhere_is_of_a_request_that_was_not_seen() {
        let elsewhere = Event {
            offset: 1 << 20,
            ..event(30, Kind::Complete, 1)
        };
        let found = ended(&[event(10, Kind::Issue, 1), elsewhere]);
        let times: Vec<_> = found
            .iter()
            .map(|request| (request.offset, request.issued_ns, request.completed_ns))
            .collect();
        assert_eq!(times, [(4096, Some(10), None), (1 << 20, None, Some(30))]);
    }

    #[test]
    fn what_merges_at_the_address_of_a_lost_completion_is_another_request() {
        let merge = event(20, Kind::RequestMerge, 1);
        let found = ended(&[event(10, Kind::Issue, 1), merge, event(30, Kind::Issue, 1)]);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|request| request.completed_ns.is_none()));
    }

    #[test]
    fn a_guest_s_loss_ends_what_was_in_flight() {
        let loss = Event {
            sub: Source::Block as u8,
            ..event(20, Kind::Loss, 3)
        };
        let events = [
            event(10, Kind::Issue, 1),
            loss,
            event(30, Kind::Complete, 1),
        ];
        let times = |mut requests: Requests| {
            let mut times = Vec::new();
            for event in &events {
                requests.push(event, |step| {
                    if let Step::Ended(request) = step {
                        times.push((request.issued_ns, request.completed_ns));
                    }
                });
            }
            times
        };
        assert_eq!(
            times(Requests::of_guest()),
            [(Some(10), None), (None, Some(30))]
        );
        assert_eq!(times(Requests::default()), [(Some(10), Some(30))]);
    }

    #[test]
    fn too_many_in_flight_are_given_up() {
        let mut requests = Requests::default();
        let mut given_up = 0;
        for object in 0..3 * MOST_OPEN as u64 {
            requests.push(&event(object, Kind::Issue, object), |step| {
                given_up += usize::from(matches!(step, Step::Ended(_)));
            });
        }
        assert!(requests.open.len() <= MOST_OPEN);
        assert_eq!(given_up + requests.open.len(), 3 * MOST_OPEN);
    }
}
