//! What workloads measure on a model.

use nestrace_modelled_disk::parameters::Parameters;
use nestrace_modelled_disk::predict::{Workload, predict};

/// Prints a table.
pub fn print(parameters: &Parameters, size: u64) -> anyhow::Result<()> {
    let reads = Workload::random_reads();
    let sequential = Workload::sequential_reads();
    let zone = |from, to| Workload {
        from,
        to,
        ..sequential
    };
    let writes = |workload| Workload {
        read_percent: 0,
        ..workload
    };
    let mixed = Workload {
        read_percent: 70,
        depth: 8,
        ..reads
    };
    let rows = [
        ("random reads of 4 KiB, depth 1", reads),
        (
            "random reads of 4 KiB, depth 4",
            Workload { depth: 4, ..reads },
        ),
        (
            "random reads of 4 KiB, depth 32",
            Workload { depth: 32, ..reads },
        ),
        (
            "random writes of 4 KiB, depth 32",
            writes(Workload { depth: 32, ..reads }),
        ),
        (
            "random writes of 4 KiB, each synced",
            Workload::synced_writes(),
        ),
        (
            "sequential writes of 4 KiB, each synced",
            Workload {
                is_random: false,
                ..Workload::synced_writes()
            },
        ),
        ("random, 70 % reads, 4 KiB, depth 8", mixed),
        ("sequential reads of 1 MiB, first tenth", zone(0.0, 0.1)),
        ("sequential reads of 1 MiB, middle tenth", zone(0.45, 0.55)),
        ("sequential reads of 1 MiB, last tenth", zone(0.9, 1.0)),
        (
            "sequential writes of 1 MiB, first tenth",
            writes(zone(0.0, 0.1)),
        ),
    ];
    for (name, workload) in rows {
        let found = predict(parameters, size, 1, &workload)?;
        println!(
            "{name:42} {:9.0} a second {:8.1} MB/s {:10.0} µs",
            found.per_second,
            found.bytes_per_s / 1e6,
            found.mean_ns / 1e3
        );
    }
    Ok(())
}
