//! The command: parses arguments, shows progress, chooses the exit code. Everything else is in the
//! libraries.

mod analysis_options;
mod analyze;
mod btt;
mod cli;
mod compare;
mod damage_notes;
mod doctor;
mod export;
mod guests;
mod import;
mod listen;
mod new_bundle;
mod newest_recordings;
mod output_place;
mod record;
mod repair;
mod report_files;
#[cfg(feature = "schema")]
mod schema;
mod serve;
mod shell;
mod stop;
mod stuck;
mod top;

use std::process::ExitCode;

use nestrace_bundle::{bundle, capture, damage, input_file, open_files, read_ahead};
use nestrace_cli::{beside, exit, page_file};

use cli::{Cli, Command};
use exit::Failure;

fn main() -> ExitCode {
    if let Some(code) = nestrace_record::roles::run_if_asked() {
        return code;
    }
    if let Some(failure) = beside::start_if_asked() {
        return failure.report();
    }
    exit::run(|cli: Cli| run(cli.command))
}

fn run(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Guests(args) => guests::run(&args),
        Command::Stuck(args) => stuck::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Record(args) => record::run(args),
        Command::Analyze(args) => analyze::run(args),
        Command::Compare(args) => compare::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Repair(args) => repair::run(&args),
        // What begins with these words does not get here.
        Command::Lab(_) | Command::Fleet(_) => Ok(exit::USAGE),
        #[cfg(feature = "schema")]
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    }
}
