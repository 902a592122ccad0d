//! `nestrace fleet report`.

use std::io::ErrorKind;
use std::num::NonZero;
use std::thread;

use datafusion::error::DataFusionError;
use nestrace_cli::exit::{DONE, FAILURE, Failure, INPUT, note, print};
use nestrace_cli::fleet::{FleetCommand, FleetFormat, FleetReportArgs};
use nestrace_cli::page_file;
use nestrace_report::fleet::{json, text};
use nestrace_report::html;

use crate::data_set::{DataSet, DataSetError};
use crate::{gathered, questions};

/// Threads that read and compute; more would wait for the same disk.
const MAX_THREADS: usize = 8;
/// Files that are named on stderr; the report has more.
const MAX_NOTES: usize = 10;

/// Does what was asked for.
pub fn run(command: &FleetCommand) -> Result<u8, Failure> {
    match command {
        FleetCommand::Report(args) => report(args),
    }
}

fn report(args: &FleetReportArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.report {
        page_file::check(file, args.force)?;
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.min(MAX_THREADS);
    let data_set = DataSet::open(&args.data_set).map_err(|error| refused(&error))?;
    let gathered = gathered::gather(&data_set, threads).map_err(|error| refused(&error))?;
    let n_later = data_set.take_later();
    if n_later > 0 {
        note(format_args!(
            "{n_later} files are newer than this report's begin and left out"
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?;
    let memory = (args.memory as usize).saturating_mul(1 << 20);
    let report = runtime.block_on(questions::ask(&data_set, &gathered, memory));
    let report = report.map_err(|error| unanswered(&error, args.memory))?;
    for one in report.left_out.iter().take(MAX_NOTES) {
        note(format_args!("left out: {}: {}", one.file, one.reason));
    }
    if report.n_left_out > MAX_NOTES as u64 {
        let more = report.n_left_out - MAX_NOTES as u64;
        note(format_args!("left out: {more} files more"));
    }
    if let Some(file) = &args.report {
        let page =
            html::fleet::render(&report).map_err(|error| Failure::caused(FAILURE, &error))?;
        page_file::put(file, page.as_bytes())?;
    }
    print(&match args.format {
        FleetFormat::Text => text::render(&report),
        FleetFormat::Json => json(&report),
    })?;
    Ok(DONE)
}

/// The engine names settings of its own where it has no room.
fn unanswered(error: &DataFusionError, mib: u32) -> Failure {
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => Failure::new(
            FAILURE,
            format!("{mib} MiB are not enough for this data set"),
        )
        .hint(format!("give it more: --memory {}", mib.saturating_mul(2))),
        _ => Failure::caused(FAILURE, error),
    }
}

fn refused(error: &DataSetError) -> Failure {
    if let DataSetError::Temporary { .. } = error {
        return Failure::caused(FAILURE, error);
    }
    let failure = Failure::caused(INPUT, error);
    match error {
        DataSetError::Mixed { .. } => failure
            .hint("use a newer nestrace-fleet, or move these files to a data set of their own"),
        DataSetError::AllDamaged { .. } | DataSetError::ManyDamaged { .. } => {
            failure.hint("let this user read the files, or export the recordings again")
        }
        DataSetError::Folder { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            failure.hint("let this user read the folder")
        }
        _ => failure.hint("nestrace export --format parquet RECORDING.nest -o DATASET makes one"),
    }
}
