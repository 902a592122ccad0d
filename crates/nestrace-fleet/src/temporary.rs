//! Rows in temporary files without a name: those of the data set, and what a question keeps for its later parts.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::file::BATCH_ROWS;

/// Rows of a group, which is kept until it is whole.
const GROUP_ROWS: usize = 32_768;

/// A table.
#[derive(Debug)]
pub struct TemporaryTable {
    columns: SchemaRef,
    files: Vec<File>,
}

impl TemporaryTable {
    /// Of files that all have these columns.
    pub const fn new(columns: SchemaRef, files: Vec<File>) -> Self {
        Self { columns, files }
    }

    /// Its columns.
    pub const fn columns(&self) -> &SchemaRef {
        &self.columns
    }

    /// How many files it has.
    pub const fn parts(&self) -> usize {
        self.files.len()
    }

    /// Opens one of them, at its begin.
    ///
    /// # Errors
    /// If there is no such part, or `/proc` is not mounted.
    pub fn open(&self, part: usize) -> io::Result<File> {
        let file = self.files.get(part).ok_or(io::ErrorKind::NotFound)?;
        // It has no name. Several questions read it at once, each from a place of its own.
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

/// A file of a table while it is written.
pub struct TemporaryWriter {
    columns: SchemaRef,
    waiting: Vec<RecordBatch>,
    n_waiting: usize,
    writer: ArrowWriter<File>,
}

impl TemporaryWriter {
    /// Begins one in the folder for temporary files.
    ///
    /// # Errors
    /// If that is full or not there.
    pub fn new(columns: &SchemaRef) -> io::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let file = tempfile::tempfile()?;
        Ok(Self {
            columns: SchemaRef::clone(columns),
            waiting: Vec::new(),
            n_waiting: 0,
            writer: ArrowWriter::try_new(file, SchemaRef::clone(columns), Some(properties))?,
        })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn add(&mut self, rows: impl IntoIterator<Item = RecordBatch>) -> io::Result<()> {
        for batch in rows {
            self.n_waiting += batch.num_rows();
            self.waiting.push(batch);
        }
        if self.n_waiting >= BATCH_ROWS {
            self.write()?;
        }
        Ok(())
    }

    /// Files of single recordings have few rows; put together they cost less.
    fn write(&mut self) -> io::Result<()> {
        let rows = concat_batches(&self.columns, &self.waiting).map_err(io::Error::other)?;
        self.waiting.clear();
        self.n_waiting = 0;
        Ok(self.writer.write(&rows)?)
    }

    /// The whole file.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn end(mut self) -> io::Result<File> {
        self.write()?;
        Ok(self.writer.into_inner()?)
    }
}
