//! Long captures of blktrace: a real one, repeated, each time later.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nestrace_blktrace::{Reader, Trace, Writer};

/// Rest between two repetitions.
const REST_NS: u64 = 1_000_000;

/// A whole capture in memory, by processor.
pub struct ShortCapture {
    files: Vec<Vec<Trace>>,
}

impl ShortCapture {
    /// Reads it.
    ///
    /// # Errors
    /// A file of it cannot be read, or there is none.
    pub fn read(basename: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for processor in 0.. {
            let path = PathBuf::from(format!("{}.blktrace.{processor}", basename.display()));
            let Ok(file) = File::open(&path) else { break };
            let reader = Reader::new(file).with_context(|| format!("read {}", path.display()))?;
            files.push(reader.collect());
        }
        ensure!(!files.is_empty(), "find {}.blktrace.0", basename.display());
        Ok(Self { files })
    }

    /// Its records but for names and messages.
    pub fn actions(&self) -> impl Iterator<Item = &Trace> {
        let all = self.files.iter().flatten();
        all.filter(|trace| trace.notify().is_none())
    }

    /// Writes at least so many records under that base name; says how many.
    pub fn write_repeated(&self, folder: &Path, name: &str, n_records: u64) -> anyhow::Result<u64> {
        let first_ns = self.actions().map(|trace| trace.time_ns).min().unwrap_or(0);
        let last_ns = self.actions().map(|trace| trace.time_ns).max().unwrap_or(0);
        let period_ns = last_ns - first_ns + REST_NS;
        let repetitions = n_records.div_ceil(self.actions().count().max(1) as u64);
        for (processor, traces) in self.files.iter().enumerate() {
            let path = folder.join(format!("{name}.blktrace.{processor}"));
            let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
            let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file));
            for repetition in 0..repetitions {
                for trace in traces {
                    // Names occur only in the first repetition.
                    if repetition > 0 && trace.notify().is_some() {
                        continue;
                    }
                    let mut trace = trace.clone();
                    trace.time_ns += repetition * period_ns;
                    writer.write(&trace).context("write a capture")?;
                }
            }
            let file = writer.into_inner().into_inner();
            file.map_err(std::io::IntoInnerError::into_error)
                .context("write a capture")?;
        }
        Ok(self.actions().count() as u64 * repetitions)
    }
}
