//! `docs/*.schema.json` is what the types say.

use std::path::Path;

use nestrace_report::schema;

/// Writes the files instead of comparing them.
const WRITE: &str = "UPDATE=1 cargo test -p nestrace-report --features schema --test schema";

fn check(name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, generated).expect("the schema is written");
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = committed
        .lines()
        .zip(generated.lines())
        .position(|(a, b)| a != b);
    let line = differs.unwrap_or_else(|| committed.lines().count()) + 1;
    assert!(
        committed == generated,
        "docs/{name} is not what the types say, from line {line}. To write it: {WRITE}"
    );
}

#[test]
fn of_analyses() {
    check("analysis.schema.json", &schema::analysis());
}

#[test]
fn of_comparisons() {
    check("comparison.schema.json", &schema::comparison());
}

#[test]
fn of_lab_reports() {
    check("lab.schema.json", &schema::lab_report());
}

#[test]
fn of_fleet_reports() {
    check("fleet.schema.json", &schema::fleet_report());
}
