//! The project's own chores: `cargo xtask demo`, `test`, `vm`, `tidy`, `deny`, `bpf`, `reproduce`,
//! `bench`, `dist`, `fixtures`, `captures`.

mod bench;
mod bpf;
mod captures;
mod cargo_build;
mod demo;
mod deny;
mod dist;
mod fixtures;
mod folder_size;
mod fuzz;
mod live;
mod long_capture;
mod progress;
mod recorder;
mod reproduce;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nestrace_rig::interrupt::{self, Interrupted};
use nestrace_rig::packages::PackagesError;

/// The project's own chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Boots a guest, records it during a workload and prints the analysis
    Demo(demo::DemoArgs),
    /// Runs every test, live guests included
    Test(test::TestArgs),
    /// Boots guests of other kernels and runs a command in them
    Vm(vm::VmArgs),
    /// Checks the project's conventions
    Tidy,
    /// Holds what the project depends on to deny.toml: licences, sources, bans, advisories
    Deny,
    /// Builds the agent and the probes in two folders and compares the bytes
    Reproduce,
    /// Builds the probes, or checks the committed ones
    Bpf(bpf::BpfArgs),
    /// Compares the cost of recording with its peers
    Bench(bench::BenchArgs),
    /// Builds programs as they are handed out
    Dist(dist::DistArgs),
    /// Makes the recordings that hold the rules of findings to their cases
    Fixtures(fixtures::FixturesArgs),
    /// Makes captures of blktrace in a guest, with what btt says of them
    Captures(captures::CapturesArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.chore) {
        Ok(code) => code,
        Err(error) => report(&error),
    }
}

/// The same codes as the command's: 4 for what the machine lacks; and a shell's for Ctrl-C.
fn report(error: &anyhow::Error) -> ExitCode {
    if interrupt::is_interrupted() || error.chain().any(|cause| cause.is::<Interrupted>()) {
        eprintln!("xtask: interrupted; what was started is gone");
        return ExitCode::from(130);
    }
    eprintln!("xtask: failed to {error:#}");
    let lacks = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(PackagesError::Missing { .. }))
            || cause.is::<live::NeedsRoot>()
    };
    if error.chain().any(lacks) {
        ExitCode::from(4)
    } else {
        ExitCode::FAILURE
    }
}

fn run(chore: Chore) -> anyhow::Result<ExitCode> {
    // Cases send it to what they start.
    interrupt::heed_ctrl_c()?;
    interrupt::catch_signals()?;
    match chore {
        Chore::Demo(args) => demo::run(&args),
        Chore::Test(args) => test::run(&args),
        Chore::Vm(args) => vm::run(&args),
        Chore::Tidy => tidy::run(),
        Chore::Deny => deny::run(),
        Chore::Reproduce => reproduce::run(),
        Chore::Bpf(args) => bpf::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Dist(args) => dist::run(&args),
        Chore::Fixtures(args) => fixtures::run(&args),
        Chore::Captures(args) => captures::run(&args),
    }
}
