//! Data sets as `nestrace export` writes them, of made-up disks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use datafusion::arrow::datatypes::Int64Type;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

/// The schema that nestrace writes.
pub const SCHEMA: &str = "nestrace-parquet/2";
/// A Monday.
const START_NS: i64 = 1_795_000_000_000_000_000;
const DAY_NS: i64 = 86_400_000_000_000;

/// Of each disk of a crowd.
const BUCKETS: i64 = 60;

/// A data set under way.
pub struct DataSet {
    pub place: PathBuf,
    pub schema: &'static str,
    /// Whether findings have the column `advice`.
    pub with_advice: bool,
}

/// A recording of one disk.
pub struct Recording {
    pub host: String,
    pub day: i64,
    /// Of each of its reads.
    pub latency_ns: i64,
    pub reads: i64,
}

impl DataSet {
    pub fn new(place: &Path) -> Self {
        fs::create_dir_all(place).expect("a folder");
        fs::write(place.join("_nestrace.json"), "{}").expect("a mark");
        Self {
            place: place.to_owned(),
            schema: SCHEMA,
            with_advice: true,
        }
    }

    /// Adds a recording; its files.
    pub fn add(&self, recording: &Recording) -> [PathBuf; 3] {
        let name = format!("r{}", recording.day);
        let start_ns = START_NS + recording.day * DAY_NS;
        let common = |mut columns: Vec<(&'static str, ArrayRef)>| {
            columns.extend([
                (
                    "recording",
                    text(Some(&format!("{name}-{}", recording.host))),
                ),
                ("start_unix_ns", number(Some(start_ns))),
                ("duration_ns", number(Some(10_000_000_000))),
                ("lost", number(Some(0))),
            ]);
            columns
        };
        let sum_ns = recording.latency_ns * recording.reads;
        let disks = common(vec![
            ("side", text(Some("guest"))),
            ("guest", text(Some("vm"))),
            ("device", text(Some("vda"))),
            ("disk", text(None)),
            ("layer", text(Some("block"))),
            ("op", text(Some("read"))),
            ("minute_unix_ns", number(Some(start_ns))),
            ("n", number(Some(recording.reads))),
            ("sum_ns", number(Some(sum_ns))),
            ("at_most_ns", list(&[1_023, recording.latency_ns])),
            ("counts", list(&[0, recording.reads])),
        ]);
        let mut findings = common(vec![
            ("id", text(Some("sync-writes"))),
            ("guest", text(Some("vm"))),
            ("disk", text(Some("d0"))),
            ("severity", text(Some("high"))),
            ("title", text(Some("a title"))),
            ("share", Arc::new(Float64Array::from(vec![0.5])) as ArrayRef),
            ("evidence", text(Some("{}"))),
        ]);
        if self.with_advice {
            findings.push(("advice", text(Some("[\"use `cache=none`\"]"))));
        }
        let topology = common(vec![
            ("guest", text(Some("vm"))),
            ("disk", text(Some("d0"))),
            ("guest_device", text(Some("vda"))),
            ("bus", text(Some("virtio-blk"))),
            ("cache", text(Some("none"))),
            ("host_fs", text(Some("xfs"))),
            ("host_kernel", text(Some("6.1"))),
            ("qemu_version", text(Some("10.0"))),
        ]);
        [
            ("disks", disks),
            ("findings", findings),
            ("topology", topology),
        ]
        .map(|(table, columns)| {
            let folder = format!(
                "{table}/host={}/date=2026-11-{:02}",
                recording.host,
                1 + recording.day
            );
            let folder = self.place.join(folder);
            fs::create_dir_all(&folder).expect("a folder");
            let path = folder.join(format!("{name}.parquet"));
            write(&path, columns, self.schema);
            path
        })
    }

    /// Adds a recording of many guests' disks with many buckets each.
    pub fn add_crowd(&self, guests: usize) {
        let folder = self.place.join("disks/host=crowd/date=2026-11-05");
        fs::create_dir_all(&folder).expect("a folder");
        let names = (0..guests).map(|nth| Some(format!("vm{nth:06}")));
        let same =
            |value: &str| -> ArrayRef { Arc::new(StringArray::from(vec![Some(value); guests])) };
        let each = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value; guests])) };
        let lists = |value: fn(i64) -> i64| -> ArrayRef {
            let one = || Some((0..BUCKETS).map(value).map(Some).collect::<Vec<_>>());
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
                (0..guests).map(|_| one()),
            ))
        };
        let start_ns = START_NS + 4 * DAY_NS;
        let columns = vec![
            ("side", same("guest")),
            (
                "guest",
                Arc::new(names.collect::<StringArray>()) as ArrayRef,
            ),
            ("device", same("vda")),
            ("layer", same("block")),
            ("op", same("read")),
            ("minute_unix_ns", each(start_ns)),
            ("n", each(BUCKETS)),
            ("sum_ns", each(BUCKETS * 1_000_000)),
            ("at_most_ns", lists(|nth| 1_000_000 + nth * 50_000)),
            ("counts", lists(|_| 1)),
            ("recording", same("crowd")),
            ("start_unix_ns", each(start_ns)),
            ("duration_ns", each(10_000_000_000)),
            ("lost", each(0)),
        ];
        write(&folder.join("crowd.parquet"), columns, self.schema);
    }

    /// Twenty hosts, each with a recording in either week, a millisecond each; the first ten at 900 µs.
    pub fn add_usual(&self) {
        for host in 0..20 {
            for day in [2, 9] {
                self.add(&Recording {
                    host: format!("h{host:02}"),
                    day,
                    latency_ns: 900_000 + 10_000 * host,
                    reads: 200,
                });
            }
        }
    }
}

/// Writes a file.
pub fn write(path: &Path, columns: Vec<(&'static str, ArrayRef)>, schema: &str) {
    let rows = RecordBatch::try_from_iter_with_nullable(
        columns
            .into_iter()
            .map(|(name, column)| (name, column, true)),
    )
    .expect("rows");
    let about = KeyValue::new(String::from("nestrace_schema"), schema.to_owned());
    let properties = WriterProperties::builder()
        .set_key_value_metadata(Some(vec![about]))
        .build();
    let file = File::create(path).expect("a file");
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).expect("a writer");
    writer.write(&rows).expect("rows are written");
    writer.close().expect("an end");
}

pub fn text(value: Option<&str>) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

pub fn number(value: Option<i64>) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn list(values: &[i64]) -> ArrayRef {
    let values = values.iter().map(|value| Some(*value));
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(
        values.collect::<Vec<_>>(),
    )]))
}
