//! One Parquet file as rows of our columns.

use std::fs::File;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, new_null_array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::error::ArrowError;
use nestrace_bundle::input_file;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use thiserror::Error;

use crate::data_set::TableFile;
use crate::tables::{DATE, HOST};

/// Rows that are decoded at once.
pub const BATCH_ROWS: usize = 8192;

/// Why a file cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be opened.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is no Parquet file, or damaged.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// It is damaged, or a column cannot be what it is to be.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// It is not nestrace's.
    #[error("it does not say that it is of nestrace")]
    Foreign,
}

/// A file that is being read.
#[derive(Debug)]
pub struct OpenFile {
    reader: ParquetRecordBatchReader,
    columns: SchemaRef,
    schema: String,
    /// What the names of its folders say: the host and the day. Not of a file that has both as columns.
    folders: Option<(String, Option<String>)>,
}

impl OpenFile {
    /// Opens a file of the data set to read these columns.
    ///
    /// # Errors
    /// If it is none, or damaged.
    pub fn new(file: &TableFile, columns: &SchemaRef) -> Result<Self, FileError> {
        let builder = builder(input_file::open(&file.path)?)?;
        let about = builder.metadata().file_metadata().key_value_metadata();
        let mut about = about.into_iter().flatten();
        let schema = about.find(|about| about.key == "nestrace_schema");
        let schema = schema.and_then(|about| about.value.clone());
        let schema = schema.ok_or(FileError::Foreign)?;
        Ok(Self {
            reader: reader(builder, columns)?,
            columns: Arc::clone(columns),
            schema,
            folders: Some((file.host.clone(), file.date.clone())),
        })
    }

    /// Opens a file that has all columns of a table to read some.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn temporary(file: File, columns: &SchemaRef) -> Result<Self, FileError> {
        Ok(Self {
            reader: reader(builder(file)?, columns)?,
            columns: Arc::clone(columns),
            schema: String::new(),
            folders: None,
        })
    }

    /// What the file says of its schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The columns that were asked for, in their order: null where the file does not have one.
    fn as_asked(&self, rows: &RecordBatch) -> Result<RecordBatch, FileError> {
        let n = rows.num_rows();
        let column = |name: &str, kind: &DataType| -> Result<ArrayRef, FileError> {
            Ok(match (name, &self.folders, rows.column_by_name(name)) {
                (HOST, Some((host, _)), _) => Arc::new(StringArray::from(vec![host.as_str(); n])),
                (DATE, Some((_, date)), _) => Arc::new(StringArray::from(vec![date.as_deref(); n])),
                (_, _, Some(column)) if column.data_type() == kind => Arc::clone(column),
                (_, _, Some(column)) => cast(column, kind)?,
                (_, _, None) => new_null_array(kind, n),
            })
        };
        let columns = self.columns.fields().iter();
        let columns = columns
            .map(|field| column(field.name(), field.data_type()))
            .collect::<Result<Vec<_>, _>>()?;
        let options = datafusion::arrow::array::RecordBatchOptions::new().with_row_count(Some(n));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.columns),
            columns,
            &options,
        )?)
    }
}

impl Iterator for OpenFile {
    type Item = Result<RecordBatch, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.reader.next()?;
        Some(
            rows.map_err(FileError::from)
                .and_then(|rows| self.as_asked(&rows)),
        )
    }
}

/// Types are those of Parquet, whatever Arrow's release that wrote it called them.
fn builder(file: File) -> Result<ParquetRecordBatchReaderBuilder<File>, FileError> {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    Ok(ParquetRecordBatchReaderBuilder::try_new_with_options(
        file, options,
    )?)
}

fn reader(
    builder: ParquetRecordBatchReaderBuilder<File>,
    columns: &SchemaRef,
) -> Result<ParquetRecordBatchReader, FileError> {
    let wanted = |name: &str| columns.field_with_name(name).is_ok();
    let fields = builder.schema().fields().iter().enumerate();
    let wanted = fields.filter(|(_, field)| wanted(field.name()));
    let roots: Vec<usize> = wanted.map(|(place, _)| place).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
    let builder = builder.with_projection(mask);
    Ok(builder.with_batch_size(BATCH_ROWS).build()?)
}
