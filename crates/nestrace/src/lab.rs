//! `nestrace lab`: becomes the program `nestrace-lab`, as git and cargo do with theirs.
//!
//! It gets the arguments as they were typed, and its exit code and signals are this process'.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::exit::{FAILURE, Failure, MISSING};

const PROGRAM: &str = "nestrace-lab";

/// Becomes it if the lab was asked for; comes back if it was not, or with what is in the way.
pub fn start_if_asked() -> Option<Failure> {
    let mut words = env::args_os().skip(1);
    let is_asked = words.next()? == "lab";
    is_asked.then(|| start(words))
}

/// Comes back only if the program cannot be started.
fn start(words: impl Iterator<Item = OsString>) -> Failure {
    let beside = beside_us();
    let program = beside.clone().unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(program).args(words).exec();
    if beside.is_none() && error.kind() == ErrorKind::NotFound {
        return missing();
    }
    Failure::new(FAILURE, format!("start {PROGRAM}: {error}"))
}

/// The one that lies where this program does.
fn beside_us() -> Option<PathBuf> {
    let program = env::current_exe().ok()?.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}

/// It is neither beside us nor in the `PATH`.
fn missing() -> Failure {
    let message = format!("the program {PROGRAM} is not installed");
    Failure::new(MISSING, message).hint(format!(
        "cargo build --release -p {PROGRAM} builds it; put it beside nestrace or in the PATH"
    ))
}
