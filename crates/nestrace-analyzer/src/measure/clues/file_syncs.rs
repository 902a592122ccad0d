//! How programs sync their files, for the rules about programs: what each sync carries, and what it waits for that is not
//! its own.

use crate::result::analysis::{CallFile, OthersData};

/// Syncs of one file by one program: `fsync`, `fdatasync`, and writes with O_SYNC or O_DSYNC.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSyncs {
    /// The program.
    pub program: String,
    /// Device number of the file's super block.
    pub dev: u32,
    pub file: CallFile,
    pub counts: SyncCounts,
    /// Other files whose data its commits wrote, most bytes first.
    pub others_data: Vec<OthersData>,
    /// Programs and files for which commits were made that these syncs had to let end first.
    pub behind: Vec<(String, CallFile)>,
}

/// Figures of them. Times are nanoseconds of syncs whose I/O was followed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncCounts {
    /// Writes to the file, with or without a sync.
    pub writes: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Writes that begin where the one before ended.
    pub in_sequence: u64,
    /// Syncs that waited for I/O.
    pub syncs: u64,
    /// Those whose I/O was followed.
    pub followed: u64,
    /// Their latency.
    pub latency_ns: u128,
    /// Under other files' data.
    pub others_data_ns: u128,
    /// Followed ones that had to let a commit end which syncs of other files had asked for.
    pub behind: u64,
    /// From the end of their own data to the end of that commit.
    pub behind_ns: u128,
    /// Followed ones that waited for a commit although no data needed it: `fdatasync` would not have.
    pub for_times: u64,
    /// Under these commits.
    pub for_times_ns: u128,
    /// Syncs without a word on which commit they need.
    pub unknown_commit: u64,
}

impl SyncCounts {
    /// Adds another operation's or session's.
    pub(crate) fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.in_sequence += other.in_sequence;
        self.syncs += other.syncs;
        self.followed += other.followed;
        self.latency_ns += other.latency_ns;
        self.others_data_ns += other.others_data_ns;
        self.behind += other.behind;
        self.behind_ns += other.behind_ns;
        self.for_times += other.for_times;
        self.for_times_ns += other.for_times_ns;
        self.unknown_commit += other.unknown_commit;
    }
}
