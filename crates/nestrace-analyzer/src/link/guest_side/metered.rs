//! Counts of a device number.

use crate::measure::device::DeviceMeter;
use crate::result::read_write::ReadWrite;

/// Counts of a device number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Metered {
    /// D of requests with data.
    pub issued: u64,
    /// Flushes that were issued to the device.
    pub flushes: u64,
    /// Bios that were refused at once.
    pub refused: u64,
    /// Bytes that requests have moved.
    pub bytes: ReadWrite,
}

impl Metered {
    pub(super) fn of(meter: &DeviceMeter) -> Self {
        Self {
            issued: meter.issued,
            flushes: meter.device_flushes,
            refused: meter.check.refused,
            bytes: ReadWrite {
                read: meter.bytes.read,
                write: meter.bytes.write,
            },
        }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            issued: self.issued.saturating_sub(before.issued),
            flushes: self.flushes.saturating_sub(before.flushes),
            refused: self.refused.saturating_sub(before.refused),
            bytes: ReadWrite {
                read: self.bytes.read.saturating_sub(before.bytes.read),
                write: self.bytes.write.saturating_sub(before.bytes.write),
            },
        }
    }
}
