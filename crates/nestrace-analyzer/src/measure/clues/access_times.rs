//! Metadata that is written while files are only read.

/// How long nothing must have changed until metadata writes are put down to reading:
/// ext4 and jbd2 commit what a change left within 5 s.
const QUIET_NS: u64 = 6_000_000_000;

/// What was counted while nothing was changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessTimeCounts {
    /// Calls that read a file.
    pub calls: u64,
    /// Bios that read.
    pub reads: u64,
    /// Bios that wrote metadata or journal.
    pub metadata_writes: u64,
    /// Their bytes.
    pub metadata_bytes: u64,
}

impl AccessTimeCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.reads += other.reads;
        self.metadata_writes += other.metadata_writes;
        self.metadata_bytes += other.metadata_bytes;
    }
}

/// Follows one file system; all times are of its machine.
#[derive(Debug, Default)]
pub(super) struct AccessTimes {
    /// Last change that is known of.
    changed_ns: Option<u64>,
    /// Somebody has read: before that nothing is reading's doing.
    has_read: bool,
    pub counts: AccessTimeCounts,
}

impl AccessTimes {
    /// A file was written, allocated or cut.
    pub(super) fn changed(&mut self, at_ns: u64) {
        self.changed_ns = self.changed_ns.max(Some(at_ns));
    }

    /// A call read a file.
    pub(super) fn called(&mut self, at_ns: u64) {
        self.has_read = true;
        self.counts.calls += u64::from(self.is_quiet(at_ns));
    }

    /// A bio read.
    pub(super) fn read(&mut self, at_ns: u64) {
        self.counts.reads += u64::from(self.is_quiet(at_ns));
    }

    /// A bio wrote metadata or journal.
    pub(super) fn metadata(&mut self, at_ns: u64, bytes: u64) {
        if self.has_read && self.is_quiet(at_ns) {
            self.counts.metadata_writes += 1;
            self.counts.metadata_bytes += bytes;
        }
    }

    fn is_quiet(&self, at_ns: u64) -> bool {
        self.changed_ns
            .is_none_or(|changed_ns| at_ns >= changed_ns.saturating_add(QUIET_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn only_what_comes_long_after_the_last_change_counts() {
        let mut times = AccessTimes::default();
        times.metadata(S, 4096);
        assert_eq!(times.counts.metadata_writes, 0, "nobody has read");
        times.called(2 * S);
        times.metadata(2 * S, 4096);
        times.changed(8 * S);
        times.metadata(13 * S, 4096);
        times.called(13 * S);
        assert_eq!(times.counts.metadata_writes, 1, "the change's own");
        times.metadata(14 * S, 512);
        times.called(14 * S);
        let counts = times.counts;
        assert_eq!(
            (counts.metadata_writes, counts.metadata_bytes, counts.calls),
            (2, 4608, 2)
        );
    }
}
