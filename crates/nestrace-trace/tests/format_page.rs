//! `docs/format.md` says what the code does.

use nestrace_trace::columns::COLUMNS;
use nestrace_trace::manifest::{FORMAT_MAJOR, FORMAT_MINOR};
use nestrace_trace::{Kind, index};

const PAGE: &str = include_str!("../../../docs/format.md");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");

/// Writes the table instead of comparing it.
const WRITE: &str = "UPDATE=1 cargo test -p nestrace-trace --test format_page";
/// The line above the rows.
const HEAD: &str = "| kind | name | source | letter, meaning, and columns beyond `ts_ns`, `cpu`, `tid` |\n|---|---|---|---|\n";

/// The rows say what `nestrace_abi::kind` says.
#[test]
fn every_kind_has_its_row() {
    let row = |kind: &Kind| {
        format!(
            "| {} | `{}` | {} | {} |\n",
            *kind as u8,
            kind.name(),
            kind.source().name(),
            kind.meaning().trim().trim_end_matches('.')
        )
    };
    let expected: String = Kind::ALL.iter().map(row).collect();
    let (before, rest) = PAGE.split_once(HEAD).expect("the table of kinds");
    let end = rest.find("\n\n").expect("the table's end") + 1;
    let (rows, after) = rest.split_at(end);
    if std::env::var_os("UPDATE").is_some() {
        let page = format!("{before}{HEAD}{expected}{after}");
        std::fs::write(PATH, page).expect("the page is written");
        return;
    }
    for (expected, found) in expected.lines().zip(rows.lines()) {
        assert_eq!(found, expected, "to write the table: {WRITE}");
    }
    assert_eq!(rows, expected, "to write the table: {WRITE}");
}

#[test]
fn every_column_is_there() {
    let section = PAGE.split("## Columns").nth(1).unwrap();
    for column in COLUMNS {
        assert!(
            section.contains(&format!("`{}`", column.name)),
            "{} is missing",
            column.name
        );
    }
    assert!(PAGE.contains(&format!("format **{FORMAT_MAJOR}.{FORMAT_MINOR}**")));
    let index = format!(
        "u16 major {}, u16 minor {}, u32 bytes of an entry ({})",
        index::MAJOR,
        index::MINOR,
        index::ENTRY_LEN
    );
    assert!(PAGE.contains(&index));
}
