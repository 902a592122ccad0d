//! A hard disk: one head, a buffer, a queue of commands.
//!
//! Commands are taken in order, as many as the queue holds. A flush is not queued: it waits for all commands before it,
//! and those after it wait until everything that was written is on the medium. A read is answered from the buffer, or
//! goes to the medium; after it the head reads on until it is needed elsewhere. A write is done when the cache has it.
//! The head serves reads first. It destages when no read waits, when the cache is nearly full, or for a flush.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::cache::{Extent, ReadCache, WriteCache};
use crate::geometry::Geometry;
use crate::parameters::{ParametersError, SpindleParameters};
use crate::request::{Completion, DiskNs, Operation, Request, SECTOR_BYTES, sectors};
use crate::schedule::{Candidate, choose};
use crate::seek::SeekCurve;
use crate::split_mix::SplitMix;

const KIB_SECTORS: u64 = 1024 / SECTOR_BYTES;

/// A hard disk.
#[derive(Clone, Debug)]
pub struct Spindle {
    geometry: Geometry,
    curve: SeekCurve,
    parameters: SpindleParameters,
    /// Turns at time 0.
    phase: f64,
    read_cache: ReadCache,
    write_cache: WriteCache,
    /// Not taken yet, in order.
    waiting: VecDeque<Command>,
    /// Taken: reads that need the medium, and writes that need room.
    taken: Vec<Command>,
    flush: Option<Command>,
    /// No command is taken before.
    closed_until: DiskNs,
    head_track: u64,
    media: Option<MediaAccess>,
    ahead: Option<ReadAhead>,
    bus_free: DiskNs,
    /// Completions of commands that hold a place in the queue.
    places: BinaryHeap<Reverse<DiskNs>>,
    last_completion: DiskNs,
    done: BinaryHeap<Reverse<Completion>>,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    id: u64,
    operation: Operation,
    first: u64,
    end: u64,
    /// When the controller is ready to start it.
    since: DiskNs,
}

/// What the head does now.
#[derive(Clone, Copy, Debug)]
struct MediaAccess {
    what: Access,
    first: u64,
    end: u64,
    until: DiskNs,
}

#[derive(Clone, Copy, Debug)]
enum Access {
    Read,
    Write,
    Destage(Extent),
}

/// Reading on after a read.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    from: u64,
    since: DiskNs,
    limit: u64,
}

impl Spindle {
    /// A disk of `size_bytes`; the seed says where its platters stand at time 0.
    ///
    /// # Errors
    /// The geometry needs more bytes, or the seek times contradict one another.
    pub fn new(
        parameters: &SpindleParameters,
        size_bytes: u64,
        seed: u64,
    ) -> Result<Self, ParametersError> {
        let room = parameters.write_cache_kib * KIB_SECTORS;
        Ok(Self {
            geometry: Geometry::new(parameters, size_bytes)?,
            curve: parameters.curve()?,
            phase: SplitMix(seed).share(),
            read_cache: ReadCache::new(
                parameters.read_segments,
                parameters.segment_kib * KIB_SECTORS,
            ),
            write_cache: WriteCache::new(room, parameters.write_cache_extents),
            waiting: VecDeque::new(),
            taken: Vec::new(),
            flush: None,
            closed_until: DiskNs(0),
            head_track: 0,
            media: None,
            ahead: None,
            bus_free: DiskNs(0),
            places: BinaryHeap::new(),
            last_completion: DiskNs(0),
            done: BinaryHeap::new(),
            parameters: parameters.clone(),
        })
    }

    /// Takes a request in. Times do not go back.
    pub fn submit(&mut self, at: DiskNs, request: Request) {
        let (first, end) = sectors(&request, self.geometry.n_sectors());
        let overhead = (self.parameters.command_overhead_us * 1e3) as u64;
        self.waiting.push_back(Command {
            id: request.id,
            operation: request.operation,
            first,
            end,
            since: at.plus(overhead),
        });
    }

    /// When something has to be decided, if nothing else comes.
    #[must_use]
    pub fn next_decision(&self) -> Option<DiskNs> {
        let media = self.media.map(|access| access.until);
        [media, self.next_taken()].into_iter().flatten().min()
    }

    /// When the next command will be taken, as far as it depends on time alone.
    fn next_taken(&self) -> Option<DiskNs> {
        let next = self.waiting.front()?;
        let ready = next.since.max(self.closed_until);
        if self.flush.is_some() {
            return None;
        }
        if next.operation == Operation::Flush {
            let is_empty = self.taken.is_empty();
            return is_empty.then(|| ready.max(self.last_completion));
        }
        // A command on the medium has its place among `places`: when it completes is known.
        if self.taken.len() + self.places.len() < self.parameters.queue_depth {
            return Some(ready);
        }
        self.places.peek().map(|first| ready.max(first.0))
    }

    /// Decides what is due at `at`.
    pub fn decide(&mut self, at: DiskNs) {
        while self.places.peek().is_some_and(|first| first.0 <= at) {
            self.places.pop();
        }
        loop {
            if let Some(access) = self.media.take_if(|access| access.until <= at) {
                self.end_access(&access, at);
            }
            while self.next_taken().is_some_and(|due| due <= at) {
                if let Some(command) = self.waiting.pop_front() {
                    self.take(command, at);
                }
            }
            self.end_flush(at);
            if self.media.is_none() {
                self.start_access(at);
            }
            let is_due = |due: DiskNs| due <= at;
            if !self.next_decision().is_some_and(is_due) {
                return;
            }
        }
    }

    /// When the next completion that is known comes.
    #[must_use]
    pub fn next_completion(&self) -> Option<DiskNs> {
        self.done.peek().map(|first| first.0.at)
    }

    /// Takes completions up to `until`, in order of time.
    pub fn take_completions(&mut self, until: DiskNs, into: &mut Vec<Completion>) {
        while self.next_completion().is_some_and(|at| at <= until) {
            into.extend(self.done.pop().map(|first| first.0));
        }
    }

    fn take(&mut self, command: Command, at: DiskNs) {
        match command.operation {
            Operation::Flush => self.flush = Some(command),
            Operation::Discard => self.complete(&command, at),
            Operation::Read if self.is_buffered(&command, at) => self.complete_on_bus(&command, at),
            Operation::Write => {
                self.read_cache.drop_overlapping(command.first, command.end);
                if !self.enter_cache(&command, at) {
                    self.taken.push(command);
                }
            }
            Operation::Read => self.taken.push(command),
        }
    }

    /// Whether the buffer has all of a read.
    fn is_buffered(&self, command: &Command, at: DiskNs) -> bool {
        let (first, end) = (command.first, command.end);
        let ahead = self.ahead.filter(|ahead| ahead.from <= first);
        self.write_cache.holds(first, end)
            || self.read_cache.holds(first, end)
            || ahead.is_some_and(|ahead| end <= self.frontier(&ahead, at))
    }

    fn enter_cache(&mut self, command: &Command, at: DiskNs) -> bool {
        let fits =
            self.write_cache.is_on() && self.write_cache.insert(command.first, command.end, at);
        if fits {
            self.complete_on_bus(command, at);
        }
        fits
    }

    fn complete_on_bus(&mut self, command: &Command, at: DiskNs) {
        let bytes = (command.end - command.first) * SECTOR_BYTES;
        let ns = bytes as f64 / self.parameters.interface_mb_per_s * 1e3;
        self.bus_free = self.bus_free.max(at).plus(ns.ceil() as u64);
        self.complete(command, self.bus_free);
    }

    fn complete(&mut self, command: &Command, at: DiskNs) {
        self.places.push(Reverse(at));
        self.last_completion = self.last_completion.max(at);
        self.done.push(Reverse(Completion { at, id: command.id }));
    }

    /// A flush is done when nothing is left to be written.
    fn end_flush(&mut self, at: DiskNs) {
        if self.media.is_some() || !self.write_cache.extents().is_empty() {
            return;
        }
        if let Some(flush) = self.flush.take() {
            let at = at.plus((self.parameters.flush_ms * 1e6) as u64);
            self.complete(&flush, at);
            self.closed_until = at;
        }
    }

    /// The first sector that reading ahead has not reached.
    fn frontier(&self, ahead: &ReadAhead, at: DiskNs) -> u64 {
        let most = ahead.limit - ahead.from;
        let ns = at.since(ahead.since) as f64;
        ahead.from + self.geometry.passed(ahead.from, ns, most)
    }

    /// The head is needed elsewhere: what was read ahead stays in the buffer.
    fn end_read_ahead(&mut self, at: DiskNs) {
        if let Some(ahead) = self.ahead.take() {
            let end = self.frontier(&ahead, at);
            self.read_cache.insert(ahead.from, end);
            self.head_track = self.geometry.place(end.max(1) - 1).track;
        }
    }

    fn end_access(&mut self, access: &MediaAccess, at: DiskNs) {
        self.head_track = self.geometry.place(access.end - 1).track;
        match access.what {
            Access::Read => {
                self.read_cache.insert(access.first, access.end);
                let ahead = self.parameters.read_ahead_kib * KIB_SECTORS;
                let limit = (access.end + ahead).min(self.geometry.n_sectors());
                self.ahead = Some(ReadAhead {
                    from: access.end,
                    since: access.until,
                    limit,
                });
            }
            Access::Write => {}
            Access::Destage(extent) => {
                self.write_cache.is_written(&extent);
                // Writes that waited for room go on in their order.
                for command in std::mem::take(&mut self.taken) {
                    let is_write = command.operation == Operation::Write;
                    if !(is_write && self.enter_cache(&command, at)) {
                        self.taken.push(command);
                    }
                }
            }
        }
    }

    /// Chooses what the head does next, and starts it.
    fn start_access(&mut self, at: DiskNs) {
        let head = self.ahead.map_or(self.head_track, |ahead| {
            let end = self.frontier(&ahead, at);
            self.geometry.place(end.max(1) - 1).track
        });
        let has_cache = self.write_cache.is_on();
        let on_medium = |it: &Command| it.operation == Operation::Read || !has_cache;
        let commands = self.taken.iter().enumerate();
        let commands = commands.filter(|(_, command)| on_medium(command));
        let commands: Vec<Candidate> = commands
            .map(|(number, command)| Candidate {
                number,
                positioning_ns: self.positioning_ns(command, head, at),
                since: command.since,
            })
            .collect();
        let n_taken = self.taken.len();
        let has_room_waiters = n_taken > commands.len();
        let destages = self.flush.is_some()
            || commands.is_empty()
            || has_room_waiters
            || self.write_cache.is_nearly_full();
        let extents = self.write_cache.extents().iter().enumerate();
        let extents = extents.filter(|_| destages);
        let extents = extents.map(|(number, extent)| Candidate {
            number: n_taken + number,
            positioning_ns: self.reach_ns(extent.first, true, head, at),
            since: extent.since,
        });
        let weight = self.parameters.age_weight;
        let Some(chosen) = choose(commands.iter().copied().chain(extents), at, weight) else {
            return;
        };
        let access = if chosen.number < n_taken {
            let command = self.taken.remove(chosen.number);
            let access = self.command_access(&command, &chosen, at);
            self.complete(&command, access.until);
            access
        } else {
            let Some(extent) = self.write_cache.take(chosen.number - n_taken) else {
                return;
            };
            self.end_read_ahead(at);
            self.access(
                Access::Destage(extent),
                (extent.first, extent.end),
                &chosen,
                at,
            )
        };
        self.media = Some(access);
    }

    fn command_access(&mut self, command: &Command, chosen: &Candidate, at: DiskNs) -> MediaAccess {
        let sectors = (command.first, command.end);
        if command.operation == Operation::Write {
            self.end_read_ahead(at);
            return self.access(Access::Write, sectors, chosen, at);
        }
        if let Some(ahead) = self.continued(command, at) {
            // The head is on its way already.
            self.ahead = None;
            let ns = self
                .geometry
                .transfer_ns(ahead.from, command.end - ahead.from);
            return MediaAccess {
                what: Access::Read,
                first: ahead.from,
                end: command.end,
                until: ahead.since.plus(ns.ceil() as u64).max(at),
            };
        }
        self.end_read_ahead(at);
        self.access(Access::Read, sectors, chosen, at)
    }

    fn access(
        &self,
        what: Access,
        (first, end): (u64, u64),
        chosen: &Candidate,
        at: DiskNs,
    ) -> MediaAccess {
        let ns = chosen.positioning_ns + self.geometry.transfer_ns(first, end - first);
        MediaAccess {
            what,
            first,
            end,
            until: at.plus(ns.ceil() as u64),
        }
    }

    /// The reading ahead that a read goes on with: it begins in what is read, or where the head is.
    fn continued(&self, command: &Command, at: DiskNs) -> Option<ReadAhead> {
        let ahead = self.ahead?;
        let begins = ahead.from <= command.first && command.first <= self.frontier(&ahead, at);
        // At its limit the head has stopped reading.
        let goes_on = self.frontier(&ahead, at) < ahead.limit;
        (begins && goes_on && command.end > ahead.from).then_some(ahead)
    }

    fn positioning_ns(&self, command: &Command, head: u64, at: DiskNs) -> f64 {
        let is_write = command.operation == Operation::Write;
        if !is_write && self.continued(command, at).is_some() {
            return 0.0;
        }
        self.reach_ns(command.first, is_write, head, at)
    }

    /// Nanoseconds until a head above track `head` is at a sector.
    fn reach_ns(&self, sector: u64, is_write: bool, head: u64, at: DiskNs) -> f64 {
        let place = self.geometry.place(sector);
        let seek_ns = match place.track.abs_diff(head) {
            0 => 0.0,
            // What the skew of the tracks is made for.
            1 => self.geometry.switch_ns(),
            _ => {
                let settle_ns = self.parameters.write_settle_ms * 1e6;
                let seek = self.curve.ns(self.geometry.distance(head, place.track));
                seek + if is_write { settle_ns } else { 0.0 }
            }
        };
        let there = at.0 as f64 + seek_ns;
        let turns = there / self.geometry.turn_ns() + self.phase;
        seek_ns + self.geometry.rotation_ns(turns, &place)
    }
}
