//! Why there is no analysis.

use std::fmt::{self, Display};
use std::path::Path;

/// Why there is no analysis.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

/// What an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The options do not fit the input.
    Options,
    /// The input is not there, is none, or does not have what was asked for.
    Input,
    /// More files would have to be open than the system allows.
    TooManyFiles,
    /// The system failed: no thread could be started.
    System,
}

impl Error {
    /// An error about the options.
    pub(crate) fn options(message: impl Display) -> Self {
        Self::new(ErrorKind::Options, message)
    }

    /// An error about the input.
    pub(crate) fn input(message: impl Display) -> Self {
        Self::new(ErrorKind::Input, message)
    }

    /// An error about the input at a path.
    pub(crate) fn at(path: &Path, why: impl Display) -> Self {
        Self::input(format!("{}: {why}", path.display()))
    }

    /// An error about the number of open files.
    pub(crate) fn too_many_files(message: impl Display) -> Self {
        Self::new(ErrorKind::TooManyFiles, message)
    }

    fn new(kind: ErrorKind, message: impl Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What it is about.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What a person may do next.
    #[must_use]
    pub fn way_out(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// `main() -> Result<(), Error>` prints this: the message and the way out.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(ErrorKind::System, error)
    }
}
