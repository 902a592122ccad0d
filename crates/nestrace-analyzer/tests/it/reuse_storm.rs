//! Random I/O over few pointers, so that every address lives again and again, against a reference
//! that never looks at an address: it knows from the generator which I/O is which.

use std::collections::BTreeMap;

use nestrace_abi::flags;
use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::{Event, Kind, Manifest};
use proptest::prelude::*;

/// What the generator does next; numbers choose among what is possible then.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Q and G of a new bio, at a random free address.
    Queue { place: usize, kib: u64, flush: u8 },
    /// Q and M of a bio into a request that is not issued yet.
    Merge { place: usize, into: usize, kib: u64 },
    /// X of a bio whose request is not issued yet: the front half becomes a request of its own.
    Split { place: usize, of: usize },
    /// D.
    Issue { of: usize },
    /// R, and D at once.
    Requeue { of: usize },
    /// C of one bio's worth.
    Part { of: usize },
    /// The last C.
    Complete { of: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    let n = move || any().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        5 => (n(), 2u64..64, 0u8..8).prop_map(|(place, kib, flush)| Step::Queue { place, kib, flush }),
        2 => (n(), n(), 2u64..64).prop_map(|(place, into, kib)| Step::Merge { place, into, kib }),
        2 => (n(), n()).prop_map(|(place, of)| Step::Split { place, of }),
        5 => n().prop_map(|of| Step::Issue { of }),
        1 => n().prop_map(|of| Step::Requeue { of }),
        2 => n().prop_map(|of| Step::Part { of }),
        5 => n().prop_map(|of| Step::Complete { of }),
    ]
}

/// A bio as the generator knows it.
#[derive(Clone, Debug)]
struct Bio {
    pointer: u64,
    queued_ns: u64,
    /// Fragments that have not ended.
    open: usize,
    empty: bool,
}

/// A fragment of bio number `bio`, at an address of its own.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    bio: usize,
    pointer: u64,
    bytes: u64,
    offset: u64,
}

#[derive(Clone, Debug)]
struct Request {
    pointer: u64,
    fragments: Vec<Fragment>,
    issued_ns: Option<u64>,
    /// Where its next C begins.
    next_offset: u64,
    flags: u32,
}

/// The machine: few bio addresses, few request addresses.
#[derive(Default)]
struct Machine {
    now: u64,
    events: Vec<Event>,
    bios: Vec<Bio>,
    requests: Vec<Request>,
    used: Vec<u64>,
    next_offset: u64,
    /// The reference: q2c of every data bio, d2c of its last fragment, and sums.
    q2c: Vec<u64>,
    d2c: Vec<u64>,
    counts: BTreeMap<&'static str, u64>,
}

const PLACES: u64 = 12;

impl Machine {
    fn emit(&mut self, kind: Kind, event: Event) -> u64 {
        self.now += 7;
        self.events.push(Event {
            ts_ns: self.now,
            kind: kind as u8,
            dev: 7 << 20,
            ..event
        });
        self.now
    }

    fn count(&mut self, what: &'static str, n: u64) {
        *self.counts.entry(what).or_default() += n;
    }

    /// A free address for a bio (even) or request (odd), most recently freed ones included.
    fn allocate(&mut self, place: usize, base: u64) -> Option<u64> {
        let free: Vec<u64> = (0..PLACES)
            .map(|i| base + i * 64)
            .filter(|p| !self.used.contains(p))
            .collect();
        let pointer = *free.get(place % free.len().max(1))?;
        self.used.push(pointer);
        Some(pointer)
    }

    fn free(&mut self, pointer: u64) {
        self.used.retain(|used| *used != pointer);
    }

    fn queue(&mut self, place: usize, bytes: u64, flags: u32) -> Option<Fragment> {
        let pointer = self.allocate(place, 0xb000_0000)?;
        let offset = self.next_offset;
        self.next_offset += bytes;
        let queued_ns = self.emit(
            Kind::Queue,
            Event {
                object: pointer,
                offset,
                bytes,
                flags,
                ..Event::default()
            },
        );
        self.bios.push(Bio {
            pointer,
            queued_ns,
            open: 1,
            empty: bytes == 0,
        });
        self.count("queued", 1);
        Some(Fragment {
            bio: self.bios.len() - 1,
            pointer,
            bytes,
            offset,
        })
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Queue { place, kib, flush } => self.new_request(place, kib * 1024, flush),
            Step::Merge { place, into, kib } => self.merge(place, into, kib * 1024),
            Step::Split { place, of } => self.split(place, of),
            Step::Issue { of } => {
                if let Some(i) = self.pick(of, |request| request.issued_ns.is_none()) {
                    self.issue(i);
                }
            }
            Step::Requeue { of } => {
                let whole = |request: &Request| request.issued_ns.is_some();
                if let Some(i) = self.pick(of, whole) {
                    let request = self.requests[i].clone();
                    self.emit(Kind::Requeue, event_of(&request));
                    self.issue(i);
                }
            }
            Step::Part { of } => {
                let parts = |request: &Request| {
                    request.issued_ns.is_some()
                        && request.fragments.len() > 1
                        && request.flags & flags::PREFLUSH == 0
                };
                if let Some(i) = self.pick(of, parts) {
                    self.part(i);
                }
            }
            Step::Complete { of } => {
                if let Some(i) = self.pick(of, |request| request.issued_ns.is_some()) {
                    self.complete(i);
                }
            }
        }
    }

    fn pick(&self, of: usize, possible: impl Fn(&Request) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.requests.len())
            .filter(|i| possible(&self.requests[*i]))
            .collect();
        all.get(of % all.len().max(1)).copied()
    }

    fn new_request(&mut self, place: usize, bytes: u64, flush: u8) {
        let (bytes, flags) = match flush {
            0 => (0, flags::OP_WRITE | flags::PREFLUSH),
            1 => (bytes, flags::OP_WRITE | flags::PREFLUSH | flags::FUA),
            2..5 => (bytes, flags::OP_READ),
            _ => (bytes, flags::OP_WRITE),
        };
        let Some(pointer) = self.allocate(place / 16, 0xc000_0000) else {
            return;
        };
        let Some(fragment) = self.queue(place, bytes, flags) else {
            return self.free(pointer);
        };
        self.emit(
            Kind::GetRequest,
            Event {
                object: fragment.pointer,
                ..Event::default()
            },
        );
        let request = Request {
            pointer,
            fragments: vec![fragment],
            issued_ns: None,
            next_offset: 0,
            flags,
        };
        if bytes > 0 {
            return self.requests.push(request);
        }
        // An empty flush: a flush request at the device, then the C of a request that had no D.
        self.count("flushes", 1);
        let flush = Event {
            object: 0xf1,
            flags: flags::OP_FLUSH,
            ..Event::default()
        };
        self.emit(Kind::Issue, flush);
        self.emit(
            Kind::Complete,
            Event {
                flags: flags::OP_FLUSH | flags::FLUSH_SEQ,
                ..flush
            },
        );
        self.emit(
            Kind::Complete,
            event_of(&Request {
                fragments: Vec::new(),
                ..request
            }),
        );
        self.free(pointer);
        self.free(fragment.pointer);
    }

    fn merge(&mut self, place: usize, into: usize, bytes: u64) {
        let open =
            |request: &Request| request.issued_ns.is_none() && request.flags & flags::PREFLUSH == 0;
        let Some(i) = self.pick(into, open) else {
            return;
        };
        let Some(fragment) = self.queue(place, bytes, self.requests[i].flags) else {
            return;
        };
        self.emit(
            Kind::BackMerge,
            Event {
                object: fragment.pointer,
                ..Event::default()
            },
        );
        self.requests[i].fragments.push(fragment);
    }

    /// The kernel splits before G; here the parent's G came first, which changes no identity.
    fn split(&mut self, place: usize, of: usize) {
        let splits = |request: &Request| {
            request.issued_ns.is_none()
                && request.fragments[0].bytes >= 1024
                && request.flags & flags::PREFLUSH == 0
        };
        let Some(i) = self.pick(of, splits) else {
            return;
        };
        let Some(request) = self.allocate(place / 16, 0xc000_0000) else {
            return;
        };
        let Some(pointer) = self.allocate(place, 0xb000_0000) else {
            return self.free(request);
        };
        let parent = self.requests[i].fragments[0];
        let bytes = parent.bytes / 1024 * 512;
        let front = Fragment {
            pointer,
            bytes,
            ..parent
        };
        let flags = self.requests[i].flags;
        self.emit(
            Kind::Split,
            Event {
                object: pointer,
                related: parent.pointer,
                offset: parent.offset,
                bytes,
                flags,
                ..Event::default()
            },
        );
        self.emit(
            Kind::GetRequest,
            Event {
                object: pointer,
                ..Event::default()
            },
        );
        self.count("splits", 1);
        self.bios[parent.bio].open += 1;
        let tail = &mut self.requests[i].fragments[0];
        tail.bytes -= bytes;
        tail.offset += bytes;
        self.requests.push(Request {
            pointer: request,
            fragments: vec![front],
            issued_ns: None,
            next_offset: 0,
            flags,
        });
    }

    fn issue(&mut self, i: usize) {
        let request = self.requests[i].clone();
        let in_sequence = if request.flags & flags::PREFLUSH != 0 {
            flags::FLUSH_SEQ
        } else {
            0
        };
        let mut event = event_of(&request);
        event.flags |= in_sequence;
        event.related = request.fragments[0].pointer;
        event.sub = (request.fragments.len() - 1) as u8;
        let issued_ns = self.emit(Kind::Issue, event);
        for three in request.fragments[1..].chunks(3) {
            let at = |i: usize| three.get(i).map_or(0, |fragment| fragment.pointer);
            let link = Event {
                related: at(0),
                offset: at(1),
                bytes: at(2),
                object: request.pointer,
                ..Event::default()
            };
            self.emit(Kind::Link, link);
        }
        self.requests[i].issued_ns = Some(issued_ns);
        self.requests[i].next_offset = event.offset;
    }

    fn part(&mut self, i: usize) {
        let fragment = self.requests[i].fragments.remove(0);
        let request = self.requests[i].clone();
        self.requests[i].next_offset += fragment.bytes;
        let left = request
            .fragments
            .iter()
            .map(|fragment| fragment.bytes)
            .sum();
        let event = Event {
            bytes: fragment.bytes,
            related: left,
            offset: request.next_offset,
            ..event_of(&request)
        };
        let ts_ns = self.emit(Kind::Complete, event);
        self.count("bytes", fragment.bytes);
        self.end(fragment, request.issued_ns.expect("issued"), ts_ns);
    }

    fn complete(&mut self, i: usize) {
        let request = self.requests.remove(i);
        let event = Event {
            offset: request.next_offset,
            ..event_of(&request)
        };
        self.count("bytes", event.bytes);
        self.count("completed", 1);
        let mut done_ns = 0;
        if request.flags & flags::PREFLUSH != 0 {
            done_ns = self.emit(
                Kind::Complete,
                Event {
                    flags: event.flags | flags::FLUSH_SEQ,
                    ..event
                },
            );
            self.emit(Kind::Complete, Event { bytes: 0, ..event });
        } else {
            done_ns = done_ns.max(self.emit(Kind::Complete, event));
        }
        for fragment in &request.fragments {
            self.end(*fragment, request.issued_ns.expect("issued"), done_ns);
        }
        self.free(request.pointer);
    }

    fn end(&mut self, fragment: Fragment, issued_ns: u64, done_ns: u64) {
        let bio = &mut self.bios[fragment.bio];
        assert!(!bio.empty);
        bio.open -= 1;
        let (whole, bio) = (bio.open == 0, bio.clone());
        // A parent's address stays taken until its last fragment has ended.
        if fragment.pointer != bio.pointer {
            self.free(fragment.pointer);
        }
        if whole {
            self.q2c.push(done_ns - bio.queued_ns);
            self.d2c.push(done_ns - issued_ns);
            self.free(bio.pointer);
        }
    }

    fn drain(&mut self) {
        while !self.requests.is_empty() {
            if self.requests[0].issued_ns.is_none() {
                self.issue(0);
            }
            self.complete(0);
        }
    }
}

fn event_of(request: &Request) -> Event {
    Event {
        object: request.pointer,
        offset: request
            .fragments
            .first()
            .map_or(0, |fragment| fragment.offset),
        bytes: request
            .fragments
            .iter()
            .map(|fragment| fragment.bytes)
            .sum(),
        flags: request.flags,
        ..Event::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_pointer_is_matched_across_its_reuse(steps in prop::collection::vec(step(), 1..400)) {
        let mut machine = Machine::default();
        steps.into_iter().for_each(|step| machine.step(step));
        machine.drain();
        let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), machine.events.iter().copied());
        let n = |what: &str| machine.counts.get(what).copied().unwrap_or(0);
        let Some(device) = analysis.devices.first() else {
            prop_assert_eq!(n("queued"), 0);
            return Ok(());
        };
        let check = device.check.expect("full");
        prop_assert_eq!(check.generations, n("queued") + n("splits"));
        prop_assert_eq!(check.queued + check.splits, check.get_requests + check.back_merges + check.front_merges);
        prop_assert_eq!(check.walked_at_issue, check.queued + check.splits - check.empty_flushes);
        prop_assert_eq!(check.ended, n("queued") - n("flushes"));
        prop_assert_eq!((check.ended_twice, check.reused_while_live, check.reissued_while_live, check.open_at_end), (0, 0, 0, 0));
        prop_assert_eq!(check.counted_completions, n("completed") + n("flushes"));
        prop_assert_eq!(device.counts.completed, n("completed"));
        prop_assert_eq!((device.counts.flushes, check.empty_flushes_ended), (n("flushes"), n("flushes")));
        prop_assert_eq!(device.bytes.total(), n("bytes"));
        prop_assert!(device.unlinked.is_empty());
        let all = device.latency_ns.all;
        let (q2c, d2c) = (all.q2c.expect("full"), all.d2c.expect("full"));
        prop_assert_eq!((q2c.n, q2c.sum), (machine.q2c.len() as u64, machine.q2c.iter().sum::<u64>()));
        prop_assert_eq!((q2c.min, q2c.max), (machine.q2c.iter().min().copied(), machine.q2c.iter().max().copied()));
        prop_assert_eq!((d2c.n, d2c.sum), (machine.d2c.len() as u64, machine.d2c.iter().sum::<u64>()));
        if n("splits") == 0 {
            let parts = [all.q2g, all.g2i, all.g2d, all.i2d, all.q2m, all.m2d, all.d2c];
            prop_assert_eq!(parts.iter().flatten().map(|part| part.sum).sum::<u64>(), q2c.sum);
        }
    }
}
