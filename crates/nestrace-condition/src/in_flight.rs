//! Requests that have begun, from the events of a stream: which of them an event ends, and after how long.
//!
//! This follows a request by its own identity in one layer. How the layers hang together is the analyzer's.

use std::collections::{BTreeSet, HashMap};

use nestrace_sums::snapshot::Op;
use nestrace_trace::{Event, Kind, Source, flags};

use crate::expression::{Layer, Side};

/// Requests that are followed at a time. Where there are more, ends were lost: all are forgotten.
const MAX_IN_FLIGHT: usize = 1 << 16;

/// One request in one layer.
type Key = (Side, Layer, u64);

/// A request that has begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    op: Op,
    /// On its side's clock.
    since_ns: u64,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub layer: Layer,
    pub op: Op,
    pub latency_ns: u64,
}

/// The requests that are in flight in the layers of a condition.
pub(crate) struct InFlight {
    layers: BTreeSet<Layer>,
    /// Devices that stand on no other one.
    lowest: BTreeSet<u32>,
    begun: HashMap<Key, Begun>,
    /// Bios of the requests that were issued in a guest.
    bios: HashMap<(Side, u64), Vec<u64>>,
    /// Control blocks of an `io_submit` that has not returned: thread, operation and time.
    submitted: HashMap<u64, (u32, Op, u64)>,
    /// What is to be added to a guest's time for the host's, at most: the fastest way here that was seen.
    ahead_ns: HashMap<Side, i128>,
}

impl InFlight {
    pub fn new(layers: BTreeSet<Layer>, lowest: BTreeSet<u32>) -> Self {
        Self {
            layers,
            lowest,
            begun: HashMap::new(),
            bios: HashMap::new(),
            submitted: HashMap::new(),
            ahead_ns: HashMap::new(),
        }
    }

    /// Takes an event that came at this time of the host.
    pub fn take(&mut self, side: Side, event: &Event, now_ns: u64, ended: &mut impl FnMut(Ended)) {
        let Some(kind) = event.kind() else { return };
        if kind == Kind::Loss {
            // An end may be among what is missing, and its identity has come again.
            self.forget(side);
            return;
        }
        match side {
            Side::Host => self.of_host(kind, event, ended),
            Side::Guest(_) if self.layers.contains(&Layer::Guest) => {
                self.note_clock(side, event.ts_ns, now_ns);
                self.of_guest(side, kind, event, ended);
            }
            Side::Guest(_) => {}
        }
        if self.begun.len() > MAX_IN_FLIGHT || self.bios.len() > MAX_IN_FLIGHT {
            self.begun.clear();
            self.bios.clear();
        }
    }

    /// What was in flight there is not known any more.
    pub fn forget(&mut self, side: Side) {
        self.begun.retain(|(of, _, _), _| *of != side);
        self.bios.retain(|(of, _), _| *of != side);
        if side == Side::Host {
            self.submitted.clear();
        } else {
            self.ahead_ns.remove(&side);
        }
    }

    /// The age of the oldest request, in nanoseconds; `None` where there is none.
    pub fn oldest_ns(&self, layer: Layer, op: Option<Op>, now_ns: u64) -> Option<u64> {
        let wanted =
            |(key, begun): &(&Key, &Begun)| key.1 == layer && op.is_none_or(|op| op == begun.op);
        let age_ns = |(key, begun): (&Key, &Begun)| {
            let ahead_ns = self.ahead_ns.get(&key.0).copied().unwrap_or(0);
            let age_ns = i128::from(now_ns) - i128::from(begun.since_ns) - ahead_ns;
            u64::try_from(age_ns).unwrap_or(0)
        };
        self.begun.iter().filter(wanted).map(age_ns).max()
    }

    fn note_clock(&mut self, side: Side, ts_ns: u64, now_ns: u64) {
        let ahead_ns = i128::from(now_ns) - i128::from(ts_ns);
        let known = self.ahead_ns.entry(side).or_insert(ahead_ns);
        // It follows a clock that drifts, slowly: most events wait on their way.
        *known = ahead_ns.min(*known + ((ahead_ns - *known) >> 10));
    }

    fn begin(&mut self, key: Key, op: Op, since_ns: u64) {
        self.begun.insert(key, Begun { op, since_ns });
    }

    fn end(&mut self, key: Key, ts_ns: u64, ended: &mut impl FnMut(Ended)) {
        if let Some(begun) = self.begun.remove(&key) {
            ended(Ended {
                layer: key.1,
                op: begun.op,
                latency_ns: ts_ns.saturating_sub(begun.since_ns),
            });
        }
    }

    fn of_host(&mut self, kind: Kind, event: &Event, ended: &mut impl FnMut(Ended)) {
        match kind.source() {
            Source::Block if self.lowest.contains(&event.dev) => {
                self.of_device(kind, event, ended);
            }
            Source::Qemu if self.layers.contains(&Layer::Qemu) => {
                self.of_qemu(kind, event, ended);
            }
            Source::File if self.layers.contains(&Layer::FileIo) => {
                self.of_files(kind, event, ended);
            }
            _ => {}
        }
    }

    fn of_device(&mut self, kind: Kind, event: &Event, ended: &mut impl FnMut(Ended)) {
        let device = (Side::Host, Layer::Device, event.object);
        let has_device = self.layers.contains(&Layer::Device);
        let queue = |bio: u64| (Side::Host, Layer::HostQueue, bio);
        let has_queue = self.layers.contains(&Layer::HostQueue);
        match (kind, op_of(event)) {
            (Kind::Queue, Some(op)) if has_queue => {
                self.begin(queue(event.object), op, event.ts_ns);
            }
            (Kind::Split, _) if has_queue => {
                if let Some(parent) = self.begun.get(&queue(event.parent_bio())).copied() {
                    self.begun.insert(queue(event.object), parent);
                }
            }
            (Kind::Issue, op) => {
                if has_queue {
                    self.end(queue(event.first_bio()), event.ts_ns, ended);
                }
                if let Some(op) = op.filter(|_| has_device) {
                    self.begin(device, op, event.ts_ns);
                }
            }
            (Kind::Link, _) if has_queue => {
                for bio in event.further_bios().into_iter().filter(|bio| *bio != 0) {
                    self.end(queue(bio), event.ts_ns, ended);
                }
            }
            (Kind::Requeue, _) => _ = self.begun.remove(&device),
            (Kind::Complete, _) if event.remaining_bytes() == 0 => {
                self.end(device, event.ts_ns, ended);
                // A flush without data is never issued.
                self.begun.remove(&queue(event.ended_bio()));
            }
            (Kind::RequestDone, Some(op)) if has_device => {
                done_light(Layer::Device, op, event, ended);
            }
            _ => {}
        }
    }

    fn of_qemu(&mut self, kind: Kind, event: &Event, ended: &mut impl FnMut(Ended)) {
        // A cookie is an address in its own QEMU.
        let cookie = event.object.rotate_left(16) ^ u64::from(event.dev);
        let key = (Side::Host, Layer::Qemu, cookie);
        match kind {
            Kind::AcctStart => {
                let op = match event.sub {
                    1 => Op::Read,
                    2 => Op::Write,
                    3 => Op::Flush,
                    4 => Op::Discard,
                    _ => return,
                };
                // A request that starts again, as after an error, began the first time.
                self.begun.entry(key).or_insert(Begun {
                    op,
                    since_ns: event.ts_ns,
                });
            }
            Kind::AcctDone | Kind::AcctFailed => self.end(key, event.ts_ns, ended),
            _ => {}
        }
    }

    fn of_files(&mut self, kind: Kind, event: &Event, ended: &mut impl FnMut(Ended)) {
        let key = |of: u64| (Side::Host, Layer::FileIo, of);
        let thread = u64::from(event.tid);
        match (kind, op_of_call(event.sub)) {
            (Kind::SyscallEnter, Some(op)) => self.begin(key(thread), op, event.ts_ns),
            (Kind::SyscallExit, _) => {
                self.end(key(thread), event.ts_ns, ended);
                self.submitted.retain(|_, (tid, ..)| *tid != event.tid);
            }
            (Kind::UringSubmit, Some(op)) => self.begin(key(event.object), op, event.ts_ns),
            (Kind::UringComplete, _) => self.end(key(event.object), event.ts_ns, ended),
            (Kind::AioSubmit, Some(op)) if self.submitted.len() < MAX_IN_FLIGHT => {
                let submitted = (event.tid, op, event.ts_ns);
                self.submitted.insert(event.object, submitted);
            }
            // Only direct I/O goes on after io_submit has returned.
            (Kind::DioBegin, _) => {
                if let Some((_, op, ns)) = self.submitted.remove(&event.origin) {
                    self.begin(key(!event.origin), op, ns);
                }
            }
            // Of io_uring the origin is the request itself, which ends later: its key is another one.
            (Kind::DioComplete, _) => self.end(key(!event.origin), event.ts_ns, ended),
            _ => {}
        }
    }

    fn of_guest(&mut self, side: Side, kind: Kind, event: &Event, ended: &mut impl FnMut(Ended)) {
        let key = |of: u64| (side, Layer::Guest, of);
        // blktrace names no bio or request: there a request is its place, from its issue on.
        let named = event.object != 0;
        let place = (event.offset ^ u64::from(event.dev).rotate_left(44)) | 1 << 63;
        match (kind, op_of(event)) {
            (Kind::Queue, Some(op)) if named => self.begin(key(event.object), op, event.ts_ns),
            (Kind::Split, _) if named => {
                if let Some(parent) = self.begun.get(&key(event.parent_bio())).copied() {
                    self.begun.insert(key(event.object), parent);
                }
            }
            (Kind::Issue, _) if named => {
                let bio = event.first_bio();
                let bios = self.bios.entry((side, event.object)).or_default();
                bios.clear();
                bios.extend((bio != 0).then_some(bio));
            }
            (Kind::Issue, Some(op)) => self.begin(key(place), op, event.ts_ns),
            (Kind::Link, _) => {
                if let Some(bios) = self.bios.get_mut(&(side, event.object)) {
                    bios.extend(event.further_bios().into_iter().filter(|bio| *bio != 0));
                    bios.truncate(MAX_BIOS);
                }
            }
            (Kind::Requeue, _) if named => _ = self.bios.remove(&(side, event.object)),
            (Kind::Complete, _) if event.remaining_bytes() == 0 && named => {
                let bios = self.bios.remove(&(side, event.object));
                // With a flush after its data, a bio ends with another completion, which names it.
                let bios = bios.filter(|_| event.flags & flags::FLUSH_SEQ == 0);
                for bio in bios.into_iter().flatten().chain([event.ended_bio()]) {
                    self.end(key(bio), event.ts_ns, ended);
                }
            }
            (Kind::Complete, _) if event.remaining_bytes() == 0 => {
                self.end(key(place), event.ts_ns, ended);
            }
            (Kind::BioComplete, _) => self.end(key(event.object), event.ts_ns, ended),
            (Kind::RequestDone, Some(op)) => done_light(Layer::Guest, op, event, ended),
            _ => {}
        }
    }
}

/// Bios of one request that are remembered.
const MAX_BIOS: usize = 1024;

/// Of light detail there is one event a request, with both its times.
fn done_light(layer: Layer, op: Op, event: &Event, ended: &mut impl FnMut(Ended)) {
    if let Some(issued_ns) = event.issued_ns() {
        ended(Ended {
            layer,
            op,
            latency_ns: event.ts_ns.saturating_sub(issued_ns),
        });
    }
}

/// The operation of a bio or a request; `None` of a driver's own commands.
fn op_of(event: &Event) -> Option<Op> {
    match event.op() {
        flags::OP_READ => Some(Op::Read),
        flags::OP_WRITE if event.bytes == 0 && event.flags & flags::PREFLUSH != 0 => {
            Some(Op::Flush)
        }
        flags::OP_WRITE => Some(Op::Write),
        flags::OP_FLUSH => Some(Op::Flush),
        flags::OP_DISCARD | flags::OP_WRITE_ZEROES | flags::OP_SECURE_ERASE => Some(Op::Discard),
        _ => None,
    }
}

/// The operation of a call; `None` of one that moves or flushes no data.
fn op_of_call(sub: u8) -> Option<Op> {
    match sub {
        flags::op::READ => Some(Op::Read),
        flags::op::WRITE => Some(Op::Write),
        flags::op::FSYNC | flags::op::FDATASYNC | flags::op::SYNC_FILE_RANGE => Some(Op::Flush),
        flags::op::FALLOCATE => Some(Op::Discard),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u32 = 8 << 20;

    struct Seen {
        in_flight: InFlight,
        ended: Vec<(Layer, Op, u64)>,
    }

    impl Seen {
        fn of(layer: Layer) -> Self {
            Self {
                in_flight: InFlight::new([layer].into(), [DISK].into()),
                ended: Vec::new(),
            }
        }

        fn push(&mut self, side: Side, event: Event) -> &mut Self {
            let ended = &mut self.ended;
            self.in_flight
                .take(side, &event, event.ts_ns, &mut |end: Ended| {
                    ended.push((end.layer, end.op, end.latency_ns));
                });
            self
        }
    }

    fn event(kind: Kind, ts_ns: u64, object: u64) -> Event {
        Event {
            kind: kind as u8,
            ts_ns,
            object,
            dev: DISK,
            bytes: 4096,
            flags: flags::OP_WRITE,
            ..Event::default()
        }
    }

    #[test]
    fn a_device_s_request_lasts_from_its_issue_to_its_last_completion() {
        let mut seen = Seen::of(Layer::Device);
        let part = Event {
            related: 512,
            ..event(Kind::Complete, 30, 1)
        };
        seen.push(Side::Host, event(Kind::Issue, 10, 1))
            .push(Side::Host, part)
            .push(Side::Host, event(Kind::Complete, 50, 1))
            .push(Side::Host, event(Kind::Complete, 60, 1));
        assert_eq!(seen.ended, [(Layer::Device, Op::Write, 40)]);
        // One that was put back begins anew; another device is not asked for.
        let other = Event {
            dev: 1,
            ..event(Kind::Issue, 61, 2)
        };
        seen.push(Side::Host, event(Kind::Issue, 70, 1))
            .push(Side::Host, event(Kind::Requeue, 71, 1))
            .push(Side::Host, event(Kind::Issue, 80, 1))
            .push(Side::Host, other)
            .push(Side::Host, event(Kind::Complete, 90, 1));
        assert_eq!(seen.ended.len(), 2);
        assert_eq!(seen.ended[1].2, 10);
        assert_eq!(seen.in_flight.oldest_ns(Layer::Device, None, 100), None);
    }

    #[test]
    fn a_bio_waits_in_the_queue_until_its_request_is_issued() {
        let mut seen = Seen::of(Layer::HostQueue);
        let issue = Event {
            related: 1,
            ..event(Kind::Issue, 30, 100)
        };
        let link = Event {
            related: 2,
            offset: 3,
            bytes: 0,
            ..event(Kind::Link, 30, 100)
        };
        for bio in 1..=3 {
            seen.push(Side::Host, event(Kind::Queue, 10 * bio, bio));
        }
        seen.push(Side::Host, issue).push(Side::Host, link);
        let took: Vec<u64> = seen.ended.iter().map(|ended| ended.2).collect();
        assert_eq!(took, [20, 10, 0]);
    }

    #[test]
    fn a_guest_s_bio_ends_with_its_request_or_where_it_is_named() {
        let guest = Side::Guest(0);
        let mut seen = Seen::of(Layer::Guest);
        let issue = Event {
            related: 1,
            ..event(Kind::Issue, 20, 100)
        };
        let with_flush = Event {
            flags: flags::OP_WRITE | flags::FLUSH_SEQ,
            ..event(Kind::Complete, 30, 100)
        };
        let last = Event {
            bytes: 0,
            origin: 1,
            ..event(Kind::Complete, 45, 100)
        };
        seen.push(guest, event(Kind::Queue, 5, 1))
            .push(guest, issue)
            .push(guest, with_flush);
        assert!(seen.ended.is_empty());
        assert_eq!(
            seen.in_flight.oldest_ns(Layer::Guest, Some(Op::Write), 45),
            Some(40)
        );
        seen.push(guest, last);
        assert_eq!(seen.ended, [(Layer::Guest, Op::Write, 40)]);
        // Where nothing is named, from the issue on, by its place.
        let unnamed = |kind, ts_ns| Event {
            offset: 8192,
            ..event(kind, ts_ns, 0)
        };
        seen.push(guest, unnamed(Kind::Queue, 50))
            .push(guest, unnamed(Kind::Issue, 60))
            .push(guest, unnamed(Kind::Complete, 65));
        assert_eq!(seen.ended[1].2, 5);
    }

    #[test]
    fn qemu_s_requests_are_those_of_their_own_guest() {
        let mut seen = Seen::of(Layer::Qemu);
        let of = |guest, sub, event: Event| Event {
            dev: guest,
            sub,
            ..event
        };
        seen.push(Side::Host, of(0, 2, event(Kind::AcctStart, 10, 0x40)))
            .push(Side::Host, of(1, 3, event(Kind::AcctStart, 20, 0x40)))
            .push(Side::Host, of(0, 0, event(Kind::AcctDone, 50, 0x40)))
            .push(Side::Host, of(1, 0, event(Kind::AcctFailed, 60, 0x40)));
        let expected = [(Layer::Qemu, Op::Write, 40), (Layer::Qemu, Op::Flush, 40)];
        assert_eq!(seen.ended, expected);
    }

    #[test]
    fn calls_on_the_image_end_as_their_kind_does() {
        let mut seen = Seen::of(Layer::FileIo);
        let call = |kind, ts_ns, object, sub| Event {
            sub,
            tid: 7,
            ..event(kind, ts_ns, object)
        };
        let dio = |kind, ts_ns, origin| Event {
            origin,
            ..event(kind, ts_ns, 0xffff_8880_0000_1000)
        };
        seen.push(
            Side::Host,
            call(Kind::SyscallEnter, 10, 3, flags::op::FDATASYNC),
        )
        .push(
            Side::Host,
            call(Kind::SyscallExit, 30, 0, flags::op::FDATASYNC),
        )
        .push(
            Side::Host,
            call(Kind::UringSubmit, 40, 0x1000, flags::op::READ),
        )
        .push(Side::Host, dio(Kind::DioBegin, 41, 0x1000))
        .push(Side::Host, dio(Kind::DioComplete, 44, 0x1000))
        .push(Side::Host, call(Kind::UringComplete, 50, 0x1000, 0))
        // Of two control blocks the second was served from the page cache.
        .push(
            Side::Host,
            call(Kind::AioSubmit, 60, 0x2000, flags::op::WRITE),
        )
        .push(Side::Host, dio(Kind::DioBegin, 61, 0x2000))
        .push(
            Side::Host,
            call(Kind::AioSubmit, 62, 0x3000, flags::op::WRITE),
        )
        .push(
            Side::Host,
            call(Kind::SyscallExit, 63, 0, flags::op::IO_SUBMIT),
        )
        .push(Side::Host, dio(Kind::DioComplete, 90, 0x2000));
        let expected = [
            (Layer::FileIo, Op::Flush, 20),
            (Layer::FileIo, Op::Read, 10),
            (Layer::FileIo, Op::Write, 30),
        ];
        assert_eq!(seen.ended, expected);
        assert!(seen.in_flight.begun.is_empty() && seen.in_flight.submitted.is_empty());
    }

    #[test]
    fn nothing_grows_without_end_and_a_loss_makes_forget() {
        let mut seen = Seen::of(Layer::Device);
        for n in 0..3 * MAX_IN_FLIGHT as u64 {
            seen.push(Side::Host, event(Kind::Issue, n, n + 1));
            assert!(seen.in_flight.begun.len() <= MAX_IN_FLIGHT + 1);
        }
        seen.push(Side::Host, event(Kind::Loss, 1 << 20, 0));
        assert!(seen.in_flight.begun.is_empty());
    }

    #[test]
    fn the_age_of_a_guest_s_request_is_on_the_host_s_clock() {
        let guest = Side::Guest(1);
        let mut in_flight = InFlight::new([Layer::Guest].into(), BTreeSet::new());
        let mut none = |_: Ended| panic!("nothing ends");
        // The guest's clock is 1000 behind, its events are on their way for 50 at least.
        let first = event(Kind::Queue, 100, 1);
        in_flight.take(guest, &first, 1_250, &mut none);
        let second = event(Kind::Queue, 200, 2);
        in_flight.take(guest, &second, 1_250, &mut none);
        assert_eq!(in_flight.oldest_ns(Layer::Guest, None, 2_150), Some(1_000));
    }
}
