//! Resource limits, and that execve gives nothing back.

use std::io;

use nix::sys::resource::{Resource, setrlimit};

use super::ConfineError;

/// Limits of a process. `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Bytes of address space.
    pub address_space_bytes: Option<u64>,
    /// Seconds of processor time.
    pub cpu_seconds: Option<u64>,
    /// Descriptors.
    pub descriptors: Option<u64>,
    /// Bytes of a file that it may write.
    pub file_bytes: Option<u64>,
    /// Processes and threads of its user.
    pub threads: Option<u64>,
}

impl Limits {
    /// Sets them, and that no core is dumped.
    ///
    /// # Errors
    /// [`ConfineError::Limit`].
    pub fn set(&self) -> Result<(), ConfineError> {
        for (what, resource, value) in [
            (
                "address space",
                Resource::RLIMIT_AS,
                self.address_space_bytes,
            ),
            ("processor time", Resource::RLIMIT_CPU, self.cpu_seconds),
            ("descriptors", Resource::RLIMIT_NOFILE, self.descriptors),
            ("file size", Resource::RLIMIT_FSIZE, self.file_bytes),
            ("threads", Resource::RLIMIT_NPROC, self.threads),
            ("core dumps", Resource::RLIMIT_CORE, Some(0)),
        ] {
            if let Some(value) = value {
                setrlimit(resource, value, value).map_err(|error| ConfineError::Limit {
                    what,
                    error: error.into(),
                })?;
            }
        }
        Ok(())
    }
}

/// No program that is executed from here on has more privileges, and other processes of the same user cannot look into
/// this one.
///
/// # Errors
/// What the system says.
pub fn no_new_privileges() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}
