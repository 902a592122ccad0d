//! Waits for the links of one guest session: a bio is followed when each of its requests is.
//!
//! Requests reach the clock when they complete, bios end with or after their requests, and the clock
//! tells a request's partner some hundred milliseconds of trace time later. So a bio waits for its
//! requests, and a request's fate for the bios that it carried. Both are bounded by what the clock
//! holds back; what still waits after [`KEEP_NS`] lost events its partners.

use std::rc::Rc;

use nestrace_abi::flags;

use super::on_guest_clock;
use crate::model::actor::{Actor, Actors};
use crate::model::chain::Chain;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::span::{Below, BioSpan, Layer, RequestSpan, Served, Span, What};
use crate::result::unlinked::UnlinkedReason;

/// Guest time after which a completed request is of no use to any bio that has not ended.
const KEEP_NS: u64 = 60_000_000_000;
/// How often old requests are looked for.
const SWEEP_NS: u64 = 5_000_000_000;
/// Requests that may be kept: twice as many as the clock holds back. A guest can send more whose bios never
/// come.
const MAX_REQUESTS: usize = 1 << 17;

/// Bios that may wait, and the requests that they wait for: of as many requests as the clock holds back, each
/// has four bios then.
const MAX_WAITING: usize = 1 << 19;
/// A guest request's QEMU request.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub served: Rc<Served>,
    /// Guest's clock minus the host's for this request.
    pub offset_ns: i64,
    /// How far that may be off.
    pub bound_ns: u64,
    /// The guest's time between D and C is shorter than the host's between start and completion notification.
    pub stretched: bool,
}

/// What is known of a guest request.
#[derive(Debug)]
enum Fate {
    /// The clock has not decided: the bios that wait.
    Open(Vec<u64>),
    Linked(Link),
    Unlinked(UnlinkedReason),
}

#[derive(Debug)]
struct Request {
    fate: Fate,
    completed_ns: u64,
    /// Bios that have it and need it no more.
    done_with: u32,
    /// How many will; not known of flushes, nor while a partial completion has ended some of them.
    bios: Option<u32>,
}

#[derive(Debug)]
struct Bio {
    /// Number in the session.
    id: u64,
    span: BioSpan,
    /// Among the bios of its device; 0 unless numbers were asked for.
    number: u64,
    device: u32,
    /// Requests without a fate.
    open: usize,
}

/// The bios and requests of one guest session that wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Join {
    requests: PointerMap<u64, Request>,
    bios: PointerMap<u64, Bio>,
    /// How many they are, and for how many requests they wait.
    waiting: usize,
    next_bio: u64,
    ready: Vec<Chain>,
    swept_ns: u64,
}

impl Join {
    /// A request has completed.
    pub(crate) fn request(&mut self, request: &RequestSpan) {
        let entry = self.entry(request.serial, request.completed_ns);
        entry.completed_ns = request.completed_ns;
        entry.bios = (!request.flush).then_some(request.bios);
        self.sweep(request.completed_ns);
    }

    fn entry(&mut self, serial: u64, completed_ns: u64) -> &mut Request {
        self.requests.entry(serial).or_insert(Request {
            fate: Fate::Open(Vec::new()),
            completed_ns,
            done_with: 0,
            bios: None,
        })
    }

    /// The number that the next bio gets in its session.
    pub(crate) const fn next_bio(&self) -> u64 {
        self.next_bio
    }

    /// A bio has ended; `reason` is why it cannot be followed if it has no requests.
    pub(crate) fn bio(&mut self, span: BioSpan, device: u32, number: u64, reason: UnlinkedReason) {
        let id = self.next_bio;
        self.next_bio += 1;
        let ended_ns = span.ended_ns;
        let mut open = 0;
        for request in &span.requests {
            let request = self.entry(request.serial, request.completed_ns);
            if let Fate::Open(waiting) = &mut request.fate {
                waiting.push(id);
                open += 1;
            }
        }
        let bio = Bio {
            id,
            span,
            number,
            device,
            open,
        };
        if bio.span.requests.is_empty() {
            self.ready.push(bio.unlinked(reason));
        } else if open == 0 {
            self.finish_bio(bio);
        } else {
            self.waiting += bio.weight();
            self.bios.insert(id, bio);
            self.bound();
        }
        // Requests that complete in parts end their bios, and need not ever complete as a whole.
        self.sweep(ended_ns);
    }

    /// Gives up the older ones of too many that wait: the clock holds back far fewer.
    fn bound(&mut self) {
        if self.waiting <= MAX_WAITING {
            return;
        }
        let mut ids: Vec<u64> = self.bios.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if self.waiting <= MAX_WAITING / 2 {
                break;
            }
            if let Some(bio) = self.take_waiting(id) {
                self.ready.push(bio.unlinked(UnlinkedReason::NoEnd));
            }
        }
        for request in self.requests.values_mut() {
            if let Fate::Open(waiting) = &mut request.fate {
                waiting.retain(|id| self.bios.contains_key(id));
                waiting.shrink_to_fit();
            }
        }
    }

    fn take_waiting(&mut self, id: u64) -> Option<Bio> {
        let bio = self.bios.remove(&id)?;
        self.waiting -= bio.weight();
        Some(bio)
    }

    /// The clock has decided on a request.
    pub(crate) fn decide(&mut self, serial: u64, link: Result<Link, UnlinkedReason>) {
        let Some(request) = self.requests.get_mut(&serial) else {
            return;
        };
        let fate = match link {
            Ok(link) => Fate::Linked(link),
            Err(reason) => Fate::Unlinked(reason),
        };
        let Fate::Open(waiting) = std::mem::replace(&mut request.fate, fate) else {
            return;
        };
        for id in waiting {
            let Some(bio) = self.bios.get_mut(&id) else {
                continue;
            };
            bio.open -= 1;
            if bio.open == 0
                && let Some(bio) = self.take_waiting(id)
            {
                self.finish_bio(bio);
            }
        }
    }

    /// Bios that became ready.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Chain> + '_ {
        self.ready.drain(..)
    }

    /// Nothing more will come: gives up what waits.
    pub(crate) fn finish(&mut self, reason: UnlinkedReason) {
        let waiting: Vec<Bio> = self.bios.drain().map(|(_, bio)| bio).collect();
        self.waiting = 0;
        self.ready
            .extend(waiting.into_iter().map(|bio| bio.unlinked(reason)));
    }

    fn finish_bio(&mut self, bio: Bio) {
        let mut links = Vec::with_capacity(bio.span.requests.len());
        let mut reason = None;
        for request in &bio.span.requests {
            match self.fate_for_one(request.serial) {
                Some(Fate::Linked(link)) => links.push(Some(link)),
                Some(Fate::Unlinked(why)) => {
                    links.push(None);
                    reason = reason.or(Some(why));
                }
                // Forgotten: cannot be, and would be no link.
                _ => {
                    links.push(None);
                    reason = reason.or(Some(UnlinkedReason::NoMatch));
                }
            }
        }
        self.ready.push(bio.chain(links, reason));
    }

    /// A request's fate, for one of its bios; the last one takes it with it.
    fn fate_for_one(&mut self, serial: u64) -> Option<Fate> {
        let request = self.requests.get_mut(&serial)?;
        request.done_with += 1;
        if request.bios.is_some_and(|bios| request.done_with >= bios) {
            return self.requests.remove(&serial).map(|request| request.fate);
        }
        match &request.fate {
            Fate::Linked(link) => Some(Fate::Linked(link.clone())),
            Fate::Unlinked(why) => Some(Fate::Unlinked(*why)),
            Fate::Open(_) => None,
        }
    }

    /// Forgets old requests: the Q of their bios, or their own last C, was not recorded.
    fn sweep(&mut self, now_ns: u64) {
        if self.requests.len() > MAX_REQUESTS {
            // Their serials ascend.
            let mut serials: Vec<u64> = self.requests.keys().copied().collect();
            let (older, ..) = serials.select_nth_unstable(MAX_REQUESTS / 2);
            self.forget(older);
        }
        if now_ns < self.swept_ns.saturating_add(SWEEP_NS) {
            return;
        }
        self.swept_ns = now_ns;
        let old: Vec<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| request.completed_ns.saturating_add(KEEP_NS) < now_ns)
            .map(|(serial, _)| *serial)
            .collect();
        self.forget(&old);
    }

    fn forget(&mut self, serials: &[u64]) {
        for serial in serials {
            self.decide(*serial, Err(UnlinkedReason::LostEvents));
            self.requests.remove(serial);
        }
    }
}

impl Bio {
    /// What it counts for among those that wait.
    fn weight(&self) -> usize {
        1 + self.span.requests.len()
    }

    fn unlinked(self, reason: UnlinkedReason) -> Chain {
        let links = vec![None; self.span.requests.len()];
        self.chain(links, Some(reason))
    }

    /// Puts the tree together, as far as it is known.
    fn chain(self, links: Vec<Option<Link>>, unlinked: Option<UnlinkedReason>) -> Chain {
        let span = &self.span;
        let known = || links.iter().flatten();
        let mut chain = Chain {
            bio: self.id,
            device: self.device,
            number: self.number,
            operation: span.operation,
            empty_flush: span.empty_flush,
            marked_urgent: span.flags & (flags::META | flags::PRIO) != 0,
            of_file_system: span.owner == Owner::FileSystem
                && (span.flags & flags::SYNC != 0 || span.operation == Operation::Read),
            unlinked,
            disk: known().next().map(|link| link.served.disk),
            offset_ns: known().next().map_or(0, |link| link.offset_ns),
            offsets_ns: offsets_of_several(&links),
            bound_ns: known().map(|link| link.bound_ns).max().unwrap_or(0),
            stretched: known().any(|link| link.stretched),
            ambiguous: span.ambiguous || known().any(|link| link.served.ambiguous),
            tree: Span {
                layer: Layer::GuestBio,
                start_ns: span.queued_ns,
                end_ns: span.ended_ns,
                offset: span.offset,
                bytes: span.bytes,
                what: What::of(span.operation, span.empty_flush),
                shared: false,
                place: self.device,
                below: Below::Nothing,
                actors: Actors::of(Actor::guest(span.tid), Actor::Unknown),
                children: Vec::with_capacity(links.len()),
            },
        };
        for (request, link) in span.requests.iter().zip(links) {
            chain.tree.children.push(Span {
                layer: Layer::GuestRequest,
                start_ns: request.issued_ns,
                end_ns: request.completed_ns,
                offset: request.offset,
                bytes: request.bytes,
                what: What::of(request.operation, request.flush),
                shared: request.bios > 1,
                place: self.device,
                below: Below::Nothing,
                actors: Actors {
                    begins: Actor::guest(request.tid),
                    ends: Actor::Vcpu(request.end_cpu),
                    ahead_ns: link.as_ref().map_or(0, |link| link.offset_ns),
                },
                children: link.map_or_else(Vec::new, |link| {
                    let without_qemu = link.served.file_io.is_some();
                    let span = on_guest_clock(link.served, link.offset_ns);
                    if without_qemu {
                        span.children
                    } else {
                        vec![span]
                    }
                }),
            });
        }
        chain
    }
}

/// [`Chain::offsets_ns`].
fn offsets_of_several(links: &[Option<Link>]) -> Vec<i64> {
    let offset_of = |link: &Option<Link>| link.as_ref().map_or(0, |link| link.offset_ns);
    match links {
        [] | [_] => Vec::new(),
        several => several.iter().map(offset_of).collect(),
    }
}
