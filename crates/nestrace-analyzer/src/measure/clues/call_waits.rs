//! What the calls of a guest's programs on one disk's file systems waited for, for the rules on its page cache.

/// Calls and what they waited for, of one disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallWaits {
    /// Latency of all calls, page faults that had to wait among them.
    pub all_ns: u64,
    /// Bytes that calls have written through the page cache.
    pub written_bytes: u64,
    /// Reads through the page cache, each from where its thread's last read of the file ended.
    pub reads_on: Waits,
    /// Writes that the kernel made wait because too many pages were dirty.
    pub paused: Waits,
    /// Page faults on mapped files that had to wait.
    pub faults: Waits,
    /// Bytes of files that were read into the page cache by no call that was recorded.
    pub by_no_call_bytes: u64,
}

/// What calls of one kind waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// Waits: calls that had to wait, or pauses.
    pub n: u64,
    /// Their time.
    pub ns: u64,
    /// Bytes that the calls moved, those that did not wait among them.
    pub bytes: u64,
    /// The program and the file that waited longest.
    pub longest: Option<Waiter>,
}

/// A program on a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The program's name.
    pub program: String,
    /// The file's path, or its inode and mount.
    pub file: String,
    /// How long it waited.
    pub ns: u64,
}

impl CallWaits {
    /// Adds what another session says.
    pub(crate) fn add(&mut self, other: Self) {
        self.all_ns = self.all_ns.saturating_add(other.all_ns);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.by_no_call_bytes = self.by_no_call_bytes.saturating_add(other.by_no_call_bytes);
        self.reads_on.add(other.reads_on);
        self.paused.add(other.paused);
        self.faults.add(other.faults);
    }
}

impl Waits {
    fn add(&mut self, other: Self) {
        self.n = self.n.saturating_add(other.n);
        self.ns = self.ns.saturating_add(other.ns);
        self.bytes = self.bytes.saturating_add(other.bytes);
        let ns = |waiter: &Option<Waiter>| waiter.as_ref().map_or(0, |waiter| waiter.ns);
        if ns(&other.longest) > ns(&self.longest) {
            self.longest = other.longest;
        }
    }
}
