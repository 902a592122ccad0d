//! One Parquet file that grows by a row group at a time.

use std::{
    collections::BTreeMap,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    rc::Rc,
};

use nestrace_analyzer::dataframe::{
    DataFrame, PolarsResult,
    polars::prelude::{CompatLevel, SchemaExt},
};
use polars::io::parquet::write::{BatchedWriter, KeyValueMetadata, ParquetWriter};
use polars_parquet::parquet::metadata::KeyValue;
use polars_parquet::write::schema_to_metadata_key;

use crate::exit::{FAILURE, Failure};

use super::{
    data_set::{DataSet, SCHEMA},
    failed,
    partition::{Date, Partition},
};

/// A file that is being written.
pub struct ParquetFile {
    writer: BatchedWriter<BufWriter<File>>,
    path: PathBuf,
}

impl ParquetFile {
    /// Begins a file with the columns of this table.
    pub fn create(path: PathBuf, table: &DataFrame) -> Result<Self, Failure> {
        let file = File::create_new(&path).map_err(|error| failed(&path, error))?;
        let writer = ParquetWriter::new(BufWriter::new(file))
            .with_key_value_metadata(Some(about(table)))
            .batched(table.schema())
            .map_err(|error| failed(&path, error))?;
        Ok(Self { writer, path })
    }

    /// Appends a row group.
    pub fn write(&mut self, table: &DataFrame) -> Result<(), Failure> {
        let written = self.writer.write_batch(table);
        written.map_err(|error| failed(&self.path, error))
    }

    /// Writes the end of the file; without it the file cannot be read.
    pub fn finish(self) -> Result<(), Failure> {
        let ended = self.writer.finish();
        ended.map_err(|error| failed(&self.path, error))?;
        Ok(())
    }
}

/// What the tables look like; and what readers that know Arrow take the columns for: polars would say that words are
/// "views", for which pyarrow has next to no functions.
fn about(table: &DataFrame) -> KeyValueMetadata {
    let plain = table.schema().to_arrow(CompatLevel::oldest());
    let schema = KeyValue::new("nestrace_schema".to_owned(), SCHEMA.to_owned());
    KeyValueMetadata::Static(vec![schema_to_metadata_key(&plain), schema])
}

/// Files that are open at once; a recording of more guests goes on in further ones.
const MAX_OPEN: usize = 64;

/// The files of one table: one for each machine and day.
pub struct Files {
    set: Rc<DataSet>,
    table: &'static str,
    /// What the files are called, up to the number of the part.
    stem: String,
    open: BTreeMap<(Partition, Date), ParquetFile>,
    parts: u32,
}

impl Files {
    /// None yet.
    pub fn new(set: &Rc<DataSet>, table: &'static str, stem: String) -> Self {
        Self {
            set: Rc::clone(set),
            table,
            stem,
            open: BTreeMap::new(),
            parts: 0,
        }
    }

    /// Appends a row group to the file of this machine and day.
    pub fn write(
        &mut self,
        partition: &Partition,
        date: Date,
        rows: &DataFrame,
    ) -> Result<(), Failure> {
        let key = (partition.clone(), date);
        if !self.open.contains_key(&key) {
            if self.open.len() >= MAX_OPEN {
                self.finish()?;
            }
            let name = format!("{}-{}", self.stem, self.parts);
            let path = self.set.file(self.table, &partition.folder(date), &name)?;
            self.parts += 1;
            self.open
                .insert(key.clone(), ParquetFile::create(path, rows)?);
        }
        match self.open.get_mut(&key) {
            Some(file) => file.write(rows),
            None => Ok(()),
        }
    }

    /// Ends every open file.
    pub fn finish(&mut self) -> Result<(), Failure> {
        std::mem::take(&mut self.open)
            .into_values()
            .try_for_each(ParquetFile::finish)
    }
}

/// A table that is one file of the recording, or of the data set.
pub fn write_small(
    set: &DataSet,
    (table, folder, name): (&str, &Path, &str),
    rows: PolarsResult<DataFrame>,
) -> Result<(), Failure> {
    let rows = rows.map_err(|error| made(&error))?;
    let path = set.file(table, folder, name)?;
    let mut file = ParquetFile::create(path, &rows)?;
    file.write(&rows)?;
    file.finish()
}

/// A failure at making a table.
pub fn made(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(FAILURE, format!("make a table: {error}"))
}
