//! The engine: SQL over the tables of a data set, in bounded memory.
//!
//! Sorts, groups and joins of more than it may hold go to temporary files, and so do the rows that a question uses twice. What
//! it holds without a bound are the values of a median and the names of disks that are counted: some bytes for each disk and
//! operation.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::error::Result;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::gathered::Gathered;
use crate::joins;
use crate::scan::Scan;
use crate::shared::parts;
use crate::tables::Table;
use crate::temporary::{TemporaryTable, TemporaryWriter};

/// The questions' tables that are not folders: a row for each bucket of a distribution.
const VIEWS: &str = "CREATE VIEW disk_latencies AS
SELECT host, recording, side, guest, device, disk, layer, op, minute_unix_ns, unnest(at_most_ns) AS at_most_ns,
       unnest(counts) AS n
FROM disks";

/// A data set that can be asked.
#[derive(Debug)]
pub struct Engine {
    context: SessionContextHolder,
}

/// Without what cannot be printed.
struct SessionContextHolder(SessionContext);

impl std::fmt::Debug for SessionContextHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionContext")
    }
}

impl Engine {
    /// Knows the tables of a data set. What needs more than `memory` bytes goes to files in the folder for temporary ones.
    ///
    /// # Errors
    /// If there is no folder for temporary files.
    pub async fn new(gathered: &Gathered, memory: usize) -> Result<Self> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
            .build_arc()?;
        let config = SessionConfig::new()
            // What goes to many threads is no longer in the order of the hosts, and each of them wants memory.
            .with_target_partitions(1)
            // Each sort keeps this for its merge; a tenth of the default, so that all of a question's find room.
            .with_sort_spill_reservation_bytes(1 << 20);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_default_features()
            .with_physical_optimizer_rules(joins::rules())
            .build();
        let context = SessionContext::new_with_state(state);
        for table in Table::ALL {
            let Some(rows) = gathered.table(table) else {
                continue;
            };
            let scan = Scan {
                table: rows,
                by_host: true,
            };
            context.register_table(table.name(), Arc::new(scan))?;
        }
        context.sql(VIEWS).await?.collect().await?;
        Ok(Self {
            context: SessionContextHolder(context),
        })
    }

    /// The first rows of the answer to a question.
    ///
    /// # Errors
    /// If memory or the disk is full.
    pub async fn ask(&self, question: &str, most: usize) -> Result<Answer> {
        self.ask_of_answer(question, str::to_owned, most).await
    }

    /// The first rows of the answer to a question about another one's answer: `of` is given that one.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn ask_of_answer(
        &self,
        question: &str,
        of: impl FnOnce(&str) -> String,
        most: usize,
    ) -> Result<Answer> {
        let context = &self.context.0;
        let parts = parts(question)?;
        for (name, question) in &parts.shared {
            let mut rows = context.sql(question).await?.execute_stream().await?;
            let columns = rows.schema();
            let mut writer = TemporaryWriter::new(&columns)?;
            while let Some(batch) = rows.next().await {
                writer.add([batch?])?;
            }
            let table = Arc::new(TemporaryTable::new(columns, vec![writer.end()?]));
            let scan = Scan {
                table,
                by_host: false,
            };
            context.register_table(name.as_str(), Arc::new(scan))?;
        }
        let answer = context.sql(&of(&parts.rest)).await?;
        let batches = answer.limit(0, Some(most))?.collect().await?;
        for (name, _) in &parts.shared {
            context.deregister_table(name.as_str())?;
        }
        Ok(Answer { batches })
    }
}

/// Rows.
#[derive(Debug)]
pub struct Answer {
    batches: Vec<RecordBatch>,
}

impl Answer {
    /// What each row becomes.
    ///
    /// # Errors
    /// If a column is of another kind.
    pub fn rows<T>(&self, make: impl Fn(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        for batch in &self.batches {
            for place in 0..batch.num_rows() {
                rows.push(make(&Row { batch, place })?);
            }
        }
        Ok(rows)
    }
}

/// A row of an answer.
#[derive(Debug)]
pub struct Row<'a> {
    batch: &'a RecordBatch,
    place: usize,
}

impl Row<'_> {
    /// A column of this row alone, as another type.
    fn value(&self, column: &str, kind: &DataType) -> Result<Arc<dyn Array>> {
        let column = self.batch.schema().index_of(column)?;
        let value = self.batch.column(column).slice(self.place, 1);
        Ok(cast(&value, kind)?)
    }

    /// A text; `-` if it is null.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn text(&self, column: &str) -> Result<String> {
        Ok(self
            .text_or_null(column)?
            .unwrap_or_else(|| String::from("-")))
    }

    /// A text.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn text_or_null(&self, column: &str) -> Result<Option<String>> {
        let value = self.value(column, &DataType::Utf8)?;
        let text = value.as_string::<i32>();
        Ok((!text.is_empty() && text.is_valid(0)).then(|| text.value(0).to_owned()))
    }

    /// A whole number.
    ///
    /// # Errors
    /// If there is no such column of numbers.
    pub fn whole_or_null(&self, column: &str) -> Result<Option<i64>> {
        let value = self.value(column, &DataType::Int64)?;
        let number = value.as_primitive::<Int64Type>();
        Ok((!number.is_empty() && number.is_valid(0)).then(|| number.value(0)))
    }

    /// A count, or time; 0 if it is null.
    ///
    /// # Errors
    /// If there is no such column of numbers.
    pub fn count(&self, column: &str) -> Result<u64> {
        let number = self.whole_or_null(column)?.unwrap_or(0);
        Ok(u64::try_from(number).unwrap_or(0))
    }

    /// A number with fractions.
    ///
    /// # Errors
    /// If there is no such column of numbers.
    pub fn number_or_null(&self, column: &str) -> Result<Option<f64>> {
        let value = self.value(column, &DataType::Float64)?;
        let number = value.as_primitive::<Float64Type>();
        let number = (!number.is_empty() && number.is_valid(0)).then(|| number.value(0));
        Ok(number.filter(|number| number.is_finite()))
    }

    /// The same; 0 if it is null.
    ///
    /// # Errors
    /// If there is no such column of numbers.
    pub fn number(&self, column: &str) -> Result<f64> {
        Ok(self.number_or_null(column)?.unwrap_or(0.0))
    }
}
