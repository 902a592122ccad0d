//! The project's own chores: `cargo xtask demo`, `test`, `vm`, `tidy`, `deny`, `bpf`, `reproduce`,
//! `bench`, `dist`, `fixtures`, `captures`, `semver`.

mod bpf;
mod captures;
mod demo;
mod deny;
mod dist;
mod elsewhere;
mod reproduce;
mod semver;
mod tidy;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::ending;

use elsewhere::Passed;

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
    #[command(disable_help_flag = true)]
    Test(Passed),
    /// Boots guests of other kernels and runs a command in them
    Vm(vm::VmArgs),
    /// Checks the project's conventions
    Tidy,
    /// Checks the dependencies against deny.toml: licences, sources, bans, advisories
    Deny(deny::DenyArgs),
    /// Builds the agent and the probes in two folders and compares the bytes
    Reproduce,
    /// Builds the probes, or checks the committed ones
    Bpf(bpf::BpfArgs),
    /// Compares the cost of recording with its peers
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// Builds the programs and Debian packages for a release
    Dist(dist::DistArgs),
    /// Records the guests that test the rules of findings
    #[command(disable_help_flag = true)]
    Fixtures(Passed),
    /// Makes captures of blktrace in a guest, with the output of btt for each
    Captures(captures::CapturesArgs),
    /// Checks that the library crates still fit programs written for the last release
    Semver(semver::SemverArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    ending::of(|| run(cli.chore))
}

fn run(chore: Chore) -> anyhow::Result<ExitCode> {
    match chore {
        Chore::Demo(args) => demo::run(&args),
        Chore::Test(passed) => elsewhere::test(&passed),
        Chore::Vm(args) => vm::run(&args),
        Chore::Tidy => tidy::run(),
        Chore::Deny(args) => deny::run(&args),
        Chore::Reproduce => reproduce::run(),
        Chore::Bpf(args) => bpf::run(&args),
        Chore::Bench(passed) => elsewhere::bench(&passed),
        Chore::Dist(args) => dist::run(&args),
        Chore::Fixtures(passed) => elsewhere::fixtures(&passed),
        Chore::Captures(args) => captures::run(&args),
        Chore::Semver(args) => semver::run(&args),
    }
}
