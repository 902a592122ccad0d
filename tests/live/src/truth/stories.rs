//! Every chain of a recording, as `analyze --slowest` tells it.

use std::path::Path;

use anyhow::{Context, bail};
use nestrace_rig::recorder;
use serde::Deserialize;

/// More than any of these recordings has bios.
const ALL: &str = "100000";

/// A guest bio and what served it.
#[derive(Clone, Debug, Deserialize)]
pub struct Story {
    /// Its number among its disk's guest bios, from 1, in the order of Q.
    pub io: u64,
    /// Q after the start of the recording.
    #[serde(deserialize_with = "known")]
    pub at_ns: u64,
    /// Why it was not followed, if it was not.
    pub unlinked: Option<String>,
    /// Q to C.
    pub q2c_ns: u64,
    /// Parts of that.
    pub segments: Vec<PrintedSegment>,
    /// The guest bio with everything below it.
    pub tree: Span,
}

/// A part of the latency.
#[derive(Clone, Debug, Deserialize)]
pub struct PrintedSegment {
    /// Nanoseconds.
    pub ns: u64,
}

/// An interval of an I/O trace; times count from the bio's Q.
#[derive(Clone, Debug, Deserialize)]
pub struct Span {
    /// `guest_bio`, `guest_request`, `qemu`, `file_io`, `host_bio`, `host_request`.
    pub layer: String,
    /// `write`, `flush`, …
    pub what: String,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Begin as the event in its machine's stream has it.
    pub ts_ns: u64,
    /// Begin.
    pub from_ns: i64,
    /// End.
    pub to_ns: i64,
    /// What it waited for.
    pub children: Vec<Self>,
}

impl Span {
    /// All spans of a layer in this tree.
    pub fn of_layer<'a>(&'a self, layer: &str) -> Vec<&'a Self> {
        let mut found = Vec::new();
        self.visit(&mut |span| {
            if span.layer == layer {
                found.push(span);
            }
        });
        found
    }

    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Self)) {
        see(self);
        for child in &self.children {
            child.visit(see);
        }
    }
}

impl Story {
    /// When a span of it began, after the start of the recording on the host's clock.
    pub fn begin_of(&self, span: &Span) -> u64 {
        self.at_ns.saturating_add_signed(span.from_ns)
    }
}

/// The I/O traces of all linked bios of a recording.
pub fn all(nestrace: &Path, bundle: &Path) -> anyhow::Result<Vec<Story>> {
    #[derive(Deserialize)]
    struct Stories {
        #[serde(default)]
        stories: Vec<Story>,
    }
    let path = bundle.to_str().context("name the recording")?;
    let args = ["analyze", path, "--format", "json", "--slowest", ALL];
    let end = recorder::nestrace(nestrace, &args).context("start nestrace analyze")?;
    if end.code != Some(0) {
        bail!("analyze {path} (exit {:?}): {}", end.code, end.stderr);
    }
    let mut read: Stories = serde_json::from_str(&end.stdout).context("read the stories")?;
    read.stories.retain(|story| story.unlinked.is_none());
    Ok(read.stories)
}

/// `null` for a bio that is not linked, which is left out.
fn known<'de, D: serde::Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}
