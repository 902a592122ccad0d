//! Opens a bundle's files for the libraries, which open none themselves.

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::Path,
};

use nestrace_trace::{
    Manifest,
    bundle::{HOST_STREAM, MANIFEST, index_of},
    reader::StreamReader,
};

use crate::exit::{Failure, INPUT};

/// Largest manifest that is read; a real one of a large host is some 100 KiB.
const MAX_MANIFEST: u64 = 64 << 20;

/// The host's stream of a bundle.
pub type HostReader = StreamReader<File, BufReader<File>>;

/// A bundle that was opened.
pub struct Bundle {
    /// Its manifest, or an empty one.
    pub manifest: Manifest,
    /// The host's events.
    pub host: HostReader,
    /// What was wrong with it so far.
    pub diagnostics: Vec<String>,
}

fn bad(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(INPUT, format!("{}: {why}", path.display()))
}

/// Opens a bundle for reading.
pub fn open(path: &Path) -> Result<Bundle, Failure> {
    let meta = fs::metadata(path).map_err(|error| bad(path, error))?;
    if !meta.is_dir() {
        return Err(bad(path, "not a bundle (a directory NAME.nest)"));
    }
    let mut diagnostics = Vec::new();
    let manifest = read_manifest(path, &mut diagnostics)?;
    let stream_path = path.join(HOST_STREAM);
    let stream = File::open(&stream_path).map_err(|error| {
        bad(&stream_path, error)
            .hint("a bundle holds host.arrows and manifest.json; was it copied as a whole?")
    })?;
    let index = File::open(path.join(index_of(HOST_STREAM)))
        .ok()
        .map(BufReader::new);
    let host = StreamReader::new(stream, index)
        .map_err(|error| bad(&stream_path, failure_text(&error)))?;
    Ok(Bundle {
        manifest,
        host,
        diagnostics,
    })
}

fn failure_text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn read_manifest(path: &Path, diagnostics: &mut Vec<String>) -> Result<Manifest, Failure> {
    let path = path.join(MANIFEST);
    let Ok(file) = File::open(&path) else {
        diagnostics.push(format!(
            "{MANIFEST} is missing: guests, disks and devices have no names"
        ));
        return Ok(Manifest::default());
    };
    let mut bytes = Vec::new();
    file.take(MAX_MANIFEST)
        .read_to_end(&mut bytes)
        .map_err(|error| bad(&path, error))?;
    match Manifest::from_slice(&bytes) {
        Ok((manifest, odd)) => {
            diagnostics.extend(
                odd.into_iter()
                    .map(|diagnostic| format!("{MANIFEST}: {}", diagnostic.message)),
            );
            Ok(manifest)
        }
        Err(error) => Err(bad(&path, failure_text(&error))),
    }
}
