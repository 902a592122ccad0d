//! A chain as slices: a layer a track, an arrow from each span to what it waited for.

use std::collections::HashMap;

use nestrace_analyzer::analysis::StoryLayer;
use nestrace_analyzer::{
    analysis::{Story, StorySpan},
    units::size,
};
use nestrace_trace::{Event, Manifest};

use super::{
    depth::Depths,
    packets::{Note, Slice},
    tracks::Place,
    waiting::{Identity, Key, Waiting},
};

/// How the guests' clocks lie to the host's.
#[derive(Debug)]
pub struct Clocks {
    manifest: Manifest,
    /// By guest: its clock minus the host's, as the last chain had it.
    offsets_ns: HashMap<String, i128>,
}

/// Puts chains onto the host's clock and hands them on as slices.
#[derive(Debug, Default)]
pub struct Chains {
    /// Bios drawn.
    pub n: u64,
}

/// What is the same for every span of a chain.
struct Of<'a> {
    group: &'a str,
    story: &'a Story,
    /// The bio's Q on the host's clock.
    queued_ns: u64,
}

impl Chains {
    /// Takes a chain.
    pub fn add(
        &mut self,
        story: &Story,
        clocks: &mut Clocks,
        waiting: &mut Waiting,
        depths: &mut Depths,
    ) {
        self.n += 1;
        let group = format!("{} {}", story.guest, story.guest_device);
        let of = Of {
            group: &group,
            story,
            queued_ns: clocks.host_ns(&story.guest, story.tree.ts_ns, story.at_ns),
        };
        of.draw(&story.tree, None, 0, waiting, depths);
    }
}

impl Clocks {
    /// Of the recording that this manifest is of.
    pub fn new(manifest: Manifest) -> Self {
        Self {
            manifest,
            offsets_ns: HashMap::new(),
        }
    }

    /// Where a time of the guest lies on the host's clock; `at_ns` is its time after the start, if that is known. Else it
    /// is known no better than by the one before, and before the first one by the wall clocks.
    pub fn host_ns(&mut self, guest: &str, guest_ns: u64, at_ns: Option<u64>) -> u64 {
        let guest_ns = i128::from(guest_ns);
        let manifest = &self.manifest;
        if let Some(at_ns) = at_ns {
            let host_ns = manifest.start_mono_ns.saturating_add(at_ns);
            let offset_ns = guest_ns - i128::from(host_ns);
            self.offsets_ns.insert(guest.to_owned(), offset_ns);
            return host_ns;
        }
        let offset_ns = self.offsets_ns.get(guest).copied().or_else(|| {
            let mut sides = manifest.guest_sides.iter();
            let side = sides.find(|side| side.guest == guest)?;
            let guest_boot = i128::from(side.start_unix_ns) - i128::from(side.start_mono_ns);
            let host_boot = i128::from(manifest.start_unix_ns) - i128::from(manifest.start_mono_ns);
            Some(host_boot - guest_boot)
        });
        let host_ns = guest_ns - offset_ns.unwrap_or(0);
        u64::try_from(host_ns.max(0)).unwrap_or(u64::MAX)
    }
}

impl Of<'_> {
    /// Draws a span and what lies below it, unless another chain has drawn it.
    fn draw(
        &self,
        span: &StorySpan,
        parent: Option<Key>,
        depth: i64,
        waiting: &mut Waiting,
        depths: &mut Depths,
    ) {
        let identity = self.identity(span, depth);
        let key = match waiting.find(&identity) {
            Some(known) => known,
            None => {
                let slice = self.slice(span);
                if span.layer == StoryLayer::GuestRequest {
                    let place = Place {
                        name: String::from("requests in flight"),
                        rank: -1,
                        ..identity.place.clone()
                    };
                    depths.add(place, slice.start_ns, slice.end_ns);
                }
                let key = waiting.add(identity, slice);
                for child in &span.children {
                    self.draw(child, Some(key), depth + 1, waiting, depths);
                }
                key
            }
        };
        if let Some(parent) = parent {
            waiting.connect(parent, key);
        }
    }

    fn identity(&self, span: &StorySpan, depth: i64) -> Identity {
        if span.layer == StoryLayer::GuestBio {
            return bio_identity(self.group.to_owned(), span);
        }
        let layer = match span.layer {
            StoryLayer::GuestRequest => "guest: requests",
            StoryLayer::Qemu => "QEMU: requests",
            StoryLayer::QemuJob => "QEMU: jobs",
            StoryLayer::FileIo => "host: file I/O",
            StoryLayer::Remote => "QEMU: server",
            StoryLayer::ServerCall => "host: server",
            StoryLayer::HostBio => "host: bios",
            StoryLayer::HostRequest => "host: requests",
            other => other.name(),
        };
        // QEMU has a name of its own for the disk; the host's layers come again below loop devices, so there
        // is a track for each device and file.
        let name = match span.layer {
            StoryLayer::GuestRequest => layer.to_owned(),
            _ => format!("{layer} · {}", span.place),
        };
        Identity {
            place: Place {
                group: self.group.to_owned(),
                name,
                rank: depth,
            },
            ts_ns: span.ts_ns,
            lasted_ns: lasted_ns(span),
            offset: span.offset,
            bytes: span.bytes,
        }
    }

    fn slice(&self, span: &StorySpan) -> Slice {
        let of_guest = matches!(span.layer, StoryLayer::GuestBio | StoryLayer::GuestRequest);
        // What the host recorded stands where it recorded it; the guest's by the clock's measure.
        let start_ns = match of_guest {
            true => self.queued_ns.saturating_add_signed(span.from_ns),
            false => span.ts_ns,
        };
        let mut notes = vec![
            (0, Note::Number(self.story.io)),
            (2, Note::Number(span.bytes)),
        ];
        if span.offset != Event::NOWHERE {
            notes.push((1, Note::Number(span.offset)));
            if span.layer != StoryLayer::FileIo {
                notes.push((3, Note::Number(span.offset / 512)));
            }
        }
        if span.shared {
            notes.push((4, Note::Yes));
        }
        if span.layer == StoryLayer::GuestBio {
            if let Some(reason) = self.story.unlinked {
                notes.push((5, Note::Word(reason.name())));
            }
            if self.story.ambiguous {
                notes.push((6, Note::Yes));
            }
            notes.push((7, Note::Number(self.story.clock_bound_ns)));
        }
        Slice {
            start_ns,
            end_ns: start_ns.saturating_add(lasted_ns(span)),
            name: title(span.what.name(), span.offset, span.bytes),
            notes,
            correlation: self.story.io,
            ..Slice::default()
        }
    }
}

/// What makes a guest's bio one slice, whether a chain or a call speaks of it.
pub fn bio_identity(group: String, bio: &StorySpan) -> Identity {
    Identity {
        place: Place {
            group,
            name: String::from("guest: bios"),
            rank: 0,
        },
        ts_ns: bio.ts_ns,
        lasted_ns: lasted_ns(bio),
        offset: bio.offset,
        bytes: bio.bytes,
    }
}

/// How long a span took.
pub fn lasted_ns(span: &StorySpan) -> u64 {
    u64::try_from(span.to_ns.saturating_sub(span.from_ns)).unwrap_or(0)
}

/// `write 4.0 KiB @2048`: the operation, how much, and the sector.
pub fn title(what: &str, offset: u64, bytes: u64) -> String {
    match (bytes, offset) {
        (0, _) => what.to_owned(),
        (_, Event::NOWHERE) => format!("{what} {}", size(bytes)),
        _ => format!("{what} {} @{}", size(bytes), offset / 512),
    }
}
