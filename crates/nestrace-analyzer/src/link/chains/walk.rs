//! The critical path of a chain: which layer held the I/O up at each instant.
//!
//! > cursor = end of the parent. In each layer, the time between the end of the child that ended
//! > last and the cursor is this layer's own; descend into that child, clipped to the parent; set
//! > the cursor to its start; repeat; what is left before the first child is this layer's own too.
//!
//! Every nanosecond between the beginning and the end of the root is charged exactly once, so the
//! segments sum to its length, whatever the children look like: serial, parallel, overlapping, or
//! reaching out of their parent.

use crate::model::span::{Layer, Span, What};
use crate::result::segments::{CALL_SEGMENTS, Segment};

/// The segments that a layer's own time goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    /// All of it to one.
    All(Segment),
    /// By where it lies.
    Parts {
        /// Before the first child.
        submit: Segment,
        /// Between children.
        between: Segment,
        /// After the last.
        complete: Segment,
    },
}

impl Own {
    pub(crate) const fn of(layer: Layer, what: What) -> Self {
        match layer {
            Layer::Call => Self::Parts {
                submit: Segment::GuestFsSubmit,
                between: Segment::GuestFsBetween,
                complete: Segment::GuestFsComplete,
            },
            Layer::Throttle => Self::All(Segment::GuestDirtyThrottle),
            Layer::PageWait => Self::All(Segment::GuestPageWait),
            Layer::GuestJournal => Self::All(Segment::GuestJournal),
            Layer::GuestBio => Self::All(Segment::GuestQueue),
            Layer::GuestRequest => Self::Parts {
                submit: Segment::VirtSubmit,
                // QEMU may take one guest request as several (IDE's longest DMA): still on its way.
                between: Segment::VirtSubmit,
                complete: Segment::VirtComplete,
            },
            Layer::Qemu => Self::Parts {
                submit: Segment::QemuSubmit,
                between: Segment::QemuBetween,
                complete: Segment::QemuComplete,
            },
            Layer::FileIo => Self::Parts {
                submit: Segment::HostFsSubmit,
                between: Segment::HostFsBetween,
                complete: Segment::HostFsComplete,
            },
            Layer::HostBio => Self::All(Segment::HostQueue),
            Layer::HostRequest => match what {
                What::Flush => Self::All(Segment::DeviceFlush),
                _ => Self::All(Segment::Device),
            },
        }
    }
}

/// Nanoseconds by [`Segment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    by_segment: [u64; CALL_SEGMENTS],
    /// Under the guest's bios that carry another file's data; part of the segments.
    pub others_data_ns: u64,
    /// Under the guest's journal, its bios included; part of the segments.
    pub under_journal_ns: u64,
}

impl Times {
    /// Time in a segment.
    pub(crate) fn of(&self, segment: Segment) -> u64 {
        self.by_segment[segment as usize]
    }

    /// All segments: the length of the walked span.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.by_segment.iter().sum()
    }

    fn charge(&mut self, segment: Segment, from_ns: u64, to_ns: u64) {
        self.by_segment[segment as usize] += to_ns - from_ns;
    }
}

/// Charges the whole length of `root`.
pub(crate) fn walk(root: &Span) -> Times {
    let mut times = Times::default();
    descend(
        root,
        root.start_ns,
        root.end_ns.max(root.start_ns),
        &mut times,
    );
    times
}

/// Charges what lies in `from_ns ..= to_ns` of a span.
fn descend(span: &Span, from_ns: u64, to_ns: u64, times: &mut Times) {
    let (submit, between, complete) = match Own::of(span.layer, span.what) {
        // What a loop, dm or md device did for it is part of the device's time.
        Own::All(segment) if segment.is_device() => {
            return times.charge(segment, from_ns, to_ns);
        }
        Own::All(segment) => (segment, segment, segment),
        Own::Parts {
            submit,
            between,
            complete,
        } => (submit, between, complete),
    };
    if span.layer == Layer::GuestBio && span.what == What::OthersData {
        times.others_data_ns += to_ns - from_ns;
    }
    if span.layer == Layer::GuestJournal {
        times.under_journal_ns += to_ns - from_ns;
    }
    let mut cursor = to_ns;
    let mut after_child = complete;
    let mut visit = |child: &Span| {
        let start_ns = child.start_ns.max(from_ns);
        let end_ns = child.end_ns.min(cursor);
        if start_ns > end_ns {
            return;
        }
        times.charge(after_child, end_ns, cursor);
        descend(child, start_ns, end_ns, times);
        after_child = between;
        cursor = start_ns;
    };
    match span.children.as_slice() {
        [] => {}
        [only] => visit(only),
        several => {
            let mut last_first: Vec<&Span> = several.iter().collect();
            last_first.sort_by(|a, b| {
                (b.end_ns, b.start_ns, b.offset).cmp(&(a.end_ns, a.start_ns, a.offset))
            });
            last_first.into_iter().for_each(visit);
        }
    }
    times.charge(submit, from_ns, cursor);
}

/// Children, at any depth, that begin before their parent or end after it although they are its own
/// work alone. Shared ones (a merged request, another's journal commit) may.
pub(crate) fn outside(span: &Span) -> u64 {
    span.children
        .iter()
        .map(|child| {
            let inside = child.start_ns >= span.start_ns && child.end_ns <= span.end_ns;
            u64::from(!inside && !child.shared) + outside(child)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::span::{Layer, What};

    fn span(layer: Layer, start_ns: u64, end_ns: u64, children: Vec<Span>) -> Span {
        Span {
            layer,
            start_ns,
            end_ns,
            offset: 0,
            bytes: 4096,
            what: What::Write,
            shared: false,
            place: 0,
            children,
        }
    }

    fn check(root: &Span, expected: &[(Segment, u64)]) {
        let times = walk(root);
        let found: Vec<(Segment, u64)> = Segment::OF_CALL
            .into_iter()
            .map(|segment| (segment, times.of(segment)))
            .filter(|(_, ns)| *ns > 0)
            .collect();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(times.total(), root.end_ns - root.start_ns);
    }

    use Layer::*;
    use Segment as S;

    #[test]
    fn every_layer_has_its_segments() {
        let device = span(HostRequest, 50, 70, vec![]);
        let host = span(HostBio, 40, 70, vec![device]);
        let file = span(FileIo, 30, 75, vec![host]);
        let qemu = span(Qemu, 20, 85, vec![file]);
        let request = span(GuestRequest, 10, 100, vec![qemu]);
        let bio = span(GuestBio, 1, 102, vec![request]);
        check(
            &bio,
            &[
                (S::GuestQueue, 9 + 2),
                (S::VirtSubmit, 10),
                (S::QemuSubmit, 10),
                (S::HostFsSubmit, 10),
                (S::HostQueue, 10),
                (S::Device, 20),
                (S::HostFsComplete, 5),
                (S::QemuComplete, 10),
                (S::VirtComplete, 15),
            ],
        );
    }

    #[test]
    fn serial_children_have_a_time_between() {
        // An L2 table is read before the data, then the write is synced.
        let qemu = span(
            Qemu,
            0,
            100,
            vec![
                span(FileIo, 10, 20, vec![]),
                span(FileIo, 30, 60, vec![]),
                span(FileIo, 65, 95, vec![]),
            ],
        );
        check(
            &qemu,
            &[
                (S::QemuSubmit, 10),
                (S::QemuBetween, 10 + 5),
                (S::QemuComplete, 5),
                (S::HostFsSubmit, 10 + 30 + 30),
            ],
        );
    }

    #[test]
    fn of_parallel_children_the_last_one_counts_and_the_other_before_it() {
        // The second began at 40 and ended last; before that the first is what was waited for.
        let file = span(
            FileIo,
            0,
            100,
            vec![
                span(HostBio, 10, 80, vec![span(HostRequest, 20, 80, vec![])]),
                span(HostBio, 40, 90, vec![span(HostRequest, 50, 90, vec![])]),
            ],
        );
        check(
            &file,
            &[
                (S::HostFsSubmit, 10),
                (S::HostQueue, 10 + 10),
                (S::Device, 20 + 40),
                (S::HostFsComplete, 10),
            ],
        );
    }

    #[test]
    fn a_child_within_another_is_not_on_the_path() {
        let qemu = span(
            Qemu,
            0,
            100,
            vec![span(FileIo, 10, 90, vec![]), span(FileIo, 20, 80, vec![])],
        );
        check(
            &qemu,
            &[
                (S::QemuSubmit, 10),
                (S::HostFsSubmit, 80),
                (S::QemuComplete, 10),
            ],
        );
    }

    #[test]
    fn a_shared_commit_is_clipped_to_who_waits() {
        // The journal's commit began before this fsync and took longer than it waited.
        let mut commit = span(HostBio, 0, 150, vec![span(HostRequest, 20, 140, vec![])]);
        commit.shared = true;
        let sync = span(FileIo, 50, 100, vec![commit]);
        check(&sync, &[(S::Device, 50)]);
        assert_eq!(outside(&sync), 0, "shared children may reach out");
    }

    #[test]
    fn a_flush_of_the_device_is_told_apart() {
        let mut flush = span(HostRequest, 10, 60, vec![]);
        flush.what = What::Flush;
        let data = span(HostRequest, 61, 90, vec![]);
        let bio = span(HostBio, 0, 90, vec![data, flush]);
        check(
            &bio,
            &[(S::HostQueue, 11), (S::DeviceFlush, 50), (S::Device, 29)],
        );
    }

    #[test]
    fn what_a_loop_device_did_is_the_device_s_time() {
        let beneath = span(FileIo, 12, 18, vec![]);
        let request = span(HostRequest, 10, 20, vec![beneath]);
        check(&request, &[(S::Device, 10)]);
    }

    #[test]
    fn children_outside_their_parent_are_clipped_and_counted() {
        let qemu = span(
            Qemu,
            100,
            200,
            vec![
                span(FileIo, 90, 120, vec![]),
                span(FileIo, 150, 230, vec![]),
                span(FileIo, 0, 50, vec![]),
                span(FileIo, 300, 400, vec![]),
            ],
        );
        check(&qemu, &[(S::QemuBetween, 30), (S::HostFsSubmit, 20 + 50)]);
        assert_eq!(outside(&qemu), 4);
    }

    #[test]
    fn an_end_before_the_beginning_is_no_time() {
        assert_eq!(walk(&span(Qemu, 100, 50, vec![])).total(), 0);
        let backwards = span(Qemu, 0, 100, vec![span(FileIo, 80, 20, vec![])]);
        check(&backwards, &[(S::QemuSubmit, 100)]);
    }

    fn tree() -> impl Strategy<Value = Span> {
        let layer = prop::sample::select(vec![
            GuestBio,
            GuestRequest,
            Qemu,
            FileIo,
            HostBio,
            HostRequest,
        ]);
        let leaf = (layer.clone(), 0u64..200, 0u64..200)
            .prop_map(|(layer, start, end)| span(layer, start, end, vec![]));
        leaf.prop_recursive(5, 60, 6, move |inner| {
            (
                layer.clone(),
                0u64..200,
                0u64..200,
                prop::collection::vec(inner, 0..6),
            )
                .prop_map(|(layer, start, end, children)| span(layer, start, end, children))
        })
    }

    proptest! {
        /// Overflow checks are on in tests, so no segment can be negative on the way either.
        #[test]
        fn segments_sum_to_the_whole(root in tree()) {
            let length = root.end_ns.saturating_sub(root.start_ns);
            prop_assert_eq!(walk(&root).total(), length);
        }

        #[test]
        fn the_order_of_children_does_not_matter(root in tree()) {
            let mut turned = root.clone();
            turned.children.reverse();
            prop_assert_eq!(walk(&root), walk(&turned));
        }
    }
}
