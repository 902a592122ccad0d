//! Images whose data a server holds.

use nestrace_abi::flags::op;
use nestrace_trace::manifest::{Mount, Probe};

use super::ImageState;
use crate::model::file_io_span::FileIoSpan;
use crate::model::span::Below;

/// Clients of servers, each with whether all of its calls were recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordedRpcs {
    pub nfs: bool,
    pub smb: bool,
}

impl RecordedRpcs {
    /// As the attached probes say: where one sees a client's replies, all do.
    pub(crate) fn of(probes: &[Probe]) -> Self {
        let has = |name: &str| probes.iter().any(|probe| probe.name == name);
        Self {
            nfs: has("nfs_readpage_done"),
            smb: has("smb2_readv_callback"),
        }
    }
}

impl ImageState {
    /// Whether a server has its data.
    pub(crate) fn has_server(&self) -> bool {
        let mount = self.about.mount.as_ref();
        mount.is_some_and(|mount| mount.server().is_some())
    }

    /// Whether each call that carries the image's data to and from its server is in the recording.
    pub(super) fn has_rpcs(&self, recorded: RecordedRpcs) -> bool {
        let of_mount = |mount: &Mount| match mount.fs_type.as_str() {
            "nfs" | "nfs4" => recorded.nfs,
            "cifs" | "smb3" => recorded.smb,
            _ => false,
        };
        self.about.mount.as_ref().is_some_and(of_mount)
    }

    /// What the work of a file I/O goes on to. On a file system with its data on a server that is the server, unless its calls
    /// to the server were recorded, or the page cache may answer: reads and writes without O_DIRECT.
    pub(super) fn below(&self, file: &FileIoSpan, recorded: RecordedRpcs) -> Below {
        let moves = matches!(file.op, op::READ | op::WRITE | op::FSYNC | op::FDATASYNC);
        let is_apart = moves && self.has_rpcs(recorded);
        let is_direct = self.about.direct == Some(true);
        if self.has_server() && !is_apart && (file.syncs() || is_direct) {
            Below::Server
        } else {
            Below::Nothing
        }
    }
}
