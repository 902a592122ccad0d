//! One session of a guest's agent (or one imported capture): the guest's own block layer on the
//! guest's clock, and the ties of its requests to QEMU's.
//!
//! A guest that reboots begins another session with its own clock; its disks are the same.

mod calls;
mod direct;
mod disk;
mod from_qemu;
mod metered;
mod no_end;
mod numbers;
mod outcome;
mod request_key;
mod summary;
mod unmap;

use std::cell::RefCell;
use std::rc::Rc;

use nestrace_abi::{Kind, Source, flags};
use nestrace_trace::Event;
use nestrace_trace::manifest::{GuestSide, Manifest};

use crate::follow::block::{BlockLayer, Lent};
use crate::follow::cpu::CpuStates;
use crate::follow::image::Images;
use crate::follow::qemu;
use crate::follow::sector_identity::SectorIdentity;
use crate::link::calls::KeptCall;
use crate::link::chains::{Join, Names, StoryChoice};
use crate::link::clock::{Band, ClockStart, ClockSummary, Pairing};
use crate::link::cpu::CpuLookup;
use crate::model::chain::Chain;
use crate::model::clocks::{GuestNs, HostNs};
use crate::model::ids::{DiskId, GuestDiskId};
use crate::model::operation::Operation;
use crate::model::plausible::{self, lies_nowhere};
use crate::model::pointer::PointerMap;
use crate::model::span::{BioSpan, Served};
use crate::model::threads::Threads;
use crate::result::analysis::{CallRow, CallStory, GuestCalls};
use crate::result::loss_counts::LossCounts;
use crate::result::unlinked::{Reason, Reasons, UnlinkedReason};

use calls::SessionCalls;
use direct::{DirectLinks, Read};
use disk::DiskCounts;
use from_qemu::QemuLinks;
use numbers::DiskNumbers;
use outcome::Waiting;
use request_key::key;
pub(crate) use summary::{DiskSummary, HostStretch, disk_of, told_by_requests};

/// How far a stream is read between two looks at what the clock has found.
const LOOK_NS: u64 = 20_000_000;
/// The same in events, should a guest's clock stand still.
const LOOK_EVENTS: u64 = 1 << 16;

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub side: GuestSide,
    /// Index into the topology's guests.
    guest: Option<u32>,
    identity: Option<SectorIdentity>,
    block: BlockLayer,
    threads: Threads,
    reasons: Reasons,
    /// Guest's clock minus the host's by the wall clocks.
    wall_offset_ns: Option<i64>,
    qemu: QemuLinks,
    join: Join,
    pub(crate) calls: SessionCalls,
    /// What its threads and those of the host did.
    pub(crate) cpu: CpuLookup,
    /// By the numbers of `GuestSide::disks`; behind them those of I/O that may have been of either of two disks.
    pub disks: Vec<DiskCounts>,
    numbers_of_disks: DiskNumbers,
    /// An earlier session of the same guest has the first say on QEMU's requests.
    pub follows_another: bool,
    /// Numbers of bios on their way, by address and Q, if anybody asked for them.
    numbers: Option<PointerMap<(u64, u64), u64>>,
    pub losses: LossCounts,
    pub events: u64,
    /// Events of the block layer, those that were made up in place of blktrace's among them.
    block_events: u64,
    pub unknown_events: u64,
    /// Events that no kernel writes.
    pub implausible: u64,
    /// Of its events, on the guest's clock.
    pub(crate) first_ns: Option<u64>,
    pub(crate) last_ns: u64,
    guest_read_ns: GuestNs,
    looked_events: u64,
    looked_guest_ns: GuestNs,
    looked_host_ns: HostNs,
}

/// What a session leaves.
pub(crate) struct Finished {
    pub clock: ClockSummary,
    /// Bios that became ready at last.
    pub chains: Vec<Chain>,
}

impl Session {
    /// The session with this index in `Manifest::guest_sides`.
    pub(crate) fn new(
        manifest: &Manifest,
        side: usize,
        numbered: bool,
        kept_calls: Option<StoryChoice>,
        host: &Rc<RefCell<CpuStates>>,
    ) -> Option<Self> {
        let earlier = manifest.guest_sides.get(..side)?;
        let side = manifest.guest_sides.get(side)?;
        let guests = &manifest.topology.guests;
        let guest = guests.iter().position(|guest| guest.name == side.guest);
        let lost = manifest.losses.iter().any(|loss| {
            loss.guest.as_deref() == Some(side.guest.as_str())
                && loss.events > 0
                && ![Source::Meta.name(), Source::Cpu.name()].contains(&loss.source.as_str())
        });
        let processors = guest.map(|guest| guests[guest].vcpus());
        let cpu = CpuLookup::new(host, &processors.unwrap_or_default());
        let start = ClockStart::of(manifest, side);
        let numbers_of_disks = DiskNumbers::new(side);
        let has_identities = side.backend != "blktrace";
        let direct = guest
            .filter(|_| qemu::has_no_functions(manifest, &side.guest))
            .map(|guest| Box::new(DirectLinks::new(manifest, guest)));
        Some(Self {
            follows_another: earlier.iter().any(|earlier| earlier.guest == side.guest),
            guest: guest.and_then(|guest| u32::try_from(guest).ok()),
            identity: (!has_identities).then(|| SectorIdentity::of_kernel(&side.machine.kernel)),
            block: BlockLayer::with_spans(),
            threads: Threads::default(),
            reasons: Reasons {
                live_ns: side.live_mono_ns.max(side.start_mono_ns),
                lost_so_far: false,
                lost_sometime: lost,
            },
            wall_offset_ns: start.wall_offset_ns,
            qemu: QemuLinks::new(Pairing::new(start), direct, has_identities),
            join: Join::default(),
            calls: SessionCalls::new(side, kept_calls, cpu.clone()),
            cpu,
            disks: DiskCounts::all(side, &numbers_of_disks),
            numbers_of_disks,
            numbers: numbered.then(PointerMap::default),
            losses: LossCounts::default(),
            events: 0,
            block_events: 0,
            unknown_events: 0,
            implausible: 0,
            first_ns: None,
            last_ns: 0,
            guest_read_ns: GuestNs::default(),
            looked_events: 0,
            looked_guest_ns: GuestNs::default(),
            looked_host_ns: HostNs::default(),
            side: side.clone(),
        })
    }

    /// Where an event belongs among the host's: its time there as far as that is known, else whatever
    /// keeps the two streams side by side.
    pub(crate) fn place(&self, guest_ns: GuestNs) -> HostNs {
        self.qemu.pairing.host_time(guest_ns)
    }

    /// The host's time of a guest's; `None` where nothing tells it yet.
    pub(crate) fn host_time(&self, guest_ns: GuestNs) -> Option<HostNs> {
        let offset_ns = self
            .qemu
            .pairing
            .band(guest_ns)
            .map(Band::middle_ns)
            .or(self.wall_offset_ns)?;
        Some(guest_ns.on_host(offset_ns))
    }

    /// Takes one event; `within` is whether it lies in the time that was asked for.
    pub(crate) fn push(&mut self, event: &Event, within: bool) {
        // A reader's mark is none that was recorded.
        self.events += u64::from(!event.is_gap());
        let Some(kind) = event.kind() else {
            self.unknown_events += 1;
            return;
        };
        match kind {
            Kind::Thread => return self.threads.name(event),
            Kind::Loss => self.loss(event),
            _ => {}
        }
        if !within {
            return;
        }
        if kind.source() == Source::Cpu && event.ts_ns < plausible::MAX_NS {
            let mut states = self.cpu.guest.borrow_mut();
            return states.event(kind, event, &self.threads);
        }
        if matches!(kind.source(), Source::File | Source::HostFs) && event.ts_ns < plausible::MAX_NS
        {
            self.calls.event(kind, event, &self.threads);
        }
        if !matches!(kind.source(), Source::Block | Source::File | Source::Meta) {
            return;
        }
        if kind.source() == Source::File {
            let clues = self.disks.iter_mut().map(|disk| &mut disk.clues);
            return clues.for_each(|clues| clues.file_io(kind, event));
        }
        if !plausible::of_guest(kind, event) {
            self.implausible += u64::from(!lies_nowhere(event));
            return;
        }
        let first = *self.first_ns.get_or_insert(event.ts_ns);
        self.reasons.live_ns = self.reasons.live_ns.max(first);
        self.last_ns = self.last_ns.max(event.ts_ns);
        let (numbers, meters) = (&mut self.numbers_of_disks, &self.block.gathered.devices);
        DiskCounts::part(&mut self.disks, event.ts_ns, numbers, meters);
        match self.identity.take() {
            Some(mut identity) => {
                let (mut event, mut links) = (*event, Vec::new());
                identity.identify(&mut event, |link| links.push(link));
                self.identity = Some(identity);
                self.block_event(&event);
                links.iter().for_each(|link| self.block_event(link));
            }
            None => self.block_event(event),
        }
        self.hand_on();
    }

    fn block_event(&mut self, event: &Event) {
        let Some(kind) = event.kind().filter(|kind| kind.source() == Source::Block) else {
            return;
        };
        match kind {
            Kind::Queue => {
                self.count_bio(event);
                self.calls.queued(event);
            }
            Kind::Requeue if Operation::of(event.op()) != Operation::Other && event.bytes > 0 => {
                if let Some(disk) = self.disk_mut(event) {
                    disk.requeues += 1;
                }
            }
            _ => {}
        }
        self.change_block(|block, above| block.push(kind, event, above));
        self.block_events += 1;
        self.bound(event.ts_ns);
    }

    /// Changes what is known of the guest's block layer.
    fn change_block<T>(
        &mut self,
        change: impl FnOnce(&mut BlockLayer, &mut Lent<'_, ()>) -> T,
    ) -> T {
        let mut lent = Lent {
            observer: &mut (),
            threads: &self.threads,
            reasons: self.reasons,
        };
        change(&mut self.block, &mut lent)
    }

    fn count_bio(&mut self, event: &Event) {
        let data = Operation::of(event.op()) != Operation::Other && event.bytes > 0;
        let flush = event.bytes == 0
            && (event.op() == flags::OP_FLUSH || event.flags & flags::PREFLUSH != 0);
        if !data && !flush {
            return;
        }
        let Some(disk) = self.disk_mut(event) else {
            return;
        };
        disk.bios += 1;
        let number = disk.bios;
        if let Some(numbers) = &mut self.numbers {
            numbers.insert((event.object, event.ts_ns), number);
        }
    }

    /// The host's stream lost events up to this time.
    pub(crate) fn host_lost(&mut self, host_ns: HostNs) {
        self.qemu.pairing.host_lost(host_ns);
    }

    /// Hands what has ended to the clock and to the bios that wait.
    fn hand_on(&mut self) {
        let Some(spans) = &mut self.block.gathered.spans else {
            return;
        };
        if spans.bios.is_empty() && spans.requests.is_empty() {
            return;
        }
        for request in spans.requests.drain(..) {
            let numbers = &self.numbers_of_disks;
            let Some(device) = numbers.at(request.dev, request.issued_ns) else {
                continue;
            };
            if let Some(key) = key(&request) {
                // Nothing waits for one without bios.
                if request.flush || request.bios > 0 {
                    self.join.request(&request);
                }
                if numbers.is_doubt(device) {
                    self.join
                        .decide(request.serial, Err(UnlinkedReason::Ambiguous));
                    continue;
                }
                self.qemu.guest_request(&request, device, key);
            }
        }
        let mut bios = std::mem::take(&mut spans.bios);
        for bio in bios.drain(..) {
            self.bio(bio, None);
        }
        // Its room is needed again.
        if let Some(spans) = &mut self.block.gathered.spans {
            spans.bios = bios;
        }
    }

    /// A bio has ended, or was given up for this reason.
    fn bio(&mut self, mut bio: BioSpan, given_up: Option<UnlinkedReason>) {
        let numbers = self.numbers.as_mut();
        let number = numbers.and_then(|numbers| numbers.remove(&(bio.pointer, bio.queued_ns)));
        let Some(device) = self.numbers_of_disks.at(bio.dev, bio.queued_ns) else {
            return;
        };
        if given_up.is_none()
            && let Some(disk) = self.disks.get_mut(device as usize)
        {
            disk.clues.bio(&bio);
        }
        let identity = self.identity.as_mut();
        let is_guess = identity.is_some_and(|identity| identity.was_guessed(bio.pointer));
        let is_unclear = is_guess || self.numbers_of_disks.is_doubt(device);
        if is_unclear {
            // They are another bio's, or may be followed to another disk's.
            bio.requests.clear();
        }
        let reason = given_up.unwrap_or_else(|| match self.reasons.at(bio.ended_ns) {
            _ if is_unclear => UnlinkedReason::Ambiguous,
            Reason::LostEvents => UnlinkedReason::LostEvents,
            Reason::BeforeStart | Reason::NoMatch => UnlinkedReason::NoMatch,
        });
        let number_in_session = self.join.next_bio();
        self.calls.bio_ended(&bio, number_in_session, &self.threads);
        self.join.bio(bio, device, number.unwrap_or(0), reason);
    }

    /// The disk that had the event's device number at its time.
    fn disk_mut(&mut self, event: &Event) -> Option<&mut DiskCounts> {
        let disk = self.numbers_of_disks.at(event.dev, event.ts_ns)?;
        self.disks.get_mut(disk as usize)
    }

    /// Whether QEMU requests of this disk may be this guest's.
    pub(crate) fn is_of(&self, images: &Images, disk: DiskId) -> Option<GuestDiskId> {
        let disk = images.disks.get(disk.0 as usize)?;
        (Some(disk.guest) == self.guest).then_some(GuestDiskId(disk.disk))
    }

    /// The guest's stream has ended.
    pub(crate) fn ended(&mut self) {
        self.guest_read_ns = GuestNs::MAX;
    }

    /// Takes a QEMU request that has completed, of this disk of the guest.
    pub(crate) fn served(&mut self, served: &Rc<Served>, disk: GuestDiskId) {
        self.qemu.served(served, disk);
    }

    /// QEMU requests that were no request of this session.
    pub(crate) fn take_unclaimed(&mut self) -> impl Iterator<Item = Rc<Served>> {
        self.qemu.unclaimed.drain(..)
    }

    /// The host's stream has been read so far: whatever ended before was handed to [`Self::served`].
    pub(crate) fn host_read(&mut self, host_ns: HostNs) {
        self.qemu.host_read(host_ns);
    }

    /// Bios whose fate is known by now, now and then: `None` when it is too early to look again.
    pub(crate) fn look(&mut self) -> Option<Vec<Chain>> {
        let host_ns = self.qemu.host_ns;
        let guest_ns = GuestNs(self.last_ns);
        let due = guest_ns >= self.looked_guest_ns.saturating_add(LOOK_NS)
            || host_ns >= self.looked_host_ns.saturating_add(LOOK_NS)
            || self.block_events >= self.looked_events.saturating_add(LOOK_EVENTS);
        if !due {
            return None;
        }
        self.looked_events = self.block_events;
        self.looked_guest_ns = guest_ns;
        self.looked_host_ns = host_ns;
        let read = Read {
            guest_ns: self.guest_read_ns.max(guest_ns),
            host_ns,
            end: false,
        };
        self.qemu.decide(
            read,
            &mut Waiting {
                join: &mut self.join,
                disks: &mut self.disks,
            },
        );
        Some(self.join.drain().collect())
    }

    /// What ended on the host before this time was linked here or passed on.
    pub(crate) fn host_decided(&self) -> HostNs {
        self.qemu.host_decided()
    }

    /// Whether calls wait for a bio's links.
    pub(crate) fn calls_wait_for(&self, chain: &Chain) -> bool {
        self.calls.wait_for(chain)
    }

    /// A bio's links are decided: the calls that waited for it go on.
    pub(crate) fn link_calls(&mut self, chain: Chain) {
        self.calls.link(chain, &self.threads);
    }

    /// `calls[]` and `guest_calls[]` of this session, when all its chains were counted.
    pub(crate) fn calls(&mut self) -> (GuestCalls, Vec<CallRow>) {
        self.calls.finish(&self.side, &self.threads)
    }

    /// The next call whose outcome is known, if calls are taken one by one.
    pub(crate) fn next_call(&mut self, end: bool) -> Option<KeptCall> {
        let pairing = &self.qemu.pairing;
        self.calls
            .next_ready(|call| end || pairing.is_settled(GuestNs(call.end_ns)))
    }

    /// A kept call in words; `number` is the session's.
    pub(crate) fn call_story(
        &self,
        number: usize,
        kept: &KeptCall,
        names: &Names<'_>,
    ) -> CallStory {
        let start_ns = GuestNs(kept.call.start_ns);
        let at_ns = self.host_time(start_ns);
        let bound_ns = self.qemu.pairing.band(start_ns).map(Band::bound_ns);
        let told = self.calls.story(number, kept, &self.side, names);
        let mount = kept.call.caller.file.dev;
        let mount = self.side.mounts.iter().find(|it| it.dev == mount);
        let guest_device = mount.map(|mount| mount.disk.clone()).unwrap_or_default();
        CallStory {
            disk: self.disk_named(&guest_device, names),
            guest_device,
            at_ns: at_ns.map(|at_ns| at_ns.since(names.start_ns)),
            clock_bound_ns: told.clock_bound_ns.max(bound_ns.unwrap_or(0)),
            ..told
        }
    }

    /// QEMU's name of the disk with this name in the guest; empty where it is not known.
    fn disk_named(&self, guest_device: &str, names: &Names<'_>) -> String {
        let mut devices = self.side.disks.iter();
        let device = devices.position(|disk| disk.name == guest_device);
        let device = device.and_then(|device| u32::try_from(device).ok());
        let disk = device.and_then(|device| self.qemu.pairing.disk_of(device).ok().flatten());
        let mut disks = names.images.disks.iter();
        let found = disks.find(|it| Some(it.guest) == self.guest && Some(it.disk) == disk);
        found.map(|disk| disk.name.clone()).unwrap_or_default()
    }

    /// Both streams have ended.
    pub(crate) fn finish(&mut self) -> Finished {
        self.block.finish();
        self.hand_on();
        self.host_read(HostNs::MAX);
        let clock = self.qemu.finish(&mut Waiting {
            join: &mut self.join,
            disks: &mut self.disks,
        });
        self.join.finish(self.reason_of_open());
        Finished {
            clock,
            chains: self.join.drain().collect(),
        }
    }
}
