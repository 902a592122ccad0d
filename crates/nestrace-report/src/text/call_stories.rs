//! Single calls of a guest's programs as a tree.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::CallStory;

use super::Page;
use super::calls::file_name;
use super::stories::{segment_table, tree};
use crate::table::shorten;
use crate::units::{size, time};

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    for story in &analysis.call_stories {
        tell(story, page);
    }
}

fn tell(story: &CallStory, page: &mut Page) {
    page.section(&title(story));
    let mut facts = Vec::new();
    if let Some(at_ns) = story.at_ns {
        facts.push(format!(
            "Thread {} called {:.6} s after the start; times between guest and host are exact to ±{}.",
            story.tid,
            at_ns as f64 / 1e9,
            time(story.clock_bound_ns)
        ));
    }
    if story.result < 0 {
        facts.push(format!(
            "It failed with errno {}.",
            story.result.unsigned_abs()
        ));
    }
    if !story.linked {
        facts.push(String::from("Not all of its I/O was linked to the host."));
    }
    if !facts.is_empty() {
        page.paragraph(&facts.join(" "));
    }
    if !story.segments.is_empty() {
        page.line("");
        page.table(&segment_table(&story.segments, story.latency_ns));
    }
    page.line("");
    tree(&story.tree, page);
}

/// What the call is, and how long it took.
pub(crate) fn title(story: &CallStory) -> String {
    let bytes = match story.bytes {
        0 => String::new(),
        bytes => format!("{} of ", size(bytes)),
    };
    format!(
        "call {} of {}: {} in {}: {bytes}{}, {}",
        story.call,
        shorten(&story.guest, 24),
        story.process,
        story.op,
        file_name(&story.file),
        time(story.latency_ns)
    )
}
