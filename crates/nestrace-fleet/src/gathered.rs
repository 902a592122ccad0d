//! What the files of a data set hold, read once and whole: for each table and thread a temporary file, which the questions
//! read. A damaged file is in none of them, and what changes meanwhile changes no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use nestrace_report::fleet::LeftOut;

use crate::data_set::{DataSet, DataSetError, MAX_LEFT_OUT, TableFile, is_known};
use crate::file::{BATCH_ROWS, FileError, OpenFile};
use crate::tables::Table;
use crate::temporary::{TemporaryTable, TemporaryWriter};

/// The tables.
#[derive(Debug, Default)]
pub struct Gathered {
    tables: BTreeMap<Table, Arc<TemporaryTable>>,
}

impl Gathered {
    /// A table, in the order of the hosts.
    pub fn table(&self, table: Table) -> Option<Arc<TemporaryTable>> {
        self.tables.get(&table).cloned()
    }
}

/// Reads every file of every table once, whole.
///
/// # Errors
/// If a file's tables look otherwise than any that are known, no file can be read, or the folder for temporary files is full.
pub fn gather(data_set: &DataSet, threads: usize) -> Result<Gathered, DataSetError> {
    let unknown = Mutex::new(BTreeSet::new());
    let mut gathered = Gathered::default();
    let mut n_good = 0;
    for table in Table::ALL {
        let parts = threads.min(data_set.n_hosts(table)).max(1);
        let parts: io::Result<Vec<Part>> = thread::scope(|scope| {
            let unknown = &unknown;
            let parts: Vec<_> = (0..parts)
                .map(|part| {
                    scope.spawn(move || gather_part(data_set, table, (part, parts), unknown))
                })
                .collect();
            let early = |_| Err(io::Error::other("a thread ended early"));
            let parts = parts.into_iter();
            parts
                .map(|part| part.join().unwrap_or_else(early))
                .collect()
        });
        let parts = parts.map_err(|source| DataSetError::Temporary { source })?;
        if table == Table::Disks {
            n_good = parts.iter().map(|part| part.n_good).sum();
        }
        let files = parts.into_iter().map(|part| part.file).collect();
        let rows = Arc::new(TemporaryTable::new(table.schema(), files));
        gathered.tables.insert(table, rows);
        let first = unknown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_first();
        if let Some((file, schema)) = first {
            return Err(DataSetError::Mixed { file, schema });
        }
    }
    let left_out = data_set.left_out();
    let n_left_out = left_out.len();
    let place = data_set.place().to_owned();
    match left_out.into_iter().next() {
        Some(first) if n_good == 0 => Err(DataSetError::AllDamaged { place, first }),
        Some(first) if n_left_out > MAX_LEFT_OUT => Err(DataSetError::ManyDamaged { place, first }),
        None if n_good == 0 => Err(DataSetError::Empty(place)),
        _ => Ok(gathered),
    }
}

/// What a thread has read.
struct Part {
    file: File,
    n_good: usize,
}

/// The files with a schema that is not known go into `unknown`.
fn gather_part(
    data_set: &DataSet,
    table: Table,
    (part, of): (usize, usize),
    unknown: &Mutex<BTreeSet<(String, String)>>,
) -> io::Result<Part> {
    let columns = table.schema();
    let mut writer = TemporaryWriter::new(&columns)?;
    let mut n_good = 0;
    for file in data_set.files(table, part, of) {
        // The decoder is not ours, and the file may be anybody's.
        let read = catch_unwind(AssertUnwindSafe(|| read_whole(&file, &columns)));
        match read {
            Ok(Ok(Contents::Few(rows))) => {
                n_good += 1;
                writer.add(rows)?;
            }
            Ok(Ok(Contents::Many)) => {
                n_good += 1;
                // It was whole a moment ago.
                let changed = |error: FileError| {
                    io::Error::other(format!("{} has changed: {error}", file.name))
                };
                for rows in OpenFile::new(&file, &columns).map_err(changed)? {
                    writer.add(vec![rows.map_err(changed)?])?;
                }
            }
            Ok(Ok(Contents::Unknown(schema))) => {
                let mut unknown = unknown.lock().unwrap_or_else(PoisonError::into_inner);
                if unknown.is_empty() {
                    unknown.insert((file.name, schema));
                }
            }
            Ok(Err(error)) => data_set.leave_out(&file.name, error.to_string()),
            Err(_) => data_set.leave_out(&file.name, String::from("its decoder failed")),
        }
    }
    let file = writer.end()?;
    Ok(Part { file, n_good })
}

/// What is in a file that could be read to its end.
enum Contents {
    Few(Vec<RecordBatch>),
    /// More than are kept.
    Many,
    /// A schema that is not known.
    Unknown(String),
}

fn read_whole(file: &TableFile, columns: &SchemaRef) -> Result<Contents, FileError> {
    let open = OpenFile::new(file, columns)?;
    if !is_known(open.schema()) {
        return Ok(Contents::Unknown(open.schema().to_owned()));
    }
    let mut few = Vec::new();
    let mut n = 0;
    for rows in open {
        let rows = rows?;
        n += rows.num_rows();
        if n <= BATCH_ROWS {
            few.push(rows);
        } else {
            few.clear();
        }
    }
    Ok(if n <= BATCH_ROWS {
        Contents::Few(few)
    } else {
        Contents::Many
    })
}

/// What was left out, the first ones, and how many there are.
pub fn left_out(data_set: &DataSet, most: usize) -> (Vec<LeftOut>, u64) {
    let all = data_set.left_out();
    let n = all.len() as u64;
    (all.into_iter().take(most).collect(), n)
}
