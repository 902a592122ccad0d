//! Why a stream cannot be read.

use std::io;

use crate::manifest::FORMAT_MAJOR;
use crate::stored_schema::Refusal;

/// Why a stream cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The bytes are not a stream of nestrace.
    #[error("read the stream: it is not a nestrace stream: {reason}")]
    NotAStream {
        /// What gave it away.
        reason: String,
    },
    /// A newer release wrote it in a way that this one cannot read.
    #[error(
        "read the stream: it has format {found}, this release reads up to {supported}; \
         nestrace {release} wrote it and can read it"
    )]
    NewerFormat {
        /// Its major version.
        found: u32,
        /// The newest major version that can be read.
        supported: u32,
        /// The release that wrote it; `?` where it does not say.
        release: String,
    },
    /// A column has another type than this format gives it.
    #[error("read the stream: column `{column}` is {found}, not {expected}")]
    ColumnType {
        /// Its name.
        column: String,
        /// Its type.
        found: String,
        /// The type it must have.
        expected: String,
    },
    /// The input could not be read.
    #[error("read the {what}")]
    Io {
        /// `stream` or `index`.
        what: &'static str,
        /// What the reader said.
        source: io::Error,
    },
}

impl From<Refusal> for OpenError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Foreign(reason) => Self::NotAStream { reason },
            Refusal::Newer { found, release } => {
                let release = if release.is_empty() {
                    "?".to_owned()
                } else {
                    release
                };
                Self::NewerFormat {
                    found,
                    supported: FORMAT_MAJOR,
                    release,
                }
            }
            Refusal::ColumnType {
                column,
                found,
                expected,
            } => Self::ColumnType {
                column,
                found,
                expected,
            },
        }
    }
}
