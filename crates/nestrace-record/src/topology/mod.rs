//! From a disk's image to the devices at the bottom: image → host file system → block devices →
//! (through loop devices) the next file system, and so on.
//!
//! Everything is read from `/proc`, sysfs and the images' first bytes; nothing is written, and
//! access times stay as they are where the system allows that.

pub mod ext_features;
pub mod image_file;
pub mod image_header;
pub mod namespace;
pub mod open_files;
pub mod overlay;
pub mod qcow2_map;
pub mod survey;
mod vmdk;

pub use survey::Survey;

/// Something that could not be found out, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Diagnostic {
    /// Guest's name, if it concerns one.
    pub guest: Option<String>,
    /// What it is about: a path, a device, an option.
    pub subject: String,
    /// For a person.
    pub message: String,
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(guest) = &self.guest {
            write!(f, "guest {guest}: ")?;
        }
        write!(f, "{}: {}", self.subject, self.message)
    }
}
