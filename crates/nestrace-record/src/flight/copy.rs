//! The copy of what is kept into a bundle's files.
//!
//! A thread of its own writes: the disk may be the one that has just stalled, and meanwhile the kernel's rings are drained
//! all the same. What waits for it is bounded by the bundle's size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nestrace_output::held_dir::HeldDir;
use nestrace_probes::refusal::with_causes;
use nestrace_trace::StreamCopy;
use nestrace_trace::bundle::index_of;

use super::rings::{Rings, Stream};

/// How often it looks for what has come.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// A bundle's streams while they are written.
#[derive(Debug)]
pub struct Copy {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    has_begun: AtomicBool,
    stop: AtomicBool,
    is_over: AtomicBool,
    sums: Mutex<Sums>,
}

/// What a copy has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The streams that it has, by their files.
    pub files: BTreeSet<String>,
    /// Bytes of the streams.
    pub bytes: u64,
    /// Events of the host's stream, and of the guests'.
    pub rows: (u64, u64),
    /// Events that could not be written, by the stream's file.
    pub rows_lost: BTreeMap<String, u64>,
    /// Why the first of them could not.
    pub failed: Option<String>,
}

impl Copy {
    /// Begins to write what `rings` keep and get into a bundle's folder.
    ///
    /// # Errors
    /// Where the system gives no thread, or the streams cannot be copied.
    pub fn start(rings: &Arc<Rings>, dir: &Arc<HeldDir>) -> io::Result<Self> {
        rings.begin_copies().map_err(io::Error::other)?;
        let shared = Arc::new(Shared::default());
        let job = Job {
            rings: Arc::clone(rings),
            dir: Arc::clone(dir),
            shared: Arc::clone(&shared),
            open: BTreeMap::new(),
        };
        let thread = thread::Builder::new().name("nestrace-flight".to_owned());
        if let Err(error) = thread.spawn(move || job.run()) {
            rings.forget_copies();
            return Err(error);
        }
        Ok(Self { shared })
    }

    /// Whether all that was kept is written.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.shared.has_begun.load(Ordering::Acquire)
    }

    /// Asks it to close the streams when all that has come is written.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Whether the streams are closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    /// What it has come to.
    #[must_use]
    pub fn sums(&self) -> Sums {
        self.shared.lock().clone()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's files; `None` once they take no more.
type Output = Option<StreamCopy<File, File>>;

struct Job {
    rings: Arc<Rings>,
    dir: Arc<HeldDir>,
    shared: Arc<Shared>,
    open: BTreeMap<String, Output>,
}

impl Job {
    fn run(mut self) {
        loop {
            // First, so that what came before it is written.
            let stops = self.shared.stop.load(Ordering::Acquire);
            let streams = self.rings.all();
            for stream in &streams {
                self.write(stream);
            }
            self.shared.has_begun.store(true, Ordering::Release);
            if stops {
                self.finish(&streams);
                self.shared.is_over.store(true, Ordering::Release);
                return;
            }
            thread::sleep(LOOK_AROUND);
        }
    }

    fn write(&mut self, stream: &Stream) {
        if !self.open.contains_key(&stream.file) {
            let made = self.create(&stream.file);
            let made = made.map_err(|why| self.fails(&why));
            self.open.insert(stream.file.clone(), made.ok());
        }
        while let Some(message) = stream.ring.take_copied() {
            let output = self.open.get_mut(&stream.file).and_then(Option::as_mut);
            let written = match output {
                Some(output) => output.write(&message),
                None => {
                    self.lose(&stream.file, message.rows().into());
                    continue;
                }
            };
            if let Err(error) = written {
                self.fails(&with_causes(&error));
                self.lose(&stream.file, message.rows().into());
                self.open.insert(stream.file.clone(), None);
                continue;
            }
            let bytes = self.open.values().flatten().map(StreamCopy::stream_bytes);
            let bytes = bytes.fold(0, u64::saturating_add);
            let mut sums = self.shared.lock();
            sums.bytes = bytes;
            let rows = match stream.guest {
                None => &mut sums.rows.0,
                Some(_) => &mut sums.rows.1,
            };
            *rows = rows.saturating_add(u64::from(message.rows()));
        }
    }

    fn create(&self, name: &str) -> Result<StreamCopy<File, File>, String> {
        let new_file = |name: &str| {
            let made = self.dir.new_file(name);
            made.map_err(|error| format!("create {name}: {error}"))
        };
        let (stream, index) = (new_file(name)?, new_file(&index_of(name))?);
        self.shared.lock().files.insert(name.to_owned());
        StreamCopy::new(stream, index).map_err(|error| with_causes(&error))
    }

    fn finish(&mut self, streams: &[Stream]) {
        for stream in streams {
            let refused = stream.ring.rows_refused();
            // Where the host's side has no more room, the bundle has its end.
            if refused > 0 && stream.guest.is_some() {
                self.lose(&stream.file, refused);
            }
        }
        for output in self.open.values_mut().flatten() {
            if let Err(error) = output.finish() {
                let why = with_causes(&error);
                self.shared.lock().failed.get_or_insert(why);
            }
        }
    }

    fn fails(&self, why: &str) {
        self.shared.lock().failed.get_or_insert(why.to_owned());
    }

    fn lose(&self, file: &str, rows: u64) {
        let mut sums = self.shared.lock();
        let lost = sums.rows_lost.entry(file.to_owned()).or_default();
        *lost = lost.saturating_add(rows);
    }
}
