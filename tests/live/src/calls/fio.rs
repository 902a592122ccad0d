//! fio's own latencies against those of its calls.

use anyhow::Context;
use serde_json::Value;
use xtask::case::Case;

use super::scene::Seen;

/// fio sees the end of native aio when it collects it, and collects several at once; so only the number of these is
/// held against it, and that ours are not longer.
const COLLECTED: &str = "read";
/// Of a mean, and beside it what fio takes in a translated guest between its look at the clock and the call.
const NEAR: f64 = 0.03;
const AROUND_NS: f64 = 40_000.0;

/// Jobs one after the other, each on a file of its own in `folder`; the inodes go to a file too.
pub fn command(folder: &str) -> String {
    format!(
        "dd if=/dev/zero of={folder}/fio bs=64k count=16 conv=fsync 2> /dev/null\n\
         fio --directory={folder} --size=1m --bs=4k --fallocate=none --thread --output-format=json --output=/tmp/fio.json \
         --name=synced --rw=write --ioengine=psync --fsync=4 --filename=fio \
         --name=direct --stonewall --rw=randwrite --direct=1 --ioengine=psync --filename=fio \
         --name=deep --stonewall --rw=randread --direct=1 --ioengine=libaio --iodepth=4 --filename=fio\n\
         stat -c %i {folder}/fio >> /tmp/fio.json\n"
    )
}

/// Sums over the rows of fio on its file.
#[derive(Default)]
struct Rows {
    n: u64,
    sum_ns: f64,
}

/// The number of calls is equal, and the mean is near.
pub fn check(case: &mut Case, seen: &Seen) -> anyhow::Result<()> {
    let end = seen
        .fio
        .rfind('}')
        .context("find the end of fio's result")?;
    let fio: Value = serde_json::from_str(&seen.fio[..=end]).context("read fio's result")?;
    let inode: u64 = seen.fio[end + 1..]
        .trim()
        .parse()
        .context("read the inode")?;
    let rows = seen.measured.analysis["calls"]
        .as_array()
        .context("find calls[]")?;
    let of = |op: &str| {
        let mut sum = Rows::default();
        for row in rows {
            if row["process"] == "fio"
                && row["op"] == op
                && row["file"]["inode"] == inode
                && row["file"]["mount"] == "/mnt/ext4"
            {
                let n = row["n"].as_u64().unwrap_or(0);
                sum.n += n;
                sum.sum_ns += n as f64 * row["latency_ns"]["mean"].as_f64().unwrap_or(0.0);
            }
        }
        sum
    };
    let jobs = fio["jobs"].as_array().context("find fio's jobs")?;
    let told = |keys: &[(usize, &str)]| {
        let mut sum = Rows::default();
        for (job, pointer) in keys {
            let latency = jobs.get(*job).and_then(|job| job.pointer(pointer));
            let latency = latency.unwrap_or(&Value::Null);
            let n = latency["N"].as_u64().unwrap_or(0);
            sum.n += n;
            sum.sum_ns += n as f64 * latency["mean"].as_f64().unwrap_or(0.0);
        }
        sum
    };
    for (op, keys) in [
        ("write", &[(0, "/write/clat_ns"), (1, "/write/clat_ns")][..]),
        ("read", &[(2, "/read/clat_ns")][..]),
        ("fsync", &[(0, "/sync/lat_ns")][..]),
    ] {
        let (ours, its) = (of(op), told(keys));
        case.equal(&format!("fio's {op}: calls"), ours.n, its.n);
        let (mean, expected) = (ours.sum_ns / ours.n as f64, its.sum_ns / its.n as f64);
        case.figure(format!(
            "{op}: {:.0} µs, fio {:.0} µs",
            mean / 1000.0,
            expected / 1000.0
        ));
        case.holds(
            &format!("fio's {op}: mean"),
            if op == COLLECTED {
                mean <= expected
            } else {
                (mean - expected).abs() <= NEAR * expected + AROUND_NS
            },
            &format!("{mean:.0} ns, fio has {expected:.0} ns"),
        );
    }
    Ok(())
}
