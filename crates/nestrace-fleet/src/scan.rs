//! A table as the engine reads it: batch by batch, never all at once.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use crate::file::{FileError, OpenFile};
use crate::tables::HOST;
use crate::temporary::TemporaryTable;

/// Batches that wait for the engine.
const WAITING: usize = 2;

/// A table.
#[derive(Debug)]
pub struct Scan {
    /// Its rows.
    pub table: Arc<TemporaryTable>,
    /// They come host by host.
    pub by_host: bool,
}

#[async_trait]
impl TableProvider for Scan {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.table.columns())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.schema();
        let columns = match projection {
            Some(places) => Arc::new(schema.project(places)?),
            None => schema,
        };
        // One stream: the hosts come in order, so that what is grouped by host is held for one of them at a time.
        let host = columns.index_of(HOST).ok().filter(|_| self.by_host);
        let order = host.and_then(|place| {
            let host = PhysicalSortExpr::new_default(Arc::new(Column::new(HOST, place)));
            LexOrdering::new([host.asc()])
        });
        let stream: Arc<dyn PartitionStream> = Arc::new(Rows {
            table: Arc::clone(&self.table),
            columns: Arc::clone(&columns),
        });
        let scan = StreamingTableExec::try_new(columns, vec![stream], None, order, false, limit)?;
        Ok(Arc::new(scan))
    }
}

/// The rows of a table.
#[derive(Debug)]
struct Rows {
    table: Arc<TemporaryTable>,
    columns: SchemaRef,
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.columns
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut stream = RecordBatchReceiverStream::builder(Arc::clone(&self.columns), WAITING);
        let sender = stream.tx();
        let (table, columns) = (Arc::clone(&self.table), Arc::clone(&self.columns));
        stream.spawn_blocking(move || {
            let failed = |error: FileError| DataFusionError::External(Box::new(error));
            for part in 0..table.parts() {
                let file = table.open(part)?;
                for rows in OpenFile::temporary(file, &columns).map_err(failed)? {
                    // The engine may want no more.
                    if sender.blocking_send(Ok(rows.map_err(failed)?)).is_err() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        });
        stream.build()
    }
}
