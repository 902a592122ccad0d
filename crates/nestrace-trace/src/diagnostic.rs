//! What was wrong with an input that could still be read.

/// One thing that is missing from, or odd about, what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// What it is.
    pub kind: DiagnosticKind,
    /// Where it begins: a byte offset in the file that `kind` concerns.
    pub offset: u64,
    /// How many bytes it concerns.
    pub bytes: u64,
    /// How many events are lost by it, where that is known.
    pub rows_lost: Option<u64>,
    /// For a person; lower case, without a full stop.
    pub message: String,
}

impl Diagnostic {
    /// Without a count of lost events.
    #[must_use]
    pub fn new(kind: DiagnosticKind, offset: u64, bytes: u64, message: impl Into<String>) -> Self {
        Self {
            kind,
            offset,
            bytes,
            rows_lost: None,
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if self.bytes > 0 {
            write!(f, " (byte {}, {} bytes)", self.offset, self.bytes)?;
        }
        match self.rows_lost {
            Some(1) => f.write_str(", 1 event lost"),
            Some(rows) if rows > 0 => write!(f, ", {rows} events lost"),
            _ => Ok(()),
        }
    }
}

/// The kind of a [`Diagnostic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiagnosticKind {
    /// There is no index; batches were found by walking the stream.
    IndexMissing,
    /// The index, or entries of it, cannot be used; `offset` is in the index.
    IndexDamaged,
    /// The schema's bytes are damaged; this release's columns were assumed.
    SchemaDamaged,
    /// Bytes of the stream that hold no batch with a correct checksum were skipped.
    BatchDamaged,
    /// The stream ends within a batch.
    Truncated,
    /// The recording was not closed: it was killed, or is still running.
    NotClosed,
    /// Bytes follow the end of the stream.
    TrailingBytes,
    /// A column of another release, which was ignored.
    UnknownColumn,
    /// A column that an older release did not write; it reads as 0.
    MissingColumn,
    /// The input could not be read to its end.
    Unreadable,
    /// A key of the manifest, unknown here, that was ignored.
    UnknownKey,
    /// A key of the manifest whose value does not have the expected form, and reads as its default.
    BadValue,
}

/// What the diagnostics of a stream add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Damage {
    /// Events that are known to be lost.
    pub rows_lost: u64,
    /// Something is missing, be its size known or not: the stream was cut, not closed, or holds damage.
    pub cut: bool,
}

impl Damage {
    /// So many events are lost, of a stream that ends as it should.
    #[must_use]
    pub fn rows(rows_lost: u64) -> Self {
        Self {
            rows_lost,
            cut: false,
        }
    }

    /// Adds up.
    #[must_use]
    pub fn of(diagnostics: &[Diagnostic]) -> Self {
        use DiagnosticKind::{BatchDamaged, NotClosed, Truncated, Unreadable};
        Self {
            rows_lost: diagnostics.iter().fold(0, |sum: u64, diagnostic| {
                sum.saturating_add(diagnostic.rows_lost.unwrap_or(0))
            }),
            cut: diagnostics.iter().any(|diagnostic| {
                matches!(
                    diagnostic.kind,
                    Truncated | NotClosed | Unreadable | BatchDamaged
                )
            }),
        }
    }
}

/// A list that a hostile input cannot grow without end.
#[derive(Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

/// More than this many are counted in the last one instead.
const MAX_DIAGNOSTICS: usize = 1000;

impl Diagnostics {
    /// Adds one, or sums it up in the last one where the list is full.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        if self.list.len() < MAX_DIAGNOSTICS {
            self.list.push(diagnostic);
        } else if let Some(last) = self.list.last_mut() {
            last.bytes = last.bytes.saturating_add(diagnostic.bytes);
            if let Some(rows) = diagnostic.rows_lost {
                last.rows_lost = Some(last.rows_lost.unwrap_or(0).saturating_add(rows));
            }
            "more damage follows, summed up in this one".clone_into(&mut last.message);
        }
    }

    /// What there is.
    #[must_use]
    pub fn as_slice(&self) -> &[Diagnostic] {
        &self.list
    }
}
