//! DuckDB and pyarrow.

use std::path::Path;

use serde_json::Value;

use crate::python::Python;

/// The readers.
pub const READERS: Python = Python(&["duckdb==2.0.0", "pyarrow==26.0.1"]);
const READ_BACK: &str = include_str!("read_back.py");

/// Makes the environment unless an earlier run did.
pub fn prepare(say: impl Fn(&str)) -> anyhow::Result<()> {
    READERS.prepare(say)
}

/// The sums of a data set, by engine.
pub fn read_back(set: &Path) -> anyhow::Result<Value> {
    READERS.read(READ_BACK, set)
}
