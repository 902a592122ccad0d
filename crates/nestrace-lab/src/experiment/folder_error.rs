//! Why a folder of results cannot be used.

use std::io;
use std::path::PathBuf;

use nestrace_report::lab::RUN_SCHEMA;

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file cannot be read or written.
    #[error("use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file is not what the lab writes.
    #[error("read {path}")]
    Content {
        /// Which.
        path: PathBuf,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// A cell's file is another cell's: it was renamed, or made up.
    #[error("read {path}: it is damaged, its cell is {id:?}")]
    OtherCell {
        /// Which.
        path: PathBuf,
        /// What it has.
        id: String,
    },
    /// It has no run of the lab in it.
    #[error("find a run of the lab in {0}: it has no run.json")]
    NoRun(PathBuf),
    /// Another program's, or a later version's.
    #[error("read {path}: its schema is {schema:?}, not {RUN_SCHEMA:?}")]
    OtherSchema {
        /// Which.
        path: PathBuf,
        /// What it has.
        schema: String,
    },
    /// It belongs to another plan, or the plan was changed since.
    #[error(
        "go on in {folder}: its results are those of {folder}/plan.toml, from which this plan differs in line {line}"
    )]
    OtherPlan {
        /// The folder.
        folder: PathBuf,
        /// First line that differs, from 1.
        line: usize,
    },
    /// A cell's results are of another program: Filebench or iozone has come or gone.
    #[error(
        "go on with {cell}: its results are those of {before}, and this machine would take {now}"
    )]
    OtherProgram {
        /// The cell.
        cell: String,
        /// Who did it.
        before: String,
        /// Who would.
        now: &'static str,
    },
    /// Its results are of another machine, or of this one before something on it was exchanged.
    #[error(
        "go on in {folder}: its results come from a machine with a different {what}: {before} there, {now} here"
    )]
    OtherMachine {
        /// The folder.
        folder: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the results were made with.
        before: String,
        /// What is there now.
        now: String,
    },
    /// It has results, and not the plan that they are of.
    #[error("go on in {folder}: it has results, and their plan.toml cannot be read")]
    NoPlan {
        /// The folder.
        folder: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A link or somebody else's folder stands where devices and images are to be.
    #[error("put devices and images into {0}: it is a link, or somebody else's")]
    ForeignWork(PathBuf),
    /// It has other files in it.
    #[error("put results into {0}: it is not empty and holds no run of the lab")]
    NotOurs(PathBuf),
    /// Another run uses it.
    #[error("use {0}: another run of the lab works in it")]
    Busy(PathBuf),
}
