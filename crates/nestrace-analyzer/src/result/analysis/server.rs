//! Servers that hold the data of devices and images.

use std::fmt;

use nestrace_trace::manifest;
use serde::Serialize;

/// A server on a network that holds the data of a block device or of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Server {
    /// `nbd`, `iscsi`, `rbd`, `nvme-tcp`, `nfs`, `cifs`, …
    pub protocol: String,
    /// Host and port, or the path of a socket; several are joined by commas. `null` where it is not known.
    pub address: Option<String>,
    /// What it is called there: export, target, pool and image, NQN. `null` where it is not known.
    pub name: Option<String>,
    /// All of it.
    #[serde(skip)]
    in_words: String,
}

impl From<&manifest::Server> for Server {
    fn from(server: &manifest::Server) -> Self {
        let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Self {
            protocol: server.protocol.clone(),
            address: known(&server.address),
            name: known(&server.name),
            in_words: server.to_string(),
        }
    }
}

impl fmt::Display for Server {
    /// `nbd server 10.0.0.1:10809 (export)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_words)
    }
}
