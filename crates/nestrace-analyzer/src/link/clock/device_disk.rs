//! Which disk of QEMU a device of the guest is.

/// Which disk of QEMU a device of the guest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceDisk {
    /// This one.
    Is {
        /// Index into `Guest::disks`.
        disk: u32,
        /// How that was found: `serial`, `size`, `only disk`, `bus`, `requests`.
        proof: &'static str,
    },
    /// One of these; the requests will tell.
    OneOf(Vec<u32>),
    /// None that this host serves.
    Unknown {
        /// In words.
        reason: String,
    },
}
