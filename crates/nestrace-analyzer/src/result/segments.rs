//! The segments of a chain, and of a call above it.

/// How many segments a chain has.
pub(crate) const SEGMENTS: usize = SegmentKind::OF_BIO.len();
/// How many segments a call has: its own, and those of the bios that it waited for.
pub(crate) const CALL_SEGMENTS: usize = SegmentKind::OF_CALL.len();

/// The names of a chain's segments, in the order of the path. [`Chains::segments`](crate::analysis::Chains::segments)
/// and [`Story::segments`](crate::analysis::Story::segments) use them.
pub const SEGMENT_NAMES: [&str; SEGMENTS] = names_of(SegmentKind::OF_BIO);

/// The names of the parts of a call's latency, in the order of the path: what
/// [`CallRow::segments`](crate::analysis::CallRow::segments) are called.
pub const CALL_SEGMENT_NAMES: [&str; CALL_SEGMENTS] = names_of(SegmentKind::OF_CALL);

const fn names_of<const N: usize>(segments: [SegmentKind; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut place = 0;
    while place < N {
        names[place] = segments[place].name();
        place += 1;
    }
    names
}

/// A part of a latency. Those of a guest bio come first, in the order of its path: down to the device, and back. Behind
/// them stand those above the guest's block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SegmentKind {
    GuestQueue,
    VirtSubmit,
    QemuSubmit,
    QemuJob,
    HostFsSubmit,
    HostQueue,
    StackSubmit,
    StackBetween,
    StackComplete,
    Device,
    DeviceFlush,
    Remote,
    HostFsBetween,
    HostFsComplete,
    QemuBetween,
    QemuComplete,
    VirtComplete,
    GuestFsSubmit,
    GuestDirtyThrottle,
    GuestPageWait,
    GuestJournal,
    GuestFsBetween,
    GuestFsComplete,
}

impl SegmentKind {
    /// The segments of a bio, in the order of the path.
    pub(crate) const OF_BIO: [Self; 17] = [
        Self::GuestQueue,
        Self::VirtSubmit,
        Self::QemuSubmit,
        Self::QemuJob,
        Self::HostFsSubmit,
        Self::HostQueue,
        Self::StackSubmit,
        Self::StackBetween,
        Self::StackComplete,
        Self::Device,
        Self::DeviceFlush,
        Self::Remote,
        Self::HostFsBetween,
        Self::HostFsComplete,
        Self::QemuBetween,
        Self::QemuComplete,
        Self::VirtComplete,
    ];

    /// The segments of a call, in the order of the path.
    pub(crate) const OF_CALL: [Self; 23] = [
        Self::GuestFsSubmit,
        Self::GuestDirtyThrottle,
        Self::GuestPageWait,
        Self::GuestJournal,
        Self::GuestQueue,
        Self::VirtSubmit,
        Self::QemuSubmit,
        Self::QemuJob,
        Self::HostFsSubmit,
        Self::HostQueue,
        Self::StackSubmit,
        Self::StackBetween,
        Self::StackComplete,
        Self::Device,
        Self::DeviceFlush,
        Self::Remote,
        Self::HostFsBetween,
        Self::HostFsComplete,
        Self::QemuBetween,
        Self::QemuComplete,
        Self::VirtComplete,
        Self::GuestFsBetween,
        Self::GuestFsComplete,
    ];

    /// The name in JSON and in text.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GuestQueue => "guest_queue",
            Self::VirtSubmit => "virt_submit",
            Self::QemuSubmit => "qemu_submit",
            Self::QemuJob => "qemu_job",
            Self::HostFsSubmit => "host_fs_submit",
            Self::HostQueue => "host_queue",
            Self::StackSubmit => "stack_submit",
            Self::StackBetween => "stack_between",
            Self::StackComplete => "stack_complete",
            Self::Device => "device",
            Self::DeviceFlush => "device_flush",
            Self::Remote => "remote",
            Self::HostFsBetween => "host_fs_between",
            Self::HostFsComplete => "host_fs_complete",
            Self::QemuBetween => "qemu_between",
            Self::QemuComplete => "qemu_complete",
            Self::VirtComplete => "virt_complete",
            Self::GuestFsSubmit => "guest_fs_submit",
            Self::GuestDirtyThrottle => "guest_dirty_throttle",
            Self::GuestPageWait => "guest_page_wait",
            Self::GuestJournal => "guest_journal",
            Self::GuestFsBetween => "guest_fs_between",
            Self::GuestFsComplete => "guest_fs_complete",
        }
    }

    /// The own time of devices that hand I/O on to devices below, in the order of the path.
    pub(crate) const OF_STACKS: [Self; 3] =
        [Self::StackSubmit, Self::StackBetween, Self::StackComplete];

    /// Whether it has an entry only where there is such time, with the layers that it is of.
    pub(crate) fn has_layers(self) -> bool {
        Self::OF_STACKS.contains(&self)
    }
}

/// The names of the segments of a bio, in the order of the path.
pub(crate) fn segment_names() -> impl Iterator<Item = &'static str> {
    SegmentKind::OF_BIO.into_iter().map(SegmentKind::name)
}
