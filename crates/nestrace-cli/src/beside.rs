//! Programs that belong to nestrace and lie beside it: `nestrace lab` becomes `nestrace-lab`, as git and cargo do with
//! theirs.
//!
//! The program gets the arguments as they were typed, and its exit code and signals are this process'.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::exit::{FAILURE, Failure, MISSING};

/// A command that is a program of its own: what begins with its word is its to read.
struct Program {
    command: &'static str,
    name: &'static str,
    /// How to get it, in the folder of the sources.
    get: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        command: "lab",
        name: "nestrace-lab",
        get: "cargo build --release -p nestrace-lab builds it; put it beside nestrace or in the PATH",
    },
    Program {
        command: "fleet",
        name: "nestrace-fleet",
        get: "cargo install --locked --path crates/nestrace-fleet builds it from the sources of nestrace and puts it into \
              ~/.cargo/bin; it belongs beside nestrace or in the PATH",
    },
];

/// Becomes the program that was asked for; comes back if none was, or with what is in the way.
#[must_use]
pub fn start_if_asked() -> Option<Failure> {
    let mut words = env::args_os().skip(1);
    let first = words.next()?;
    let program = PROGRAMS.iter().find(|program| first == program.command)?;
    Some(start(program, words))
}

/// Comes back only if the program cannot be started.
fn start(program: &Program, words: impl Iterator<Item = OsString>) -> Failure {
    let name = program.name;
    let beside = beside_us(name);
    let place = beside.clone().unwrap_or_else(|| PathBuf::from(name));
    let error = Command::new(place).args(words).exec();
    if beside.is_none() && error.kind() == ErrorKind::NotFound {
        return missing(program);
    }
    Failure::new(FAILURE, format!("start {name}: {error}"))
}

/// The one that lies where this program does.
fn beside_us(name: &str) -> Option<PathBuf> {
    let program = env::current_exe().ok()?.with_file_name(name);
    program.is_file().then_some(program)
}

/// It is neither beside us nor in the `PATH`.
fn missing(program: &Program) -> Failure {
    let message = format!("the program {} is not installed", program.name);
    Failure::new(MISSING, message).hint(program.get)
}
