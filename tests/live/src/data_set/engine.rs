//! The engines that are asked the questions of `sql/`, each from PyPI in an environment of its own.

use nestrace_rig::packages;
use serde_json::{Value, json};
use xtask::cargo_build::workspace;

use crate::export::READERS;
use crate::python::Python;

const ASK: &str = include_str!("ask.py");
/// Spark runs on it.
const JAVA: &str = "openjdk-17-jre-headless";

/// An engine.
pub struct Engine {
    /// As the program knows it, and the folder in `sql/`.
    pub name: &'static str,
    python: Python,
}

/// All of them, DuckDB first.
pub const ENGINES: [Engine; 3] = [
    Engine {
        name: "duckdb",
        python: READERS,
    },
    Engine {
        name: "clickhouse",
        python: Python(&["chdb==4.4.0"]),
    },
    Engine {
        name: "spark",
        python: Python(&["pyspark==4.3.0"]),
    },
];

/// Installs what is missing.
pub fn prepare(say: impl Fn(&str)) -> anyhow::Result<()> {
    packages::install_packages(&[JAVA], &say)?;
    ENGINES
        .iter()
        .try_for_each(|engine| engine.python.prepare(&say))
}

impl Engine {
    /// Every question, asked of each of these data sets, or `some` questions for a data set's name: by name and question,
    /// the rows.
    pub fn ask(&self, sets: &Value, some: &Value) -> anyhow::Result<Value> {
        let sql = workspace().join("sql");
        let what = json!({ "engine": self.name, "sql": sql, "sets": sets, "some": some });
        self.python.read(ASK, what.to_string().as_ref())
    }
}
