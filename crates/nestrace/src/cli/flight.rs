//! Options of `nestrace record --flight`.

use std::path::PathBuf;

use clap::Args;
use nestrace_condition::Expression;

use super::values::{seconds, seconds_from};

/// What a flight recorder keeps and when it writes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Flight recorder")]
pub struct FlightArgs {
    /// Keep the last SECONDS in memory, and write them when --until holds, --until-file appears, or on
    /// SIGUSR1. If none of these comes, nothing is written.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_from(1.0, 3600.0))]
    pub flight: Option<f64>,
    /// Write when this holds, such as 'p99(write, guest) > 100ms for 2s'. Statistics: p50, p99, max, mean,
    /// count, rate, oldest. Operations: read, write, flush, discard, any. Layers: guest, qemu, file_io, host_queue, device
    /// (default: the outermost that is recorded). Join with and, or, parentheses.
    #[arg(long, value_name = "EXPR", requires = "flight", value_parser = Expression::parse)]
    pub until: Option<Expression>,
    /// Write when this file appears.
    #[arg(long, value_name = "FILE", requires = "flight")]
    pub until_file: Option<PathBuf>,
    /// Seconds to go on recording after that.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_from(0.0, 3600.0), default_value = "5", requires = "flight")]
    pub after: f64,
    /// Write so many bundles, then end: OUT.nest, OUT-2.nest, …
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100), default_value = "1", requires = "flight")]
    pub repeat: u32,
    /// With --repeat: ignore --until for so long after each bundle. Default: as long as --flight.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "repeat")]
    pub pause: Option<f64>,
}
