//! A stream lacks events: what was in flight then cannot be followed to its end.
//!
//! The next end at a request's address may be that of another, whose beginning is among what is missing. So
//! no life that was open is given one. A request stays known until its address says what became of it: its
//! own C, or a C or D of another, which shows that its own was not seen; the counts need that.
//!
//! Of the host below guests nothing is forgotten: what waited for a bio that is gone would be charged with
//! the device's time. There only its place shows that a C is another request's (`complete`).

use super::bio::{Bio, Way};
use super::gathered::Gathered;
use super::issue::Request;
use super::observer::{Lent, Observer};
use super::requests::Requests;
use crate::measure::device::DeviceMeter;

/// Interrupted requests whose addresses may still say what became of them; no queue has as many at once.
const MAX_WAITING: usize = 1 << 10;

impl Bio {
    /// Neither merged nor issued, as far as is known.
    pub(super) fn waits(&self) -> bool {
        !self.walked && self.way != Way::Merged
    }
}

impl Request {
    /// Interrupted, and not seen since.
    fn waits_for_a_word(&self) -> bool {
        self.interrupted || (self.sequence_data_ns.is_some() && !self.at_device)
    }
}

impl Requests {
    /// They leave their devices. Nothing is left to report of those that had not gone there, nor of those that
    /// have waited for a word of their address since the loss before, where these are many: addresses of captures
    /// do not come again, and each loss would look at all that were ever lost.
    pub(super) fn interrupt<O: Observer>(
        &mut self,
        ts_ns: u64,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) {
        let waiting = self.live.values().filter(|it| it.waits_for_a_word());
        let too_many = waiting.count() > MAX_WAITING;
        self.live.retain(|_, request| {
            if too_many && request.waits_for_a_word() {
                ended_unseen(request, gathered);
                return false;
            }
            request.first = None;
            request.others = Vec::new();
            if request.at_device {
                gathered.left_device(request, ts_ns, lent);
                request.at_device = false;
                request.interrupted = true;
            }
            request.interrupted || request.sequence_data_ns.is_some()
        });
    }

    /// Nothing comes any more.
    pub(super) fn all_ended_unseen(&mut self, gathered: &mut Gathered) {
        for request in std::mem::take(&mut self.live).into_values() {
            ended_unseen(&request, gathered);
        }
    }
}

/// A request that was interrupted, and never seen again, had its end meanwhile. So had one that others have
/// overtaken for longer than anything was at its device.
fn ended_unseen(request: &Request, gathered: &mut Gathered) {
    let meter = &mut gathered.devices[usize::from(request.device)];
    let overdue = request.at_device && meter.is_overdue(request.came);
    if overdue {
        meter.leaving_missed(request.came);
        gathered.machine.leaving_missed(request.came_of_machine);
    }
    if request.interrupted || overdue {
        meter.transfer_missed(request.operation, request.bytes_left());
        if request.has_data() {
            meter.completion_missed(request.operation);
        }
    }
}

/// A bio whose end will not be seen counts as open.
pub(super) fn has_no_end<O: Observer>(
    bio: &Bio,
    devices: &mut [DeviceMeter],
    ts_ns: u64,
    lent: &mut Lent<'_, O>,
) {
    bio.leave(ts_ns, lent);
    let counts = !bio.empty_flush && bio.queued_ns.is_some() && bio.root.is_none();
    if let Some(home) = devices.get_mut(usize::from(bio.home))
        && counts
    {
        home.check.open_at_end += 1;
        home.stats.gone(ts_ns);
        if bio.waits() {
            home.stats.at_queue.leaves();
        }
    }
}

#[cfg(test)]
mod tests {
    use nestrace_abi::{Kind, flags};
    use nestrace_trace::Event;

    use super::*;
    use crate::follow::block::BlockLayer;
    use crate::model::threads::Threads;
    use crate::result::unlinked::Reasons;

    #[test]
    fn losses_without_end_leave_no_more_to_look_through() {
        let n = 5 * MAX_WAITING as u64;
        let mut layer = BlockLayer::default();
        let mut lent = Lent {
            observer: &mut (),
            threads: &Threads::default(),
            reasons: Reasons {
                live_ns: 0,
                lost_so_far: true,
                lost_sometime: true,
            },
        };
        for i in 0..n {
            let issue = Event {
                ts_ns: 1_000 * i,
                kind: Kind::Issue as u8,
                object: 64 * (i + 1),
                bytes: 4096,
                flags: flags::OP_READ,
                ..Event::default()
            };
            layer.push(Kind::Issue, &issue, &mut lent);
            layer.interrupted(issue.ts_ns + 500, &mut lent);
            assert!(layer.requests.live.len() <= MAX_WAITING + 2);
        }
        layer.requests.all_ended_unseen(&mut layer.gathered);
        // Each of them is reported, whether its address was waited for to the end or not.
        assert_eq!(layer.gathered.devices[0].check.completions_missed, n);
    }
}
