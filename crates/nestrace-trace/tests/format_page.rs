//! `docs/format.md` says what the code does.

use nestrace_trace::columns::COLUMNS;
use nestrace_trace::manifest::{FORMAT_MAJOR, FORMAT_MINOR};
use nestrace_trace::{Kind, index};

const PAGE: &str = include_str!("../../../docs/format.md");

#[test]
fn every_kind_has_its_row() {
    let expected: Vec<String> = Kind::ALL
        .iter()
        .map(|kind| {
            format!(
                "| {} | `{}` | {} |",
                *kind as u8,
                kind.name(),
                kind.source().name()
            )
        })
        .collect();
    let section = PAGE.split("## Kinds").nth(1).unwrap();
    let found: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .take(expected.len())
        .collect();
    for (expected, found) in expected.iter().zip(&found) {
        assert!(
            found.starts_with(expected.as_str()),
            "{expected} is not {found}"
        );
    }
    assert_eq!(found.len(), expected.len());
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
