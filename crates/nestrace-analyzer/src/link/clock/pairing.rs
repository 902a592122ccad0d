//! The pairing of one guest session.

use std::collections::VecDeque;

use super::device_disk::DeviceDisk;
use super::devices::Devices;
use super::election::Seen;
use super::matching::Matching;
use super::misses::{CONSENSUS, MISS_WEIGHS, Misses, Search};
use super::partner::Partner;
use super::pending::{Pending, State};
use super::queues::Queues;
use super::request::{Band, GuestRequest, HostRequest, Outcome, Unpaired, UnpairedReason};
use super::result::ClockReport;
use super::start::ClockStart;
use super::tally::Tally;
use super::timeline::Timeline;
use crate::model::clocks::{GuestNs, HostNs};
use crate::result::analysis;

/// A guest request is tied this long after its C, by both streams: by then those that were in flight
/// with it have been handed over.
const TIE_AFTER_NS: u64 = 100_000_000;
/// What is not certain then is tried again this long after its C, with a band from both sides in time.
const RETRY_AFTER_NS: u64 = 300_000_000;
/// It is reported this long after its C: exchanges up to then narrow its band. A later one could say
/// no more than what is 200 µs worse.
pub(super) const SETTLE_AFTER_NS: u64 = 500_000_000;
/// A host request waits this long for its guest request: completions can be late in the guest.
const HOST_WAITS_NS: u64 = 5_000_000_000;
/// Bands are kept for so long before the oldest request that waits.
const BAND_KEPT_NS: u64 = 1_000_000_000;
/// A request waits so long at most for a later one that shows the clock to have gone on.
const FRESH_HOLDS_NS: u64 = 2_000_000_000;
/// Host requests that may wait. More of them mean that the guest's stream has a gap.
const MAX_HOSTS: usize = 1 << 17;
/// Guest requests that may wait. More of them mean that the host's stream has a gap.
pub(super) const MAX_GUESTS: usize = 1 << 16;
/// Requests of both sides after which an offset without a single pair is no reason to wait.
const UNTRUSTED: usize = 256;
/// A doubt keeps requests from being reported for so long at most.
const DOUBT_HOLDS_NS: u64 = 10_000_000_000;
/// Later times than 146 years after boot are damage.
const MAX_NS: u64 = 1 << 62;

/// Pairs the requests of one guest session with QEMU's, and keeps its clock.
#[derive(Debug)]
pub struct Pairing {
    pub(super) start: ClockStart,
    pub(super) outcomes: VecDeque<Outcome>,
    pub(super) ties: Matching,
    pub(super) devices: Devices,
    pub(super) tally: Tally,
    pub(super) search: Option<Search>,
    pub(super) misses: Misses,
    /// Next guest request to be tied.
    pub(super) tied_before: u64,
    /// D of the last one that was tied by a clock without doubt.
    trusted_ns: GuestNs,
    /// Requests that came late, because their disk was not known: one more than the last of them, and the
    /// oldest D.
    backlog: Option<(u64, GuestNs)>,
    /// Guest requests that are to be tried again.
    pub(super) unsure: VecDeque<u64>,
    /// Next guest request to be reported.
    pub(super) reported_before: u64,
    pub(super) guest_ns: GuestNs,
    pub(super) host_ns: HostNs,
    /// Last end of a host request, guest's clock not needed.
    pub(super) last_host_ns: HostNs,
    /// Last end of a host request that was dropped because too many waited.
    hosts_dropped_ns: HostNs,
}

/// What is known at the end.
#[derive(Clone, Debug, Default)]
pub struct ClockSummary {
    /// For the result. Its `method` is `none` where the exchanges do not tell the clock.
    pub clock: analysis::Clock,
    /// For each guest device: its disk.
    pub devices: Vec<DeviceDisk>,
}

impl Pairing {
    /// Begins with what is known.
    #[must_use]
    pub fn new(start: ClockStart) -> Self {
        let mut timeline = Timeline::new(start.rho_ppm);
        let round_trips = start.round_trip_corridor(timeline.rho_ppm());
        let known = round_trips.is_some();
        if let Some(corridor) = round_trips {
            timeline.begin(GuestNs::default(), GuestNs::default(), corridor);
        }
        Self {
            devices: Devices::new(start.devices.clone()),
            ties: Matching {
                pending: Pending::new(),
                timeline,
                queues: Queues::default(),
                host_lost: start.host_lost,
            },
            start,
            outcomes: VecDeque::new(),
            tally: Tally::default(),
            search: (!known).then_some(Search::default()),
            misses: Misses::default(),
            tied_before: 0,
            trusted_ns: GuestNs::default(),
            unsure: VecDeque::new(),
            backlog: None,
            reported_before: 0,
            guest_ns: GuestNs::default(),
            host_ns: HostNs::default(),
            last_host_ns: HostNs::default(),
            hosts_dropped_ns: HostNs::default(),
        }
    }

    /// Takes a request that has completed in the guest.
    pub fn guest_request(&mut self, request: GuestRequest) {
        let damaged =
            request.completed_ns < request.issued_ns || request.completed_ns > GuestNs(MAX_NS);
        match self.devices.disk(request.device) {
            _ if damaged => self.unpaired(request.serial, UnpairedReason::NoMatch),
            Ok(Some(disk)) => self.ties.pending.add_guest(disk, request),
            Ok(None) => {
                if let Some(oldest) = self.devices.hold(request) {
                    self.unpaired(oldest.serial, UnpairedReason::Ambiguous);
                }
            }
            Err(reason) => self.unpaired(request.serial, reason),
        }
    }

    /// Takes a request that QEMU has completed.
    pub fn host_request(&mut self, request: HostRequest) {
        if request.end_ns < request.start_ns || request.end_ns > HostNs(MAX_NS) {
            self.outcomes.push_back(Outcome::Unclaimed(request.serial));
            return;
        }
        self.last_host_ns = self.last_host_ns.max(request.end_ns);
        self.ties.pending.add_host(request);
    }

    /// The guest's stream lost events up to this time (guest's clock): QEMU requests without a partner
    /// are then nothing to wonder about, which they never are here.
    pub fn guest_lost(&mut self, _guest_ns: GuestNs) {}

    /// The host's stream lost events of QEMU up to this time (host's clock): from now on a request may be
    /// missing, and what only follows from their being complete is not certain any more.
    pub fn host_lost(&mut self, _host_ns: HostNs) {
        self.ties.host_lost = true;
    }

    /// How far the streams have been read: requests that ended before these times have been handed over.
    /// A stream at its end is `u64::MAX`.
    pub fn advance(&mut self, guest_ns: GuestNs, host_ns: HostNs) {
        self.guest_ns = self.guest_ns.max(guest_ns);
        self.host_ns = self.host_ns.max(host_ns);
        self.work(false);
    }

    /// The next request whose fate is known.
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Where the guest's clock minus the host's lies at a time of the guest's clock, from what is known
    /// so far (exchanges, else round trips); `None` before anything is.
    #[must_use]
    pub fn band(&self, guest_ns: GuestNs) -> Option<Band> {
        self.ties.timeline.band(guest_ns)
    }

    /// Whether later requests hardly change the band at this time.
    pub(crate) fn is_settled(&self, guest_ns: GuestNs) -> bool {
        self.search.is_none() && self.guest_ns >= guest_ns.saturating_add(SETTLE_AFTER_NS)
    }

    /// The disk of a guest's device; `None` until its requests have decided it.
    ///
    /// # Errors
    /// Why it is no disk that is known.
    pub fn disk_of(&self, device: u32) -> Result<Option<u32>, UnpairedReason> {
        self.devices.disk(device)
    }

    /// The guest's clock minus the host's by the wall clocks, if both are known.
    #[must_use]
    pub const fn wall_offset_ns(&self) -> Option<i64> {
        self.start.wall_offset_ns
    }

    /// The host's time of a guest's time, for merging the streams: the stream with the earlier next
    /// event is read next. While the offset is being looked for, it is that of the side with fewer
    /// events so far.
    #[must_use]
    pub fn host_time(&self, guest_ns: GuestNs) -> HostNs {
        let search = self.search.unwrap_or_default();
        let (guests, hosts) = search.seen(&self.ties.pending);
        if self.search.is_some() && guests > 2 * hosts + CONSENSUS {
            return HostNs::MAX;
        }
        if self.search.is_some() && hosts > 2 * guests + CONSENSUS {
            return HostNs::default();
        }
        let band = self.ties.timeline.band(guest_ns);
        match band.map(Band::middle_ns).or(self.start.wall_offset_ns) {
            Some(offset_ns) => guest_ns.on_host(offset_ns),
            None if guests <= hosts => HostNs::default(),
            None => HostNs::MAX,
        }
    }

    /// Both streams have ended: settles what is left. Take the outcomes afterwards.
    pub fn finish(&mut self) -> ClockSummary {
        (self.guest_ns, self.host_ns) = (GuestNs::MAX, HostNs::MAX);
        self.work(true);
        for guest in self.devices.give_up() {
            self.unpaired(guest, UnpairedReason::Ambiguous);
        }
        ClockSummary {
            clock: ClockReport {
                start: &self.start,
                timeline: &self.ties.timeline,
                tally: &self.tally,
            }
            .clock(),
            devices: self.devices.found(),
        }
    }

    pub(super) fn unpaired(&mut self, guest: u64, reason: UnpairedReason) {
        let unpaired = Unpaired { guest, reason };
        self.outcomes.push_back(Outcome::Unpaired(unpaired));
    }

    fn work(&mut self, end: bool) {
        self.resolve_devices(end);
        loop {
            if self.search.is_some() && !self.search_on(end) {
                break;
            }
            let doubted = self.tie_ripe(end) || (end && self.doubt_at_end());
            if !doubted {
                self.retry_ripe(end);
                if end && self.misses.score == 0 {
                    self.ties.timeline.vet_all();
                }
                self.report_ripe(end);
                self.forget();
                break;
            }
        }
        self.expire_hosts(end);
    }

    /// Held requests whose device is known now join the others.
    fn resolve_devices(&mut self, end: bool) {
        let seen = self.seen();
        let resolved = self
            .devices
            .resolve(&self.ties.pending, &self.ties.timeline, seen, end);
        let Some(oldest_ns) = resolved.iter().map(|(_, request)| request.issued_ns).min() else {
            return;
        };
        for (disk, request) in resolved {
            self.ties.pending.add_guest(disk, request);
        }
        let waiting_ns = self.backlog.map_or(GuestNs::MAX, |backlog| backlog.1);
        self.backlog = Some((self.ties.pending.guests.end(), oldest_ns.min(waiting_ns)));
    }

    /// What can be said of requests whose disk is not known: `None` while that a disk does not have one
    /// proves nothing, because the clock is in doubt or the host lost events.
    fn seen(&self) -> Option<Seen> {
        let doubted = self.search.is_some() || self.misses.score > 0;
        if doubted || self.ties.host_lost {
            return None;
        }
        // At the end, what was on its way when the host stopped has no end there.
        let host_ns = match (self.host_ns, self.start.host_end_ns) {
            (HostNs::MAX, HostNs(0)) => self.last_host_ns,
            (HostNs::MAX, host_end_ns) => host_end_ns,
            (host_ns, _) => host_ns,
        };
        Some(Seen {
            guest_before_ns: self.guest_ns.saturating_sub(TIE_AFTER_NS),
            host_before_ns: host_ns.saturating_sub(TIE_AFTER_NS),
            host_from_ns: self.start.host_live_ns.max(self.hosts_dropped_ns),
        })
    }

    /// The time up to which guest requests are ripe after `lag_ns`: C at most this.
    fn ripe_before(&self, lag_ns: u64, end: bool) -> GuestNs {
        if end {
            return GuestNs::MAX;
        }
        let number = self
            .tied_before
            .min(self.ties.pending.guests.end().saturating_sub(1));
        let now = self.ties.pending.guests.get(number);
        let at_ns = now.map_or(self.guest_ns, |entry| entry.request.completed_ns);
        // Round trips that lie would have it wait for ever.
        let enough = self
            .ties
            .pending
            .guests
            .len()
            .min(self.ties.pending.hosts.len())
            >= UNTRUSTED;
        if enough && !self.tally.any_known() {
            return self.guest_ns.saturating_sub(lag_ns);
        }
        let lo_ns = self.ties.timeline.band(at_ns).map_or(0, |band| band.lo_ns);
        let by_host = self.host_ns.min(HostNs(MAX_NS)).in_guest(lo_ns);
        self.guest_ns.min(by_host).saturating_sub(lag_ns)
    }

    /// Matching the requests that are ripe; `true` if the clock is in doubt.
    fn tie_ripe(&mut self, end: bool) -> bool {
        let before_ns = self.ripe_before(TIE_AFTER_NS, end);
        self.tied_before = self.tied_before.max(self.ties.pending.guests.first());
        loop {
            let number = self.tied_before;
            let crowded = self.ties.pending.guests.len() > MAX_GUESTS;
            let Some(entry) = self.ties.pending.guests.get(number) else {
                return false;
            };
            let request = entry.request;
            if request.completed_ns > before_ns && !crowded {
                return false;
            }
            self.tied_before += 1;
            if entry.state != State::Waiting {
                continue;
            }
            let weighs = match self.ties.tie(number, before_ns) {
                Partner::Certain => {
                    self.misses.score = self.misses.score.saturating_sub(1);
                    if self.misses.score == 0 {
                        self.trusted_ns = request.issued_ns;
                    }
                    self.tally.seen(&request);
                    continue;
                }
                Partner::Ambiguous => 1,
                Partner::Miss if request.may_be_alone => 0,
                Partner::Miss => MISS_WEIGHS,
            };
            self.unsure.push_back(number);
            if self.doubt(number, &request, weighs) {
                return true;
            }
        }
    }

    /// Tries those again that were not certain: pairs after them may have made them so.
    fn retry_ripe(&mut self, end: bool) {
        let before_ns = self.ripe_before(RETRY_AFTER_NS, end);
        let settled_before_ns = self.ripe_before(TIE_AFTER_NS, end);
        while let Some(number) = self.unsure.front().copied() {
            let entry = self.ties.pending.guests.get(number);
            let waiting = entry.filter(|entry| entry.state == State::Waiting);
            if waiting.is_some_and(|entry| entry.request.completed_ns > before_ns) {
                return;
            }
            self.unsure.pop_front();
            if waiting.is_some() {
                self.ties.tie(number, settled_before_ns);
            }
        }
    }

    /// Reports the requests whose band will not become narrower.
    fn report_ripe(&mut self, end: bool) {
        let before_ns = self.ripe_before(SETTLE_AFTER_NS, end);
        let settled_before_ns = self.ripe_before(TIE_AFTER_NS, end);
        loop {
            // One report can settle several: what is gone has been reported.
            let number = self.reported_before.max(self.ties.pending.guests.first());
            if number >= self.tied_before {
                return;
            }
            let crowded = self.ties.pending.guests.len() > MAX_GUESTS;
            let Some(entry) = self.ties.pending.guests.get(number) else {
                return;
            };
            let completed_ns = entry.request.completed_ns;
            // Where requests have no partner, it is not certain yet that the clock is the right one.
            let doubted = self.misses.score > 0
                && completed_ns.saturating_add(DOUBT_HOLDS_NS) > self.guest_ns
                && !end;
            let fresh = !self.ties.timeline.is_vetted(completed_ns)
                && completed_ns.saturating_add(FRESH_HOLDS_NS) > self.guest_ns
                && !end;
            if (completed_ns > before_ns || doubted || fresh) && !crowded {
                return;
            }
            self.reported_before = number + 1;
            self.report(number, settled_before_ns);
        }
    }

    /// Forgets bands that no waiting request can need.
    fn forget(&mut self) {
        let oldest = self
            .ties
            .pending
            .guests
            .get(self.ties.pending.guests.first());
        let oldest_ns = oldest.map_or(self.guest_ns, |entry| entry.request.issued_ns);
        let oldest_ns = oldest_ns.min(self.late_ns());
        if oldest_ns < GuestNs(MAX_NS) {
            self.ties
                .timeline
                .forget_before(oldest_ns.saturating_sub(BAND_KEPT_NS));
        }
    }

    /// The oldest D of requests whose disk is not known, or was not known for long.
    fn late_ns(&self) -> GuestNs {
        let held_ns = self.devices.oldest_ns().unwrap_or(GuestNs::MAX);
        let backlog = self.backlog.filter(|backlog| self.tied_before < backlog.0);
        held_ns.min(backlog.map_or(GuestNs::MAX, |backlog| backlog.1))
    }

    /// Host requests that no guest request came for.
    fn expire_hosts(&mut self, end: bool) {
        let settled = self.search.is_none() && self.tally.any_known();
        let untied = self.ties.pending.guests.get(self.tied_before);
        let untied_ns = untied.map_or(self.guest_ns, |entry| entry.request.issued_ns);
        let mut untied_ns = untied_ns.min(self.late_ns());
        // The clock may have leapt since the last one that found its partner, and nothing be late at all.
        if self.guest_ns < GuestNs::MAX {
            untied_ns = untied_ns.min(self.trusted_ns);
        }
        let band = self.ties.timeline.band(untied_ns.min(GuestNs(MAX_NS)));
        let hi_ns = band.map_or(0, |band| band.hi_ns);
        loop {
            let number = self.ties.pending.hosts.first();
            let Some(entry) = self.ties.pending.hosts.get(number) else {
                return;
            };
            let end_ns = entry.request.end_ns.in_guest(hi_ns);
            let crowded = self.ties.pending.hosts.len() > MAX_HOSTS;
            let late = settled && end_ns.saturating_add(HOST_WAITS_NS) < untied_ns;
            if entry.state != State::Waiting || !(late || crowded || end) {
                return;
            }
            if crowded {
                self.hosts_dropped_ns = self.hosts_dropped_ns.max(entry.request.end_ns);
            }
            self.outcomes
                .push_back(Outcome::Unclaimed(entry.request.serial));
            self.ties.pending.drop_host(number);
        }
    }
}
