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
mod lab;
mod new_bundle;
mod newest_recordings;
mod output_place;
mod record;
mod repair;
mod report_files;
mod shell;
mod stuck;

use std::process::ExitCode;

use clap::Parser;
use nestrace_bundle::{bundle, capture, damage, input_file, open_files, read_ahead};
use nestrace_cli::exit;

use cli::{Cli, Command};
use exit::Failure;

fn main() -> ExitCode {
    if let Some(code) = nestrace_record::roles::run_if_asked() {
        return code;
    }
    if let Some(failure) = lab::start_if_asked() {
        return failure.report();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::of_usage(&error),
    };
    match run(cli.command) {
        Ok(code) => {
            exit::say_held();
            ExitCode::from(code)
        }
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Guests(args) => guests::run(&args),
        Command::Stuck(args) => stuck::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Record(args) => record::run(args),
        Command::Analyze(args) => analyze::run(args),
        Command::Compare(args) => compare::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Repair(args) => repair::run(&args),
        // What begins with `lab` does not get here.
        Command::Lab(_) => Ok(exit::USAGE),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    }
}
