//! Devices that stand on other devices and hand bios on to them.

/// Drivers that hand bios on to devices below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacking {
    /// Device mapper.
    Dm,
    /// Software RAID.
    Md,
}
