//! The program as a user runs it, and a recording that it reads.

use std::{
    path::Path,
    process::{Command, Output},
};

/// A guest on qcow2, seen from inside: 9,195 events of the host and 2,582 of the guest.
pub const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/findings/qcow2-grows.nest"
);

pub fn nestrace(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .output()
        .expect("nestrace starts")
}

pub fn code_and_messages(words: &[&str]) -> (Option<i32>, String) {
    let output = nestrace(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a name")
}
