//! Opens a bundle for the examples: the library itself opens nothing.

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use nestrace_analyzer::{Analyzer, GuestEvents};
use nestrace_trace::bundle::{HOST_STREAM, MANIFEST, index_of};
use nestrace_trace::{Manifest, StreamReader, TimeOrdered};

/// What may go wrong.
pub type Failure = Box<dyn Error>;

/// What was recorded, and on what.
pub fn manifest(bundle: &Path) -> Result<Manifest, Failure> {
    let (manifest, _odd) = Manifest::from_slice(&std::fs::read(bundle.join(MANIFEST))?)?;
    Ok(manifest)
}

/// Gives every event of every stream to the analyzer.
pub fn push(bundle: &Path, manifest: &Manifest, analyzer: &mut Analyzer) -> Result<(), Failure> {
    let mut host = stream(bundle, HOST_STREAM)?;
    let mut guests = Vec::new();
    for (side, about) in manifest.guest_sides.iter().enumerate() {
        guests.push((side, stream(bundle, &about.file)?));
    }
    let mut guests: Vec<_> = guests
        .iter_mut()
        .map(|(side, stream)| (*side, TimeOrdered::new(stream.events())))
        .collect();
    let guests = guests
        .iter_mut()
        .map(|(side, events)| GuestEvents {
            side: *side,
            events,
        })
        .collect();
    analyzer.push_streams(TimeOrdered::new(host.events()), guests);
    Ok(())
}

type Stream = StreamReader<File, BufReader<File>>;

fn stream(bundle: &Path, file: &str) -> Result<Stream, Failure> {
    let index = File::open(bundle.join(index_of(file))).ok();
    let stream = File::open(bundle.join(file))?;
    Ok(StreamReader::new(stream, index.map(BufReader::new))?)
}
