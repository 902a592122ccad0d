//! What a monitor is asked about a guest.

use std::collections::BTreeMap;

use super::answers::{BlockDevice, BlockInfo, BlockStats, IoThread, Vcpu};
use super::set::SetNow;

/// What QEMU said about itself. Commands that an old QEMU lacks leave their part empty.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `query-name`.
    pub name: Option<String>,
    /// `query-uuid`; all zeroes counts as none.
    pub uuid: Option<String>,
    /// `7.2.22`.
    pub version: String,
    /// `query-kvm`: whether KVM runs the guest.
    pub kvm: Option<bool>,
    /// `query-block`: one per drive or device.
    pub blocks: Vec<BlockInfo>,
    /// `query-named-block-nodes`, flat.
    pub nodes: Vec<BlockDevice>,
    /// `query-blockstats` at the time of asking.
    pub stats: Vec<BlockStats>,
    /// `query-iothreads`: name and thread id.
    pub iothreads: Vec<IoThread>,
    /// `query-cpus-fast`: number and thread id.
    pub vcpus: Vec<Vcpu>,
    /// Driver (`virtio-blk-pci`) of each device that `blocks` names by an id.
    pub drivers: Vec<(String, String)>,
    /// `serial=` of the same devices, where one is set.
    pub serials: Vec<(String, String)>,
    /// `num-queues` of the same devices, of those that have it.
    pub queues: Vec<(String, u32)>,
    /// Driver of the controller that each of these devices on a SCSI bus is plugged into.
    pub controllers: Vec<(String, String)>,
    /// `query-fdsets`: `/dev/fdset/N` → `/proc/self/fd/N` of one descriptor in it.
    pub fd_sets: BTreeMap<String, String>,
    /// Path of the listening socket behind the agent's port, where the port was plugged in by id.
    pub agent: Option<String>,
    /// Throttle groups and jobs.
    pub set: SetNow,
}
