//! What can be known of a recording whose manifest is lost: what its streams' names and events say,
//! and nothing else. Unknown stays unknown: no name, version or start is made up.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::BTreeSet;

use nestrace_abi::{Kind, Source};

use crate::Batch;
use crate::bundle::{HOST_STREAM, guest_of_stream, session_of_stream};
use crate::manifest::{GuestDisk, GuestSide, Manifest, State, Stream};

/// Devices of one guest that are remembered; one with more has most of its disks among them.
const MAX_DEVICES: usize = 256;

/// What the events of one stream tell of their recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Glimpse {
    /// File name of the stream within the bundle.
    pub file: String,
    /// Devices that single block events are about, `MAJOR << 20 | MINOR`; 256 of them at most.
    pub devices: BTreeSet<u32>,
    /// There are single block events.
    pub full: bool,
    /// There are whole requests as one event.
    pub light: bool,
}

impl Glimpse {
    /// Nothing was seen yet of this file.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            ..Self::default()
        }
    }

    /// Looks at a batch.
    pub fn look(&mut self, batch: &Batch) {
        let columns = batch.columns();
        let mut last = None;
        for (kind, dev) in columns.kind.iter().zip(columns.dev) {
            let Some(kind) = Kind::from_u8(*kind).filter(|kind| kind.source() == Source::Block)
            else {
                continue;
            };
            self.light |= kind == Kind::RequestDone;
            self.full |= kind != Kind::RequestDone;
            if last != Some(*dev) && self.devices.len() < MAX_DEVICES {
                self.devices.insert(*dev);
                last = Some(*dev);
            }
        }
    }

    /// The stream's entry in a manifest.
    #[must_use]
    pub fn stream(&self, others: &[String]) -> Stream {
        let guest = guest_of(&self.file, others);
        Stream {
            file: self.file.clone(),
            side: if guest.is_some() { "guest" } else { "host" }.to_owned(),
            guest,
            ..Stream::default()
        }
    }

    /// A guest's side that is known only by its name and its devices.
    #[must_use]
    pub fn guest_side(&self, others: &[String]) -> Option<GuestSide> {
        let disk = |dev: &u32| GuestDisk {
            name: format!("{}:{}", dev >> 20, dev & 0xf_ffff),
            dev: *dev,
            ..GuestDisk::default()
        };
        Some(GuestSide {
            guest: guest_of(&self.file, others)?,
            file: self.file.clone(),
            disks: self.devices.iter().map(disk).collect(),
            ..GuestSide::default()
        })
    }
}

/// The manifest of a recording that has none: its streams, as far as their events tell of them.
#[must_use]
pub fn manifest(glimpses: &[Glimpse]) -> Manifest {
    let files: Vec<String> = glimpses.iter().map(|seen| seen.file.clone()).collect();
    let host = glimpses.iter().find(|seen| seen.file == HOST_STREAM);
    let detail = match host {
        Some(host) if host.light => "light",
        Some(host) if host.full => "full",
        _ => "",
    };
    Manifest {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        state: State::Repaired,
        detail: detail.to_owned(),
        streams: glimpses.iter().map(|seen| seen.stream(&files)).collect(),
        guest_sides: glimpses
            .iter()
            .filter_map(|seen| seen.guest_side(&files))
            .collect(),
        ..Manifest::default()
    }
}

/// The guest whose stream has this name: of `guest-vm.2.arrows` beside `guest-vm.arrows`, `vm`.
fn guest_of(file: &str, others: &[String]) -> Option<String> {
    let first = session_of_stream(file)
        .map(|(first, _)| first)
        .filter(|first| others.contains(first));
    guest_of_stream(first.as_deref().unwrap_or(file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_tell_the_guests() {
        let files = ["host.arrows", "guest-vm.arrows", "guest-vm.2.arrows"];
        let told = manifest(&files.map(Glimpse::new));
        let guests: Vec<_> = told.streams.iter().map(|s| s.guest.as_deref()).collect();
        assert_eq!(guests, [None, Some("vm"), Some("vm")]);
        assert_eq!(told.guest_sides.len(), 2);
        let alone = manifest(&["host.arrows", "guest-vm.2.arrows"].map(Glimpse::new));
        assert_eq!(alone.guest_sides[0].guest, "vm.2");
        assert_eq!((alone.start_unix_ns, alone.detail.as_str()), (0, ""));
    }
}
