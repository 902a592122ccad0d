//! Which column of a stored schema is which of ours, and how many buffers the others have.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use arrow_ipc::{Endianness, Field, Schema, Type};
use arrow_schema::DataType;

use crate::columns::COLUMNS;
use crate::manifest::FORMAT_MAJOR;
use crate::schema::{FORMAT_KEY, RELEASE_KEY};

/// The columns of a stream, as its schema message lists them.
#[derive(Debug)]
pub(crate) struct Layout {
    /// One for each column that is stored, in that order.
    pub(crate) columns: Vec<StoredColumn>,
    /// Positions in [`COLUMNS`] of those that are not stored.
    pub(crate) missing: Vec<usize>,
    /// Names of the columns that are not ours.
    pub(crate) unknown: Vec<String>,
}

/// One stored column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredColumn {
    /// The one at this position of [`COLUMNS`].
    Ours(usize),
    /// Another, with this many buffers.
    Other(usize),
}

impl StoredColumn {
    /// Passes over the buffers of a column that is not ours.
    pub(crate) fn skip_buffers<T>(self, buffers: &mut impl Iterator<Item = T>) {
        if let Self::Other(n) = self {
            buffers.by_ref().take(n).for_each(drop);
        }
    }
}

/// Why a schema is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It says nothing of nestrace.
    Foreign(String),
    /// It was written by a newer major version.
    Newer { found: u32, release: String },
    /// A column has another type than it must have.
    ColumnType {
        column: String,
        found: String,
        expected: String,
    },
}

impl Layout {
    /// This release's own.
    pub(crate) fn own() -> Self {
        let columns = (0..COLUMNS.len()).map(StoredColumn::Ours).collect();
        Self {
            columns,
            missing: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Reads a schema message.
    pub(crate) fn of(schema: Schema<'_>) -> Result<Self, Refusal> {
        check_version(schema)?;
        if schema.endianness() != Endianness::Little {
            return Err(Refusal::Foreign("it is big endian".to_owned()));
        }
        let mut layout = Self {
            columns: Vec::new(),
            missing: Vec::new(),
            unknown: Vec::new(),
        };
        for field in schema.fields().into_iter().flatten() {
            layout.add(field)?;
        }
        layout.missing = (0..COLUMNS.len())
            .filter(|position| !layout.columns.contains(&StoredColumn::Ours(*position)))
            .collect();
        Ok(layout)
    }

    fn add(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        let name = field.name().unwrap_or_default();
        let found = COLUMNS.iter().position(|column| column.name == name);
        let fresh = found.filter(|p| !self.columns.contains(&StoredColumn::Ours(*p)));
        if let (Some(position), Some(column)) =
            (fresh, found.and_then(|position| COLUMNS.get(position)))
        {
            let stored = unsigned_type(field);
            if stored.as_ref() != Some(&column.data_type) || field.dictionary().is_some() {
                return Err(Refusal::ColumnType {
                    column: name.to_owned(),
                    found: stored.map_or_else(|| type_name(field), |stored| stored.to_string()),
                    expected: column.data_type.to_string(),
                });
            }
            self.columns.push(StoredColumn::Ours(position));
            return Ok(());
        }
        let buffers = buffer_count(field).ok_or_else(|| Refusal::ColumnType {
            column: name.to_owned(),
            found: type_name(field),
            expected: "a type without children".to_owned(),
        })?;
        self.unknown.push(name.to_owned());
        self.columns.push(StoredColumn::Other(buffers));
        Ok(())
    }
}

fn check_version(schema: Schema<'_>) -> Result<(), Refusal> {
    let value = |key| {
        let pairs = schema.custom_metadata()?;
        pairs.iter().find(|pair| pair.key() == Some(key))?.value()
    };
    let Some(format) = value(FORMAT_KEY) else {
        return Err(Refusal::Foreign(format!(
            "its schema has no `{FORMAT_KEY}`"
        )));
    };
    let major = format
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    match major {
        None => Err(Refusal::Foreign(format!(
            "its `{FORMAT_KEY}` is no version"
        ))),
        Some(found) if found > FORMAT_MAJOR => {
            let release = value(RELEASE_KEY).unwrap_or_default();
            Err(Refusal::Newer {
                found,
                release: release.chars().take(64).collect(),
            })
        }
        Some(_) => Ok(()),
    }
}

/// The Arrow type of an unsigned integer field.
fn unsigned_type(field: Field<'_>) -> Option<DataType> {
    let int = field.type_as_int()?;
    match (int.is_signed(), int.bitWidth()) {
        (false, 8) => Some(DataType::UInt8),
        (false, 16) => Some(DataType::UInt16),
        (false, 32) => Some(DataType::UInt32),
        (false, 64) => Some(DataType::UInt64),
        _ => None,
    }
}

fn type_name(field: Field<'_>) -> String {
    field
        .type_type()
        .variant_name()
        .unwrap_or("an unknown type")
        .to_owned()
}

/// How many buffers a column of a foreign type has; `None` where it has children as well.
fn buffer_count(field: Field<'_>) -> Option<usize> {
    if field
        .children()
        .is_some_and(|children| !children.is_empty())
    {
        return None;
    }
    if field.dictionary().is_some() {
        return Some(2);
    }
    match field.type_type() {
        Type::Null => Some(0),
        Type::Int
        | Type::FloatingPoint
        | Type::Bool
        | Type::Decimal
        | Type::Date
        | Type::Time
        | Type::Timestamp
        | Type::Interval
        | Type::Duration
        | Type::FixedSizeBinary => Some(2),
        Type::Binary | Type::Utf8 | Type::LargeBinary | Type::LargeUtf8 => Some(3),
        _ => None,
    }
}
