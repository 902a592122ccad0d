//! Names of threads and the processes they belong to.

use nestrace_trace::Event;

use crate::model::pointer::PointerMap;

/// Threads that are known by name: later ones have none. A guest can name four billion, and as long as it likes.
const MOST: usize = 1 << 19;

/// What is known of threads, from [`nestrace_abi::Kind::Thread`] events.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    by_tid: PointerMap<u32, Thread>,
    changes: u64,
}

/// One thread.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    /// The process.
    pub tgid: u32,
    /// The thread's own name.
    pub name: String,
}

impl Thread {
    /// Whether it is the kernel's, which works for anyone. By its name: nothing else tells. `kworker/0:1`, `jbd2/vda1-8`,
    /// `dmcrypt_write/2`; `loop0`, `vhost-1234`.
    pub(crate) fn is_of_kernel(&self) -> bool {
        let name = self.name.as_str();
        let numbered = |head: &str| {
            let rest = name.strip_prefix(head);
            rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        };
        name.contains('/') || numbered("loop") || numbered("vhost-") || name.starts_with("io_wq")
    }
}

impl Threads {
    pub(crate) fn name(&mut self, event: &Event) {
        if self.by_tid.len() >= MOST && !self.by_tid.contains_key(&event.tid) {
            return;
        }
        self.changes += 1;
        let tgid = u32::try_from(event.process_id()).unwrap_or(0);
        self.by_tid.insert(
            event.tid,
            Thread {
                tgid,
                name: event.thread_name(),
            },
        );
    }

    /// How often a name was recorded: while it stays, so does what follows from names.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn get(&self, tid: u32) -> Option<&Thread> {
        self.by_tid.get(&tid)
    }

    /// What a person calls the process of a thread: the name of its main thread where that was
    /// seen, and one name for all kernel workers.
    pub(crate) fn process(&self, tid: u32) -> (u32, String) {
        let Some(thread) = self.get(tid) else {
            return (0, String::from("unknown thread"));
        };
        if let Some(worker) = kernel_worker(&thread.name) {
            return (0, worker.to_owned());
        }
        let main = self.get(thread.tgid).unwrap_or(thread);
        (thread.tgid, main.name.clone())
    }
}

/// `kworker/u8:3-flush-7:0` is work of anyone: all of them are one.
fn kernel_worker(name: &str) -> Option<&str> {
    name.split_once('/')
        .filter(|(head, _)| matches!(*head, "kworker" | "ksoftirqd"))
        .map(|(head, _)| head)
}
