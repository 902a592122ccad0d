//! Images whose data a server holds.

use nestrace_abi::flags::op;
use nestrace_trace::manifest::Mount;

use super::ImageState;
use crate::model::file_io_span::FileIoSpan;
use crate::model::span::Below;

impl ImageState {
    /// Whether a server has its data.
    pub(crate) fn has_server(&self) -> bool {
        let mount = self.about.mount.as_ref();
        mount.is_some_and(|mount| mount.server().is_some())
    }

    /// Whether each call that carries the image's data to and from its server is in the recording; `recorded` says that of
    /// calls of NFS' client.
    pub(super) fn has_rpcs(&self, recorded: bool) -> bool {
        let is_nfs = |mount: &Mount| matches!(mount.fs_type.as_str(), "nfs" | "nfs4");
        recorded && self.about.mount.as_ref().is_some_and(is_nfs)
    }

    /// What the work of a file I/O goes on to. On a file system with its data on a server that is the server, unless its calls
    /// to the server were recorded, or the page cache may answer: reads and writes without O_DIRECT.
    pub(super) fn below(&self, file: &FileIoSpan, rpcs_recorded: bool) -> Below {
        let moves = matches!(file.op, op::READ | op::WRITE | op::FSYNC | op::FDATASYNC);
        let is_apart = moves && self.has_rpcs(rpcs_recorded);
        let is_direct = self.about.direct == Some(true);
        if self.has_server() && !is_apart && (file.syncs() || is_direct) {
            Below::Server
        } else {
            Below::Nothing
        }
    }
}
