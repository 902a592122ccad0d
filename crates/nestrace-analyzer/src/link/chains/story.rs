//! The whole trees of single bios that somebody asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::walk::{Times, walk};
use crate::follow::image::Images;
use crate::model::chain::Chain;
use crate::model::clocks::{GuestNs, HostNs};
use crate::model::span::{Below, BioClock, Layer, Span};
use crate::result::analysis::{Story, StorySegment, StorySpan};
use crate::result::segments::SegmentKind;

/// Each holds a tree: some 100 MB for this many.
const MAX_STORIES: usize = 100_000;
/// Loop devices over loop devices: deeper than any stack, and input is not trusted.
const DEEPEST: usize = 64;

/// The bios that get an I/O trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoryChoice {
    /// The bio with this number on its disk, from 1, in the order of Q.
    Io(u64),
    /// So many that took longest.
    Slowest(usize),
    /// Every bio. They are meant for [`crate::Analyzer::each_story`]; without it the first 100,000 whose
    /// fate is known are kept.
    All,
}

/// Takes I/O traces as they become known.
pub(crate) type Listener = Box<dyn FnMut(Story)>;

/// A chain and the guest session that it is of.
#[derive(Debug)]
struct Kept {
    latency_ns: u64,
    /// The older of two equal ones comes first.
    order: Reverse<u64>,
    session: usize,
    chain: Chain,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Kept {}
impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Kept {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.latency_ns, self.order).cmp(&(other.latency_ns, other.order))
    }
}

/// The I/O traces so far: never more than were asked for.
#[derive(Default)]
pub(crate) struct Stories {
    asked: Option<StoryChoice>,
    kept: BinaryHeap<Reverse<Kept>>,
    arrived: u64,
    /// Takes those that would be kept.
    pub(crate) listener: Option<Listener>,
}

impl std::fmt::Debug for Stories {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stories")
            .field("asked", &self.asked)
            .field("kept", &self.kept)
            .field("arrived", &self.arrived)
            .finish_non_exhaustive()
    }
}

/// What places are called.
pub(crate) struct Names<'a> {
    pub images: &'a Images,
    /// By the numbers of [`Images::images`].
    pub file: &'a dyn Fn(u32) -> String,
    pub host_device: &'a dyn Fn(u32) -> String,
    /// The file of a loop device.
    pub loop_file: &'a dyn Fn(u32) -> String,
    /// By session and device.
    pub guest_device: &'a dyn Fn(usize, u32) -> String,
    /// By session.
    pub guest: &'a dyn Fn(usize) -> String,
    /// The host's clock at the start of the recording.
    pub start_ns: HostNs,
}

impl Stories {
    pub(crate) fn new(asked: Option<StoryChoice>) -> Self {
        Self {
            asked,
            ..Self::default()
        }
    }

    /// Whether bios need numbers.
    pub(crate) fn wanted(&self) -> bool {
        self.asked.is_some()
    }

    /// Keeps the chain if it is one of those asked for.
    pub(crate) fn offer(&mut self, session: usize, chain: Chain) {
        self.arrived += 1;
        let latency_ns = chain.tree.end_ns.saturating_sub(chain.tree.start_ns);
        let kept = Reverse(Kept {
            latency_ns,
            order: Reverse(self.arrived),
            session,
            chain,
        });
        match self.asked {
            Some(StoryChoice::Io(number))
                if kept.0.chain.number == number && self.kept.len() < MAX_STORIES =>
            {
                self.kept.push(kept);
            }
            Some(StoryChoice::Slowest(most)) => {
                self.kept.push(kept);
                if self.kept.len() > most.min(MAX_STORIES) {
                    self.kept.pop();
                }
            }
            Some(StoryChoice::All) if self.kept.len() < MAX_STORIES => self.kept.push(kept),
            _ => {}
        }
    }

    /// Whether a chain is reported at once instead of being kept.
    pub(crate) fn tells(&self, chain: &Chain) -> bool {
        self.listener.is_some()
            && match self.asked {
                Some(StoryChoice::All) => true,
                Some(StoryChoice::Io(number)) => chain.number == number,
                // Which ones these are is known at the end.
                Some(StoryChoice::Slowest(_)) | None => false,
            }
    }

    /// Tells a chain.
    pub(crate) fn tell(listener: &mut Listener, session: usize, chain: &Chain, names: &Names<'_>) {
        listener(story(session, chain, names));
    }

    /// `stories`, the slowest first.
    pub(crate) fn finish(self, names: &Names<'_>) -> Vec<Story> {
        let kept = self.kept.into_sorted_vec();
        kept.into_iter()
            .map(|Reverse(kept)| story(kept.session, &kept.chain, names))
            .collect()
    }
}

fn story(session: usize, chain: &Chain, names: &Names<'_>) -> Story {
    let times = if chain.unlinked.is_none() {
        walk(&chain.tree)
    } else {
        Times::default()
    };
    let begin_ns = chain.tree.start_ns;
    let on_host = GuestNs(begin_ns).on_host(chain.offset_ns);
    let disk = chain
        .disk
        .and_then(|disk| names.images.disks.get(disk as usize));
    Story {
        io: chain.number,
        guest: (names.guest)(session),
        guest_device: (names.guest_device)(session, chain.device),
        disk: disk.map(|disk| disk.name.clone()).unwrap_or_default(),
        at_ns: disk.map(|_| on_host.since(names.start_ns)),
        clock_bound_ns: chain.bound_ns,
        q2c_ns: chain.tree.end_ns.saturating_sub(begin_ns),
        unlinked: chain.unlinked,
        ambiguous: chain.ambiguous,
        segments: segments_of(&times),
        tree: Teller {
            begin_ns,
            session,
            names,
            file: "",
        }
        .bio(chain),
    }
}

/// The segments that a trace has, in the order of the path.
pub(crate) fn segments_of(times: &Times) -> Vec<StorySegment> {
    let segment = |segment: SegmentKind| StorySegment {
        name: segment.name(),
        ns: times.of(segment),
    };
    let all = SegmentKind::OF_CALL.into_iter().map(segment);
    all.filter(|segment| segment.ns > 0).collect()
}

/// Puts a call's tree into words.
pub(crate) struct CallTeller<'a> {
    /// The call's begin.
    pub begin_ns: u64,
    pub session: usize,
    pub names: &'a Names<'a>,
    /// The file that the call is about.
    pub file: &'a str,
    /// The clock at each bio, in the tree's order.
    pub clocks: &'a [BioClock],
}

impl CallTeller<'_> {
    pub(crate) fn tell(&self, tree: &Span) -> StorySpan {
        let teller = Teller {
            begin_ns: self.begin_ns,
            session: self.session,
            names: self.names,
            file: self.file,
        };
        self.span(&teller, tree, &mut self.clocks.iter())
    }

    /// A span above the bios, or a bio with the clock that it has.
    fn span<'c>(
        &self,
        teller: &Teller<'_>,
        span: &Span,
        clocks: &mut impl Iterator<Item = &'c BioClock>,
    ) -> StorySpan {
        if span.layer == Layer::GuestBio {
            let clock = clocks.next().cloned().unwrap_or_default();
            return teller.bio_at(span, clock.offset_ns, &clock.offsets_ns);
        }
        let children = span.children.iter();
        let children = children
            .map(|child| self.span(teller, child, clocks))
            .collect();
        teller.alone(span, 0, children)
    }
}

/// Puts a chain's tree into words.
struct Teller<'a> {
    /// The bio's Q.
    begin_ns: u64,
    session: usize,
    names: &'a Names<'a>,
    /// What the layers above the block layer are about.
    file: &'a str,
}

impl Teller<'_> {
    fn bio(&self, chain: &Chain) -> StorySpan {
        self.bio_at(&chain.tree, chain.offset_ns, &chain.offsets_ns)
    }

    fn bio_at(&self, bio: &Span, offset_ns: i64, offsets_ns: &[i64]) -> StorySpan {
        let requests = bio.children.iter().enumerate().map(|(n, request)| {
            let its_own_ns = offsets_ns.get(n).copied();
            self.span(request, its_own_ns.unwrap_or(offset_ns), DEEPEST)
        });
        self.alone(bio, offset_ns, requests.collect())
    }

    /// A span and what lies below it; the host's are on the guest's clock, moved by `offset_ns`.
    fn span(&self, span: &Span, offset_ns: i64, deepest: usize) -> StorySpan {
        let children = match deepest {
            0 => Vec::new(),
            _ => {
                let children = span.children.iter();
                children
                    .map(|child| self.span(child, offset_ns, deepest - 1))
                    .collect()
            }
        };
        self.alone(span, offset_ns, children)
    }

    fn alone(&self, span: &Span, offset_ns: i64, mut children: Vec<StorySpan>) -> StorySpan {
        children.sort_by_key(|child| (child.from_ns, child.to_ns));
        let begin_ns = i128::from(self.begin_ns);
        let since = |ns: u64| i64::try_from(i128::from(ns) - begin_ns).unwrap_or(i64::MAX);
        StorySpan {
            layer: span.layer,
            what: span.what,
            place: self.place(span),
            offset: span.offset,
            bytes: span.bytes,
            ts_ns: match span.layer {
                Layer::Call
                | Layer::Throttle
                | Layer::PageWait
                | Layer::GuestJournal
                | Layer::GuestBio
                | Layer::GuestRequest => span.start_ns,
                _ => GuestNs(span.start_ns).on_host(offset_ns).0,
            },
            from_ns: since(span.start_ns),
            to_ns: since(span.end_ns),
            shared: span.shared,
            stacked: span.below == Below::Devices,
            remote: span.below == Below::Server && span.layer != Layer::HostBio,
            children,
        }
    }

    fn place(&self, span: &Span) -> String {
        let names = self.names;
        match span.layer {
            Layer::Call | Layer::PageWait => self.file.to_owned(),
            Layer::Throttle | Layer::GuestJournal => String::new(),
            Layer::GuestBio | Layer::GuestRequest => (names.guest_device)(self.session, span.place),
            Layer::Qemu | Layer::QemuJob | Layer::Remote => {
                let disk = names.images.disks.get(span.place as usize);
                disk.map(|disk| disk.name.clone()).unwrap_or_default()
            }
            Layer::FileIo | Layer::ServerCall => (names.file)(span.place),
            Layer::HostBio | Layer::HostRequest => (names.host_device)(span.place),
            Layer::StackFile => (names.loop_file)(span.place),
        }
    }
}
