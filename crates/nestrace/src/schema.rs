//! `nestrace schema`: JSON Schemas of what the commands print, to check it or to generate code that reads it.

use clap::{Args, ValueEnum};
use nestrace_report::schema;

use crate::exit::{DONE, Failure, print};

/// `nestrace schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// What it describes.
    #[arg(value_enum)]
    pub of: Described,
}

/// What has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Described {
    /// What analyze --format json prints.
    Analysis,
    /// What compare --format json prints.
    Comparison,
    /// The report.json of a lab.
    Lab,
    /// What fleet report --format json prints.
    Fleet,
}

/// Prints it.
pub fn run(args: &SchemaArgs) -> Result<u8, Failure> {
    print(&match args.of {
        Described::Analysis => schema::analysis(),
        Described::Comparison => schema::comparison(),
        Described::Lab => schema::lab_report(),
        Described::Fleet => schema::fleet_report(),
    })?;
    Ok(DONE)
}
