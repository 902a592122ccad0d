//! Two machines whose clocks are known exactly, with requests between them: the truth that a pairing
//! is held against.

use crate::link::clock::request::UnpairedReason;
use crate::link::clock::{
    ClockStart, DeviceDisk, GuestRequest, HostRequest, Key, OpClass, Outcome, Paired, Pairing,
};
use crate::model::clocks::{GuestNs, HostNs};
use crate::result::analysis::{Clock, ClockMethod};
use proptest::prelude::*;

/// Host's time at which the requests begin.
pub const HOST_NS: u64 = 5_000_000_000;

/// splitmix64: a world is the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Exponentially distributed around `mean`.
    pub fn around(&mut self, mean: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean as f64) as u64
    }
}

/// What happens to the guest's clock at a time of the host's.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// From now on it runs faster by so much.
    Rate(i64),
    /// The guest stands still for so long.
    Pause(u64),
    /// It jumps ahead.
    Leap(u64),
}

/// The guest's clock as a function of the host's.
#[derive(Clone, Debug)]
pub struct TrueClock {
    /// Host's time, guest's time there, rate in ppm against the host's; a pause has none.
    lines: Vec<(u64, u64, Option<i64>)>,
}

impl TrueClock {
    pub fn new(host_ns: u64, guest_ns: u64, ppm: i64, changes: &[(u64, Change)]) -> Self {
        let mut clock = Self {
            lines: vec![(host_ns, guest_ns, Some(ppm))],
        };
        let mut ppm = ppm;
        for (at, change) in changes {
            let at = (*at).max(clock.lines.last().unwrap().0);
            let guest = clock.guest(at);
            match *change {
                Change::Rate(new) => {
                    ppm = new;
                    clock.lines.push((at, guest, Some(ppm)));
                }
                Change::Pause(ns) => {
                    clock.lines.push((at, guest, None));
                    clock.lines.push((at + ns, guest, Some(ppm)));
                }
                Change::Leap(ns) => clock.lines.push((at, guest + ns, Some(ppm))),
            }
        }
        clock
    }

    fn line(&self, host_ns: u64) -> (usize, (u64, u64, Option<i64>)) {
        let after = self.lines.partition_point(|line| line.0 <= host_ns);
        let index = after.saturating_sub(1);
        (index, self.lines[index])
    }

    pub fn guest(&self, host_ns: u64) -> u64 {
        let (_, (host, guest, ppm)) = self.line(host_ns);
        let passed = i128::from(host_ns) - i128::from(host);
        let passed = ppm.map_or(0, |ppm| {
            passed + (passed * i128::from(ppm)).div_euclid(1_000_000)
        });
        u64::try_from(i128::from(guest) + passed).unwrap()
    }

    /// The first time from `host_ns` on at which the guest runs.
    pub fn running(&self, host_ns: u64) -> u64 {
        match self.line(host_ns) {
            (index, (_, _, None)) => self.lines[index + 1].0,
            _ => host_ns,
        }
    }
}

/// A request with its true times, all on the host's clock.
#[derive(Clone, Copy, Debug)]
pub struct TrueRequest {
    pub disk: u32,
    pub key: Key,
    /// Processor of the guest that issued it, where that is known.
    pub guest_lane: u32,
    /// Request that the guest's hardware queue flushes with, where that is known.
    pub flushed_with: u64,
    /// Queue from which QEMU took it, where that is known.
    pub host_lane: u32,
    pub issued: u64,
    pub start: u64,
    pub end: u64,
    pub completed: u64,
    pub seen_by_guest: bool,
    pub seen_by_host: bool,
}

/// How requests are made.
#[derive(Clone, Debug)]
pub struct Load {
    pub seed: u64,
    pub n: usize,
    pub host_ns: u64,
    pub every_ns: u64,
    pub keys: u64,
    pub disks: u32,
    pub flush_per_mille: u64,
    pub there_ns: (u64, u64),
    pub service_ns: (u64, u64),
    pub back_ns: (u64, u64),
    pub guest_loses_per_mille: u64,
    pub host_loses_per_mille: u64,
    /// Both halves of two requests are lost so that the rest has one key and looks like one request.
    pub wrong_per_mille: u64,
    /// One request at a time.
    pub serial: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            seed: 1,
            n: 2000,
            host_ns: HOST_NS,
            every_ns: 500_000,
            keys: 1000,
            disks: 1,
            flush_per_mille: 50,
            there_ns: (20_000, 20_000),
            service_ns: (50_000, 200_000),
            back_ns: (15_000, 30_000),
            guest_loses_per_mille: 0,
            host_loses_per_mille: 0,
            wrong_per_mille: 0,
            serial: false,
        }
    }
}

impl Load {
    /// Least and mean of what is added.
    fn time(dice: &mut Dice, (least, mean): (u64, u64)) -> u64 {
        least + dice.around(mean)
    }

    pub fn requests(&self, clock: &TrueClock) -> Vec<TrueRequest> {
        let mut dice = Dice(self.seed);
        let mut at = self.host_ns;
        let mut requests = Vec::new();
        while requests.len() < self.n {
            at = clock.running(at + 1 + dice.around(self.every_ns));
            let start = at + Self::time(&mut dice, self.there_ns);
            let end = start + Self::time(&mut dice, self.service_ns);
            let completed = clock.running(end + Self::time(&mut dice, self.back_ns));
            let key = self.key(&mut dice);
            let mut request = TrueRequest {
                disk: dice.below(u64::from(self.disks)) as u32,
                key,
                guest_lane: GuestRequest::ANY_LANE,
                flushed_with: 0,
                host_lane: HostRequest::ANY_LANE,
                issued: at,
                start,
                end,
                completed,
                seen_by_guest: !dice.chance(self.guest_loses_per_mille),
                seen_by_host: !dice.chance(self.host_loses_per_mille),
            };
            if dice.chance(self.wrong_per_mille) {
                // 5 to 25 ms apart, one side of each lost: nearest time would take them for one.
                request.key.offset += 1 << 40;
                request.key.bytes = 512 * (1 + requests.len() as u64);
                let later = 5_000_000 + dice.below(20_000_000);
                let mut other = request;
                (request.seen_by_guest, request.seen_by_host) = (true, false);
                (other.seen_by_guest, other.seen_by_host) = (false, true);
                let issued = clock.running(request.issued + later);
                let moved = issued - request.issued;
                (other.issued, other.start, other.end) =
                    (issued, request.start + moved, request.end + moved);
                other.completed = clock.running(request.completed + moved);
                requests.push(other);
            }
            requests.push(request);
            if self.serial {
                at = completed;
            }
        }
        requests
    }

    fn key(&self, dice: &mut Dice) -> Key {
        if dice.chance(self.flush_per_mille) {
            return Key {
                class: OpClass::Flush,
                offset: 0,
                bytes: 0,
            };
        }
        let class = match dice.below(8) {
            0..4 => OpClass::Write,
            4..7 => OpClass::Read,
            _ => OpClass::Discard,
        };
        Key {
            class,
            offset: dice.below(self.keys) * 4096,
            bytes: 4096 << dice.below(2),
        }
    }
}

/// What a pairing said.
#[derive(Debug, Default)]
pub struct Said {
    pub paired: Vec<Paired>,
    pub unpaired: Vec<(u64, UnpairedReason)>,
    pub unclaimed: Vec<u64>,
    pub clock: Clock,
    pub devices: Vec<DeviceDisk>,
}

/// Hands all requests over in the order of their true ends.
pub fn pair(requests: &[TrueRequest], clock: &TrueClock, start: ClockStart) -> Said {
    pair_behind(requests, clock, start, 0)
}

/// The same where the host's stream is read `lag_ns` behind the guest's.
pub fn pair_behind(
    requests: &[TrueRequest],
    clock: &TrueClock,
    start: ClockStart,
    lag_ns: u64,
) -> Said {
    let mut ends: Vec<(u64, bool, usize)> = Vec::new();
    for (i, request) in requests.iter().enumerate() {
        // QEMU's accounting ends a little after the completion notification.
        ends.push((request.end + 5_000 + lag_ns, false, i));
        ends.push((request.completed, true, i));
    }
    ends.sort_unstable();
    let mut pairing = Pairing::new(start);
    let mut said = Said::default();
    for (at, of_guest, i) in ends {
        let request = &requests[i];
        if of_guest && request.seen_by_guest {
            pairing.guest_request(guest_request(i, request, clock));
        } else if !of_guest && request.seen_by_host {
            pairing.host_request(host_request(i, request));
        }
        pairing.advance(
            GuestNs(clock.guest(at - 10_000)),
            HostNs(at - lag_ns - 10_000),
        );
        said.take(&mut pairing);
    }
    said.of_all(pairing)
}

/// Hands the requests over as an analysis reads two streams: whichever has the earlier next event.
pub fn pair_merged(requests: &[TrueRequest], clock: &TrueClock, start: ClockStart) -> Said {
    let all = || requests.iter().enumerate();
    let mut guests: Vec<GuestRequest> = all().map(|(i, r)| guest_request(i, r, clock)).collect();
    let mut hosts: Vec<HostRequest> = all().map(|(i, r)| host_request(i, r)).collect();
    guests.sort_by_key(|guest| guest.completed_ns);
    hosts.sort_by_key(|host| host.end_ns);
    let (mut guests, mut hosts) = (guests.into_iter().peekable(), hosts.into_iter().peekable());
    let mut pairing = Pairing::new(start);
    let mut said = Said::default();
    loop {
        let guest_ns = guests
            .peek()
            .map_or(GuestNs::MAX, |guest| guest.completed_ns);
        let host_ns = hosts.peek().map_or(HostNs::MAX, |host| host.end_ns);
        pairing.advance(guest_ns, host_ns);
        said.take(&mut pairing);
        let guest_next = host_ns == HostNs::MAX || pairing.host_time(guest_ns) < host_ns;
        let guest = if guest_ns < GuestNs::MAX && guest_next {
            guests.next()
        } else {
            None
        };
        if let Some(guest) = guest {
            pairing.guest_request(guest);
        } else if let Some(host) = hosts.next() {
            pairing.host_request(host);
        } else {
            break;
        }
    }
    said.of_all(pairing)
}

fn guest_request(i: usize, request: &TrueRequest, clock: &TrueClock) -> GuestRequest {
    GuestRequest {
        serial: i as u64,
        device: request.disk,
        key: request.key,
        buffer: 0,
        may_be_alone: false,
        flushed_with: request.flushed_with,
        lane: request.guest_lane,
        issued_ns: GuestNs(clock.guest(request.issued)),
        completed_ns: GuestNs(clock.guest(request.completed)),
    }
}

fn host_request(i: usize, request: &TrueRequest) -> HostRequest {
    HostRequest {
        serial: i as u64,
        disk: request.disk,
        key: request.key,
        buffer: 0,
        lane: request.host_lane,
        start_ns: HostNs(request.start),
        end_ns: HostNs(request.end),
    }
}

impl Said {
    fn take(&mut self, pairing: &mut Pairing) {
        while let Some(outcome) = pairing.next_outcome() {
            match outcome {
                Outcome::Paired(paired) => self.paired.push(paired),
                Outcome::Unpaired(unpaired) => {
                    self.unpaired.push((unpaired.guest, unpaired.reason))
                }
                Outcome::Unclaimed(host) => self.unclaimed.push(host),
            }
        }
    }

    /// With what comes at the end.
    fn of_all(mut self, mut pairing: Pairing) -> Self {
        let summary = pairing.finish();
        (self.clock, self.devices) = (summary.clock, summary.devices);
        self.take(&mut pairing);
        self
    }

    pub fn count(&self, reason: UnpairedReason) -> usize {
        self.unpaired
            .iter()
            .filter(|(_, why)| *why == reason)
            .count()
    }

    pub fn wrong(&self) -> usize {
        self.paired
            .iter()
            .filter(|pair| pair.guest != pair.host)
            .count()
    }

    /// Linked requests at whose D or C the true offset is outside the band that was given.
    pub fn outside(&self, requests: &[TrueRequest], clock: &TrueClock) -> usize {
        let wrong = |pair: &&Paired| {
            let request = &requests[pair.guest as usize];
            // The true clock is rounded to a nanosecond.
            [request.issued, request.completed].iter().any(|at| {
                let offset = clock.guest(*at).cast_signed() - at.cast_signed();
                offset < pair.band.lo_ns - 1 || offset > pair.band.hi_ns + 1
            })
        };
        self.paired.iter().filter(wrong).count()
    }

    /// Each request has exactly one fate: those that have none, or several, on either side.
    pub fn without_one_fate(&self, requests: &[TrueRequest]) -> (Vec<u64>, Vec<u64>) {
        let mut guests: Vec<u64> = self.paired.iter().map(|pair| pair.guest).collect();
        guests.extend(self.unpaired.iter().map(|(guest, _)| *guest));
        let mut hosts: Vec<u64> = self.paired.iter().map(|pair| pair.host).collect();
        hosts.extend(&self.unclaimed);
        let seen = |seen: fn(&TrueRequest) -> bool| -> Vec<u64> {
            let all = (0u64..).zip(requests);
            all.filter(|(_, request)| seen(request))
                .map(|(i, _)| i)
                .collect()
        };
        let differing = |fates: &[u64], seen: &[u64]| -> Vec<u64> {
            let mut balance = vec![0i64; requests.len()];
            fates.iter().for_each(|i| balance[*i as usize] += 1);
            seen.iter().for_each(|i| balance[*i as usize] -= 1);
            let all = (0u64..).zip(balance);
            all.filter(|(_, n)| *n != 0).map(|(i, _)| i).collect()
        };
        (
            differing(&guests, &seen(|request| request.seen_by_guest)),
            differing(&hosts, &seen(|request| request.seen_by_host)),
        )
    }
}

/// Everything that has to hold in every world.
pub fn check(load: &Load, clock: &TrueClock, start: ClockStart) -> (Vec<TrueRequest>, Said) {
    let requests = load.requests(clock);
    let said = pair(&requests, clock, start);
    let fates = said.without_one_fate(&requests);
    assert_eq!(fates, (vec![], vec![]), "each request has one fate");
    assert_eq!(said.wrong(), 0, "wrong links");
    assert_eq!(said.outside(&requests, clock), 0, "truth outside the band");
    assert_eq!(said.clock.violations, 0);
    if said.clock.method != ClockMethod::None {
        let refused = said.count(UnpairedReason::OutsideClockBound) as u64;
        assert_eq!(
            said.clock.rejected, refused,
            "every rejected pair is counted"
        );
    }
    (requests, said)
}

/// Linked, of those that both sides have seen.
pub fn fraction(said: &Said, requests: &[TrueRequest]) -> f64 {
    let both = |request: &&TrueRequest| request.seen_by_guest && request.seen_by_host;
    said.paired.len() as f64 / requests.iter().filter(both).count() as f64
}

fn latency() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        (500u64..5_000, 500u64..5_000),
        (10_000u64..60_000, 1_000u64..50_000),
        (1_000u64..200_000, 1_000u64..400_000),
    ]
}

/// Any load.
pub fn loads() -> impl Strategy<Value = Load> {
    let times = (latency(), latency(), latency());
    let shape = (20_000u64..1_500_000, 1u64..3_000, 1u32..4, 0u64..300);
    (any::<u64>(), 100usize..2500, times, shape, any::<bool>()).prop_map(
        |(seed, n, (there_ns, service_ns, back_ns), (every_ns, keys, disks, flushes), serial)| {
            Load {
                seed,
                n,
                every_ns,
                keys,
                disks,
                flush_per_mille: flushes,
                there_ns,
                service_ns,
                back_ns,
                serial,
                ..Load::default()
            }
        },
    )
}
