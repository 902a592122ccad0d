//! A tree of many small files in place of the installation of an operating system.

use std::io;
use std::path::{Path, PathBuf};

use crate::external_tool::{Tool, ToolError};

/// Sizes of files in turn, bytes: 16 KiB on average, half of them below 4 KiB as on a system's disk.
const SIZES: [usize; 8] = [200, 1_200, 2_500, 3_900, 8_000, 16_000, 30_000, 69_272];
/// Files of a folder.
const IN_A_FOLDER: u32 = 40;

/// Makes an archive of `entries` files in `folder`, from which the guest unpacks it.
pub(super) fn archive(folder: &Path, entries: u32) -> Result<PathBuf, TreeError> {
    let archive = folder.join(format!("tree-{entries}.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    let tree = folder.join("tree");
    write(&tree, entries).map_err(|source| TreeError::File {
        path: tree.clone(),
        source,
    })?;
    Tool::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .arg("tree")
        .run()?;
    let _ = std::fs::remove_dir_all(&tree);
    Ok(archive)
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
}

fn write(tree: &Path, entries: u32) -> io::Result<()> {
    let _ = std::fs::remove_dir_all(tree);
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
        let folder = tempfile::tempdir().unwrap();
        let path = archive(folder.path(), 80).unwrap();
        let listing = Tool::new("tar").arg("-tf").arg(&path).run().unwrap();
        assert_eq!(
            listing.lines().filter(|line| line.contains("/f")).count(),
            80
        );
        assert!(path.metadata().unwrap().len() > 80 * (16 << 10));
    }
}
