//! What holds for every model, whatever it is asked for, and its figures against its parameters.

use nestrace_modelled_disk::disk::Disk;
use nestrace_modelled_disk::parameters::{BUILT_IN, Parameters, SpindleParameters};
use nestrace_modelled_disk::predict::{Prediction, Workload, predict};
use nestrace_modelled_disk::request::{Completion, DiskNs, Operation, Request};
use proptest::prelude::*;

const SIZE: u64 = 1 << 30;

/// Requests with the time since the one before.
fn requests() -> impl Strategy<Value = Vec<(u64, Operation, u64, u64)>> {
    let operation = prop_oneof![
        5 => Just(Operation::Read),
        5 => Just(Operation::Write),
        1 => Just(Operation::Flush),
        1 => Just(Operation::Discard),
    ];
    let gap = prop_oneof![Just(0), 0..20_000u64, 0..30_000_000u64];
    // Beyond the end too, and sizes that are no sectors.
    let offset = prop_oneof![
        0..SIZE,
        (0..64u64).prop_map(|it| it * 4096),
        Just(SIZE - 1),
        any::<u64>()
    ];
    let length = prop_oneof![Just(4096), Just(1 << 20), 0..300_000u64];
    prop::collection::vec((gap, operation, offset, length), 1..120)
}

/// Submits in time, and takes completions as a server would; then waits for the rest.
fn run(
    name: &str,
    seed: u64,
    requests: &[(u64, Operation, u64, u64)],
) -> (Vec<DiskNs>, Vec<Completion>) {
    let parameters = Parameters::built_in(name).unwrap();
    let mut disk = Disk::new(&parameters, SIZE, seed).unwrap();
    let (mut at, mut arrivals, mut done) = (DiskNs(0), Vec::new(), Vec::new());
    for (id, &(gap, operation, offset_bytes, length_bytes)) in requests.iter().enumerate() {
        at = at.plus(gap);
        disk.advance(at, &mut done);
        arrivals.push(at);
        let id = id as u64;
        disk.submit(
            at,
            Request {
                id,
                operation,
                offset_bytes,
                length_bytes,
            },
        );
    }
    disk.advance(DiskNs(u64::MAX - 1), &mut done);
    assert_eq!((disk.next_decision(), disk.next_completion()), (None, None));
    (arrivals, done)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each request completes once, not before it came, and completions are in order of time.
    #[test]
    fn conservation_causality_and_order(name in prop::sample::select(&BUILT_IN), requests in requests(), seed: u64) {
        let (arrivals, done) = run(name, seed, &requests);
        let mut ids: Vec<u64> = done.iter().map(|it| it.id).collect();
        ids.sort_unstable();
        prop_assert!(ids.iter().copied().eq(0..requests.len() as u64));
        for completion in &done {
            prop_assert!(completion.at >= arrivals[completion.id as usize]);
        }
        prop_assert!(done.windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    /// The same requests and the same seed give the same completions.
    #[test]
    fn determinism(name in prop::sample::select(&BUILT_IN), requests in requests(), seed: u64) {
        prop_assert_eq!(run(name, seed, &requests), run(name, seed, &requests));
    }

    /// What comes later changes nothing that completed before it came.
    #[test]
    fn the_future_changes_nothing(name in prop::sample::select(&BUILT_IN), requests in requests(), cut in 0..120usize) {
        let cut = cut.min(requests.len() - 1);
        let (arrivals, all) = run(name, 1, &requests);
        let (_, some) = run(name, 1, &requests[..cut]);
        let before = |done: &[Completion]| -> Vec<Completion> {
            done.iter().copied().filter(|it| it.at < arrivals[cut]).collect()
        };
        prop_assert_eq!(before(&all), before(&some));
    }

    /// A flush is not done before the writes before it, and on SATA no command passes it.
    #[test]
    fn a_flush_is_a_barrier(name in prop::sample::select(&["hdd-7200", "hdd-5400", "sata-ssd"]), requests in requests()) {
        let (_, done) = run(name, 1, &requests);
        let mut at = vec![DiskNs(0); requests.len()];
        for completion in &done {
            at[completion.id as usize] = completion.at;
        }
        for (number, request) in requests.iter().enumerate() {
            if request.1 == Operation::Flush {
                prop_assert!(at[..number].iter().all(|before| *before <= at[number]));
                prop_assert!(at[number..].iter().all(|after| at[number] <= *after));
            }
        }
    }
}

fn of(name: &str, workload: &Workload) -> Prediction {
    predict(&Parameters::built_in(name).unwrap(), 4 << 30, 1, workload).unwrap()
}

fn hdd(name: &str) -> SpindleParameters {
    match Parameters::built_in(name).unwrap() {
        Parameters::Spindle(parameters) => parameters,
        _ => panic!("{name} is a hard disk"),
    }
}

fn assert_near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let off = found / expected - 1.0;
    assert!(
        off.abs() <= tolerance,
        "{what}: {found} instead of {expected}"
    );
}

/// At depth 1 a hard disk's mean is the data sheet's: overhead, average seek, half a turn.
#[test]
fn random_reads_take_seek_and_half_a_turn() {
    for name in ["hdd-7200", "hdd-5400"] {
        let it = hdd(name);
        let workload = Workload {
            seconds: 60.0,
            ..Workload::random_reads()
        };
        // Sectors are not spread over the stroke as tracks are: outer tracks have more.
        let expected = it.seek_average_ms * 1e6 + 30e9 / it.rpm + it.command_overhead_us * 1e3;
        assert_near(of(name, &workload).mean_ns, expected, 0.06, name);
    }
}

#[test]
fn random_reads_gain_by_depth() {
    let at = |name: &str, depth| {
        of(
            name,
            &Workload {
                depth,
                seconds: 30.0,
                ..Workload::random_reads()
            },
        )
        .per_second
    };
    for name in ["hdd-7200", "hdd-5400", "hdd-sw-raid10"] {
        let rates: Vec<f64> = [1, 4, 32]
            .into_iter()
            .map(|depth| at(name, depth))
            .collect();
        assert!(
            rates[1] > rates[0] * 1.2 && rates[2] > rates[1] * 1.2,
            "{name}: {rates:?}"
        );
        // A disk cannot serve more than one in a short seek's time.
        assert!(rates[2] < 1500.0, "{name}: {rates:?}");
    }
    // More than the queue holds gains nothing.
    assert_near(at("hdd-7200", 128), at("hdd-7200", 32), 0.03, "depth 128");
}

#[test]
fn sequential_reads_have_the_rate_of_their_zone() {
    let parameters = Parameters::built_in("hdd-7200").unwrap();
    let it = hdd("hdd-7200");
    let drive_bytes = (it.drive_gb.unwrap() * 1e9) as u64;
    let of_drive = |workload: &Workload| predict(&parameters, drive_bytes, 1, workload).unwrap();
    let n = it.zones_mb_per_s.len() as f64;
    let total: f64 = it.zones_mb_per_s.iter().sum();
    let mut from = 0.0;
    for mb_per_s in it.zones_mb_per_s {
        let to = from + mb_per_s / total;
        let workload = Workload {
            from: from + 0.01 / n,
            to,
            seconds: 2.0,
            ..Workload::sequential_reads()
        };
        assert_near(
            of_drive(&workload).bytes_per_s,
            mb_per_s * 1e6,
            0.02,
            "a zone",
        );
        let small = Workload {
            block_bytes: 64 << 10,
            ..workload
        };
        assert_near(
            of_drive(&small).bytes_per_s,
            mb_per_s * 1e6,
            0.02,
            "a zone, 64 KiB",
        );
        let writes = Workload {
            read_percent: 0,
            // The cache takes in more than is written at first.
            seconds: 5.0,
            ..workload
        };
        assert_near(
            of_drive(&writes).bytes_per_s,
            mb_per_s * 1e6,
            0.06,
            "a zone, writes",
        );
        from = to;
    }
}

/// A synced write goes to the medium: a seek with settling and half a turn if it is random, one turn if it follows.
#[test]
fn synced_writes_reach_the_medium() {
    let it = hdd("hdd-7200");
    let workload = Workload {
        seconds: 60.0,
        ..Workload::synced_writes()
    };
    let expected = (it.seek_average_ms + it.write_settle_ms) * 1e6
        + 30e9 / it.rpm
        + it.command_overhead_us * 2e3;
    assert_near(of("hdd-7200", &workload).mean_ns, expected, 0.06, "random");
    let sequential = Workload {
        is_random: false,
        ..workload
    };
    assert_near(
        of("hdd-7200", &sequential).mean_ns,
        60e9 / it.rpm,
        0.05,
        "sequential",
    );
    // Without the flush the cache has it until it is full.
    let cached = Workload {
        flushes: false,
        seconds: 0.01,
        ..workload
    };
    assert!(of("hdd-7200", &cached).mean_ns < 1e6);
}

#[test]
fn four_disks_read_twice_to_four_times_as_much_and_write_twice() {
    let rate = |name: &str, workload: &Workload| of(name, workload).per_second;
    let reads = Workload {
        depth: 16,
        seconds: 20.0,
        ..Workload::random_reads()
    };
    let gain = rate("hdd-sw-raid10", &reads) / rate("hdd-5400", &reads);
    assert!((2.0..4.5).contains(&gain), "{gain}");
    let writes = Workload {
        read_percent: 0,
        ..reads
    };
    let gain = rate("hdd-sw-raid10", &writes) / rate("hdd-5400", &writes);
    assert!((1.5..2.3).contains(&gain), "{gain}");
}

#[test]
fn flash_has_its_data_sheets_figures() {
    for (name, iops, read, write) in [
        ("sata-ssd", 67_000.0, 470.0, 320.0),
        ("nvme", 460_000.0, 2_800.0, 2_000.0),
    ] {
        let deep = Workload {
            depth: 128,
            seconds: 0.5,
            ..Workload::random_reads()
        };
        let found = of(name, &deep).per_second;
        assert!(found > iops * 0.5 && found < iops * 1.03, "{name}: {found}");
        let sequential = Workload {
            depth: 16,
            seconds: 0.5,
            ..Workload::sequential_reads()
        };
        assert_near(of(name, &sequential).bytes_per_s, read * 1e6, 0.05, name);
        let writes = Workload {
            read_percent: 0,
            ..sequential
        };
        let found = of(name, &writes).bytes_per_s;
        assert!(
            found > write * 0.8e6 && found < write * 1.05e6,
            "{name}: {found}"
        );
    }
    // Only a volatile cache makes a flush cost a program.
    assert!(of("sata-ssd", &Workload::synced_writes()).mean_ns > 2e6);
    assert!(of("nvme", &Workload::synced_writes()).mean_ns < 0.1e6);
}
