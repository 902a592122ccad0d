//! The Arrow schema of a stream, and the version that it carries.

use std::collections::HashMap;

use arrow_schema::{Field, Schema};

use crate::columns::COLUMNS;
use crate::manifest::{FORMAT_MAJOR, FORMAT_MINOR};

/// Key of the schema metadata that holds `MAJOR.MINOR` of the format.
pub const FORMAT_KEY: &str = "nestrace.format";
/// Key of the schema metadata that holds the release that wrote the stream.
pub const RELEASE_KEY: &str = "nestrace.release";

/// A batch never has more rows, whoever wrote it.
pub const MAX_BATCH_ROWS: usize = 65_536;

/// The schema of `host.arrows` and of every guest stream: one non-null column for each field of
/// [`crate::Event`], in the order of [`COLUMNS`].
#[must_use]
pub fn schema() -> Schema {
    let fields: Vec<Field> = COLUMNS
        .iter()
        .map(|column| Field::new(column.name, column.data_type.clone(), false))
        .collect();
    let metadata = HashMap::from([
        (
            FORMAT_KEY.to_owned(),
            format!("{FORMAT_MAJOR}.{FORMAT_MINOR}"),
        ),
        (RELEASE_KEY.to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    Schema::new_with_metadata(fields, metadata)
}
