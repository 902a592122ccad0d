//! fio with a workload of the model's.

use std::path::Path;

use anyhow::Context;
use nestrace_modelled_disk::predict::Workload;
use nestrace_rig::external_tool::Tool;
use serde_json::Value;

/// What fio measured.
pub struct Fio {
    /// Reads and writes a second.
    pub per_second: f64,
    /// Reads and writes in all.
    pub n_requests: u64,
}

impl Fio {
    /// Runs a workload on a block device of `size` bytes, before all that is not real-time: fio's own waits for a processor
    /// are not the disk's.
    pub fn run(device: &Path, workload: &Workload, size: u64) -> anyhow::Result<Self> {
        let place = if workload.is_random { "rand" } else { "" };
        let way = match workload.read_percent {
            0 => "write",
            100 => "read",
            _ => "rw",
        };
        let bytes =
            |share: f64| (size as f64 * share) as u64 / workload.block_bytes * workload.block_bytes;
        let (from, to) = (bytes(workload.from), bytes(workload.to));
        let text = Tool::new("chrt")
            .args(["--fifo", "5", "fio", "--name=x", "--output-format=json"])
            .arg(format!("--filename={}", device.display()))
            .args([
                "--direct=1",
                "--ioengine=libaio",
                "--time_based",
                "--randrepeat=0",
            ])
            .arg(format!("--rw={place}{way}"))
            .arg(format!("--rwmixread={}", workload.read_percent))
            .arg(format!("--bs={}", workload.block_bytes))
            .arg(format!("--iodepth={}", workload.depth))
            .arg(format!("--fsync={}", u8::from(workload.flushes)))
            .arg(format!("--offset={from}"))
            .arg(format!("--size={}", to - from))
            .arg(format!("--runtime={}", workload.seconds))
            .run()?;
        let result: Value = serde_json::from_str(&text).context("read fio's result")?;
        let sum = |key: &str| -> Option<f64> {
            let job = &result["jobs"][0];
            Some(job["read"][key].as_f64()? + job["write"][key].as_f64()?)
        };
        Ok(Self {
            per_second: sum("iops").context("find fio's rate")?,
            n_requests: sum("total_ios").context("find fio's count")? as u64,
        })
    }
}
