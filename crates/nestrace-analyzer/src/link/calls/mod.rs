//! From a program's call to its guest's bios.
//!
//! A bio that ends is one that a call waited for, by identity:
//! - direct I/O, metadata and flushes that the call itself queued (by its control block, else by its thread);
//! - a read that brings pages of the call's range, also if another thread queued it;
//! - write-back of the file that a sync is about, if the sync's own thread queued it, or another before the sync had
//!   queued its own last write;
//! - bios of the journal's commit whose transaction holds the inode ([`commits`]), the data of other files that such a
//!   commit writes first among them;
//! - of XFS' log the write that the call names, and those before it ([`xfs_log`]);
//! - bios of the commit of btrfs that the call names, if another thread makes it ([`group_commits`]);
//! - bios of the checkpoints of f2fs that the call asked for ([`commits`]).
//!
//! What no call waited for is write-back of pages that an earlier call changed ([`dirty`]), read-ahead, or of no call.
//!
//! When the links of all its bios are known, the call's tree is walked as a chain's is. What is not proven stays the
//! call's own time (`guest_fs_*`). All times are the guest's: a chain's tree is on its clock.

mod commits;
mod dirty;
mod file_syncs;
mod finished;
mod group_commits;
mod held;
mod journal_wait;
mod kept;
mod loose;
mod nameless;
mod page_cache;
mod pending;
mod rows;
mod story;
mod summary;
mod tree;
mod waiters;
mod waits;
mod xfs_log;

use nestrace_abi::{Kind, end_io, flags, flags::op};
use nestrace_trace::Event;

use crate::follow::calls::{Calls, Carrier};
use crate::link::chains::{StoryChoice, walk_with};
use crate::link::cpu::CpuLookup;
use crate::model::call::{Call, CommitId, FileId, WaitedBio};
use crate::model::chain::Chain;
use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::span::{BioClock, BioSpan};
use crate::model::threads::Threads;
use crate::result::analysis::GuestCalls;

use commits::Commits;
use dirty::{DirtyPages, Writer, only_writer};
pub(crate) use file_syncs::file_syncs;
use group_commits::GroupCommits;
use held::HeldBios;
use journal_wait::JournalWait;
pub(crate) use kept::KeptCall;
use kept::KeptCalls;
use loose::LooseBios;
use nameless::NamelessCalls;
use page_cache::PageCacheCalls;
use pending::{Bio, Cause, HeldCommit, Pending, bio_ids};
use rows::{Programs, Rows};
pub(crate) use story::call_story;
use waits::{data_of, may_be_waited_for, waits};
use xfs_log::XfsLogs;

/// Ended calls that wait for the links of their bios.
const MAX_PENDING: usize = 1 << 16;
/// Bios of one call.
const MAX_OF_ONE: usize = 1 << 14;
/// Between two looks for commits that no call needs any more.
const SWEEP_NS: u64 = 1_000_000_000;

/// The calls of one session of a guest.
#[derive(Debug, Default)]
pub(crate) struct CallLinks {
    calls: Calls,
    commits: Commits,
    dirty: DirtyPages,
    programs: Programs,
    rows: Rows,
    bios: HeldBios,
    pending: PointerMap<u64, Pending>,
    xfs_logs: XfsLogs,
    group_commits: GroupCommits,
    loose: LooseBios,
    /// Its bios, by what they were for.
    totals: GuestCalls,
    kept: KeptCalls,
    swept_ns: u64,
    nameless: NamelessCalls,
    page_cache: PageCacheCalls,
    /// An event of a call was seen.
    pub seen: bool,
    cpu: CpuLookup,
}

impl CallLinks {
    /// Keeps the trees of the calls that were asked for.
    pub(crate) fn keeping(asked: Option<StoryChoice>, cpu: CpuLookup) -> Self {
        Self {
            kept: KeptCalls::new(asked),
            cpu,
            ..Self::default()
        }
    }

    /// Calls become ready to be taken one by one.
    pub(crate) fn one_by_one(&mut self) {
        self.kept.one_by_one();
    }

    /// The next of them that fulfils `may_go`.
    pub(crate) fn next_ready(&mut self, may_go: impl FnOnce(&Call) -> bool) -> Option<KeptCall> {
        self.kept.next_ready(may_go)
    }

    /// The calls whose trees were kept, the slowest first.
    pub(crate) fn take_kept(&mut self) -> Vec<KeptCall> {
        self.kept.take()
    }

    /// Takes an event of a call or of a file system.
    pub(crate) fn event(&mut self, kind: Kind, event: &Event, threads: &Threads) {
        for call in self.nameless.take(event.ts_ns, threads) {
            self.ended(call, threads);
        }
        match kind {
            Kind::JournalCommitStart | Kind::JournalCommitEnd => {
                let old = self.commits.event(kind, event);
                old.into_iter()
                    .for_each(|commit| self.drop_commit(commit, threads));
            }
            Kind::LogForce => {
                let call = self.calls.of_thread_mut(event.tid);
                self.xfs_logs.forces(call, event);
            }
            Kind::LogWait => {
                let call = self.calls.of_thread_mut(event.tid);
                self.xfs_logs.waits(call, event);
            }
            Kind::CommitWait => match self.calls.of_thread_mut(event.tid) {
                Some(call) => group_commits::comes_to(call, CommitId::of(event), event.ts_ns),
                None => self.group_commits.committer_comes_to(event, threads),
            },
            _ => {
                self.seen = true;
                self.calls.push(kind, event);
                self.take_ended(threads);
            }
        }
        if event.ts_ns >= self.swept_ns.saturating_add(SWEEP_NS) {
            self.swept_ns = event.ts_ns;
            let needed_ns = self.calls.oldest_ns().unwrap_or(event.ts_ns);
            for commit in self.commits.before(needed_ns) {
                self.drop_commit(commit, threads);
            }
            for commit in self.group_commits.before(needed_ns) {
                self.drop_bios(commit.into_bios(), threads);
            }
        }
    }

    /// A bio is queued.
    pub(crate) fn queued(&mut self, event: &Event) {
        self.calls.queued(event);
    }

    /// Events are missing.
    pub(crate) fn interrupted(&mut self, threads: &Threads) {
        self.calls.interrupted();
        self.take_ended(threads);
        self.drop_commits(threads);
        self.dirty = DirtyPages::default();
    }

    /// A bio has ended; `id` is its number in the session.
    pub(crate) fn bio_ended(&mut self, bio: &BioSpan, id: u64, threads: &Threads) {
        let carrier = self.calls.carrier_of(bio.pointer, bio.queued_ns);
        let data_of = data_of(bio);
        if carrier.is_none() && bio.operation == Operation::Read {
            self.page_cache.read_by_no_call(data_of, bio.bytes);
        }
        let mut holders = self.hold_by_calls(bio, id, carrier.as_ref());
        let room = self.bios.room() > holders as usize;
        let in_commit = room
            && (self.commits.take(bio, id)
                || self.take_in_group(bio, id, carrier.as_ref(), threads));
        holders += u32::from(in_commit);
        let written = data_of.filter(|_| bio.operation == Operation::Write);
        let writer = written.and_then(|file| self.writer_of(file, bio));
        let cause = Cause {
            writer: writer.map(|writer| {
                let program = self.programs.of(writer.caller.tid, threads);
                let delay_ns = bio.queued_ns.saturating_sub(writer.wrote_ns);
                (writer.caller, program, delay_ns)
            }),
            carrier: carrier.map(|carrier| carrier.caller),
            bytes: bio.bytes,
        };
        let room = self.bios.room() > 0;
        if carrier.is_none() && holders == 0 && room && may_be_waited_for(bio) {
            self.loose.keep(bio, id);
            holders += 1;
        }
        if holders > 0 {
            let held = Bio {
                tree: None,
                linked: false,
                clock: BioClock::default(),
                waiting: Vec::new(),
                holders,
                bytes: bio.bytes,
                counted: false,
                data_of: data_of.filter(|_| !self.commits.is_of_checkpoint(bio)),
                in_commit,
                cause,
            };
            self.bios.insert(id, held);
        } else {
            self.not_waited_for(cause, threads);
        }
        while let Some(id) = self.loose.forget(bio.ended_ns) {
            self.release(id, threads);
        }
        if let Some(carrier) = carrier
            && matches!(bio.owner_kind, flags::OWNER_DIRECT | flags::OWNER_ANONYMOUS)
        {
            self.calls
                .direct_bio_ended(carrier.serial, bio.bytes, bio.ended_ns);
            self.take_ended(threads);
        }
    }

    /// Who wrote what a bio brings to the disk: the last call that has changed it, or else the one that is doing so.
    fn writer_of(&mut self, file: FileId, bio: &BioSpan) -> Option<Writer> {
        let (offset, bytes) = (bio.file_offset, bio.bytes);
        let before = self.dirty.cleaned(file, offset, bytes);
        before.or_else(|| {
            let in_flight = self.calls.in_flight();
            only_writer(in_flight, file, (offset, bytes), bio.queued_ns)
        })
    }

    /// Whether a bio is of a commit of btrfs: of one that the call makes in which it was queued, or that the kernel's own
    /// thread makes.
    fn take_in_group(
        &mut self,
        bio: &BioSpan,
        id: u64,
        carrier: Option<&Carrier>,
        threads: &Threads,
    ) -> bool {
        let commit = match carrier {
            Some(carrier) => {
                let call = self.calls.get_mut(carrier);
                call.and_then(|call| group_commits::of_call(call, bio))
            }
            None => self.group_commits.of_committer(bio),
        };
        let Some(commit) = commit else {
            return false;
        };
        let (taken, old) = self.group_commits.take(bio, id, commit);
        if let Some(old) = old {
            self.drop_bios(old.into_bios(), threads);
        }
        taken
    }

    /// A bio that no call waited for.
    fn not_waited_for(&mut self, cause: Cause, threads: &Threads) {
        match (cause.writer, cause.carrier) {
            (Some((caller, program, delay_ns)), _) => {
                let row = self.rows.at(program, caller);
                row.deferred.add(cause.bytes);
                row.delay.record(delay_ns);
                self.totals.deferred.add(cause.bytes);
            }
            (None, Some(caller)) => {
                let program = self.programs.of(caller.tid, threads);
                self.rows.at(program, caller).deferred.add(cause.bytes);
                self.totals.deferred.add(cause.bytes);
            }
            (None, None) => self.totals.other.add(cause.bytes),
        }
    }

    /// Gives a bio to the calls in flight that wait for it, or may; how many.
    fn hold_by_calls(&mut self, bio: &BioSpan, id: u64, carrier: Option<&Carrier>) -> u32 {
        let waited = |why, own| WaitedBio {
            id,
            why,
            own,
            queued_ns: bio.queued_ns,
            ended_ns: bio.ended_ns,
        };
        let mut holders = 0;
        let room = self.bios.room();
        let mut hold = |call: &mut Call, why, own| {
            if call.bios.len() < MAX_OF_ONE && (holders as usize) < room {
                call.bios.push(waited(why, own));
                holders += 1;
            } else {
                call.incomplete = true;
            }
        };
        let is_log = bio.end_io == end_io::XFS_LOG;
        if bio.owner_kind == flags::OWNER_PAGES || is_log {
            for call in self.calls.in_flight() {
                let own = carrier.is_some_and(|carrier| carrier.serial == call.serial);
                if let Some(why) = waits(call, bio, own) {
                    hold(call, why, own);
                    if is_log {
                        XfsLogs::ended(call, bio, id);
                    }
                }
            }
        } else if let Some(carrier) = carrier
            && let Some(call) = self.calls.get_mut(carrier)
            && let Some(why) = waits(call, bio, true)
        {
            hold(call, why, true);
        }
        holders
    }

    /// Calls that have ended.
    fn take_ended(&mut self, threads: &Threads) {
        while let Some(call) = self.calls.given_up.pop() {
            for bio in call.bios {
                self.release(bio.id, threads);
            }
        }
        while let Some(call) = self.calls.ended.pop() {
            if let Some(call) = self.nameless.keep(call, threads) {
                self.ended(call, threads);
            }
        }
    }

    fn ended(&mut self, mut call: Call, threads: &Threads) {
        if call.caller.op == op::WRITE && !call.direct && call.result > 0 {
            let bytes = call.result.unsigned_abs();
            self.dirty
                .written(call.caller, call.offset, bytes, call.end_ns);
        }
        if call.recorded_at_return {
            self.loose.claimed_by(&mut call);
        }
        let program = self.programs.of(call.caller.tid, threads);
        self.page_cache.ended(&call, program);
        let mut unproven = call.take_unproven();
        unproven.extend(self.xfs_logs.take_unproven(&mut call));
        let wait = JournalWait::of(&call, &mut self.commits, program);
        let commits = self.hold_commits(&mut call);
        for bio in unproven {
            self.release(bio.id, threads);
        }
        if call.bios.is_empty() && commits.is_empty() {
            let tree = tree::alone(&call);
            let times = (!call.incomplete).then(|| walk_with(&tree, Some(&self.cpu)));
            let without_io = call.throttles.is_empty() && call.log_space.is_empty();
            let row = self.rows.at(program, call.caller);
            row.add(&call, without_io, times.as_ref());
            if self.kept.wants(&call) {
                self.kept.keep(KeptCall {
                    linked: !call.incomplete,
                    pid: pid(&call, threads),
                    call,
                    program,
                    tree,
                    without_io,
                    bios: 0,
                    clocks: Vec::new(),
                });
            }
            return;
        }
        let serial = call.serial;
        let mut pending = Pending {
            call,
            commits,
            wait,
            open: 0,
        };
        for id in bio_ids(&pending).collect::<Vec<u64>>() {
            match self.bios.get_mut(id) {
                Some(bio) if bio.tree.is_none() => {
                    bio.waiting.push(serial);
                    pending.open += 1;
                }
                Some(_) => {}
                // There was no room for it.
                None => pending.call.incomplete = true,
            }
        }
        if pending.open == 0 {
            self.finish_call(pending, threads);
        } else if self.pending.len() < MAX_PENDING {
            self.pending.insert(serial, pending);
        } else {
            self.give_up(pending, threads);
        }
    }

    fn hold_commits(&mut self, call: &mut Call) -> Vec<HeldCommit> {
        let commits = self.commits.waited_by(call);
        let mut held: Vec<HeldCommit> = commits
            .into_iter()
            .map(|commit| HeldCommit {
                start_ns: commit.start_ns,
                end_ns: commit.end_ns,
                bios: commit.without_own(call),
            })
            .collect();
        held.extend(self.group_commits.waited_by(call));
        let n_bios: usize = held.iter().map(|commit| commit.bios.len()).sum();
        if n_bios > self.bios.room() {
            call.incomplete = true;
            return Vec::new();
        }
        for id in held.iter().flat_map(|commit| &commit.bios) {
            self.bios.hold(*id);
        }
        held
    }

    /// Whether a bio's links are waited for.
    pub(crate) fn waits_for(&self, bio: u64) -> bool {
        self.bios.contains(bio)
    }

    /// A bio's links are decided.
    pub(crate) fn chain(&mut self, chain: Chain, threads: &Threads) {
        let Some(bio) = self.bios.get_mut(chain.bio) else {
            return;
        };
        bio.tree = Some(chain.tree);
        bio.linked = chain.unlinked.is_none();
        if self.kept.any() {
            bio.clock = BioClock {
                offset_ns: chain.offset_ns,
                offsets_ns: chain.offsets_ns,
                bound_ns: chain.bound_ns,
            };
        }
        for serial in std::mem::take(&mut bio.waiting) {
            let Some(pending) = self.pending.get_mut(&serial) else {
                continue;
            };
            pending.open -= 1;
            if pending.open == 0
                && let Some(pending) = self.pending.remove(&serial)
            {
                self.finish_call(pending, threads);
            }
        }
    }

    /// Both streams have ended: what still waits is not followed.
    pub(crate) fn end(&mut self, threads: &Threads) {
        self.calls.end_faults();
        self.take_ended(threads);
        for call in self.nameless.take(u64::MAX, threads) {
            self.ended(call, threads);
        }
        let serials: Vec<u64> = self.pending.keys().copied().collect();
        for serial in serials {
            if let Some(pending) = self.pending.remove(&serial) {
                self.give_up(pending, threads);
            }
        }
        self.drop_commits(threads);
        // Calls in flight keep theirs: no ended call has them.
        let left = self.bios.drain();
        for bio in left.iter().filter(|bio| !bio.counted) {
            self.not_waited_for(bio.cause, threads);
        }
        self.calls.interrupted();
    }
}

/// The process of a call's thread; 0 where its name was not recorded.
fn pid(call: &Call, threads: &Threads) -> u32 {
    threads.get(call.caller.tid).map_or(0, |thread| thread.tgid)
}
