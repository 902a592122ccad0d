//! A flight recorder's memory: the newest batches of every stream, the condition on which they are written, and the copy
//! of them into a bundle.
//!
//! | part | does |
//! |---|---|
//! | [`rings`] | keeps the streams of the host and of the agents, each within its share of the bound |
//! | [`copy`] | writes what is kept and what comes into a bundle, in a thread of its own: the rings are drained meanwhile |
//! | [`until_file`] | notices a file that appears |
//!
//! What later batches cannot be read without is not in the rings: the manifest, mounts, names of files, clock samples and
//! the maps of images are the recorder's as in any recording, and each ring keeps the names of threads.

pub mod copy;
pub mod rings;
pub mod until_file;

use std::path::PathBuf;
use std::time::Duration;

use nestrace_condition::{Expression, Layer};

/// How much longer than `after` a bundle may take until it has its end.
const CLOSING: Duration = Duration::from_millis(600);

/// What is kept, and when it is written.
#[derive(Clone, Debug)]
pub struct Flight {
    /// How long events are kept.
    pub before: Duration,
    /// How long it goes on after the moment at which they are written.
    pub after: Duration,
    /// The condition on which that is.
    pub until: Option<Expression>,
    /// A file that makes it write when it appears.
    pub until_file: Option<PathBuf>,
    /// How many bundles are written at most, each by its path.
    pub outputs: Vec<PathBuf>,
    /// From the end of one to the next moment, at least.
    pub pause: Duration,
    /// Bytes of a bundle's streams, before the moment and after it.
    pub max_bytes: u64,
}

impl Flight {
    /// Bytes of `bundle_bytes` that are kept where they hold the events of so long: as many as leave room for what comes
    /// after the moment at the same pace, but not less than half of what both times together would leave.
    #[must_use]
    pub fn kept_bytes(&self, bundle_bytes: u64, covered: Duration) -> u64 {
        let share = |before: Duration| {
            let (before, after) = (before.as_secs_f64(), (self.after + CLOSING).as_secs_f64());
            before / (before + after)
        };
        let whole = share(self.before);
        let share = share(covered.min(self.before)).max(whole.min(0.5));
        (bundle_bytes as f64 * share) as u64
    }

    /// The outermost layer that a recording sees: what a condition means that names none.
    #[must_use]
    pub fn outermost(has_agent: bool, has_qemu: bool, has_guests: bool) -> Layer {
        match (has_agent, has_qemu, has_guests) {
            (true, ..) => Layer::Guest,
            (false, true, _) => Layer::Qemu,
            (false, false, true) => Layer::FileIo,
            (false, false, false) => Layer::Device,
        }
    }
}
