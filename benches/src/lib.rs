//! `cargo xtask bench`: what recording costs, beside what its peers cost, in the same run.
//!
//! The live tests run its smoke mode as a stage of theirs.

mod agent_cost;
mod analyze_speed;
mod call_cost;
mod contestant;
mod figures;
mod fleet_cost;
mod guest_cost;
mod link_speed;
mod load;
mod long_capture;
mod machine;
mod perf_data;
mod phase;
mod probe_time;
mod processor;
mod record_cost;
mod smoke;
mod start_cost;
mod table;
mod trace_size;
mod training;
mod watched;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use load::Load;

pub use smoke::run as smoke;
pub use training::run as train;

/// Options of `bench`.
#[derive(clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// IOPS, processor time, losses and bytes of `nestrace record` and of its peers
    Record(RecordCostArgs),
    /// What the agent costs its guest, beside blktrace
    Agent(agent_cost::AgentCostArgs),
    /// How fast long recordings of host and guest are linked, and in how much memory
    Link(link_speed::LinkSpeedArgs),
    /// How long a recording takes to be live, beside another nestrace's
    Start(start_cost::StartCostArgs),
    /// How fast captures of blktrace are analysed, beside blkparse and btt
    Analyze(analyze_speed::AnalyzeSpeedArgs),
    /// Time and memory of `nestrace fleet report` over many recordings, beside Spark
    Fleet(fleet_cost::FleetCostArgs),
}

/// Options of `bench record`.
#[derive(clap::Args)]
pub struct RecordCostArgs {
    /// Half a minute: one short round of one load, checked instead of measured
    #[arg(long)]
    smoke: bool,
    /// Seconds of fio that are measured in each phase
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Rounds, each of one phase for every contestant
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Only these loads: paced, disk, memory
    #[arg(long, value_delimiter = ',', default_values_t = Load::ALL)]
    loads: Vec<Load>,
    /// Whether a guest is booted and its IOPS measured with and without nestrace
    #[arg(long, value_enum, default_value = "also")]
    guest: GuestPart,
    /// Measures this nestrace instead of building one for release
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
    /// Writes every phase to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    phases: Option<PathBuf>,
}

/// `--guest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GuestPart {
    /// After the loads
    Also,
    /// Instead of the loads
    Only,
    /// Not at all
    Off,
}

/// Runs a bench.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Record(args) if args.smoke => record_cost::smoke(args),
        What::Record(args) => record_cost::run(args),
        What::Agent(args) => agent_cost::run(args),
        What::Link(args) => link_speed::run(args),
        What::Start(args) => start_cost::run(args),
        What::Analyze(args) => analyze_speed::run(args),
        What::Fleet(args) => fleet_cost::run(args),
    }
}
