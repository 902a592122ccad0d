//! Single bios as a tree.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Story, StoryLayer, StorySegment, StorySpan, StoryWork};

use super::{Page, disk_name, reason};
use crate::bar::bar;
use crate::table::{Table, shorten};
use crate::units::{percent, share, size, time};

/// Columns of the drawn bar.
const BAR: usize = 30;
/// Children of one span that are listed: the first, then the last of them.
const MAX_CHILDREN: usize = 16;
const FIRST_CHILDREN: usize = 10;

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    for story in &analysis.stories {
        tell(story, page);
    }
}

fn tell(story: &Story, page: &mut Page) {
    let disk = Some(story.disk.as_str()).filter(|disk| !disk.is_empty());
    page.section(&format!(
        "{} {} of {}: {} of {}, {}",
        story.guest_device,
        number(story),
        disk_name(
            &shorten(&story.guest, 24),
            Some(&shorten(disk.unwrap_or(&story.guest_device), 16))
        ),
        story.tree.what,
        size(story.tree.bytes),
        time(story.q2c_ns)
    ));
    let mut facts = Vec::new();
    if let Some(at_ns) = story.at_ns {
        facts.push(format!(
            "Queued {:.6} s after the start; times between guest and host are exact to ±{}.",
            at_ns as f64 / 1e9,
            time(story.clock_bound_ns)
        ));
    }
    if let Some(why) = story.unlinked {
        facts.push(format!("Not linked to the host: {}.", reason(why)));
    }
    if story.ambiguous {
        facts.push(String::from("Part of it may be another request's I/O."));
    }
    if !facts.is_empty() {
        page.paragraph(&facts.join(" "));
    }
    if !story.segments.is_empty() {
        page.line("");
        page.table(&segment_table(&story.segments, story.q2c_ns));
    }
    page.line("");
    tree(&story.tree, page);
}

fn number(story: &Story) -> String {
    if story.io == 0 {
        String::from("bio")
    } else {
        format!("bio {}", story.io)
    }
}

pub(super) fn segment_table(segments: &[StorySegment], whole_ns: u64) -> Table {
    let mut table = Table::new(&["segment", "time", "share", &" ".repeat(BAR)]);
    for segment in segments {
        let part = share(segment.ns, whole_ns);
        table.row(vec![
            segment.name.to_owned(),
            time(segment.ns),
            percent(part),
            bar(part, BAR),
        ]);
    }
    table
}

/// `from` and `took` stand in columns of their own, so that they can be compared.
pub(super) fn tree(root: &StorySpan, page: &mut Page) {
    page.line(&format!("  {:>9}  {:>9}  what", "from", "took"));
    branch(root, "", "", page);
}

fn branch(span: &StorySpan, first: &str, rest: &str, page: &mut Page) {
    let took = u64::try_from(span.to_ns - span.from_ns).unwrap_or(0);
    let head = format!("  {:>9}  {:>9}  {first}", signed(span.from_ns), time(took));
    let room = page.options.width.saturating_sub(head.chars().count());
    page.line(&format!("{head}{}", describe(span, room)));
    let n = span.children.len();
    let hidden = if n > MAX_CHILDREN {
        FIRST_CHILDREN..n - (MAX_CHILDREN - FIRST_CHILDREN)
    } else {
        n..n
    };
    for (place, child) in span.children.iter().enumerate() {
        if place == hidden.start {
            page.line(&format!(
                "  {:>9}  {:>9}  {rest}├ … {} more",
                "",
                "",
                hidden.len()
            ));
        }
        if hidden.contains(&place) {
            continue;
        }
        let (joint, line) = if place + 1 == n {
            ("└ ", "  ")
        } else {
            ("├ ", "│ ")
        };
        branch(
            child,
            &format!("{rest}{joint}"),
            &format!("{rest}{line}"),
            page,
        );
    }
}

fn signed(ns: i64) -> String {
    if ns < 0 {
        format!("-{}", time(ns.unsigned_abs()))
    } else {
        time(ns.unsigned_abs())
    }
}

/// Layer, operation, extent and place; what does not fit is taken from the place.
fn describe(span: &StorySpan, room: usize) -> String {
    let layer = match span.layer {
        StoryLayer::PageWait => "wait for pages",
        StoryLayer::GuestJournal => "guest's journal",
        StoryLayer::GuestBio => "guest bio",
        StoryLayer::GuestRequest => "guest request",
        StoryLayer::Qemu => "QEMU",
        StoryLayer::QemuJob => "job of QEMU's",
        StoryLayer::FileIo => "file I/O",
        StoryLayer::Remote | StoryLayer::ServerCall => "server",
        StoryLayer::HostBio => "host bio",
        StoryLayer::HostRequest => "host request",
        StoryLayer::StackFile => "loop's file",
        other => other.name(),
    };
    let what = match span.what {
        StoryWork::ImageMetadata => "image metadata",
        StoryWork::OthersData => "another file's data",
        StoryWork::LayerMetadata => "layer's metadata",
        StoryWork::ReadModifyWrite => "read for parity",
        other => other.name(),
    };
    let extent = if span.bytes > 0 {
        format!(" {} @{}", size(span.bytes), span.offset)
    } else {
        String::new()
    };
    let shared = if span.shared { " (shared)" } else { "" };
    let taken = layer.len() + what.len() + extent.chars().count() + shared.len() + 2;
    let place = shorten(&span.place, room.saturating_sub(taken));
    if place.chars().count() < span.place.chars().count().min(3) {
        return shorten(&format!("{layer} {what}{extent}{shared}"), room);
    }
    format!("{layer} {place} {what}{extent}{shared}")
}
