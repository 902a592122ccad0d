//! Whether a recording shows where kernels and processes keep their memory.

use serde::{Deserialize, Serialize};

/// What the addresses of a stream are, and those of [`super::Guest::backends`] in the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Addresses {
    /// Those of the machine, as releases before 0.2 wrote them.
    #[default]
    Recorded,
    /// Shifted by a secret of the recording ([`crate::address`]).
    Shifted,
    /// There are none: a capture of blktrace.
    Absent,
}
