use std::fmt::{self, Display};

/// Why there is no analysis.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

/// Whose business an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The options do not fit the input.
    Options,
    /// The input is not there, is none, or does not have what was asked for.
    Input,
    /// The system does not allow it.
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

    /// An error about the system.
    pub(crate) fn system(message: impl Display) -> Self {
        Self::new(ErrorKind::System, message)
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

    /// Whose business it is.
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

/// What a program shows that ends with it: the message and the way out.
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
        Self::system(error)
    }
}
