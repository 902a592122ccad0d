//! A tree of many small files in place of the installation of an operating system.

use std::io;
use std::path::{Path, PathBuf};

use nestrace_rig::cache_dir::{self, CacheError, Key};
use nestrace_rig::external_tool::{Tool, ToolError};

/// Goes up with every change to what is in the archive that [`SIZES`] and [`IN_A_FOLDER`] do not tell.
const FORMAT: u32 = 1;
/// Sizes of files in turn, bytes: 16 KiB on average, half of them below 4 KiB as on a system's disk.
const SIZES: [usize; 8] = [200, 1_200, 2_500, 3_900, 8_000, 16_000, 30_000, 69_272];
/// Files of a folder.
const IN_A_FOLDER: u32 = 40;
/// The same archive on every machine: tar would take the order from the file system, and the rest from its user.
const EQUAL: [&str; 6] = [
    "--sort=name",
    "--mtime=@1000000000",
    "--mode=u=rwX,go=rX",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
];

/// The cache's entry with an archive of `entries` files.
pub(super) fn name(entries: u32) -> String {
    let mut key = Key::default();
    key.add(&(FORMAT, SIZES, IN_A_FOLDER, EQUAL));
    key.name(&format!("tree-{entries}"))
}

/// The archive of `entries` files from the cache, made if it is not there; a guest unpacks a copy of it.
///
/// # Errors
/// It cannot be written, or tar failed.
pub(super) fn obtain(cache: &Path, entries: u32) -> Result<PathBuf, TreeError> {
    let folder = cache_dir::entry(cache, &name(entries), |folder| pack(folder, entries))?;
    Ok(folder.join(ARCHIVE))
}

const ARCHIVE: &str = "tree.tar";
/// What the archive holds, and is unpacked as.
const TREE: &str = "tree";

fn pack(folder: &Path, entries: u32) -> Result<(), TreeError> {
    let tree = folder.join(TREE);
    let failed = |source| TreeError::File {
        path: tree.clone(),
        source,
    };
    write(&tree, entries).map_err(failed)?;
    Tool::new("tar")
        .args(EQUAL)
        .arg("-cf")
        .arg(folder.join(ARCHIVE))
        .arg("-C")
        .arg(folder)
        .arg(TREE)
        .run()?;
    std::fs::remove_dir_all(&tree).map_err(failed)
}

/// The tree could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A file.
    #[error("write the tree of small files at {path}")]
    File {
        /// Its root.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// tar failed.
    #[error("pack the tree of small files")]
    Tool(#[from] ToolError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

fn write(tree: &Path, entries: u32) -> io::Result<()> {
    for n in 0..entries {
        let folder = tree.join(format!("d{}", n / IN_A_FOLDER));
        if n % IN_A_FOLDER == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        let size = SIZES[n as usize % SIZES.len()];
        // Something else than zeros, which a file system or an image might leave out.
        let bytes: Vec<u8> = (0..size)
            .map(|place| (place as u32 ^ n) as u8 | 1)
            .collect();
        std::fs::write(folder.join(format!("f{n}")), bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_16_kib_on_average() {
        let mean = SIZES.iter().sum::<usize>() / SIZES.len();
        assert_eq!(mean, 16 << 10);
        let cache = tempfile::tempdir().unwrap();
        let path = obtain(cache.path(), 80).unwrap();
        let listing = Tool::new("tar").arg("-tf").arg(&path).run().unwrap();
        let files: Vec<&str> = listing.lines().filter(|line| line.contains("/f")).collect();
        assert_eq!(files.len(), 80);
        assert_eq!(files[..3], ["tree/d0/f0", "tree/d0/f1", "tree/d0/f10"]);
        assert!(path.metadata().unwrap().len() > 80 * (16 << 10));
    }

    #[test]
    fn a_tree_is_made_once_and_is_the_same_wherever_it_is_made() {
        let (cache, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = obtain(cache.path(), 50).unwrap();
        let made = first.metadata().unwrap().modified().unwrap();
        assert_eq!(obtain(cache.path(), 50).unwrap(), first);
        assert_eq!(first.metadata().unwrap().modified().unwrap(), made);
        assert_ne!(obtain(cache.path(), 51).unwrap(), first);
        // The trees themselves are gone.
        assert_eq!(first.parent().unwrap().read_dir().unwrap().count(), 1);
        assert_eq!(cache.path().read_dir().unwrap().count(), 2);

        let second = obtain(other.path(), 50).unwrap();
        assert_eq!(
            std::fs::read(first).unwrap(),
            std::fs::read(second).unwrap()
        );
    }

    #[test]
    fn a_tree_that_was_not_finished_passes_for_none() {
        let cache = tempfile::tempdir().unwrap();
        // A full disk, a missing folder: the archive has no place.
        let failed = obtain(&cache.path().join("none"), 10).unwrap_err();
        assert!(matches!(failed, TreeError::Cache(_)), "{failed}");
        let half = cache.path().join(".unfinished-killed");
        std::fs::create_dir(&half).unwrap();
        std::fs::write(half.join(ARCHIVE), "half").unwrap();
        let path = obtain(cache.path(), 10).unwrap();
        assert_eq!(path.parent().unwrap(), cache.path().join(name(10)));
        assert!(path.metadata().unwrap().len() > 10 << 10);
    }
}
