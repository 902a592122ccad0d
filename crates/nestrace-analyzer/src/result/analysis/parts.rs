//! The parts of an I/O's way.

use serde::Serialize;

use crate::result::dist::Dist;

/// The parts of a bio's way. Q2G + G2I + I2D + D2C = Q2C, with G2D in the place of G2I + I2D
/// where there was no insert event, and Q2M + M2D + D2C = Q2C for a merged bio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Parts {
    /// Queued to handed on to a device below, one sample for each remap (dm, md).
    pub q2a: Option<Dist>,
    /// Queued to request allocated, one sample for each fragment.
    pub q2g: Option<Dist>,
    /// Waiting for a free request (kernels before 5.0), a part of Q2G.
    pub s2g: Option<Dist>,
    /// Allocated to inserted into the scheduler, one sample for each fragment.
    pub g2i: Option<Dist>,
    /// Allocated to issued, where nothing was inserted.
    pub g2d: Option<Dist>,
    /// Inserted to issued.
    pub i2d: Option<Dist>,
    /// Queued to merged.
    pub q2m: Option<Dist>,
    /// Merged to issued.
    pub m2d: Option<Dist>,
    /// Issued to completed. In a light recording one sample for each request, else each bio.
    pub d2c: Option<Dist>,
    /// Queued to completed.
    pub q2c: Option<Dist>,
}
