//! Bios that end by themselves: on devices without requests (dm, md, RAM disks), or because they
//! failed before they had one.
//!
//! A device without requests has no queue to wait in, so its bios are at the device from Q on. The
//! kernel's statistics of such a device count what its driver handles at once:
//! - dm trims a bio that crosses the border of a target and comes back for the rest (X names the
//!   bio itself, which has one end), and makes an empty flush of its own of a bio that has data and
//!   PREFLUSH. Each of these is one I/O (`dm_split_and_process_bio()` and `__send_empty_flush()`
//!   in 6.1).
//! - md splits at chunks (raid0) and barrier units (raid1) by `bio_split()` without a trace event. Each
//!   part ends by itself with its own extent (`bio_split()` hands BIO_TRACE_COMPLETION on); the
//!   bio itself keeps the tail and ends last. Empty flushes are no I/O to md, and to raid0
//!   neither are discards.

use nestrace_trace::Event;

use super::bio::{Bio, Ending, Way};
use super::bios::Bios;
use super::gathered::Gathered;
use super::observer::{ClocksOf, Lent, Observer};
use super::requests::Requests;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::RequestSpan;
use crate::model::stacking::Stacking;

impl Bios {
    /// A bio, or a part of it, ended without a request.
    #[inline(never)]
    pub(super) fn complete<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        requests: &mut Requests,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) {
        let known = self.live.get(event.object).map(|bio| **bio);
        // bcache has moved the bio to its backing device.
        let dev_at_home = known.map(|bio| gathered.dev_of(bio.home));
        let is_moved = |dev: &u32| lent.observer.stacking(*dev) == Some(Stacking::Bcache);
        let moved_from = dev_at_home.filter(is_moved);
        let mut at_home = *event;
        at_home.dev = moved_from.unwrap_or(event.dev);
        let event = &at_home;
        let stacking = lent.observer.stacking(event.dev);
        // An empty flush ends by order, so one of another device may still stand at this address.
        let is_there =
            |bio: &Bio| moved_from.is_some() || bio.home == device || bio.device == device;
        let Some(bio) = known.filter(is_there) else {
            return unknown_ended(device, stacking, event, gathered, lent);
        };
        self.live.remove(event.object);
        bio.leave(event.ts_ns, lent);
        let Some(queued_ns) = bio.queued_ns else {
            return;
        };
        let home = gathered.meter(bio.home);
        home.stats.remapped.ended(bio.whole_offset);
        if bio.way == Way::Unknown && !bio.empty_flush {
            home.stats.at_queue.leaves();
        }
        if bio.empty_flush {
            return self.empty_flush_came_back(&bio, queued_ns, event, gathered);
        }
        let failed_early = event.status() != 0 && bio.way == Way::Unknown && stacking.is_none();
        // A device that has shown no bio done without a request is taken for one that has requests:
        // a bio that fails before it has one completes none, as in the kernel's own counts.
        let has_requests =
            bio.way != Way::Unknown || failed_early && !gathered.meter(bio.home).bio_based;
        if !has_requests {
            part_done(&bio, stacking, event, gathered, lent);
        }
        if let Some((root, generation)) = bio.root {
            let root = self.live.get_mut(root);
            if let Some(root) = root.filter(|root| root.generation == generation) {
                root.open = root.open.saturating_sub(1);
            }
            return;
        }
        hand_on_whole(&bio, failed_early, has_requests, event, gathered);
        if failed_early && bio.nowait {
            return refused(&bio, gathered, lent);
        }
        if bio.aio.names_iocb() {
            lent.observer
                .bio_ended(bio.aio, bio.whole_bytes, event.ts_ns);
        }
        if let Some(request) = requests.live.get_mut(bio.request) {
            request.forget(event.object, bio.generation);
        }
        let home = gathered.meter(bio.home);
        home.check.ended += 1;
        let q2c_ns = event.ts_ns.saturating_sub(queued_ns);
        if has_requests {
            home.stats.gone(event.ts_ns);
        } else {
            home.record((bio.operation, bio.process), |parts| &mut parts.q2c, q2c_ns);
            let io = (bio.operation, bio.whole_bytes);
            home.figures.ended(event.ts_ns, io, q2c_ns, None);
            home.figures.ended_whole(bio.operation, q2c_ns, q2c_ns);
            home.intervals.interval(queued_ns, event.ts_ns);
            home.stats
                .ended(bio.operation, (queued_ns, None, event.ts_ns));
        }
    }

    fn empty_flush_came_back(
        &mut self,
        bio: &Bio,
        queued_ns: u64,
        event: &Event,
        gathered: &mut Gathered,
    ) {
        self.flushes.remove(bio.home, bio.generation);
        hand_on_whole(bio, false, bio.way != Way::Unknown, event, gathered);
        let home = gathered.meter(bio.home);
        if bio.way == Way::Unknown {
            home.intervals.interval(queued_ns, event.ts_ns);
        }
        home.check.empty_flushes_ended += 1;
        home.flush.record(event.ts_ns.saturating_sub(queued_ns));
        let q2c_ns = event.ts_ns.saturating_sub(queued_ns);
        home.stats.flush_ended(event.ts_ns, q2c_ns);
        home.figures.flush_ended(event.ts_ns, q2c_ns);
    }
}

/// What the driver did at once: a whole bio, or a part that it was split into.
fn part_done<O: Observer>(
    bio: &Bio,
    stacking: Option<Stacking>,
    event: &Event,
    gathered: &mut Gathered,
    lent: &mut Lent<'_, O>,
) {
    // What md has split off silently has ended by itself; dm's bio ends with the last piece only.
    let bytes = match event.bytes {
        left if left > 0 && bio.trims == 0 => left.min(bio.bytes),
        _ => bio.bytes,
    };
    let spent = event
        .ts_ns
        .saturating_sub(bio.queued_ns.unwrap_or(event.ts_ns));
    let home = gathered.meter(bio.home);
    home.bio_based = true;
    for _ in 0..=bio.trims {
        home.request_completed(bio.operation);
    }
    home.flushes_made += u64::from(bio.preflush && stacking == Some(Stacking::Dm));
    home.transferred(bio.operation, bytes);
    home.stats.transferred(event.ts_ns, bio.operation, bytes);
    gathered.machine.transferred(bio.home, event, lent.threads);
    let home = gathered.meter(bio.home);
    let io = (bio.operation, bytes);
    home.users.charge(bio.owner, io, spent, lent.threads);
}

/// A part that md has split off without an X, or a bio whose Q was not seen.
fn unknown_ended<O: Observer>(
    device: u16,
    stacking: Option<Stacking>,
    event: &Event,
    gathered: &mut Gathered,
    lent: &mut Lent<'_, O>,
) {
    let operation = Operation::of(event.op());
    let meter = gathered.meter(device);
    if stacking == Some(Stacking::Md) && operation != Operation::Other && event.bytes > 0 {
        meter.bio_based = true;
        meter.request_completed(operation);
        meter.transferred(operation, event.bytes);
        meter.stats.transferred(event.ts_ns, operation, event.bytes);
    } else {
        meter.unlinked.count(lent.reasons.at(event.ts_ns));
    }
}

/// The bio as a span. Without requests its whole time is the device's, as one request's would be.
fn hand_on_whole(
    bio: &Bio,
    failed_early: bool,
    has_requests: bool,
    event: &Event,
    gathered: &mut Gathered,
) {
    let Some(spans) = &mut gathered.spans else {
        return;
    };
    if failed_early {
        return spans.forget(bio);
    }
    if !has_requests {
        gathered.serial += 1;
        let whole = RequestSpan {
            serial: gathered.serial,
            dev: event.dev,
            operation: bio.operation,
            flush: bio.empty_flush,
            offset: spans.offset_of(bio),
            bytes: bio.whole_bytes,
            issued_ns: bio.queued_ns.unwrap_or(event.ts_ns),
            completed_ns: event.ts_ns,
            pointer: event.object,
            bios: 1,
            lane: RequestSpan::ANY_LANE,
            page: 0,
            tid: 0,
            end_cpu: event.cpu,
        };
        spans.carried(bio.generation, whole);
    }
    let ending = Ending {
        completed_ns: event.ts_ns,
        ts_ns: event.ts_ns,
        by: None,
        flushed_with: 0,
    };
    spans.ended(bio, bio, &ending);
}

/// A bio that a device with requests gave back before it had one: it was to be done without
/// waiting (REQ_NOWAIT) and would have had to wait or to be split. io_uring has a worker queue it
/// again, so only that one counts, as in the kernel's own counts.
fn refused<O: Observer>(bio: &Bio, gathered: &mut Gathered, lent: &mut Lent<'_, O>) {
    let home = gathered.meter(bio.home);
    home.stats.gone(bio.queued_ns.unwrap_or(0));
    let check = &mut home.check;
    check.refused += 1;
    check.queued = check.queued.saturating_sub(1);
    check.generations = check.generations.saturating_sub(1);
    if bio.operation == Operation::Other {
        return;
    }
    home.queued = home.queued.saturating_sub(1);
    if let Some(queued_ns) = bio.queued_ns {
        home.figures.unqueued(queued_ns);
    }
    if let (Owner::Image(image), Some(clocks)) = (bio.owner, bio.clocks) {
        let paged = matches!(clocks, ClocksOf::Cached(_));
        lent.observer
            .refused(image, bio.operation, bio.whole_bytes, paged);
    }
}
