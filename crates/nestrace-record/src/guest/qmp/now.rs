//! What QEMU says of its I/O at this moment: run state, requests in flight, completions, limits, jobs.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{BlockInfo, IoThread, Vcpu};
use super::set::{self, SetNow};
use super::{Qmp, QmpError};

/// Virtqueues of one guest that are asked for what is in flight; a virtio-blk device has one for each processor.
const MAX_QUEUES: u64 = 128;
/// Queues of a virtio-scsi controller that carry no requests: control and events.
const SCSI_QUEUES_BEFORE: u64 = 2;

/// QEMU's answers.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// `query-status`: `running`, `paused`, `io-error`, …
    pub run_state: Option<String>,
    /// `query-block`.
    pub blocks: Vec<BlockNow>,
    /// `query-blockstats`.
    pub stats: Vec<StatsNow>,
    /// What each virtio device has taken from its queues and not completed (`x-query-virtio-queue-status`, since 7.1).
    pub queues: Vec<QueuesNow>,
    /// Limits and jobs.
    pub set: SetNow,
    /// `query-iothreads`.
    pub iothreads: Vec<IoThread>,
    /// `query-cpus-fast`: number and thread of each virtual processor.
    pub processors: Vec<Vcpu>,
}

/// A row of `query-block`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct BlockNow {
    /// Names, as every row has them.
    #[serde(flatten)]
    pub info: BlockInfo,
    /// `ok`, `failed`, `nospace`.
    pub io_status: Option<String>,
}

/// A row of `query-blockstats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct StatsNow {
    /// The drive's id.
    pub device: Option<String>,
    /// The device's id or QOM path.
    pub qdev: Option<String>,
    /// The node at the top.
    pub node_name: Option<String>,
    /// Counts since the start of QEMU.
    pub stats: CountsNow,
}

/// Counts of completions since the start of QEMU.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CountsNow {
    /// Reads.
    pub rd_operations: u64,
    /// Writes.
    pub wr_operations: u64,
    /// Flushes.
    pub flush_operations: u64,
    /// Discards.
    pub unmap_operations: u64,
    /// Reads, writes, flushes and discards that failed.
    pub failed_rd_operations: u64,
    /// Writes that failed.
    pub failed_wr_operations: u64,
    /// Bytes read.
    pub rd_bytes: u64,
    /// Bytes written.
    pub wr_bytes: u64,
    /// Nanoseconds in reads.
    pub rd_total_time_ns: u64,
    /// Nanoseconds in writes.
    pub wr_total_time_ns: u64,
    /// Nanoseconds in flushes.
    pub flush_total_time_ns: u64,
    /// Nanoseconds in discards.
    pub unmap_total_time_ns: u64,
    /// Nanoseconds since the last completion; absent before the first.
    pub idle_time_ns: Option<u64>,
}

/// What a virtio device has in flight.
#[derive(Clone, Debug, Default)]
pub struct QueuesNow {
    /// `virtio-blk`, `virtio-scsi`.
    pub kind: String,
    /// QOM path.
    pub path: String,
    /// Requests in flight.
    pub in_flight: u64,
}

#[derive(Deserialize)]
struct VirtioDevice {
    name: String,
    path: String,
}

/// Asks once, and leaves.
///
/// # Errors
///
/// As [`Qmp::connect`] and [`Qmp::execute`]; only `query-status` and `query-block` are indispensable.
pub fn now(pid: u32, path: &str) -> Result<Now, QmpError> {
    let mut qmp = Qmp::connect(pid, path)?;
    let nothing = Value::Null;
    let status = qmp.execute("query-status", &nothing)?;
    let run_state = status.get("status").and_then(Value::as_str);
    let mut now = Now {
        run_state: run_state.map(str::to_owned),
        ..Now::default()
    };
    now.blocks = qmp.ask("query-block", &nothing)?;
    let blocks = now.blocks.iter().map(|block| &block.info);
    now.set = set::ask_about(&mut qmp, blocks, &BTreeSet::new());
    now.stats = qmp.ask("query-blockstats", &nothing).unwrap_or_default();
    now.queues = queues(&mut qmp);
    now.iothreads = qmp.ask("query-iothreads", &nothing).unwrap_or_default();
    now.processors = qmp.ask("query-cpus-fast", &nothing).unwrap_or_default();
    Ok(now)
}

/// What the queues of disks hold. Where a QEMU does not have these commands, or leaves an answer out, nothing is said.
fn queues(qmp: &mut Qmp) -> Vec<QueuesNow> {
    let devices: Vec<VirtioDevice> = qmp.ask("x-query-virtio", &Value::Null).unwrap_or_default();
    let mut left = MAX_QUEUES;
    let mut found = Vec::new();
    for VirtioDevice { name, path } in devices {
        let first = match name.as_str() {
            "virtio-blk" => 0,
            "virtio-scsi" => SCSI_QUEUES_BEFORE,
            _ => continue,
        };
        let Some(in_flight) = in_flight(qmp, &path, first, &mut left) else {
            continue;
        };
        found.push(QueuesNow {
            kind: name,
            path,
            in_flight,
        });
    }
    found
}

fn in_flight(qmp: &mut Qmp, path: &str, first: u64, left: &mut u64) -> Option<u64> {
    let status = qmp.execute("x-query-virtio-status", &json!({ "path": path }));
    let n_queues = status.ok()?.get("num-vqs")?.as_u64()?;
    let mut sum = 0u64;
    for queue in first..n_queues {
        *left = left.checked_sub(1)?;
        let question = json!({ "path": path, "queue": queue });
        match qmp.execute("x-query-virtio-queue-status", &question) {
            Ok(status) => sum = sum.saturating_add(status.get("inuse")?.as_u64()?),
            // A queue that the guest does not use.
            Err(QmpError::Refused { .. }) => {}
            Err(_) => return None,
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_blocks() {
        let row = json!({
            "io-status": "nospace", "device": "d0", "qdev": "/machine/peripheral/d0/virtio-backend",
            "inserted": { "iops": 1, "bps_wr": 7, "file": "a.raw", "image": { "filename": "a.raw" } }
        });
        let block: BlockNow = serde_json::from_value(row).unwrap();
        assert_eq!(block.io_status.as_deref(), Some("nospace"));
        assert_eq!(block.info.qdev_id(), Some("d0"));
        let medium = block.info.inserted.unwrap();
        let tune = &medium.iotune;
        assert_eq!(
            (tune.iops, tune.bps_wr, medium.file.as_str()),
            (1, 7, "a.raw")
        );
    }

    #[test]
    fn rows_of_statistics() {
        let row = json!({ "device": "d0", "node-name": "#block1", "stats": { "rd_operations": 3, "idle_time_ns": 9 } });
        let stats: StatsNow = serde_json::from_value(row).unwrap();
        assert_eq!(
            (stats.stats.rd_operations, stats.stats.idle_time_ns),
            (3, Some(9))
        );
        assert_eq!(stats.node_name.as_deref(), Some("#block1"));
    }
}
