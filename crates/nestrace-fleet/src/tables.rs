//! The tables of a data set that are kept for years, and their columns as they are asked for.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};

/// Segments of a guest bio, as columns are called.
const SEGMENTS: [&str; 17] = [
    "guest_queue_ns",
    "virt_submit_ns",
    "qemu_submit_ns",
    "qemu_job_ns",
    "host_fs_submit_ns",
    "host_queue_ns",
    "stack_submit_ns",
    "stack_between_ns",
    "stack_complete_ns",
    "device_ns",
    "device_flush_ns",
    "remote_ns",
    "host_fs_between_ns",
    "host_fs_complete_ns",
    "qemu_between_ns",
    "qemu_complete_ns",
    "virt_complete_ns",
];

/// A table: a folder of the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Counts and latencies by minute.
    Disks,
    /// Rules that fired.
    Findings,
    /// What disks lie on.
    Topology,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Disks, Self::Findings, Self::Topology];

    /// Of the folder, and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disks => "disks",
            Self::Findings => "findings",
            Self::Topology => "topology",
        }
    }

    /// Its columns that the questions use; those of the folders' names come last.
    pub fn schema(self) -> SchemaRef {
        let mut fields: Vec<Field> = Vec::new();
        let mut add = |names: &[&str], kind: &DataType| {
            let of = names
                .iter()
                .map(|name| Field::new(*name, kind.clone(), true));
            fields.extend(of);
        };
        let (text, number) = (DataType::Utf8, DataType::Int64);
        match self {
            Self::Disks => {
                add(&["side", "guest", "device", "disk", "layer", "op"], &text);
                add(&["minute_unix_ns", "n", "sum_ns", "bytes"], &number);
                add(&["at_most_ns", "counts"], &numbers());
                add(&SEGMENTS, &number);
            }
            Self::Findings => {
                add(&["id", "guest", "disk", "severity", "title"], &text);
                add(&["share"], &DataType::Float64);
                add(&["evidence", "advice"], &text);
            }
            Self::Topology => add(
                &[
                    "guest",
                    "disk",
                    "guest_device",
                    "bus",
                    "format",
                    "cache",
                    "aio",
                    "host_fs",
                    "host_device",
                    "host_kernel",
                    "guest_kernel",
                    "guest_fs",
                    "qemu_version",
                    "accel",
                ],
                &text,
            ),
        }
        add(&["recording"], &text);
        add(&["start_unix_ns", "duration_ns", "lost"], &number);
        add(&[HOST, DATE], &text);
        Arc::new(Schema::new(fields))
    }
}

/// Columns that are in the folders' names.
pub const HOST: &str = "host";
/// The day, `None` if it is unknown.
pub const DATE: &str = "date";

fn numbers() -> DataType {
    // As Parquet calls what is in a list.
    DataType::List(Arc::new(Field::new("element", DataType::Int64, true)))
}
