//! fio's own latencies, by each of its ways to do I/O, against those of its calls.

use anyhow::Context;
use serde_json::Value;
use xtask::case::Case;

use super::scene::Seen;

/// Of a time, and beside it what fio takes in a translated guest between its look at the clock and the call.
const NEAR: f64 = 0.03;
/// fio's percentiles are the middle of a bucket. It has 64 buckets to each power of two.
const BUCKET: f64 = 1.0 / 64.0;
const AROUND_NS: f64 = 40_000.0;
/// Bytes of each read and write.
const BLOCK: u64 = 4096;

/// A job on a file of its own, which has all of its blocks before.
struct Job {
    name: &'static str,
    options: &'static str,
    /// Each read or write moves its block to or from the disk.
    direct: bool,
    /// fio sees the end when it collects it, and collects several at once. So its times are only a limit.
    collects: bool,
}

const JOBS: [Job; 5] = [
    Job {
        name: "synced",
        options: "--rw=write --ioengine=psync --fsync=4",
        direct: false,
        collects: false,
    },
    Job {
        name: "direct",
        options: "--rw=randwrite --direct=1 --ioengine=psync",
        direct: true,
        collects: false,
    },
    Job {
        name: "aio",
        options: "--rw=randread --direct=1 --ioengine=libaio --iodepth=4",
        direct: true,
        collects: true,
    },
    Job {
        name: "ring",
        options: "--rw=randwrite --direct=1 --ioengine=io_uring --iodepth=4",
        direct: true,
        collects: true,
    },
    Job {
        name: "vector",
        options: "--rw=randrw --direct=1 --ioengine=pvsync2",
        direct: true,
        collects: false,
    },
];

/// Runs the jobs one after the other in `folder`; the inodes of their files follow fio's result.
pub fn command(folder: &str) -> String {
    let names = JOBS.map(|job| job.name).join(" ");
    let mut command = format!(
        "for name in {names}; do dd if=/dev/zero of={folder}/fio-$name bs=64k count=16 conv=fsync \
         2> /dev/null; done\n\
         fio --directory={folder} --size=1m --bs=4k --fallocate=none --thread --output-format=json \
         --output=/tmp/fio.json"
    );
    for Job { name, options, .. } in JOBS {
        command += &format!(" --name={name} --stonewall --filename=fio-{name} {options}");
    }
    command += &format!(
        "\nfor name in {names}; do stat -c %i {folder}/fio-$name >> /tmp/fio.json; done\n"
    );
    command
}

/// The number of calls is equal, and so are their times, nearly; each direct one waited for its own bio.
pub fn check(case: &mut Case, seen: &Seen) -> anyhow::Result<()> {
    let end = seen
        .fio
        .rfind('}')
        .context("find the end of fio's result")?;
    let fio: Value = serde_json::from_str(&seen.fio[..=end]).context("read fio's result")?;
    let inodes: Vec<u64> = seen.fio[end + 1..]
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("read the inodes")?;
    let results = fio["jobs"].as_array().context("find fio's jobs")?;
    case.equal("fio's jobs", results.len(), JOBS.len());
    for ((job, result), inode) in JOBS.iter().zip(results).zip(inodes) {
        for (op, pointer) in [
            ("read", "/read/clat_ns"),
            ("write", "/write/clat_ns"),
            ("fsync", "/sync/lat_ns"),
        ] {
            let its = result.pointer(pointer).unwrap_or(&Value::Null);
            let n = its["N"].as_u64().unwrap_or(0);
            if n > 0 {
                let expected = Expected {
                    n,
                    mean_ns: its["mean"].as_f64().context("find fio's mean")?,
                    median_ns: its["percentile"]["50.000000"]
                        .as_f64()
                        .context("find fio's median")?,
                };
                calls_of(case, seen, job, (op, inode), &expected)?;
            }
        }
    }
    Ok(())
}

/// What fio says of a job's calls of one kind.
struct Expected {
    n: u64,
    mean_ns: f64,
    median_ns: f64,
}

fn calls_of(
    case: &mut Case,
    seen: &Seen,
    job: &Job,
    (op, inode): (&str, u64),
    expected: &Expected,
) -> anyhow::Result<()> {
    let &Expected {
        n,
        mean_ns,
        median_ns,
    } = expected;
    let rows = seen.measured.analysis["calls"].as_array();
    let row = rows.into_iter().flatten().find(|row| {
        row["process"] == "fio"
            && row["op"] == op
            && row["file"]["inode"] == inode
            && row["file"]["mount"] == "/mnt/ext4"
    });
    let name = job.name;
    let row = row.with_context(|| format!("find the row of {name}'s {op}"))?;
    let count = |key: &str| row.pointer(key).and_then(Value::as_u64).unwrap_or(0);
    case.equal(&format!("calls of {name}'s {op}"), count("/n"), n);
    let latency = |key: &str| row["latency_ns"][key].as_f64();
    let mean = latency("mean").context("find the mean")?;
    let median = latency("p50").context("find the median")?;
    case.figure(format!(
        "{name} {op} {n}: {:.0} µs, fio {:.0} µs",
        mean / 1000.0,
        mean_ns / 1000.0
    ));
    case.holds(
        &format!("mean of {name}'s {op}"),
        mean <= mean_ns * (1.0 + NEAR) + AROUND_NS,
        &format!("{mean:.0} ns, fio has {mean_ns:.0} ns"),
    );
    // Where another program had the processor between fio's look at the clock and its call, fio's mean is larger.
    if !job.collects {
        case.holds(
            &format!("median of {name}'s {op}"),
            (median - median_ns).abs() <= (NEAR + BUCKET) * median_ns + AROUND_NS,
            &format!("{median:.0} ns, fio has {median_ns:.0} ns"),
        );
    }
    if job.direct && op != "fsync" {
        case.equal(
            &format!("bios that {name}'s {op} waited for"),
            count("/waited/bios"),
            n,
        );
        case.equal(
            &format!("bytes that {name}'s {op} waited for"),
            count("/waited/bytes"),
            n * BLOCK,
        );
    }
    Ok(())
}
