//! Waits of threads for space in the journal of ext4 or the log of XFS.

use nestrace_trace::Event;

use crate::model::pointer::PointerMap;

/// `sub` of `Kind::LogSpace`: a wait begins, and it is over.
const SLEEPS: u8 = 1;
const WAKES: u8 = 2;
/// Threads whose waits are kept: of the file system's own threads no call takes them.
const MAX_THREADS: usize = 1 << 10;
/// Waits of one call.
const MAX_OF_ONE: usize = 1 << 8;

/// By thread: from when to when, in the order of time.
#[derive(Debug, Default)]
pub(super) struct LogSpace {
    of: PointerMap<u32, Vec<(u64, u64)>>,
}

impl LogSpace {
    pub(super) fn event(&mut self, event: &Event) {
        if self.of.len() >= MAX_THREADS && !self.of.contains_key(&event.tid) {
            self.of.clear();
        }
        let waits = self.of.entry(event.tid).or_default();
        match event.sub {
            SLEEPS if waits.len() < MAX_OF_ONE => waits.push((event.ts_ns, u64::MAX)),
            WAKES => {
                if let Some((_, end_ns)) =
                    waits.last_mut().filter(|(_, end_ns)| *end_ns == u64::MAX)
                {
                    *end_ns = event.ts_ns;
                }
            }
            _ => {}
        }
    }

    /// Takes out the waits of a thread; gives those within a call. A wait that was not over when the call ended has lost its
    /// end: how long it took is not known.
    pub(super) fn take(&mut self, tid: u32, (start_ns, end_ns): (u64, u64)) -> Vec<(u64, u64)> {
        let waits = self.of.remove(&tid).into_iter().flatten();
        waits
            .filter(|(from_ns, to_ns)| *from_ns >= start_ns && *to_ns <= end_ns)
            .collect()
    }
}
