//! What `call-writer` does on a file system, and what each of its calls needs from the disk.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;
/// Pages of the file that one thread works on.
const PAGES: u64 = 256;
/// Pages that aio and io_uring move in a row.
const QUEUED: u64 = 32;
/// Threads that work at once in the end.
const THREADS: u64 = 3;

/// What a call cannot end without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No data from the disk: the page cache takes or has all of it.
    Cached,
    /// All that its disk does from its begin to its end: no other call runs, and nothing is written back by itself.
    /// For a sync and a synchronous write: these pages of its file among that.
    Alone(BTreeSet<u64>),
    /// The data of its own range, and nothing else: direct I/O beside other direct I/O.
    Range,
    /// Its file's data, beside syncs of other files: these pages, and what its file system writes for all of them.
    Beside(BTreeSet<u64>),
}

/// A line of the script.
#[derive(Clone, Debug)]
pub struct Step {
    /// What kind of call it is, for figures.
    pub mode: &'static str,
    /// See there.
    pub needs: Needs,
}

/// A script with what its lines need.
#[derive(Debug, Default)]
pub struct Script {
    lines: Vec<String>,
    /// By number of the line, from 1.
    pub steps: BTreeMap<u32, Step>,
    /// Pages by file that were changed since its last sync.
    dirty: BTreeMap<u64, BTreeSet<u64>>,
    /// O_DIRECT goes through the page cache.
    direct_is_cached: bool,
}

/// An open file: its name in the script, and its number.
#[derive(Clone, Copy)]
struct Handle {
    thread: u64,
    name: &'static str,
    number: u64,
}

impl Script {
    /// Calls of every mode on files in `folder`; `first` is the number of the first file. `direct_is_cached`: as where a
    /// journal has the data.
    pub fn of_every_mode(folder: &str, first: u64, direct_is_cached: bool) -> Self {
        let mut script = Self {
            direct_is_cached,
            ..Self::default()
        };
        let handle = |name| Handle {
            thread: 0,
            name,
            number: first,
        };
        let (a, direct) = (handle("a"), handle("a-direct"));
        let (dsync, sync) = (handle("a-dsync"), handle("a-sync"));
        script.open(a, &format!("{folder}/a"), "create");
        script.open(direct, &format!("{folder}/a"), "direct");
        script.open(dsync, &format!("{folder}/a"), "dsync");
        script.open(sync, &format!("{folder}/a"), "sync");
        for n in 0..16 {
            script.write(a, "new file", n * 16, 16);
        }
        script.sync(a, "fsync of a new file", "fsync");
        script.plain("0 drop -");
        for n in 0..24 {
            script.read(a, "read", (n * 37 + 5) % PAGES, 1);
        }
        for n in 0..24 {
            script.cached_read(a, (n * 37 + 5) % PAGES, 1);
        }
        script.plain("0 drop -");
        for n in 0..16 {
            script.read(a, "sequential read", n * 16, 16);
        }
        for n in 0..24 {
            script.direct(direct, "direct write", "write", n * 11 % PAGES, 1);
        }
        for n in 0..24 {
            script.direct(direct, "direct read", "read", n * 10 % PAGES, 1 + n % 4);
        }
        script.queued(direct, "aio write", "aio-write", 8);
        script.queued(direct, "aio read", "aio-read", 128);
        script.queued(direct, "ring write", "ring-write", 64);
        script.queued(direct, "ring read", "ring-read", 160);
        script.sync(a, "fsync after direct writes", "fsync");
        for n in 0..6 {
            let line = ranged("ring-write", a, 200 + n * 3, 1) + " 3 1";
            script.cached_write(a, "buffered ring write", (200 + n * 3, 3), line);
            script.sync(a, "ring fsync", "ring-fsync");
        }
        script.syncs(a);
        for n in 0..8 {
            script.synced_write(dsync, "O_DSYNC write", n * 5 + 3);
            script.synced_write(sync, "O_SYNC write", n * 7 + 100);
        }
        for n in 0..6 {
            script.write(a, "append", PAGES + 2 * n, 1);
            script.sync(a, "fsync after append", "fsync");
            script.write(a, "append", PAGES + 2 * n + 1, 1);
            script.sync(a, "fdatasync after append", "fdatasync");
        }
        script.sync(a, "fsync of a clean file", "fsync");
        script.map_write(a, 0, 8);
        script.threads(folder, first + 1);
        script
    }

    /// Writes and syncs of a small file: what waits for another program's data.
    pub fn of_small_syncs(folder: &str, first: u64) -> Self {
        let mut script = Self::default();
        let small = Handle {
            thread: 0,
            name: "small",
            number: first,
        };
        script.open(small, &format!("{folder}/small"), "create");
        for n in 0..12 {
            script.plain("0 pause 40");
            script.write(small, "append", n, 1);
            script.sync(small, "fsync beside a stream", "fsync");
        }
        script
    }

    /// Another program's stream of writes into a new file: some half a megabyte between two syncs of the small file.
    pub fn of_a_stream(folder: &str, first: u64) -> Self {
        let mut script = Self::default();
        let stream = Handle {
            thread: 0,
            name: "stream",
            number: first,
        };
        script.open(stream, &format!("{folder}/stream"), "create");
        for n in 0..250 {
            script.write(stream, "stream", n * 16, 16);
            script.plain("0 pause 4");
        }
        script
    }

    /// As `call-writer` reads it.
    pub fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    fn syncs(&mut self, a: Handle) {
        for n in 0..8 {
            for page in [3, 50, 51, 150] {
                self.write(a, "buffered write", page + n * 6, 1);
            }
            let (mode, op) = match n % 2 {
                0 => ("fsync", "fsync"),
                _ => ("fdatasync", "fdatasync"),
            };
            self.sync(a, mode, op);
        }
    }

    fn threads(&mut self, folder: &str, first: u64) {
        self.plain("---");
        let names = ["b", "c", "d"];
        let handles: Vec<Handle> = (0..THREADS)
            .zip(names)
            .map(|(thread, name)| Handle {
                thread,
                name,
                number: first + thread,
            })
            .collect();
        for handle in &handles {
            self.open(*handle, &format!("{folder}/{}", handle.name), "create");
        }
        for n in 0..10 {
            for handle in &handles {
                self.write(*handle, "write of three threads", 2 * n, 2);
                let dirty = self.dirty.remove(&handle.number).unwrap_or_default();
                let line = format!("{} fsync {}", handle.thread, handle.name);
                self.step("fsync of three threads", Needs::Beside(dirty), line);
            }
        }
    }

    fn plain(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    fn step(&mut self, mode: &'static str, needs: Needs, line: String) {
        self.lines.push(line);
        let step = Step { mode, needs };
        self.steps.insert(self.lines.len() as u32, step);
    }

    fn open(&mut self, handle: Handle, path: &str, flags: &str) {
        let Handle {
            thread,
            name,
            number,
        } = handle;
        self.lines
            .push(format!("{thread} open {name} {path} {number} {flags}"));
    }

    fn write(&mut self, handle: Handle, mode: &'static str, page: u64, pages: u64) {
        let line = ranged("write", handle, page, pages);
        self.cached_write(handle, mode, (page, pages), line);
    }

    fn cached_write(
        &mut self,
        handle: Handle,
        mode: &'static str,
        (page, pages): (u64, u64),
        line: String,
    ) {
        let dirty = self.dirty.entry(handle.number).or_default();
        dirty.extend(page..page + pages);
        self.step(mode, Needs::Cached, line);
    }

    fn sync(&mut self, handle: Handle, mode: &'static str, op: &str) {
        let dirty = self.dirty.remove(&handle.number).unwrap_or_default();
        let line = format!("{} {op} {}", handle.thread, handle.name);
        self.step(mode, Needs::Alone(dirty), line);
    }

    fn map_write(&mut self, handle: Handle, page: u64, pages: u64) {
        let needs = Needs::Alone((page..page + pages).collect());
        self.step("msync", needs, ranged("map-write", handle, page, pages));
    }

    fn synced_write(&mut self, handle: Handle, mode: &'static str, page: u64) {
        let needs = Needs::Alone(BTreeSet::from([page]));
        self.step(mode, needs, ranged("write", handle, page, 1));
    }

    fn read(&mut self, handle: Handle, mode: &'static str, page: u64, pages: u64) {
        let needs = Needs::Alone(BTreeSet::new());
        self.step(mode, needs, ranged("read", handle, page, pages));
    }

    fn cached_read(&mut self, handle: Handle, page: u64, pages: u64) {
        let line = ranged("read", handle, page, pages);
        self.step("cached read", Needs::Cached, line);
    }

    fn direct(&mut self, handle: Handle, mode: &'static str, op: &str, page: u64, pages: u64) {
        let pages = pages.min(PAGES - page);
        self.moved(handle, mode, (page, pages), ranged(op, handle, page, pages));
    }

    /// [`QUEUED`] pages, four at a time.
    fn queued(&mut self, handle: Handle, mode: &'static str, op: &str, page: u64) {
        let line = ranged(op, handle, page, 1) + &format!(" {QUEUED} 4");
        self.moved(handle, mode, (page, QUEUED), line);
    }

    /// By O_DIRECT.
    fn moved(
        &mut self,
        handle: Handle,
        mode: &'static str,
        (page, pages): (u64, u64),
        line: String,
    ) {
        match (self.direct_is_cached, mode.ends_with("write")) {
            (false, _) => self.step(mode, Needs::Range, line),
            (true, true) => self.cached_write(handle, mode, (page, pages), line),
            (true, false) => self.step(mode, Needs::Alone(BTreeSet::new()), line),
        }
    }
}

fn ranged(op: &str, handle: Handle, page: u64, pages: u64) -> String {
    let Handle { thread, name, .. } = handle;
    format!("{thread} {op} {name} {} {}", page * PAGE, pages * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_needs_what_was_written_since_the_last() {
        let script = Script::of_every_mode("/mnt", 1, false);
        let text = script.text();
        let lines: Vec<&str> = text.lines().collect();
        for (number, step) in &script.steps {
            let line = lines[*number as usize - 1];
            assert!(!line.contains(" open "), "{line}");
            if step.mode == "fsync" {
                let Needs::Alone(pages) = &step.needs else {
                    panic!("{step:?}");
                };
                assert_eq!(pages.len(), 4, "{line}");
            }
        }
    }
}
