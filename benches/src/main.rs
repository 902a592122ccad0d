//! `cargo xtask bench` builds this program and becomes it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nestrace_benches::BenchArgs;
use xtask::ending;

/// What `cargo xtask` hands over.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Compares the cost of recording with its peers
    Bench(BenchArgs),
    /// Has a nestrace that counts what it runs through do what it does most
    Train {
        /// That nestrace
        nestrace: PathBuf,
        /// Where its counts go
        counts: PathBuf,
    },
}

fn main() -> ExitCode {
    let chore = Chore::parse();
    ending::of(|| match chore {
        Chore::Bench(args) => nestrace_benches::run(&args),
        Chore::Train { nestrace, counts } => {
            nestrace_benches::train(&nestrace, &counts)?;
            Ok(ExitCode::SUCCESS)
        }
    })
}
