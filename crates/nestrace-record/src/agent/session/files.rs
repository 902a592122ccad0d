//! Where a guest's streams go: files in the bundle, or the memory of a flight recorder.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nestrace_condition::Side;
use nestrace_output::bundle_dir::StreamOutput;
use nestrace_output::held_dir::HeldDir;
use nestrace_probes::clock;
use nestrace_trace::bundle::index_of;
use nestrace_trace::{Event, StreamRing, StreamWriter};

use super::super::agents::Shared;
use super::super::ingest::Streams;
use crate::flight::rings::Rings;

/// Makes a guest's streams.
pub(super) struct Files {
    dir: Arc<HeldDir>,
    shared: Arc<Shared>,
    /// A flight recorder's, with the guest's number there.
    rings: Option<(Arc<Rings>, u32)>,
    /// That of the newest stream.
    ring: Option<StreamRing>,
}

impl Files {
    /// Of a bundle, or of the flight recorder that keeps the streams.
    pub fn new(
        dir: &Arc<HeldDir>,
        shared: &Arc<Shared>,
        (rings, guest): (Option<Arc<Rings>>, u32),
    ) -> Self {
        Self {
            dir: Arc::clone(dir),
            shared: Arc::clone(shared),
            rings: rings.map(|rings| (rings, guest)),
            ring: None,
        }
    }

    fn begin(&self, file: &str) -> Result<Option<[StreamOutput; 2]>, String> {
        let failed = |name: &str, error: io::Error| format!("create {name}: {error}");
        let stream = match self.dir.new_file(file) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            made => made.map_err(|error| failed(file, error))?,
        };
        let index = index_of(file);
        let index = self
            .dir
            .new_file(&index)
            .map_err(|error| failed(&index, error))?;
        Ok(Some([Box::new(stream), Box::new(index)]))
    }
}

impl Streams for Files {
    type Stream = StreamOutput;
    type Index = StreamOutput;

    fn open(
        &mut self,
        file: &str,
    ) -> Result<Option<StreamWriter<StreamOutput, StreamOutput>>, String> {
        let outputs = match &self.rings {
            None => self.begin(file)?,
            Some((rings, guest)) => rings.open(file, Some(*guest))?.map(|ring| {
                let [stream, index] = ring.writers();
                self.ring = Some(ring);
                let outputs: [StreamOutput; 2] = [Box::new(stream), Box::new(index)];
                outputs
            }),
        };
        let Some([stream, index]) = outputs else {
            return Ok(None);
        };
        let writer = StreamWriter::new(stream, index);
        writer
            .map(Some)
            .map_err(|error| format!("start {file}: {error}"))
    }

    fn limit_bytes(&mut self) -> u64 {
        match self.rings {
            // A ring has its own.
            Some(_) => u64::MAX,
            None => self.shared.limit_bytes.load(Ordering::Relaxed),
        }
    }

    fn passes(&mut self, event: &Event) {
        if let Some((rings, guest)) = &self.rings {
            rings.take(Side::Guest(*guest), event, clock::monotonic_ns());
            if let Some(ring) = &self.ring {
                ring.note(event);
            }
        }
    }

    fn oldest_ns(&self) -> u64 {
        self.rings
            .as_ref()
            .map_or(0, |(rings, _)| rings.oldest_ns())
    }
}
