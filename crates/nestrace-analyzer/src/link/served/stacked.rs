//! What loop, dm and md devices do below a request.
//!
//! dm and md say which bio they hand on ([`Above`]). A loop device with direct I/O names its own request as the origin of the
//! bios of its backing file (10,240 of 10,240), and of what the file's file system does for them. Through the page cache a
//! loop device's read waits for every bio that reads pages of its range, and its flush for the write-back and the journal of
//! its file; its writes wait for no bio.
//!
//! A driver's thread does I/O of its own before it hands a bio on: thin's mappings, md's bitmap. What the thread did between
//! the bio's Q and that of the one below, the bio waited for.

use std::collections::{BTreeMap, VecDeque};

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use super::tree::clip_children;
use crate::follow::image::Images;
use crate::model::actor::{Actor, Actors};
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::span::{Above, Below, BioSpan, HostBio, Layer, RequestSpan, Span, What};

/// Bios below that wait for the one above them to end. More are not in flight.
const MAX_WAITING: usize = 1 << 14;
/// Merged requests remembered: their bios end right after each other.
const MAX_GIVEN: usize = 64;
/// Writes of stripes whose bios are kept.
const MAX_ROUNDS: usize = 1 << 13;
/// Bios of files of loop devices, and flushes of md, that ended last.
const MAX_RECENT: usize = 1 << 10;
/// Threads of drivers, and what each did last; pieces of direct I/O of one request.
const MAX_THREADS: usize = 256;
const MAX_OF_THREAD: usize = 128;

/// A bio of a lower device, not yet claimed.
#[derive(Debug)]
struct Lower {
    /// Of [`Images::file_number`].
    file: u32,
    iocb: u64,
    file_offset: u64,
    tree: Span,
}

/// Direct I/O on a loop device's file.
#[derive(Debug)]
struct FileWork {
    kiocb: u64,
    /// The threads of its begin and of its end.
    tids: (u32, u32),
    start_ns: u64,
    end_ns: Option<u64>,
}

/// A write of a stripe of RAID4, 5 or 6.
#[derive(Debug, Default)]
struct Round {
    /// Generations of the bios whose data it has.
    parents: Vec<u32>,
    bios: Vec<Span>,
}

/// A bio of the file of a loop device, through the page cache.
#[derive(Debug)]
struct Paged {
    dev: u32,
    operation: Operation,
    /// Its range of the file; `None` for work that a sync of any file waits for.
    range: Option<(u64, u64)>,
    tree: Span,
}

/// Bios of lower devices that have ended.
#[derive(Debug, Default)]
pub(super) struct Stacked {
    /// By the loop device's request, with the kiocb.
    loops: PointerMap<u64, Vec<(u64, Span)>>,
    files: PointerMap<u64, Vec<FileWork>>,
    paged: VecDeque<Paged>,
    /// The last sync of a loop device's file that a thread began: the device, and when.
    syncs: PointerMap<u32, (u32, u64)>,
    /// By the generation of the bio above.
    handed_on: PointerMap<u32, Vec<Span>>,
    /// By their numbers, which ascend.
    rounds: BTreeMap<u64, Round>,
    /// The rounds of a bio above, by its generation.
    in_rounds: PointerMap<u32, Vec<u64>>,
    clones: VecDeque<Lower>,
    /// What drivers' threads did for themselves.
    own: PointerMap<u32, VecDeque<Span>>,
    /// Flushes of md's members, with device and `end_io`.
    flushes: VecDeque<((u32, u8), Span)>,
    /// What merged requests had below them, for their other bios.
    given: VecDeque<(u64, Vec<Span>)>,
}

fn keep_recent<T>(recent: &mut VecDeque<T>, most: usize, new: T) {
    if recent.len() >= most {
        recent.pop_front();
    }
    recent.push_back(new);
}

fn is_within(span: &Span, start_ns: u64, end_ns: u64) -> bool {
    span.start_ns >= start_ns && span.end_ns <= end_ns
}

impl Stacked {
    /// Keeps a bio of a lower device for the one above it. Says whether it is of no other use.
    pub(super) fn keep(&mut self, bio: &BioSpan, images: &Images) -> bool {
        if let Some(above) = &bio.above
            && !(above.bios.is_empty() && above.round == 0)
        {
            self.hand_up(bio, above, images);
            return true;
        }
        if bio.empty_flush {
            self.keep_flush(bio, images);
        }
        match bio.owner {
            Owner::Loop(_) if bio.origin != 0 => {
                let tree = self.tree(bio, false, images).span;
                if self.loops.len() >= MAX_WAITING {
                    self.loops.clear();
                }
                let waiting = self.loops.entry(bio.origin).or_default();
                waiting.push((bio.iocb, tree));
                true
            }
            Owner::Loop(dev) => {
                let end = bio.file_offset.saturating_add(bio.bytes);
                self.keep_paged(dev, bio, Some((bio.file_offset, end)), images);
                false
            }
            Owner::Image(image) if !images.is_under(image, bio) => {
                let tree = self.tree(bio, false, images).span;
                let lower = Lower {
                    file: images.file_number(image),
                    iocb: bio.iocb,
                    file_offset: bio.file_offset,
                    tree,
                };
                keep_recent(&mut self.clones, MAX_WAITING, lower);
                true
            }
            _ if images.stacks.is_drivers_own(bio) => {
                self.keep_own(bio, images);
                false
            }
            _ => bio.above.is_some(),
        }
    }

    /// Journal of a file system that files of loop devices lie on.
    pub(super) fn keep_journal(&mut self, bio: &BioSpan, images: &Images) {
        let devs: Vec<u32> = images.stacks.loops_on(bio.dev, bio.place()).collect();
        for dev in devs {
            self.keep_paged(dev, bio, None, images);
        }
    }

    /// A flush that a thread sends within its sync of a loop device's file. Kernels do not say when all of them end, but the loop
    /// device's own flush ends right then.
    fn keep_flush(&mut self, bio: &BioSpan, images: &Images) {
        if let Some((dev, since_ns)) = self.syncs.get(&bio.tid).copied()
            && bio.queued_ns >= since_ns
            && images.stacks.loops_on(bio.dev, None).any(|it| it == dev)
        {
            self.keep_paged(dev, bio, None, images);
        }
    }

    fn keep_paged(&mut self, dev: u32, bio: &BioSpan, range: Option<(u64, u64)>, images: &Images) {
        let mut tree = self.tree(bio, false, images).span;
        tree.shared = true;
        if range.is_none() && !bio.empty_flush {
            tree.what = What::Journal;
        }
        let paged = Paged {
            dev,
            operation: bio.operation,
            range,
            tree,
        };
        keep_recent(&mut self.paged, MAX_RECENT, paged);
    }

    fn keep_own(&mut self, bio: &BioSpan, images: &Images) {
        let mut tree = self.tree(bio, false, images).span;
        tree.shared = true;
        if bio.empty_flush {
            keep_recent(&mut self.flushes, MAX_RECENT, ((bio.dev, bio.end_io), tree));
            return;
        }
        tree.what = What::LayerMetadata;
        if self.own.len() >= MAX_THREADS && !self.own.contains_key(&bio.tid) {
            self.own.clear();
        }
        keep_recent(self.own.entry(bio.tid).or_default(), MAX_OF_THREAD, tree);
    }

    /// Gives a bio to those that it was made for.
    fn hand_up(&mut self, bio: &BioSpan, above: &Above, images: &Images) {
        let mut tree = self.tree(bio, false, images).span;
        for parent in &above.bios {
            if self.handed_on.len() >= MAX_WAITING {
                self.handed_on.clear();
            }
            let waiting = self.handed_on.entry(parent.generation).or_default();
            let own = self.own.get(&bio.tid).filter(|_| bio.tid != parent.tid);
            let before = |it: &&Span| is_within(it, parent.queued_ns, bio.queued_ns);
            for own in own.into_iter().flatten().filter(before) {
                if !waiting.contains(own) {
                    waiting.push(own.clone());
                }
            }
            if above.round == 0 {
                waiting.push(tree.clone());
            }
        }
        if above.round != 0 {
            if bio.operation == Operation::Read {
                tree.what = What::ReadModifyWrite;
            }
            self.keep_of_round(above, tree);
        }
    }

    fn keep_of_round(&mut self, above: &Above, tree: Span) {
        if self.in_rounds.len() >= MAX_WAITING {
            self.in_rounds.clear();
        }
        let round = self.rounds.entry(above.round).or_default();
        round.bios.push(tree);
        for parent in &above.bios {
            if !round.parents.contains(&parent.generation) {
                round.parents.push(parent.generation);
                let rounds = self.in_rounds.entry(parent.generation).or_default();
                rounds.push(above.round);
            }
        }
        if self.rounds.len() > MAX_ROUNDS {
            self.rounds.pop_first();
        }
    }

    /// All bios of the stripes that a bio wrote to. They have ended: md waits for the last of them.
    fn of_rounds(&mut self, bio: &BioSpan) -> Vec<Span> {
        let numbers = self.in_rounds.remove(&bio.generation).unwrap_or_default();
        let rounds = numbers.iter().filter_map(|number| self.rounds.get(number));
        let meanwhile = |span: &&Span| (bio.queued_ns..=bio.ended_ns).contains(&span.end_ns);
        let its = rounds.flat_map(|round| {
            let several = round.parents.len() > 1;
            let bios = round.bios.iter().filter(meanwhile);
            bios.map(move |span| Span {
                shared: several || span.start_ns < bio.queued_ns,
                ..span.clone()
            })
        });
        its.collect()
    }

    /// A bio with its requests and what was done below each.
    pub(super) fn tree(&mut self, bio: &BioSpan, journal: bool, images: &Images) -> HostBio {
        let under = |dev| images.stacks.under(dev);
        let beneath = |request: &_| self.beneath(bio, request, images);
        HostBio::new(bio, journal, under, beneath)
    }

    /// What was done below a request of a bio.
    fn beneath(&mut self, bio: &BioSpan, request: &RequestSpan, images: &Images) -> Vec<Span> {
        let mut spans = self.of_loop(request, images);
        if bio.pointer == request.pointer {
            spans.extend(self.handed_on.remove(&bio.generation).into_iter().flatten());
            spans.extend(self.of_rounds(bio));
            if let Owner::Image(image) = bio.owner {
                spans.extend(self.clones_of(bio, images.file_number(image)));
            }
            if bio.empty_flush || bio.flags & flags::PREFLUSH != 0 {
                spans.extend(self.flushes_for(bio, images));
            }
        }
        spans
    }

    /// Flushes of md's members that an empty flush, or one before data, waited for.
    fn flushes_for(&self, bio: &BioSpan, images: &Images) -> impl Iterator<Item = Span> {
        let flushes = self.flushes.iter().filter(|(of, flush)| {
            images.stacks.is_flush_for(bio.dev, *of)
                && is_within(flush, bio.queued_ns, bio.ended_ns)
        });
        flushes.map(|(_, flush)| flush.clone())
    }

    /// Of a merged request every bio gets the same.
    fn of_loop(&mut self, request: &RequestSpan, images: &Images) -> Vec<Span> {
        let mut given = self.given.iter();
        if let Some((_, spans)) = given.find(|(serial, _)| *serial == request.serial) {
            return spans.clone();
        }
        let bios = self.loops.remove(&request.pointer).unwrap_or_default();
        let works = self.files.remove(&request.pointer).unwrap_or_default();
        let mut spans = self.of_file(request, bios, works);
        if spans.is_empty() && images.stacks.is_stacked(request.dev) {
            let start = images.stacks.start_of_loop(request.dev);
            spans.extend(self.through_cache(request, start));
        }
        if request.bios > 1 && !spans.is_empty() {
            keep_recent(&mut self.given, MAX_GIVEN, (request.serial, spans.clone()));
        }
        spans
    }

    /// Direct I/O on the file, with the bios that it made.
    fn of_file(
        &self,
        request: &RequestSpan,
        bios: Vec<(u64, Span)>,
        works: Vec<FileWork>,
    ) -> Vec<Span> {
        let (from_ns, to_ns) = (request.issued_ns, request.completed_ns);
        let mut bios: Vec<(u64, Span)> = bios
            .into_iter()
            .filter(|(_, span)| is_within(span, from_ns, to_ns))
            .collect();
        let mut spans = Vec::new();
        for work in works {
            let end_ns = work.end_ns.unwrap_or(to_ns).min(to_ns);
            if work.start_ns < from_ns || work.start_ns > end_ns {
                continue;
            }
            let is_its = |(kiocb, span): &mut (u64, Span)| {
                *kiocb == work.kiocb && is_within(span, work.start_ns, end_ns)
            };
            let its = bios.extract_if(.., is_its).map(|(_, span)| span).collect();
            let mut span = Span {
                layer: Layer::StackFile,
                start_ns: work.start_ns,
                end_ns,
                offset: request.offset,
                bytes: request.bytes,
                what: What::of(request.operation, request.flush),
                shared: false,
                place: request.dev,
                below: Below::Devices,
                actors: Actors::of(Actor::host(work.tids.0), Actor::host(work.tids.1)),
                children: its,
            };
            clip_children(&mut span);
            spans.push(span);
        }
        spans.extend(bios.into_iter().map(|(_, span)| span));
        spans
    }

    /// What a request on a loop device waited for where that goes through the page cache.
    fn through_cache(&self, request: &RequestSpan, start: u64) -> Vec<Span> {
        let from = start.saturating_add(request.offset);
        let to = from.saturating_add(request.bytes);
        let waits = |paged: &&Paged| {
            let ended_ns = paged.tree.end_ns;
            let meanwhile = ended_ns > request.issued_ns && ended_ns <= request.completed_ns;
            let for_it = match paged.range {
                Some((begin, end)) if request.operation == Operation::Read => {
                    paged.operation == Operation::Read && begin < to && end > from
                }
                Some(_) => request.flush && paged.operation == Operation::Write,
                None => request.flush,
            };
            paged.dev == request.dev && meanwhile && for_it
        };
        let paged = self.paged.iter().filter(waits);
        paged.map(|paged| paged.tree.clone()).collect()
    }

    fn sync_begins(&mut self, event: &Event, images: &Images) {
        if self.syncs.len() >= MAX_THREADS && !self.syncs.contains_key(&event.tid) {
            self.syncs.clear();
        }
        match images.loop_device(event) {
            Some(dev) => self.syncs.insert(event.tid, (dev, event.ts_ns)),
            // Of another file.
            None => self.syncs.remove(&event.tid),
        };
    }

    /// Direct I/O on the file of a loop device begins or ends, or a sync of it begins.
    pub(super) fn file_event(&mut self, kind: Kind, event: &Event, images: &Images) {
        if kind == Kind::SyncEnter {
            self.sync_begins(event, images);
            return;
        }
        if !matches!(kind, Kind::DioBegin | Kind::DioComplete)
            || event.origin == 0
            || images.loop_device(event).is_none()
        {
            return;
        }
        if self.files.len() >= MAX_WAITING {
            self.files.clear();
        }
        let works = self.files.entry(event.origin).or_default();
        if kind == Kind::DioComplete {
            let is_it = |it: &&mut FileWork| it.end_ns.is_none() && it.kiocb == event.object;
            if let Some(work) = works.iter_mut().find(is_it) {
                work.end_ns = Some(event.ts_ns);
                work.tids.1 = event.tid;
            }
            return;
        }
        // What earlier requests at this address left behind.
        if works.len() >= MAX_OF_THREAD {
            works.clear();
        }
        works.push(FileWork {
            kiocb: event.object,
            tids: (event.tid, 0),
            start_ns: event.ts_ns,
            end_ns: None,
        });
    }

    fn clones_of(&mut self, bio: &BioSpan, file: u32) -> Vec<Span> {
        let is_clone = |lower: &Lower| {
            let same = if bio.iocb != 0 || lower.iocb != 0 {
                lower.iocb == bio.iocb
            } else {
                let end = bio.file_offset.saturating_add(bio.bytes);
                (bio.file_offset..end).contains(&lower.file_offset)
            };
            same && lower.file == file && is_within(&lower.tree, bio.queued_ns, bio.ended_ns)
        };
        let mut clones = Vec::new();
        self.clones.retain_mut(|lower| {
            let taken = is_clone(lower);
            if taken {
                clones.push(lower.tree.clone());
            }
            !taken
        });
        clones
    }
}
