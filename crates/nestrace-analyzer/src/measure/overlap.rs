//! Where QEMU's time passes while a disk's I/O is under way, judged by what overlaps it.
//!
//! For each disk a few clocks run: one while QEMU has file I/O in flight on the disk's images, one
//! while such I/O has a bio at the device, one while it has bios waiting in the host's queue only.
//! The share of a QEMU request is the clock at its end minus the clock at its start. That is an
//! *estimate*: with several requests in flight, one may merely wait while the I/O of another runs.
//! A second count bounds it from below: at each instant no more requests can be served by the
//! host than file I/Os are in flight. Exact links come with chains.

/// Readings of a disk's clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// File I/O in flight.
    pub file_ns: u64,
    /// …and nothing at the device, but bios in the host's queue.
    pub queue_ns: u64,
    /// …and a bio at the device.
    pub device_ns: u64,
}

impl Clocks {
    pub(crate) fn since(self, start: Self) -> Self {
        Self {
            file_ns: self.file_ns.saturating_sub(start.file_ns),
            queue_ns: self.queue_ns.saturating_sub(start.queue_ns),
            device_ns: self.device_ns.saturating_sub(start.device_ns),
        }
    }
}

/// What is in flight for one disk, and its clocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity {
    now_ns: u64,
    /// QEMU requests.
    pub qemu: u64,
    /// File I/O calls.
    pub file: u64,
    /// Those that wait for the file system to sync: fsync, fdatasync, RWF_DSYNC writes.
    pub sync: u64,
    /// The image's bios from the page cache (read-ahead, write-back).
    pub cached: Stages,
    /// The image's bios of direct I/O; each is within a file I/O.
    pub direct: Stages,
    /// The file system's own bios on the image's devices.
    pub file_system: Stages,
    clocks: Clocks,
    /// Sum of QEMU requests in flight × time.
    pub qemu_ns: u128,
    /// Time with at least one QEMU request in flight.
    pub qemu_busy_ns: u64,
    /// Most QEMU requests in flight.
    pub qemu_max: u64,
    /// Sum of min(file I/Os, QEMU requests) × time: what the host has at least.
    pub file_at_least_ns: u128,
    /// File I/O on the disk's images began.
    pub any_file_io: bool,
    /// When file I/O that changes an image began last, or QEMU was asked for zeroes, which need none.
    pub last_change_ns: Option<u64>,
}

/// Bios between Q and D, and between D and C.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stages {
    pub queued: u64,
    pub issued: u64,
}

impl Activity {
    /// Lets the clocks run up to `ts_ns`; call before anything changes.
    #[inline]
    pub(crate) fn advance(&mut self, ts_ns: u64) {
        let passed = ts_ns.saturating_sub(self.now_ns);
        if passed == 0 {
            return;
        }
        self.now_ns = ts_ns;
        if self.qemu > 0 {
            self.qemu_ns += u128::from(self.qemu) * u128::from(passed);
            self.qemu_busy_ns = self.qemu_busy_ns.saturating_add(passed);
            self.qemu_max = self.qemu_max.max(self.qemu);
        }
        // Direct I/O under way is file I/O under way, also where its call was not recorded.
        let direct = u64::from(self.direct.queued + self.direct.issued > 0);
        let file = self.file.max(direct);
        if file == 0 {
            return;
        }
        self.file_at_least_ns += u128::from(file.min(self.qemu)) * u128::from(passed);
        self.clocks.file_ns = self.clocks.file_ns.saturating_add(passed);
        let syncing = self.sync > 0;
        if self.direct.issued + self.cached.issued > 0 || (syncing && self.file_system.issued > 0) {
            self.clocks.device_ns = self.clocks.device_ns.saturating_add(passed);
        } else if self.direct.queued + self.cached.queued > 0
            || (syncing && self.file_system.queued > 0)
        {
            self.clocks.queue_ns = self.clocks.queue_ns.saturating_add(passed);
        }
    }

    /// The clocks at `ts_ns`.
    pub(crate) fn clocks(&mut self, ts_ns: u64) -> Clocks {
        self.advance(ts_ns);
        self.clocks
    }
}
