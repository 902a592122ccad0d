//! Disks of one guest that look alike: their requests tell which is which, or nothing does. A mirror writes
//! the same to both at the same time, and its halves may be of any speed.

use super::clock_world::{Change, Dice, Load, Said, TrueClock, TrueRequest, pair_behind};
use crate::link::clock::start::RoundTrip;
use crate::link::clock::{ClockStart, DeviceDisk};
use crate::model::clocks::{GuestNs, HostNs};
use proptest::prelude::*;

const HOST_NS: u64 = 5_000_000_000;
/// Requests of a disk that no other has: so many tell the disk.
const TELL: usize = 4;

/// What the two disks do.
#[derive(Clone, Debug)]
struct Mirror {
    load: Load,
    /// Requests that go to both disks.
    both_per_mille: u64,
    /// How much longer a request takes on each disk.
    slower_ns: [u64; 2],
    /// So much behind the guest's stream the host's is read.
    host_lag_ns: u64,
}

impl Mirror {
    fn requests(&self, clock: &TrueClock) -> Vec<TrueRequest> {
        let mut dice = Dice(self.load.seed ^ 0x5eed);
        let mut requests = Vec::new();
        for mut request in self.load.requests(clock) {
            let disk = dice.below(2) as u32;
            let twin = dice.chance(self.both_per_mille);
            for disk in [disk, 1 - disk] {
                let slower_ns = self.slower_ns[disk as usize];
                request.disk = disk;
                let mut half = request;
                (half.end, half.completed) =
                    (request.end + slower_ns, request.completed + slower_ns);
                requests.push(half);
                // The other half is issued right after the first.
                request.issued += 200;
                request.start += 1_000;
                if !twin {
                    break;
                }
            }
        }
        requests
    }

    /// Two devices whose disks the manifest does not tell.
    fn pair(&self, requests: &[TrueRequest], clock: &TrueClock, host_lost: bool) -> Said {
        let start = ClockStart {
            devices: vec![DeviceDisk::OneOf(vec![0, 1]); 2],
            round_trips: vec![RoundTrip {
                host_sent_ns: HostNs(HOST_NS),
                guest_ns: GuestNs(clock.guest(HOST_NS + 300_000)),
                host_received_ns: HostNs(HOST_NS + 700_000),
            }],
            host_lost,
            ..ClockStart::default()
        };
        pair_behind(requests, clock, start, self.host_lag_ns)
    }
}

/// The disk of each device, as far as it is known.
fn disks(said: &Said) -> Vec<Option<u32>> {
    let disk = |device: &DeviceDisk| match device {
        DeviceDisk::Is { disk, .. } => Some(*disk),
        _ => None,
    };
    said.devices.iter().map(disk).collect()
}

fn never_wrong(said: &Said) {
    for (device, disk) in (0..).zip(disks(said)) {
        assert!(disk.is_none_or(|disk| disk == device), "{:?}", said.devices);
    }
    assert_eq!(said.wrong(), 0);
}

fn clock() -> TrueClock {
    TrueClock::new(0, 77_000_000_000, 20, &[])
}

fn mirror() -> Mirror {
    Mirror {
        load: Load {
            flush_per_mille: 0,
            ..Load::default()
        },
        both_per_mille: 1000,
        slower_ns: [70_000_000, 0],
        host_lag_ns: 50_000_000,
    }
}

/// When the guest says that the slow half has ended, only the fast one has been read of the host.
#[test]
fn the_faster_half_of_a_mirror_is_not_both_disks() {
    let mirror = mirror();
    let requests = mirror.requests(&clock());
    let said = mirror.pair(&requests, &clock(), false);
    never_wrong(&said);
    // The slow half does not lie inside the fast one, and two devices are not one disk.
    assert_eq!(disks(&said), [Some(0), Some(1)], "{:?}", said.devices);
}

#[test]
fn nothing_tells_equal_halves_apart() {
    let mirror = Mirror {
        slower_ns: [0, 0],
        ..mirror()
    };
    let requests = mirror.requests(&clock());
    let said = mirror.pair(&requests, &clock(), false);
    assert_eq!(disks(&said), [None, None]);
    assert_eq!(
        (said.paired.len(), said.unpaired.len()),
        (0, requests.len())
    );
}

/// Reads go to one half: few of them are enough.
#[test]
fn a_mirror_is_told_by_what_one_half_alone_does() {
    let mirror = Mirror {
        both_per_mille: 950,
        slower_ns: [0, 0],
        ..mirror()
    };
    let requests = mirror.requests(&clock());
    let said = mirror.pair(&requests, &clock(), false);
    never_wrong(&said);
    assert_eq!(disks(&said), [Some(0), Some(1)], "{:?}", said.devices);
    assert!(said.paired.len() * 100 > requests.len() * 95);
}

/// Where the host lost events, a request that a disk does not have proves nothing.
#[test]
fn gaps_of_the_host_tell_no_disk() {
    let mirror = Mirror {
        load: Load {
            host_loses_per_mille: 200,
            ..mirror().load
        },
        ..mirror()
    };
    let mut requests = mirror.requests(&clock());
    for request in &mut requests {
        request.seen_by_host |= request.disk == 1;
    }
    never_wrong(&mirror.pair(&requests, &clock(), true));
}

fn mirrors() -> impl Strategy<Value = Mirror> {
    let times = (1_000u64..80_000_000, 1_000u64..80_000_000, 0u64..60_000_000);
    let both = prop_oneof![Just(1000u64), 900u64..1000, 0u64..1000];
    let load = (
        any::<u64>(),
        50usize..1500,
        20_000u64..3_000_000,
        1u64..2_000,
    );
    (load, both, times).prop_map(
        |((seed, n, every_ns, keys), both_per_mille, times)| Mirror {
            load: Load {
                seed,
                n,
                every_ns,
                keys,
                flush_per_mille: 20,
                ..Load::default()
            },
            both_per_mille,
            slower_ns: [times.0, times.1],
            host_lag_ns: times.2,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_device_is_taken_for_another(
        mirror in mirrors(),
        ppm in -200i64..200,
        rate in -200i64..200,
        lost_per_mille in prop_oneof![Just(0u64), 1u64..300],
    ) {
        let clock = TrueClock::new(0, 9_000_000_000, ppm, &[(HOST_NS + 300_000_000, Change::Rate(rate))]);
        let mut requests = mirror.requests(&clock);
        let mut dice = Dice(mirror.load.seed);
        for request in &mut requests {
            request.seen_by_host = !dice.chance(lost_per_mille);
        }
        never_wrong(&mirror.pair(&requests, &clock, lost_per_mille > 0));
    }

    /// Keys that come once: what one disk alone has is seen.
    #[test]
    fn what_can_be_told_is_told(mirror in mirrors()) {
        let load = Load { keys: 1 << 40, ..mirror.load.clone() };
        let mirror = Mirror { load, ..mirror };
        let requests = mirror.requests(&clock());
        let said = mirror.pair(&requests, &clock(), false);
        never_wrong(&said);
        let last_ns = requests.iter().map(|request| request.end).max().unwrap_or(0);
        let alone = |request: &&TrueRequest| {
            let twins = requests.iter().filter(|twin| twin.key == request.key).count();
            let data = request.key.bytes > 0 && request.key.class != crate::link::clock::OpClass::Discard;
            data && twins == 1 && request.completed + 110_000_000 < last_ns
        };
        let alone: Vec<u32> = requests.iter().filter(alone).map(|request| request.disk).collect();
        let one_is_told = (0..2).any(|disk| alone.iter().filter(|of| **of == disk).count() >= TELL);
        if one_is_told {
            prop_assert_eq!(disks(&said), [Some(0), Some(1)]);
        }
    }
}
