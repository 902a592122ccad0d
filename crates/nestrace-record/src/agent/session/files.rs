//! The files of a guest's streams in the bundle.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nestrace_output::held_dir::HeldDir;
use nestrace_trace::StreamWriter;
use nestrace_trace::bundle::index_of;

use super::super::agents::Shared;
use super::super::ingest::Streams;

/// Makes the streams' files in the bundle.
pub(super) struct Files {
    pub dir: Arc<HeldDir>,
    pub shared: Arc<Shared>,
}

impl Streams for Files {
    type Stream = File;
    type Index = File;

    fn open(&mut self, file: &str) -> Result<Option<StreamWriter<File, File>>, String> {
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
        let writer = StreamWriter::new(stream, index);
        writer
            .map(Some)
            .map_err(|error| format!("start {file}: {error}"))
    }

    fn limit_bytes(&mut self) -> u64 {
        self.shared.limit_bytes.load(Ordering::Relaxed)
    }
}
