//! Servers that hold the data of devices and file systems, as this host's kernel reaches them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A server that holds the data of a block device or of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Server {
    /// `nbd`, `iscsi`, `rbd`, `nvme-tcp`, `nvme-rdma`, `nvme-fc`, `nvme-loop`, `nfs`, `cifs`, …
    pub protocol: String,
    /// Host and port, or the path of a socket; several are joined by commas. Empty if it is not known.
    pub address: String,
    /// What it is called there: export, target, pool and image, NQN. Empty if it is not known.
    pub name: String,
}

impl fmt::Display for Server {
    /// `nbd server 10.0.0.1:10809 (export)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} server", self.protocol)?;
        if !self.address.is_empty() {
            write!(f, " {}", self.address)?;
        }
        if !self.name.is_empty() {
            write!(f, " ({})", self.name)?;
        }
        Ok(())
    }
}
