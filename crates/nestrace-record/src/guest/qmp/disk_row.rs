//! Which row of an answer is about which disk of the topology.

use nestrace_trace::manifest::Disk;

use super::answers::BlockInfo;

/// Whether a row with these names is of a disk.
pub(crate) fn is_of(
    disk: &Disk,
    device: Option<&str>,
    qdev: Option<&str>,
    node: Option<&str>,
) -> bool {
    let info = BlockInfo {
        qdev: qdev.map(str::to_owned),
        ..BlockInfo::default()
    };
    if let (Some(own), Some(id)) = (disk.qdev.as_deref(), info.qdev_id()) {
        return own == id;
    }
    device.is_some_and(|device| !device.is_empty() && device == disk.name)
        || node.is_some_and(|node| disk.node.as_deref() == Some(node))
}

/// Whether a row of `query-block` is about a disk.
pub(crate) fn is_row_of(disk: &Disk, row: &BlockInfo) -> bool {
    let node = row.inserted.as_ref();
    let node = node.and_then(|node| node.node_name.as_deref());
    is_of(disk, Some(&row.device), row.qdev.as_deref(), node)
}
