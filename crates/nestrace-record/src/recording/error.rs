//! Why a recording could not begin or go on.

use std::io;
use std::path::PathBuf;

use nestrace_output::bundle_dir::BundleError;
use nestrace_probes::ProbeError;

use crate::qemu_symbols::debug_file::DebugFileError;
use crate::sandbox::SandboxError;

/// Why a recording could not begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The probes could not be used.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The bundle could not be made or written.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A process beside the recorder could not be started.
    #[error("start {name}")]
    Helper {
        /// Which.
        name: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What the recorder gives up could not be made ready.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The command could not be started.
    #[error("start {program}")]
    Command {
        /// Its program.
        program: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file that a flight recorder waits for cannot be waited for.
    #[error("watch for {}", path.display())]
    UntilFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The system gave no random bytes.
    #[error("draw the secret that hides addresses")]
    Secret(#[source] io::Error),
    /// The file of QEMU's debug symbols is of no use for a guest's QEMU.
    #[error("the file of --qemu-debug cannot be used for {guest}")]
    QemuDebug {
        /// The guest.
        guest: String,
        /// Why.
        #[source]
        error: DebugFileError,
    },
}
