//! Names of the files with recorded I/O.
//!
//! What the probes see of a file is its inode. A thread of its own, with the lowest priority, finds the names: among the
//! open descriptors of all processes while it records ([`descriptors`]); at the end, when nothing is recorded any more,
//! through handles ([`handles`]) and in the folders of the mounts ([`walk`]). Nothing waits for it but the end, and that
//! not for long. An inode that was used again has no name: it may be that of another file than the one with the I/O.

mod btrfs;
mod descriptors;
mod handles;
pub mod noted;
mod places;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nestrace_trace::manifest::{GuestFile, GuestMount, MAX_PATH_BYTES};

use noted::{FileId, NewFiles};
use places::Places;

/// How often open descriptors are looked at, for how long, and how often for the same file.
const PAUSE: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(50);
const MAX_LOOKS: u8 = 3;
/// How long a recording's end may be delayed, and how much of that may go into folders.
const END: Duration = Duration::from_millis(1400);
const WALK: Duration = Duration::from_secs(1);
/// What the thread may take to notice that its time is up.
const GRACE: Duration = Duration::from_millis(100);

/// What is asked of the thread.
enum Order {
    Mounts(Vec<GuestMount>),
    Files(NewFiles),
    End,
}

/// The thread that finds names, as who records sees it.
pub struct Names {
    orders: Sender<Order>,
    found: Receiver<Vec<GuestFile>>,
    stop: Arc<AtomicBool>,
    mounts: Vec<GuestMount>,
    /// Until when it is waited for, once it was asked to end.
    until: Option<Instant>,
}

impl Names {
    /// Starts the thread. `None` where the system gives none.
    pub fn start() -> Option<Self> {
        let (orders, taken) = channel();
        let (give, found) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("names".to_owned());
        let run =
            move || Finder::new(Places::below(places::GUEST_ROOT, 1), stopped).run(&taken, &give);
        thread.spawn(run).ok()?;
        Some(Self {
            orders,
            found,
            stop,
            mounts: Vec::new(),
            until: None,
        })
    }

    /// Has these new files looked for on these mounts.
    pub fn look_for(&mut self, files: NewFiles, mounts: &[GuestMount]) {
        // A thread that is gone finds nothing more.
        if self.mounts != mounts {
            self.mounts = mounts.to_vec();
            let _ = self.orders.send(Order::Mounts(self.mounts.clone()));
        }
        if files != NewFiles::default() {
            let _ = self.orders.send(Order::Files(files));
        }
    }

    /// What was found since.
    pub fn take(&mut self) -> Vec<GuestFile> {
        self.found.try_iter().flatten().collect()
    }

    /// Has the rest looked for. Nothing is recorded any more.
    pub fn end(&mut self) {
        let _ = self.orders.send(Order::End);
        self.until = Some(Instant::now() + END + GRACE);
    }

    /// Waits for this time at most; gives what was found meanwhile, and `None` when no more comes.
    pub fn wait(&mut self, time: Duration) -> Option<Vec<GuestFile>> {
        let left = self.until?.checked_duration_since(Instant::now())?;
        match self.found.recv_timeout(left.min(time)) {
            Ok(files) => Some(files),
            Err(RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// How long something may go on.
#[derive(Clone)]
struct Limit {
    until: Instant,
    stop: Arc<AtomicBool>,
}

impl Limit {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.until
    }
}

/// Finds names, in its thread.
struct Finder {
    places: Places,
    /// Files without a name, and how often they are still looked for among descriptors.
    unknown: BTreeMap<FileId, u8>,
    descriptors: descriptors::Look,
    stop: Arc<AtomicBool>,
}

impl Finder {
    fn new(places: Places, stop: Arc<AtomicBool>) -> Self {
        Self {
            places,
            unknown: BTreeMap::new(),
            descriptors: descriptors::Look::default(),
            stop,
        }
    }

    fn run(mut self, orders: &Receiver<Order>, give: &Sender<Vec<GuestFile>>) {
        lower_priority();
        loop {
            let looks_again = self.unknown.values().any(|left| *left > 0);
            let pause = if looks_again { PAUSE } else { IDLE };
            match orders.recv_timeout(pause) {
                Ok(Order::Mounts(mounts)) => {
                    self.places.set(&mounts);
                    continue;
                }
                // They are looked for at once, before they are closed.
                Ok(Order::Files(files)) => {
                    let _ = give.send(self.add(files));
                }
                Ok(Order::End) => {
                    let _ = give.send(self.end());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let _ = give.send(self.look(LOOK));
        }
    }

    /// Takes new files; gives those that have no name any more.
    fn add(&mut self, files: NewFiles) -> Vec<GuestFile> {
        let may_name = |file: &FileId| self.places.may_name(*file);
        let named = files.fresh.into_iter().filter(may_name);
        self.unknown.extend(named.map(|file| (file, MAX_LOOKS)));
        let again = files.again.into_iter().map(|(dev, inode)| {
            self.unknown.remove(&(dev, inode));
            let path = String::new();
            GuestFile { dev, inode, path }
        });
        again.collect()
    }

    /// Looks among open descriptors.
    fn look(&mut self, time: Duration) -> Vec<GuestFile> {
        let tried = self.unknown.iter().filter(|(_, left)| **left > 0);
        let wanted: BTreeSet<FileId> = tried.map(|(file, _)| *file).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let limit = self.limit(time);
        let found = self.descriptors.look(&wanted, &self.places, &limit);
        for file in wanted {
            let looks = self.unknown.entry(file).or_default();
            *looks = looks.saturating_sub(1);
        }
        self.known(found)
    }

    /// Looks everywhere.
    fn end(&mut self) -> Vec<GuestFile> {
        let limit = self.limit(END);
        let mut files = self.look(LOOK);
        let unknown = |finder: &Self| finder.unknown.keys().copied().collect::<BTreeSet<_>>();
        let (found, gone) = handles::find(&unknown(self), &self.places, &limit);
        self.unknown.retain(|file, _| !gone.contains(file));
        files.extend(self.known(found));
        let limit = Limit {
            until: limit.until.min(Instant::now() + WALK),
            ..limit
        };
        let found = walk::find(unknown(self), &self.places, &limit);
        files.extend(self.known(found));
        files
    }

    fn known(&mut self, found: Vec<(FileId, String)>) -> Vec<GuestFile> {
        let mut files = Vec::new();
        for ((dev, inode), path) in found {
            let is_new = self.unknown.remove(&(dev, inode)).is_some();
            if is_new && path.len() <= MAX_PATH_BYTES {
                files.push(GuestFile { dev, inode, path });
            }
        }
        files
    }

    fn limit(&self, time: Duration) -> Limit {
        Limit {
            until: Instant::now() + time,
            stop: Arc::clone(&self.stop),
        }
    }
}

/// The guest's own work goes before this thread's.
fn lower_priority() {
    // SAFETY: it takes numbers only; 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

#[cfg(test)]
mod tests;
