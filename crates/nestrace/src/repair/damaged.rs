//! The damaged bundle: what is there of it, and what its manifest still says.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use nestrace_trace::{
    ImageMap, Manifest,
    bundle::{HOST_STREAM, IMAGE_MAPS, MANIFEST},
    manifest::{Notice, State},
    salvage::{self, Glimpse},
};

use super::{Kept, nothing_in};
use crate::{
    bundle::{self, Stream},
    exit::Failure,
};

/// A bundle that may lack any of its files.
pub struct Damaged {
    path: PathBuf,
    /// `None` where it is lost.
    pub manifest: Option<Manifest>,
    /// Guests' streams that the manifest does not name, and that belong to it all the same.
    unlisted: Vec<String>,
    /// The host's stream, which was opened first: it says whether this is a bundle at all.
    host: Option<Result<Stream, String>>,
    /// What is odd, for a person.
    pub notes: Vec<String>,
}

impl Damaged {
    /// Looks at what is there.
    ///
    /// # Errors
    /// If nothing of a recording is there, or a newer release wrote it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let meta = fs::metadata(path).map_err(|error| nothing_in(path, &error.to_string()))?;
        if !meta.is_dir() {
            return Err(nothing_in(path, "not a bundle (a directory NAME.nest)"));
        }
        let mut notes = Vec::new();
        let mut manifest = bundle::read_manifest(path, &mut notes)?;
        if let Some(manifest) = &mut manifest {
            leave_out_strange(manifest, &mut notes);
        }
        let host = bundle::open_stream(path, HOST_STREAM);
        if let Err(bundle::Unreadable::Newer(why)) = &host {
            return Err(nothing_in(&path.join(HOST_STREAM), why));
        }
        let mut damaged = Self {
            path: path.to_owned(),
            host: Some(host.map_err(|why| why.to_string())),
            manifest,
            unlisted: Vec::new(),
            notes,
        };
        damaged.find_unlisted();
        let any_stream = damaged.unlisted.len()
            + usize::from(matches!(damaged.host, Some(Ok(_))))
            + usize::from(damaged.manifest.is_some());
        if any_stream == 0 {
            return Err(damaged.nothing());
        }
        Ok(damaged)
    }

    /// Nothing of a recording is in it.
    pub fn nothing(&self) -> Failure {
        let why = match &self.host {
            Some(Err(why)) => format!("no part of the recording can be read: {HOST_STREAM}: {why}"),
            _ => String::from("no part of the recording can be read"),
        };
        nothing_in(&self.path, &why)
    }

    /// Streams of guests that the manifest does not name. Of a recording that was closed they are not;
    /// one that was killed may not have come to name the last.
    fn find_unlisted(&mut self) {
        let sides = self.manifest.as_ref().map(|m| m.guest_sides.as_slice());
        let mut found = bundle::unnamed_streams(&self.path, sides.unwrap_or_default());
        let closed = self
            .manifest
            .as_ref()
            .is_some_and(|manifest| manifest.state != State::Recording);
        for name in found.extract_if(.., |_| closed) {
            self.notes.push(format!(
                "{name} is left out: {MANIFEST} does not name it, so it belongs to another recording"
            ));
        }
        self.unlisted = found;
    }

    /// The manifest as far as it is known before the streams are read: all sides are in it.
    pub fn plan(&self) -> Manifest {
        let unlisted = self.unlisted.iter().map(|file| Glimpse::new(file));
        match &self.manifest {
            Some(manifest) => {
                let mut manifest = manifest.clone();
                add(&mut manifest, &unlisted.collect::<Vec<_>>());
                manifest
            }
            None => {
                let host = [Glimpse::new(HOST_STREAM)].into_iter();
                salvage::manifest(&host.chain(unlisted).collect::<Vec<_>>())
            }
        }
    }

    /// A stream, or why it cannot be read.
    pub fn take_stream(&mut self, file: &str) -> Result<Stream, String> {
        match self.host.take() {
            Some(host) if file == HOST_STREAM => host,
            other => {
                self.host = other;
                bundle::open_stream(&self.path, file).map_err(|why| why.to_string())
            }
        }
    }

    /// How many events a stream had that cannot be read, if its index is there.
    pub fn events_by_index(&self, file: &str) -> Option<u64> {
        bundle::events_by_index(&self.path, file)
    }

    /// The image maps; `None` where there are none.
    pub fn image_maps(&mut self) -> Option<Vec<ImageMap>> {
        let there = self.path.join(IMAGE_MAPS).exists();
        let maps = bundle::read_image_maps(&self.path, &mut self.notes);
        (there && !maps.is_empty()).then_some(maps)
    }

    /// Adds guests that the streams describe and the manifest lacks, and says so.
    pub fn describe(&self, manifest: &mut Manifest, kept: &[Kept]) {
        for side in &mut manifest.guest_sides {
            let told = kept
                .iter()
                .filter(|kept| self.unlisted.contains(&kept.glimpse.file))
                .find(|kept| kept.glimpse.file == side.file)
                .and_then(|kept| kept.glimpse.guest_side(&self.unlisted));
            if let Some(told) = told {
                side.disks = told.disks;
            }
        }
        if self.manifest.is_none() {
            manifest.notices.push(Notice {
                what: bundle::MANIFEST_MISSING.to_owned(),
                message: bundle::MANIFEST_LOST.to_owned(),
                ..Notice::default()
            });
        }
    }
}

/// Adds streams and sides of guests.
fn add(manifest: &mut Manifest, seen: &[Glimpse]) {
    let mut files: Vec<String> = seen.iter().map(|seen| seen.file.clone()).collect();
    files.extend(manifest.guest_sides.iter().map(|side| side.file.clone()));
    for seen in seen {
        if !manifest.streams.iter().any(|known| known.file == seen.file) {
            manifest.streams.push(seen.stream(&files));
        }
        manifest.guest_sides.extend(seen.guest_side(&files));
    }
}

/// A manifest is input like any other: what it names has to be a guest's stream, once.
fn leave_out_strange(manifest: &mut Manifest, notes: &mut Vec<String>) {
    let mut known = BTreeSet::new();
    manifest.guest_sides.retain(|side| {
        let is_stream = bundle::is_file_name(&side.file)
            && side.file.ends_with(".arrows")
            && side.file != HOST_STREAM;
        let keep = is_stream && known.insert(side.file.clone());
        if !keep {
            let file = side.file.escape_debug();
            notes.push(format!(
                "{MANIFEST}: {file} is not a guest's stream, or is named twice; it is left out"
            ));
        }
        keep
    });
}
