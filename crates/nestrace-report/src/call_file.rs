//! Files of calls.

use nestrace_analyzer::analysis::CallFile;

/// What a person calls a file: its path, or its inode and where it is mounted.
pub(crate) fn file_name(file: &CallFile) -> String {
    match (&file.path, file.inode) {
        (Some(path), _) => path.clone(),
        (None, Some(inode)) => format!("inode {inode} on {}", file.mount),
        (None, None) if file.mount.is_empty() => String::from("all file systems"),
        (None, None) if file.mount == "…" => String::from("further files"),
        (None, None) => file.mount.clone(),
    }
}
