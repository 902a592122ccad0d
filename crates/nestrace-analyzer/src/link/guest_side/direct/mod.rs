//! Links of a guest's requests straight to QEMU's file I/O, where none of QEMU's functions were seen.
//!
//! What a request and its file I/O have in common is the memory ([`crate::link::guest_memory`]): the clock pairs requests with the
//! file I/O that names their buffer. Where the pages are not known (blktrace) or the constant cannot be learned, it pairs
//! them by their place on the disk.
//!
//! A request that QEMU merged into another one has no file I/O that begins with its buffer, a request over several
//! clusters has several, and flushes have none of their own. These are decided once the clock is known at their time, by
//! place: the file I/O of the disk within D and C that covers the request. Two that could be it leave it ambiguous.
//!
//! Reads and writes of the image's tables are not linked: their time is that of `virt_submit`, as all of QEMU's own is.

mod learning;
mod linking;

use std::collections::VecDeque;
use std::rc::Rc;

use nestrace_trace::manifest::{Disk, Manifest};

use crate::link::chains::Link;
use crate::link::clock::{Band, GuestRequest, HostRequest, Key, OpClass, Outcome, Paired, Pairing};
use crate::link::guest_memory::{Agreement, GuestMemory};
use crate::model::clocks::{GuestNs, HostBound, HostNs};
use crate::model::ids::GuestDiskId;
use crate::model::pointer::PointerMap;
use crate::model::span::{FileIoFacts, Served, What};
use crate::result::unlinked::UnlinkedReason;

/// The constant of the guest's memory is looked for when so many requests have come, and twice as many, and so on.
const FIRST_LOOK: usize = 64;
/// Without a better clock, what the wall clocks say is true to this.
const WALL_CLOCKS_AGREE_NS: i64 = 50_000_000;
/// A request is offered to the clock this long after its C: the one before it has come by then.
const OFFER_AFTER_NS: u64 = 20_000_000;
/// A request is decided on this long after its C: the clock has reported what it has paired by then.
const DECIDE_AFTER_NS: u64 = 700_000_000;
/// File I/O is kept for so long before the oldest request that is not decided.
const KEEP_FILES_NS: u64 = 1_000_000_000;
/// Requests that may wait, and file I/Os.
const MAX_WAITING: usize = 1 << 17;
/// Ends of requests that are remembered, to tell which another one goes on with.
const MAX_ENDS: usize = 1 << 14;

/// What the clock pairs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// Not decided yet.
    Unknown,
    /// The memory of the first byte.
    Memory,
    /// The place of the first byte on the disk.
    Place,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Not offered to the clock yet.
    Held,
    /// The clock has it.
    Offered,
    Paired(Paired),
    /// The clock did not pair it, or was not asked.
    Alone,
}

/// A request of the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub serial: u64,
    /// Index into [`super::Session::disks`].
    pub device: u32,
    pub class: OpClass,
    pub offset: u64,
    pub bytes: u64,
    /// Page identity of its first byte; 0 if unknown.
    pub page: u64,
    pub lane: u32,
    pub issued_ns: GuestNs,
    pub completed_ns: GuestNs,
}

impl Request {
    const fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// A file I/O of QEMU.
#[derive(Debug)]
struct File {
    served: Rc<Served>,
    disk: GuestDiskId,
    class: Option<OpClass>,
    /// The range of the guest's disk that it moves.
    place: Option<(u64, u64)>,
    of_table: bool,
    /// What requests have taken of that range.
    taken: Vec<(u64, u64)>,
    /// Requests that it was linked to.
    n_links: u32,
}

impl File {
    fn is_free(&self, from: u64, to: u64) -> bool {
        self.taken
            .iter()
            .all(|taken| taken.1 <= from || to <= taken.0)
    }

    fn start_ns(&self) -> HostNs {
        self.served.start_ns()
    }

    fn end_ns(&self) -> HostNs {
        self.served.end_ns()
    }
}

/// Facts of a disk, by its place among the guest's.
#[derive(Debug)]
struct DiskFacts {
    /// Index into `Images::disks`.
    number: u32,
    raw: bool,
    /// QEMU syncs after each write.
    writes_through: bool,
}

/// The requests and file I/Os of one session that are not linked yet.
#[derive(Debug)]
pub(super) struct DirectLinks {
    identity: Identity,
    disks: Vec<DiskFacts>,
    /// In the order of their C.
    requests: VecDeque<(Request, State)>,
    /// Number of the first of these.
    first: u64,
    /// Numbers of requests, by serial.
    numbers: PointerMap<u64, u64>,
    /// The next to be offered to the clock.
    offered_before: u64,
    /// Numbers of those whose pages have no constant yet.
    strangers: Vec<u64>,
    /// In the order of their end.
    files: VecDeque<File>,
    first_file: u64,
    file_numbers: PointerMap<u64, u64>,
    /// When the request ended that ends at a place, by device, operation and place.
    ends: PointerMap<(u64, u64), GuestNs>,
    look_at: usize,
    /// Links that were decided, for the caller to drain.
    pub decided: Vec<Decided>,
    /// File I/Os that no request came for.
    pub unclaimed: Vec<Rc<Served>>,
}

/// What became of a request.
#[derive(Debug)]
pub(super) struct Decided {
    pub serial: u64,
    pub device: u32,
    pub link: Result<Link, UnlinkedReason>,
    /// What place and memory say of each other.
    pub agreement: Option<Agreement>,
}

/// How far the streams have been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub guest_ns: GuestNs,
    pub host_ns: HostNs,
    pub end: bool,
}

impl DirectLinks {
    /// For the guest with this index in the topology.
    pub(super) fn new(manifest: &Manifest, guest: usize) -> Self {
        let guests = &manifest.topology.guests;
        let before: usize = guests.iter().take(guest).map(|it| it.disks.len()).sum();
        let facts = |(place, disk): (usize, &Disk)| DiskFacts {
            number: u32::try_from(before + place).unwrap_or(u32::MAX),
            raw: disk
                .images
                .first()
                .is_some_and(|image| image.format == "raw"),
            writes_through: matches!(disk.cache.as_deref(), Some("writethrough" | "directsync")),
        };
        let disks = guests.get(guest).map_or(&[][..], |guest| &guest.disks);
        Self {
            identity: Identity::Unknown,
            disks: disks.iter().enumerate().map(facts).collect(),
            requests: VecDeque::new(),
            first: 0,
            numbers: PointerMap::default(),
            offered_before: 0,
            strangers: Vec::new(),
            files: VecDeque::new(),
            first_file: 0,
            file_numbers: PointerMap::default(),
            ends: PointerMap::default(),
            look_at: FIRST_LOOK,
            decided: Vec::new(),
            unclaimed: Vec::new(),
        }
    }

    /// Takes a request that has completed.
    pub(super) fn request(&mut self, request: Request) {
        let number = self.first + self.requests.len() as u64;
        self.numbers.insert(request.serial, number);
        self.requests.push_back((request, State::Held));
        if self.ends.len() >= MAX_ENDS {
            self.ends.clear();
        }
        let ends = (end_key(&request), request.end());
        self.ends.insert(ends, request.completed_ns);
    }

    /// Takes a file I/O that has ended, of this disk of the guest.
    pub(super) fn file_io(&mut self, served: &Rc<Served>, disk: GuestDiskId, facts: FileIoFacts) {
        let class = match served.span.what {
            What::Read => Some(OpClass::Read),
            What::Write => Some(OpClass::Write),
            What::Sync => Some(OpClass::Flush),
            What::Other => Some(OpClass::Discard),
            _ => None,
        };
        let number = self.first_file + self.files.len() as u64;
        self.file_numbers.insert(served.serial, number);
        self.files.push_back(File {
            served: Rc::clone(served),
            disk,
            class,
            place: facts.place,
            of_table: facts.of_table,
            taken: Vec::new(),
            n_links: 0,
        });
    }

    /// Goes on with what can be decided by now.
    pub(super) fn work(&mut self, read: Read, pairing: &mut Pairing, memory: &mut GuestMemory) {
        if self.identity == Identity::Unknown {
            self.look(read, pairing, memory);
        }
        if self.identity != Identity::Unknown {
            self.offer(read, pairing, memory);
        }
    }

    /// Places of the file I/Os that ended within a request's time.
    fn ended_within(&self, request: &Request, band: Band) -> (usize, usize) {
        let (from, to) = host_times(request, band);
        let from = self
            .files
            .partition_point(|file| file.end_ns().bound() < from);
        let to = self
            .files
            .partition_point(|file| file.end_ns().bound() <= to);
        (from, to.max(from))
    }

    /// Offers requests to the clock.
    fn offer(&mut self, read: Read, pairing: &mut Pairing, memory: &mut GuestMemory) {
        self.offered_before = self.offered_before.max(self.first);
        while let Some(index) = index_of(self.offered_before, self.first)
            && let Some((request, _)) = self.requests.get(index)
        {
            let due = request.completed_ns.saturating_add(OFFER_AFTER_NS) <= read.guest_ns;
            if !due && !read.end {
                break;
            }
            let number = self.offered_before;
            self.offered_before += 1;
            let by_memory = self.identity == Identity::Memory && request.page != 0;
            if by_memory && !memory.knows(request.page) {
                self.strangers.push(number);
            } else {
                self.offer_one(number, pairing, memory);
            }
        }
        if !self.strangers.is_empty() {
            self.recognize(read, pairing, memory);
        }
    }

    fn offer_one(&mut self, number: u64, pairing: &mut Pairing, memory: &GuestMemory) {
        let index = index_of(number, self.first);
        let Some((request, state)) = index.and_then(|index| self.requests.get_mut(index)) else {
            return;
        };
        let key = (end_key(request), request.offset);
        let follows = self
            .ends
            .get(&key)
            .is_some_and(|ended_ns| *ended_ns >= request.issued_ns);
        // What an image has nowhere is zero: QEMU reads nothing.
        let disk = pairing.disk_of(request.device).ok().flatten();
        let raw = disk.and_then(|disk| self.disks.get(disk as usize));
        let may_be_zero = request.class == OpClass::Read && raw.is_none_or(|it| !it.raw);
        let place = match (self.identity, request.class) {
            (_, OpClass::Flush | OpClass::Discard) => None,
            (Identity::Memory, _) => {
                let page = Some(request.page).filter(|page| *page != 0);
                page.and_then(|page| memory.buffer_of(page))
            }
            _ => Some(request.offset),
        };
        let Some(place) = place else {
            *state = State::Alone;
            return;
        };
        *state = State::Offered;
        pairing.guest_request(GuestRequest {
            serial: request.serial,
            device: request.device,
            key: Key {
                class: request.class,
                offset: place,
                bytes: 0,
            },
            buffer: 0,
            may_be_alone: follows
                || may_be_zero
                || self.identity == Identity::Memory && !memory.knows(request.page),
            lane: request.lane,
            flushed_with: 0,
            issued_ns: request.issued_ns,
            completed_ns: request.completed_ns,
        });
    }

    /// A file I/O that came after the identity was decided on.
    pub(super) fn offer_last_file(&self, pairing: &mut Pairing) {
        if self.identity != Identity::Unknown
            && let Some(file) = self.files.back()
        {
            offer_file(self.identity, file, pairing);
        }
    }

    /// Takes what the clock has decided.
    pub(super) fn outcome(&mut self, outcome: &Outcome, memory: &mut GuestMemory) {
        let (serial, paired) = match outcome {
            Outcome::Paired(paired) => (paired.guest, Some(*paired)),
            Outcome::Unpaired(unpaired) => (unpaired.guest, None),
            Outcome::Unclaimed(_) => return,
        };
        let number = self.numbers.get(&serial).copied();
        let index = number.and_then(|number| index_of(number, self.first));
        let Some((request, state)) = index.and_then(|index| self.requests.get_mut(index)) else {
            return;
        };
        *state = paired.map_or(State::Alone, State::Paired);
        let request = *request;
        let file = paired.and_then(|paired| self.file_of(paired.host));
        let Some(file) = file else {
            return;
        };
        match file.place {
            // Only a place that does not come from the memory teaches.
            Some((start, _)) if start == request.offset => {
                memory.learn(request.page, file.served.buffer);
            }
            Some(_) => {}
            None => {
                let end = request.offset.saturating_add(file.served.span.bytes);
                file.place = Some((request.offset, end));
            }
        }
    }

    fn file_of(&mut self, serial: u64) -> Option<&mut File> {
        let number = *self.file_numbers.get(&serial)?;
        self.files.get_mut(index_of(number, self.first_file)?)
    }

    /// Decides on the requests whose time the clock is done with.
    pub(super) fn decide(&mut self, read: Read, pairing: &Pairing, memory: &GuestMemory) {
        while let Some((request, state)) = self.requests.front().copied() {
            let crowded = self.requests.len() > MAX_WAITING;
            let host_ns = host_time(pairing, request.completed_ns);
            let due = request.completed_ns.saturating_add(DECIDE_AFTER_NS) <= read.guest_ns
                && host_ns.is_some_and(|host_ns| {
                    host_ns.saturating_add(DECIDE_AFTER_NS / 2) <= read.host_ns
                });
            let waits = matches!(state, State::Held | State::Offered);
            if (!due || waits) && !read.end && !crowded {
                break;
            }
            self.requests.pop_front();
            self.first += 1;
            self.numbers.remove(&request.serial);
            let decided = self.link(&request, state, pairing, memory);
            self.decided.push(decided);
        }
        self.forget_files(read, pairing);
    }

    /// What ended before a time of the host was linked here or passed on.
    pub(super) fn oldest_file_ns(&self) -> Option<HostNs> {
        self.files.front().map(File::end_ns)
    }

    fn forget_files(&mut self, read: Read, pairing: &Pairing) {
        let oldest = self.requests.front().map(|(request, _)| request.issued_ns);
        let host_ns = host_time(pairing, oldest.unwrap_or(read.guest_ns)).unwrap_or_default();
        let before_ns = host_ns.min(read.host_ns).saturating_sub(KEEP_FILES_NS);
        while let Some(file) = self.files.front()
            && (file.end_ns() < before_ns || read.end || self.files.len() > MAX_WAITING)
        {
            let Some(file) = self.files.pop_front() else {
                return;
            };
            self.first_file += 1;
            self.file_numbers.remove(&file.served.serial);
            if file.n_links == 0 {
                self.unclaimed.push(file.served);
            }
        }
    }
}

/// The earliest D and the latest C of a request on the host's clock.
fn host_times(request: &Request, band: Band) -> (HostBound, HostBound) {
    (
        request.issued_ns.bound_on_host(band.hi_ns),
        request.completed_ns.bound_on_host(band.lo_ns),
    )
}

fn fits(request: &Request, file: &File, band: Band) -> bool {
    let (from, to) = host_times(request, band);
    file.start_ns().bound() >= from && file.end_ns().bound() <= to
}

/// The host's time of a guest's; `None` where the clock is not known.
fn host_time(pairing: &Pairing, guest_ns: GuestNs) -> Option<HostNs> {
    let band = pairing.band(guest_ns)?;
    Some(guest_ns.on_host(band.middle_ns()))
}

/// What is known of the clock before any pair is.
fn near_band(pairing: &Pairing, guest_ns: GuestNs) -> Option<Band> {
    let by_wall = || {
        let offset_ns = pairing.wall_offset_ns()?;
        Some(Band {
            lo_ns: offset_ns.saturating_sub(WALL_CLOCKS_AGREE_NS),
            hi_ns: offset_ns.saturating_add(WALL_CLOCKS_AGREE_NS),
        })
    };
    pairing.band(guest_ns).or_else(by_wall)
}

fn offer_file(identity: Identity, file: &File, pairing: &mut Pairing) {
    let class = file
        .class
        .filter(|class| matches!(class, OpClass::Read | OpClass::Write));
    let place = match identity {
        Identity::Memory => Some(file.served.buffer).filter(|buffer| *buffer != 0),
        _ => file.place.map(|place| place.0),
    };
    let (Some(class), Some(place), false) = (class, place, file.of_table) else {
        return;
    };
    pairing.host_request(HostRequest {
        serial: file.served.serial,
        disk: file.disk.0,
        key: Key {
            class,
            offset: place,
            bytes: 0,
        },
        buffer: 0,
        lane: HostRequest::ANY_LANE,
        start_ns: file.start_ns(),
        end_ns: file.end_ns(),
    });
}

/// A device and an operation as one number.
fn end_key(request: &Request) -> u64 {
    u64::from(request.device) << 8 | request.class as u64
}

/// Where the thing with a number stands behind the first.
fn index_of(number: u64, first: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(first)?).ok()
}
