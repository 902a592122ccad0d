//! What a process of ours gives up for good before it reads what others made up: capabilities, its user, memory and
//! time, system calls.
//!
//! Each function does one of these for the calling thread (the system-call filter and the limits: for the process).
//! ARCHITECTURE.md, "Privileges", says which process does which.

pub mod limits;
pub mod system_calls;
pub mod user;

use std::io;

/// Why something could not be given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// Capabilities could not be set.
    #[error("give up capabilities")]
    Capabilities(#[source] caps::errors::CapsError),
    /// The user could not be changed.
    #[error("become user {uid}")]
    User {
        /// The user.
        uid: u32,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// A limit could not be set.
    #[error("limit its {what}")]
    Limit {
        /// The resource.
        what: &'static str,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// The filter could not be built or installed.
    #[error("install the system-call filter")]
    Filter(#[source] Box<dyn std::error::Error + Send + Sync>),
}
