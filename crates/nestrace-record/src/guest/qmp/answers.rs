//! What QMP answers, as far as it is used: unknown keys are skipped, missing ones are empty.

use nestrace_trace::manifest::{Limit, LimitPlace, Limited};
use serde::Deserialize;
use serde_json::Value;

/// One row of `query-block`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct BlockInfo {
    /// The drive's id; empty for `-blockdev`.
    pub device: String,
    /// The device's id or QOM path.
    pub qdev: Option<String>,
    /// The medium.
    pub inserted: Option<BlockDevice>,
}

impl BlockInfo {
    /// The `-device` id; `None` for a device without one.
    #[must_use]
    pub fn qdev_id(&self) -> Option<&str> {
        let qdev = self.qdev.as_deref()?;
        match qdev.strip_prefix("/machine/peripheral/") {
            Some(rest) => rest.split('/').next(),
            None => (!qdev.starts_with('/')).then_some(qdev),
        }
    }
}

/// A block node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BlockDevice {
    /// Node name.
    #[serde(rename = "node-name")]
    pub node_name: Option<String>,
    /// File name; may be `json:{…}`.
    pub file: String,
    /// Driver.
    pub drv: String,
    /// Read-only.
    pub ro: bool,
    /// Cache switches.
    pub cache: Option<CacheInfo>,
    /// The chain of images.
    pub image: Option<ImageInfo>,
    /// QEMU's throttle of the drive.
    #[serde(flatten)]
    pub iotune: Iotune,
}

/// QEMU's throttle of a drive or of a throttle group: requests or bytes a second, 0 for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Iotune {
    /// Requests.
    pub iops: u64,
    /// Reads.
    pub iops_rd: u64,
    /// Writes.
    pub iops_wr: u64,
    /// Bytes.
    pub bps: u64,
    /// Bytes read.
    pub bps_rd: u64,
    /// Bytes written.
    pub bps_wr: u64,
    /// The throttle group: the drive's own name, or one that several drives share.
    pub group: Option<String>,
}

impl Iotune {
    /// The limits that are set.
    #[must_use]
    pub fn limits(&self, set_with: LimitPlace, name: &str) -> Vec<Limit> {
        let all = [
            (Limited::Requests, self.iops),
            (Limited::Reads, self.iops_rd),
            (Limited::Writes, self.iops_wr),
            (Limited::Bytes, self.bps),
            (Limited::BytesRead, self.bps_rd),
            (Limited::BytesWritten, self.bps_wr),
        ];
        let set = all.into_iter().filter(|(_, value)| *value > 0);
        let limit = |(bounds, value)| Limit {
            set_with,
            name: name.to_owned(),
            device: None,
            bounds,
            value,
        };
        set.map(limit).collect()
    }
}

/// `limits` of an object `throttle-group`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct ThrottleLimits {
    iops_total: u64,
    iops_read: u64,
    iops_write: u64,
    bps_total: u64,
    bps_read: u64,
    bps_write: u64,
}

impl From<ThrottleLimits> for Iotune {
    fn from(limits: ThrottleLimits) -> Self {
        Self {
            iops: limits.iops_total,
            iops_rd: limits.iops_read,
            iops_wr: limits.iops_write,
            bps: limits.bps_total,
            bps_rd: limits.bps_read,
            bps_wr: limits.bps_write,
            group: None,
        }
    }
}

/// A row of `query-jobs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct JobRow {
    /// Its id.
    pub id: String,
    /// `mirror`, `backup`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// `running`, `paused`, …
    pub status: String,
    /// How much is done, for a block job in bytes.
    pub current_progress: u64,
    /// What that ends at.
    pub total_progress: u64,
}

/// A row of `query-block-jobs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BlockJobRow {
    /// The job's id.
    pub device: String,
    /// Bytes a second that it may copy; 0 for no limit.
    pub speed: u64,
}

/// `x-debug-query-block-graph`: which nodes are below a drive, and which a job works on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<GraphNode>,
    pub(super) edges: Vec<GraphEdge>,
}

/// A drive, a job or a block node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GraphNode {
    pub(super) id: u64,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) name: String,
}

/// One node uses another.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GraphEdge {
    pub(super) parent: u64,
    pub(super) child: u64,
    pub(super) name: String,
}

/// Cache switches of a node and of the backend above it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct CacheInfo {
    /// The guest sees a write cache.
    pub writeback: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// Flushes are dropped.
    pub no_flush: bool,
}

/// An image and what lies behind it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ImageInfo {
    /// File name; may be `json:{…}`.
    pub filename: String,
    /// Driver of the node.
    pub format: String,
    /// Bytes that the guest sees.
    pub virtual_size: u64,
    /// The backing image.
    pub backing_image: Option<Box<Self>>,
    /// Facts of the format.
    pub format_specific: Option<Value>,
}

impl ImageInfo {
    /// qcow2's external data file.
    #[must_use]
    pub fn data_file(&self) -> Option<&str> {
        self.format_specific
            .as_ref()?
            .get("data")?
            .get("data-file")?
            .as_str()
    }
}

/// An iothread.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct IoThread {
    /// Its id.
    pub id: String,
    /// Its thread on the host.
    pub thread_id: u32,
}

/// A virtual processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Vcpu {
    /// Its number.
    pub cpu_index: u32,
    /// Its thread on the host.
    pub thread_id: u32,
}

/// QEMU's count of one backend's requests. `*_operations` contain the merged ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// The drive's id, if it has one.
    pub device: Option<String>,
    /// The device's QOM path or id.
    pub qdev: Option<String>,
    /// The node at the top.
    pub node: Option<String>,
    /// The counts.
    pub counts: BlockCounts,
}

/// Counts of requests and bytes since QEMU started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BlockCounts {
    /// Reads.
    pub rd_operations: u64,
    /// Writes, write-zeroes included.
    pub wr_operations: u64,
    /// Flushes.
    pub flush_operations: u64,
    /// Discards.
    pub unmap_operations: u64,
    /// Bytes read.
    pub rd_bytes: u64,
    /// Bytes written.
    pub wr_bytes: u64,
    /// Bytes discarded.
    pub unmap_bytes: u64,
    /// Reads that were merged into others.
    pub rd_merged: u64,
    /// Writes that were merged into others.
    pub wr_merged: u64,
    /// Discards that were merged into others.
    pub unmap_merged: u64,
    /// Nanoseconds in reads.
    pub rd_total_time_ns: u64,
    /// Nanoseconds in writes.
    pub wr_total_time_ns: u64,
    /// Nanoseconds in flushes.
    pub flush_total_time_ns: u64,
    /// Reads that failed.
    pub failed_rd_operations: u64,
    /// Writes that failed.
    pub failed_wr_operations: u64,
    /// Flushes that failed.
    pub failed_flush_operations: u64,
    /// Discards that failed.
    pub failed_unmap_operations: u64,
    /// Reads that asked for something impossible.
    pub invalid_rd_operations: u64,
    /// Writes that asked for something impossible.
    pub invalid_wr_operations: u64,
    /// Flushes that asked for something impossible.
    pub invalid_flush_operations: u64,
    /// Discards that asked for something impossible.
    pub invalid_unmap_operations: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct StatsRow {
    pub(super) device: Option<String>,
    pub(super) qdev: Option<String>,
    pub(super) node_name: Option<String>,
    pub(super) stats: BlockCounts,
}

/// One row of `query-fdsets`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct FdSet {
    fdset_id: u64,
    #[serde(default)]
    fds: Vec<FdOfSet>,
}

#[derive(Deserialize)]
struct FdOfSet {
    fd: u32,
}

impl FdSet {
    /// The set's name as a file, and that of its first descriptor. All of a set are one file, opened in several ways.
    pub(super) fn names(&self) -> Option<(String, String)> {
        let fd = self.fds.first()?.fd;
        Some((
            format!("/dev/fdset/{}", self.fdset_id),
            format!("/proc/self/fd/{fd}"),
        ))
    }
}

/// One row of `qom-list`.
#[derive(Deserialize)]
pub(super) struct Property {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// One row of `query-chardev`.
#[derive(Deserialize)]
pub(super) struct Chardev {
    pub(super) label: String,
    pub(super) filename: String,
}

impl Chardev {
    /// The path in `disconnected:unix:/path,server=on` or `unix:/path,server`.
    pub(super) fn socket(&self) -> Option<&str> {
        let name = self.filename.strip_prefix("disconnected:");
        let path = name.unwrap_or(&self.filename).strip_prefix("unix:")?;
        let (path, _) = path.rsplit_once(",server")?;
        path.starts_with('/').then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_chardevs() {
        for (filename, expected) in [
            ("disconnected:unix:/a,b/s,server=on", Some("/a,b/s")),
            ("unix:/s,server", Some("/s")),
            ("unix:/s", None),
            ("pty:/dev/pts/1", None),
        ] {
            let chardev = Chardev {
                label: String::new(),
                filename: filename.to_owned(),
            };
            assert_eq!(chardev.socket(), expected, "{filename}");
        }
    }
}
