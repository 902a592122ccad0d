//! The segments of a chain.

/// How many segments there are.
pub(crate) const SEGMENTS: usize = Segment::ALL.len();

/// The names of a chain's segments, in the order of the path. [`Chains::segments`](crate::analysis::Chains::segments)
/// and [`Story::segments`](crate::analysis::Story::segments) use them.
pub const SEGMENT_NAMES: [&str; SEGMENTS] = {
    let mut names = [""; SEGMENTS];
    let mut place = 0;
    while place < SEGMENTS {
        names[place] = Segment::ALL[place].name();
        place += 1;
    }
    names
};

/// A part of a guest bio's latency, in the order of its path: down to the device, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Segment {
    GuestQueue,
    VirtSubmit,
    QemuSubmit,
    HostFsSubmit,
    HostQueue,
    Device,
    DeviceFlush,
    HostFsBetween,
    HostFsComplete,
    QemuBetween,
    QemuComplete,
    VirtComplete,
}

impl Segment {
    /// Every segment, in the order of the path.
    pub(crate) const ALL: [Self; 12] = [
        Self::GuestQueue,
        Self::VirtSubmit,
        Self::QemuSubmit,
        Self::HostFsSubmit,
        Self::HostQueue,
        Self::Device,
        Self::DeviceFlush,
        Self::HostFsBetween,
        Self::HostFsComplete,
        Self::QemuBetween,
        Self::QemuComplete,
        Self::VirtComplete,
    ];

    /// The name in JSON and in text.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GuestQueue => "guest_queue",
            Self::VirtSubmit => "virt_submit",
            Self::QemuSubmit => "qemu_submit",
            Self::HostFsSubmit => "host_fs_submit",
            Self::HostQueue => "host_queue",
            Self::Device => "device",
            Self::DeviceFlush => "device_flush",
            Self::HostFsBetween => "host_fs_between",
            Self::HostFsComplete => "host_fs_complete",
            Self::QemuBetween => "qemu_between",
            Self::QemuComplete => "qemu_complete",
            Self::VirtComplete => "virt_complete",
        }
    }

    /// Whether it is time at a host device.
    pub(crate) const fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::DeviceFlush)
    }
}

/// The names of all segments, in the order of the path.
pub(crate) fn segment_names() -> impl Iterator<Item = &'static str> {
    Segment::ALL.into_iter().map(Segment::name)
}
