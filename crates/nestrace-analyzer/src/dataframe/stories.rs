//! Single guest bios: their times, and the trees below them.

use super::{DataFrame, PolarsResult, table};
use crate::result::analysis::{Story, StorySpan};

/// A row for each guest bio: which it is, what it does, how long it took, and each segment in nanoseconds.
///
/// `guest`, `guest_device` and `io` name a bio. The segments of a linked one sum to `q2c_ns`; of one that was not
/// followed (`unlinked` says why) they are null. `q_ns` is the guest's clock, `at_ns` the time after the start of
/// the recording on the host's, off by at most `clock_bound_ns`.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn stories(stories: &[Story]) -> PolarsResult<DataFrame> {
    let segment = |story: &Story, name: &str| {
        let found = story.segments.iter().find(|segment| segment.name == name);
        story
            .unlinked
            .is_none()
            .then(|| found.map_or(0, |segment| segment.ns))
    };
    table!(stories, story => {
        guest: story.guest.as_str(),
        guest_device: story.guest_device.as_str(),
        disk: (!story.disk.is_empty()).then_some(story.disk.as_str()),
        io: story.io,
        op: story.tree.what.name(),
        offset: story.tree.offset,
        bytes: story.tree.bytes,
        q_ns: story.tree.ts_ns,
        at_ns: story.at_ns,
        clock_bound_ns: story.at_ns.map(|_| story.clock_bound_ns),
        q2c_ns: story.q2c_ns,
        unlinked: story.unlinked.map(|reason| reason.name()),
        ambiguous: story.ambiguous,
        guest_queue_ns: segment(story, "guest_queue"),
        virt_submit_ns: segment(story, "virt_submit"),
        qemu_submit_ns: segment(story, "qemu_submit"),
        qemu_job_ns: segment(story, "qemu_job"),
        host_fs_submit_ns: segment(story, "host_fs_submit"),
        host_queue_ns: segment(story, "host_queue"),
        stack_submit_ns: segment(story, "stack_submit"),
        stack_between_ns: segment(story, "stack_between"),
        stack_complete_ns: segment(story, "stack_complete"),
        device_ns: segment(story, "device"),
        device_flush_ns: segment(story, "device_flush"),
        remote_ns: segment(story, "remote"),
        host_fs_between_ns: segment(story, "host_fs_between"),
        host_fs_complete_ns: segment(story, "host_fs_complete"),
        qemu_between_ns: segment(story, "qemu_between"),
        qemu_complete_ns: segment(story, "qemu_complete"),
        virt_complete_ns: segment(story, "virt_complete"),
    })
}

struct Row<'a> {
    story: &'a Story,
    span: &'a StorySpan,
    number: u32,
    parent: Option<u32>,
}

/// A row for each interval in the trees of these bios: what each layer did for them.
///
/// `span` is 0 for the bio itself and `parent` the one that waited for it. `from_ns` and `to_ns` count from the
/// bio's Q; `ts_ns` is the beginning on the clock of the machine that the layer is of, and with `place` it finds
/// the event. A `shared` one is in the tree of each bio that waited for it.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn spans(stories: &[Story]) -> PolarsResult<DataFrame> {
    let mut rows = Vec::new();
    for story in stories {
        let mut next = 0;
        let mut waiting = vec![(&story.tree, None)];
        while let Some((span, parent)) = waiting.pop() {
            let number = next;
            next += 1;
            rows.push(Row {
                story,
                span,
                number,
                parent,
            });
            // The last one in comes out first.
            waiting.extend(
                span.children
                    .iter()
                    .rev()
                    .map(|child| (child, Some(number))),
            );
        }
    }
    table!(&rows, row => {
        guest: row.story.guest.as_str(),
        guest_device: row.story.guest_device.as_str(),
        io: row.story.io,
        span: row.number,
        parent: row.parent,
        layer: row.span.layer.name(),
        what: row.span.what.name(),
        place: row.span.place.as_str(),
        offset: row.span.offset,
        bytes: row.span.bytes,
        ts_ns: row.span.ts_ns,
        from_ns: row.span.from_ns,
        to_ns: row.span.to_ns,
        shared: row.span.shared,
    })
}
