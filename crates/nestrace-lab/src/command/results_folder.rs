//! The folder of a run: whose it is, and its reports.

use std::path::Path;

use nestrace_lab::experiment;
use nestrace_output::held_dir::HeldDir;

use nestrace_cli::exit::{FAILURE, Failure};

/// Under sudo the results belong to the user who typed the command. A folder that the lab refused is left as it is.
pub fn give_to_user(folder: &Path) {
    if let Some(results) = results_folder(folder) {
        results.give_all_to_user();
    }
}

/// The folder, where the lab has accepted it: then its mark is in it.
fn results_folder(folder: &Path) -> Option<HeldDir> {
    let folder = HeldDir::open(folder).ok()?;
    folder.has_own(experiment::MARK).then_some(folder)
}

/// Writes a file of the report. The folder was given away: no link in it is followed.
pub fn put(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    experiment::replace_file(file, bytes)
        .map_err(|error| Failure::new(FAILURE, format!("write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_lab_s_mark_is_not_given_away() {
        let root = tempfile::tempdir().unwrap();
        assert!(results_folder(&root.path().join("nothing")).is_none());
        std::fs::write(root.path().join("passwd"), "x").unwrap();
        assert!(results_folder(root.path()).is_none());
        // Whatever else is called so.
        std::fs::create_dir(root.path().join(experiment::MARK)).unwrap();
        assert!(results_folder(root.path()).is_none());
        std::fs::remove_dir(root.path().join(experiment::MARK)).unwrap();
        std::fs::write(root.path().join(experiment::MARK), "").unwrap();
        assert!(results_folder(root.path()).is_some());
    }

    #[test]
    fn a_report_does_not_write_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (precious, page) = (root.path().join("precious"), root.path().join("a.html"));
        std::fs::write(&precious, "x").unwrap();
        std::os::unix::fs::symlink(&precious, &page).unwrap();
        put(&page, b"page").unwrap();
        assert_eq!(std::fs::read(&precious).unwrap(), b"x");
    }
}
