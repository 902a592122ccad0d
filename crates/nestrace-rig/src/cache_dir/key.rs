//! What tells entries of one kind apart: a number made of everything that determines their content.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::CacheError;

/// Of an entry's content.
#[derive(Debug, Default)]
pub struct Key(DefaultHasher);

impl Key {
    /// Takes a value in.
    pub fn add(&mut self, value: &impl Hash) {
        value.hash(&mut self.0);
    }

    /// Takes a file in by its place in the entry, length and modification time, which tell the versions of a package
    /// apart.
    ///
    /// # Errors
    /// The file is not there, or cannot be looked at.
    pub fn add_file(&mut self, place: &impl Hash, path: &Path) -> Result<(), CacheError> {
        let about = path.metadata().map_err(|source| CacheError::Io {
            path: path.to_owned(),
            source,
        })?;
        self.add(&(place, about.len(), about.mtime(), about.mtime_nsec()));
        Ok(())
    }

    /// An entry's name: `tree-4000-` and 16 hexadecimal digits.
    pub fn name(&self, what: &str) -> String {
        format!("{what}-{:016x}", self.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_version_has_another_key() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let name = || {
            let mut key = Key::default();
            key.add(&"format 1");
            key.add_file(&"bin", &program).unwrap();
            key.name("tool")
        };
        std::fs::write(&program, "one").unwrap();
        let first = name();
        assert_eq!(first, name());
        assert_eq!(first.len(), "tool-".len() + 16);
        let file = std::fs::File::options().write(true).open(&program).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        let older = name();
        std::fs::write(&program, "longer").unwrap();
        assert!(first != older && older != name() && first != name());
        let error = Key::default().add_file(&"bin", &folder.path().join("none"));
        assert!(error.unwrap_err().to_string().ends_with("/none"));
    }
}
