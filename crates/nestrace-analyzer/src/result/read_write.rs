//! Bytes by direction.

use serde::Serialize;

/// Bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadWrite {
    /// Read.
    pub read: u64,
    /// Written.
    pub write: u64,
}
