//! The folder that keeps what is downloaded and built for guests between runs: kernels, initramfs, QEMU's packages,
//! databases, trees of files.
//!
//! An entry is a folder that no run changes once it has its name. It may be removed while no run needs it. What root
//! makes in somebody's home is that user's.

mod key;
mod owner;
mod unfinished;

use std::io;
use std::path::{Path, PathBuf};

pub use key::Key;
use unfinished::Unfinished;

/// The cache could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Neither XDG_CACHE_HOME nor HOME is set.
    #[error("find the cache folder: neither XDG_CACHE_HOME nor HOME is set")]
    NoHome,
    /// A file operation failed.
    #[error("use the cache at {path}")]
    Io {
        /// Which path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// `$XDG_CACHE_HOME/nestrace` or `~/.cache/nestrace`, made if need be, without what killed runs left half made there.
///
/// # Errors
/// No home, or the folder cannot be made.
pub fn root() -> Result<PathBuf, CacheError> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").ok_or(CacheError::NoHome)?).join(".cache"),
    };
    let root = base.join("nestrace");
    owner::make_folder(&root).map_err(|source| CacheError::Io {
        path: root.clone(),
        source,
    })?;
    unfinished::remove_abandoned(&root);
    Ok(root)
}

/// Fills the cache entry `name` (a folder) unless it is there.
///
/// `fill` works in a temporary folder that is written back and renamed into place at the end, so that neither a
/// cut or concurrent run nor a machine that loses its power leaves half an entry; when two runs fill the same entry,
/// the first one stays.
///
/// # Errors
/// `fill`'s own, or a file operation's.
pub fn entry<E: From<CacheError>>(
    root: &Path,
    name: &str,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let place = root.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    let failed = |source| CacheError::Io {
        path: place.clone(),
        source,
    };
    let unfinished = Unfinished::new(root).map_err(failed)?;
    fill(unfinished.path())?;
    match unfinished.finish(&place) {
        Err(_) if place.is_dir() => Ok(place),
        finished => Ok(finished.map(|()| place.clone()).map_err(failed)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_filled_once_and_a_failed_fill_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let failed: Result<_, CacheError> = entry(root.path(), "a", |_| Err(CacheError::NoHome));
        assert!(failed.is_err());
        assert_eq!(root.path().read_dir().unwrap().count(), 0);

        let write = |text: &'static str| {
            move |folder: &Path| -> Result<(), CacheError> {
                std::fs::write(folder.join("file"), text).unwrap();
                Ok(())
            }
        };
        let first = entry(root.path(), "a", write("first")).unwrap();
        let second = entry(root.path(), "a", write("second")).unwrap();
        assert_eq!(first, second);
        assert_eq!(
            std::fs::read_to_string(first.join("file")).unwrap(),
            "first"
        );
        assert_eq!(root.path().read_dir().unwrap().count(), 1);
    }
}
