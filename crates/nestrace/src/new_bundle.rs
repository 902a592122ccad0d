//! A bundle that a command makes: it appears as a whole or not at all, and what it replaces stays until then.

use std::{error::Error, fs::File, path::Path, path::PathBuf};

use nestrace_output::bundle_dir::{BundleDir, BundleError};
use nestrace_trace::{Manifest, StreamWriter, bundle::index_of};

use crate::{
    exit::{FAILURE, Failure, USAGE},
    output_place,
};

/// A bundle that is being written. One that is dropped before it has appeared leaves nothing.
pub struct NewBundle {
    dir: BundleDir,
    output: PathBuf,
}

impl NewBundle {
    /// Begins it under a hidden name beside its place. `force` lets it replace a *bundle*.
    pub fn begin(output: &Path, force: bool) -> Result<Self, Failure> {
        output_place::check(output)?;
        let dir = BundleDir::begin_unseen(output, force).map_err(|error| failure(&error))?;
        Ok(Self {
            dir,
            output: output.to_owned(),
        })
    }

    /// Makes a file in it, which must not be there yet.
    pub fn new_file(&self, name: &str) -> Result<File, Failure> {
        self.dir.new_file(name).map_err(|error| failure(&error))
    }

    /// Begins a stream with its index.
    pub fn new_stream(&self, name: &str) -> Result<StreamWriter<File, File>, Failure> {
        StreamWriter::new(self.new_file(name)?, self.new_file(&index_of(name))?)
            .map_err(|error| not_written(&error))
    }

    /// Everything but the manifest is written: the bundle gets its name.
    pub fn appear(mut self, manifest: &Manifest) -> Result<(), Failure> {
        self.dir
            .appear(&self.output, manifest)
            .map_err(|error| failure(&error))
    }
}

impl Drop for NewBundle {
    fn drop(&mut self) {
        if self.dir.path() != self.output {
            self.dir.discard();
        }
    }
}

/// A bundle that could not be made or written, which is no fault of the input.
pub fn failure(error: &BundleError) -> Failure {
    match error {
        BundleError::Exists(path) => exists(path),
        BundleError::NotABundle(_) => Failure::caused(USAGE, error),
        _ => not_written(error),
    }
}

/// A bundle of that name is there.
pub fn exists(path: &Path) -> Failure {
    Failure::new(USAGE, format!("{} exists", path.display()))
        .hint("choose another name with -o, or replace the bundle with --force")
}

/// A file of the bundle could not be written.
pub fn not_written(error: &dyn Error) -> Failure {
    Failure::caused(FAILURE, error)
}

/// What is read is not replaced, whatever `--force` says.
pub fn refuse_input(output: &Path, input: &Path, what: &str) -> Result<(), Failure> {
    match (output.canonicalize(), input.canonicalize()) {
        (Ok(output), Ok(input)) if output == input => {
            Err(
                Failure::new(USAGE, format!("the output is {what} itself")).hint(format!(
                    "choose another name with -o; {what} stays as it is"
                )),
            )
        }
        _ => Ok(()),
    }
}
