//! How much lies in a folder.

use std::path::Path;

use anyhow::Context;

/// Bytes of all files in a folder, those of its folders left out.
pub fn bytes(folder: &Path) -> anyhow::Result<u64> {
    let files = std::fs::read_dir(folder);
    let sizes = files.and_then(|files| files.map(|file| Ok(file?.metadata()?.len())).sum());
    sizes.with_context(|| format!("look into {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_summed() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", 3), ("b", 1000)] {
            std::fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(bytes(folder.path()).unwrap(), 1003);
        let missing = bytes(&folder.path().join("c")).unwrap_err();
        assert!(missing.to_string().ends_with("/c"), "{missing}");
    }
}
