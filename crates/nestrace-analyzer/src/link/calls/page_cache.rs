//! What ended calls waited for in the page cache: pages that are read, room for dirty ones, pages of mapped files.

use std::collections::HashMap;

use nestrace_abi::flags::op;

use crate::measure::clues::{CallWaits, Waiter, Waits};
use crate::model::call::{Call, FileId, PAGE_FAULT, Why};
use crate::model::pointer::PointerMap;

/// File systems that are counted.
const MAX_MOUNTS: usize = 1 << 10;
/// Files of threads that remember where they were read last; then all is forgotten.
const MAX_PLACES: usize = 1 << 14;
/// Programs on files that are named.
const MAX_WAITERS: usize = 1 << 12;

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum For {
    ReadOn,
    Pause,
    Fault,
}

/// By file system, and by program and file.
#[derive(Debug, Default)]
pub(super) struct PageCacheCalls {
    mounts: PointerMap<u32, CallWaits>,
    /// Where a thread's last read of a file ended.
    places: PointerMap<(u32, FileId), u64>,
    /// Time that programs waited for files.
    waiters: HashMap<(For, FileId, u32), u64>,
}

impl PageCacheCalls {
    /// A call by a program has ended.
    pub(super) fn ended(&mut self, call: &Call, program: u32) {
        let reads_on = self.reads_on(call);
        let file = call.caller.file;
        let Some(mount) = self.mount(file.dev) else {
            return;
        };
        let latency_ns = call.end_ns.saturating_sub(call.start_ns);
        add(&mut mount.all_ns, latency_ns);
        let bytes = u64::try_from(call.result).unwrap_or(0);
        let waited = match call.caller.op {
            PAGE_FAULT => {
                mount.faults.n += 1;
                add(&mut mount.faults.ns, latency_ns);
                Some((For::Fault, latency_ns))
            }
            op::READ if reads_on => {
                let reads = &mut mount.reads_on;
                add(&mut reads.bytes, bytes);
                let waited_ns = waited_ns(call);
                reads.n += u64::from(waited_ns > 0);
                add(&mut reads.ns, waited_ns);
                Some((For::ReadOn, waited_ns))
            }
            op::WRITE if !call.direct => {
                add(&mut mount.written_bytes, bytes);
                None
            }
            _ => None,
        };
        if let Some((what, ns)) = waited {
            self.waited((what, file, program), ns);
        }
        if !call.throttles.is_empty() {
            self.paused(call, program, bytes);
        }
    }

    fn paused(&mut self, call: &Call, program: u32, bytes: u64) {
        let pauses = call.throttles.iter();
        let ns = pauses.map(|(from, to)| (*to).min(call.end_ns).saturating_sub(*from));
        let ns = ns.fold(0, u64::saturating_add);
        let file = call.caller.file;
        if let Some(mount) = self.mount(file.dev) {
            mount.paused.n += call.throttles.len() as u64;
            add(&mut mount.paused.ns, ns);
            add(&mut mount.paused.bytes, bytes);
        }
        self.waited((For::Pause, file, program), ns);
    }

    /// A bio has read pages of this file, and was queued in no call.
    pub(super) fn read_by_no_call(&mut self, file: Option<FileId>, bytes: u64) {
        if let Some(mount) = file.and_then(|file| self.mount(file.dev)) {
            add(&mut mount.by_no_call_bytes, bytes);
        }
    }

    /// Whether a read through the page cache begins where its thread's last one of that file ended.
    fn reads_on(&mut self, call: &Call) -> bool {
        let Ok(bytes) = u64::try_from(call.result) else {
            return false;
        };
        if call.caller.op != op::READ || call.direct || bytes == 0 {
            return false;
        }
        if self.places.len() >= MAX_PLACES {
            self.places.clear();
        }
        let end = call.offset.saturating_add(bytes);
        let key = (call.caller.tid, call.caller.file);
        self.places.insert(key, end) == Some(call.offset)
    }

    fn mount(&mut self, dev: u32) -> Option<&mut CallWaits> {
        if self.mounts.len() >= MAX_MOUNTS && !self.mounts.contains_key(&dev) {
            return None;
        }
        Some(self.mounts.entry(dev).or_default())
    }

    fn waited(&mut self, who: (For, FileId, u32), ns: u64) {
        if ns == 0 {
            return;
        }
        if let Some(sum) = self.waiters.get_mut(&who) {
            add(sum, ns);
        } else if self.waiters.len() < MAX_WAITERS {
            self.waiters.insert(who, ns);
        }
    }

    /// All of it on the file systems of these devices; `named` gives the names of a program and a file.
    pub(super) fn of(
        &self,
        devs: &[u32],
        named: &dyn Fn(u32, FileId) -> (String, String),
    ) -> CallWaits {
        let mut all = CallWaits::default();
        for waits in devs.iter().filter_map(|dev| self.mounts.get(dev)) {
            all.add(waits.clone());
        }
        let longest = |what: For| {
            let mut waiters: Vec<_> = self.waiters.iter().collect();
            waiters.retain(|((is, file, _), _)| *is == what && devs.contains(&file.dev));
            // Equal ones in an order of their own: a map has none.
            let ((_, file, program), ns) =
                waiters.into_iter().max_by_key(|(who, ns)| (**ns, **who))?;
            let (program, file) = named(*program, *file);
            Some(Waiter {
                program,
                file,
                ns: *ns,
            })
        };
        let waits: [(&mut Waits, For); 3] = [
            (&mut all.reads_on, For::ReadOn),
            (&mut all.paused, For::Pause),
            (&mut all.faults, For::Fault),
        ];
        for (waits, what) in waits {
            waits.longest = longest(what);
        }
        all
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// How long a call ran under reads of its pages.
fn waited_ns(call: &Call) -> u64 {
    let mut reads: Vec<(u64, u64)> = call
        .bios
        .iter()
        .filter(|bio| bio.why == Why::Pages)
        .map(|bio| {
            (
                bio.queued_ns.max(call.start_ns),
                bio.ended_ns.min(call.end_ns),
            )
        })
        .collect();
    reads.sort_unstable();
    let (mut sum, mut covered_ns) = (0, call.start_ns);
    for (from, to) in reads {
        sum += to.saturating_sub(from.max(covered_ns));
        covered_ns = covered_ns.max(to);
    }
    sum
}
