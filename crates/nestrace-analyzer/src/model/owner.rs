//! Whose data a bio carries.

/// Whose data a bio carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// An image file: index into `Images::images`.
    Image(u32),
    /// Metadata or journal of a file system: everybody's.
    FileSystem,
    /// The file beneath the loop device with this number.
    Loop(u32),
    /// Whoever the thread is.
    Thread(u32),
}
