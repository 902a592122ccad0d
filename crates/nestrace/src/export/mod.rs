//! `nestrace export`: a recording in the formats of other tools.

mod blktrace;
mod chosen;
mod csv;
mod fio;
mod new_file;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod requests;
mod selection;
mod stories;

#[cfg(not(feature = "parquet"))]
use crate::exit::MISSING;
use crate::{
    cli::{ExportArgs, ExportFormat},
    exit::Failure,
    output_place,
};

/// Exports.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    output_place::check(&args.output)?;
    if matches!(
        args.format,
        ExportFormat::Blktrace | ExportFormat::Csv | ExportFormat::Fio
    ) {
        output_place::check_beginning(&args.output)?;
    }
    match args.format {
        ExportFormat::Blktrace => blktrace::run(args),
        ExportFormat::Csv => csv::run(args),
        ExportFormat::Fio => fio::run(args),
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => parquet::run(args),
        #[cfg(not(feature = "parquet"))]
        ExportFormat::Parquet => Err(Failure::new(
            MISSING,
            "this nestrace was built without Parquet",
        )
        .hint("cargo build --release -p nestrace makes one with all formats")),
        ExportFormat::Perfetto => perfetto::run(args),
    }
}
