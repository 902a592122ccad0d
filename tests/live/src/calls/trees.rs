//! Every call of a recording with its tree, and every bio of the guest, as `analyze --slowest` gives them.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder;
use serde::Deserialize;

use crate::context::LiveContext;
use crate::truth::stories::{PrintedSegment, Span, Story};

/// More than any of these recordings has.
const ALL: &str = "100000";

/// A call of a program with what it waited for.
#[derive(Clone, Debug, Deserialize)]
pub struct CallTree {
    /// The program.
    pub process: String,
    /// Thread.
    pub tid: u32,
    /// `read`, `write`, …
    pub op: String,
    /// The file.
    pub file: CallFile,
    /// Where its range begins.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// From its begin to its end.
    pub latency_ns: u64,
    /// All of its I/O was followed to the host.
    pub linked: bool,
    /// Parts of the latency.
    pub segments: Vec<PrintedSegment>,
    /// What happened.
    pub tree: Span,
}

/// A file in the guest.
#[derive(Clone, Debug, Deserialize)]
pub struct CallFile {
    /// Mount point.
    pub mount: String,
    /// Inode number.
    pub inode: Option<u64>,
}

impl CallTree {
    /// When it ended, on the guest's clock.
    pub fn end_ns(&self) -> u64 {
        self.tree.ts_ns + self.latency_ns
    }
}

#[derive(Deserialize)]
struct Read {
    #[serde(default)]
    stories: Vec<Story>,
    #[serde(default)]
    call_stories: Vec<CallTree>,
}

/// Every call of every program.
pub fn calls(ctx: &LiveContext, bundle: &Path) -> anyhow::Result<Vec<CallTree>> {
    let text = analyze(ctx, bundle, &["--slowest", ALL, "--calls"])?;
    let read: Read = serde_json::from_str(&text).context("read the trees of calls")?;
    Ok(read.call_stories)
}

/// Every bio of the guest.
pub fn bios(ctx: &LiveContext, bundle: &Path) -> anyhow::Result<Vec<Story>> {
    let text = analyze(ctx, bundle, &["--slowest", ALL])?;
    let read: Read = serde_json::from_str(&text).context("read the trees of bios")?;
    Ok(read.stories)
}

/// What `nestrace analyze` with these words says of a recording, as JSON.
fn analyze(ctx: &LiveContext, bundle: &Path, words: &[&str]) -> anyhow::Result<String> {
    let path = bundle.to_str().context("name the recording")?;
    let mut args = vec!["analyze", path, "--format", "json"];
    args.extend(words);
    let end = recorder::nestrace(&ctx.nestrace, &args).context("start nestrace analyze")?;
    anyhow::ensure!(end.code == Some(0), "analyze {path}: {}", end.stderr);
    Ok(end.stdout)
}
