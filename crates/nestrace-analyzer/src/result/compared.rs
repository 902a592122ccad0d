//! What compared values are of: their layer, operation and unit.

use crate::result::word::words;

words! {
    /// An operation whose values are kept apart.
    #[non_exhaustive]
    pub enum IoOperation {
        /// Reads.
        Read = "read",
        /// Writes, write-zeroes included.
        Write = "write",
        /// Discards.
        Discard = "discard",
        /// Flushes.
        Flush = "flush",
    }

    /// Where a compared value was measured.
    #[non_exhaustive]
    pub enum MetricLayer {
        /// The guest's block layer.
        Guest = "guest",
        /// QEMU's accounting.
        Qemu = "qemu",
        /// A segment of linked bios or calls.
        Segment = "segment",
        /// Calls of a guest's programs.
        Call = "call",
        /// What a layer made of the I/O above it.
        Amplification = "amplification",
        /// A block device.
        Device = "device",
    }

    /// The unit of a compared value.
    #[non_exhaustive]
    pub enum Unit {
        /// Nanoseconds.
        Ns = "ns",
        /// Bytes.
        Bytes = "bytes",
        /// Bytes per second.
        BytesPerSecond = "bytes_per_second",
        /// Events per second.
        PerSecond = "per_second",
        /// A part of a whole, 0 to 1.
        Share = "share",
        /// A ratio.
        Ratio = "ratio",
        /// A number of events or objects.
        Count = "count",
    }
}

impl IoOperation {
    /// All of them, in the order in which sums keep them.
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Flush];
}
