//! Devices that stand on other devices and hand bios on to them.

/// Drivers that hand bios on to devices below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacking {
    /// Device mapper.
    Dm,
    /// Software RAID.
    Md,
    /// bcache. It moves the bio itself to its backing device, so that the bio ends there.
    Bcache,
}

impl Stacking {
    /// Of a device's kind, as the topology has it.
    pub(crate) fn of(kind: &str) -> Option<Self> {
        match kind {
            "dm" => Some(Self::Dm),
            "md" => Some(Self::Md),
            "bcache" => Some(Self::Bcache),
            _ => None,
        }
    }
}
