//! The critical path of a chain: which layer held the I/O up at each instant.
//!
//! > cursor = end of the parent. In each layer, the time between the end of the child that ended
//! > last and the cursor is this layer's own; descend into that child, clipped to the parent; set
//! > the cursor to its start; repeat; what is left before the first child is this layer's own too.
//!
//! Every nanosecond between the beginning and the end of the root is charged exactly once, so the
//! segments sum to its length, whatever the children look like: serial, parallel, overlapping, or
//! reaching out of their parent.

use crate::link::cpu::CpuLookup;
use crate::model::actor::Actor;
use crate::model::span::{Below, Layer, Span, What};
use crate::result::analysis::CpuTime;
use crate::result::segments::{CALL_SEGMENTS, SegmentKind};

/// The segments that a layer's own time goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    /// All of it to one.
    All(SegmentKind),
    /// By where it lies.
    Parts {
        /// Before the first child.
        submit: SegmentKind,
        /// Between children.
        between: SegmentKind,
        /// After the last.
        complete: SegmentKind,
    },
}

impl Own {
    const STACK: Self = Self::Parts {
        submit: SegmentKind::StackSubmit,
        between: SegmentKind::StackBetween,
        complete: SegmentKind::StackComplete,
    };

    pub(crate) const fn of(layer: Layer, what: What, below: Below) -> Self {
        match (layer, below) {
            (Layer::HostBio | Layer::HostRequest, Below::Devices) => return Self::STACK,
            (Layer::FileIo | Layer::HostRequest, Below::Server) => {
                return Self::All(SegmentKind::Remote);
            }
            _ => {}
        }
        match layer {
            Layer::StackFile => Self::STACK,
            Layer::Call => Self::Parts {
                submit: SegmentKind::GuestFsSubmit,
                between: SegmentKind::GuestFsBetween,
                complete: SegmentKind::GuestFsComplete,
            },
            Layer::Throttle => Self::All(SegmentKind::GuestDirtyThrottle),
            Layer::PageWait => Self::All(SegmentKind::GuestPageWait),
            Layer::GuestJournal => Self::All(SegmentKind::GuestJournal),
            Layer::GuestBio => Self::All(SegmentKind::GuestQueue),
            Layer::GuestRequest => Self::Parts {
                submit: SegmentKind::VirtSubmit,
                // QEMU may take one guest request as several (IDE's longest DMA): still on its way.
                between: SegmentKind::VirtSubmit,
                complete: SegmentKind::VirtComplete,
            },
            Layer::Qemu => Self::Parts {
                submit: SegmentKind::QemuSubmit,
                between: SegmentKind::QemuBetween,
                complete: SegmentKind::QemuComplete,
            },
            Layer::QemuJob => Self::All(SegmentKind::QemuJob),
            Layer::Remote | Layer::ServerCall => Self::All(SegmentKind::Remote),
            Layer::FileIo => Self::Parts {
                submit: SegmentKind::HostFsSubmit,
                between: SegmentKind::HostFsBetween,
                complete: SegmentKind::HostFsComplete,
            },
            Layer::HostBio => Self::All(SegmentKind::HostQueue),
            Layer::HostRequest => match what {
                What::Flush => Self::All(SegmentKind::DeviceFlush),
                _ => Self::All(SegmentKind::Device),
            },
        }
    }
}

/// A layer of a stack of devices: a device, or what a loop device does in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StackLayer {
    /// `MAJOR << 20 | MINOR`.
    pub dev: u32,
    pub of_file: bool,
}

/// Nanoseconds of a layer, by [`SegmentKind::OF_STACKS`].
pub(crate) type StackTimes = [u64; SegmentKind::OF_STACKS.len()];

/// Nanoseconds by [`SegmentKind`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    by_segment: [u64; CALL_SEGMENTS],
    /// The layers of [`SegmentKind::OF_STACKS`], ascending.
    pub stack: Vec<(StackLayer, StackTimes)>,
    /// Under what the drivers of stacked devices keep for themselves; part of the segments.
    pub layer_metadata_ns: u64,
    /// Under reads for the parity of a write; part of the segments.
    pub read_modify_write_ns: u64,
    /// What the threads did in it; all unknown where nothing was recorded of any.
    cpu: [CpuTime; CALL_SEGMENTS],
    /// Under the guest's bios that carry another file's data; part of the segments.
    pub others_data_ns: u64,
    /// Under the guest's journal, its bios included; part of the segments.
    pub under_journal_ns: u64,
    /// Under QEMU's syncs of an image; part of the segments.
    pub under_image_sync_ns: u64,
}

impl Times {
    /// Time in a segment.
    pub(crate) fn of(&self, segment: SegmentKind) -> u64 {
        self.by_segment[segment as usize]
    }

    /// All segments: the length of the walked span.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.by_segment.iter().sum()
    }

    /// What the thread did that was waited for in a segment; the four add up to [`Self::of`].
    pub(crate) fn cpu(&self, segment: SegmentKind) -> CpuTime {
        self.cpu[segment as usize]
    }

    /// Charges a layer of a stack for its own time in a segment.
    fn charge_layer(&mut self, segment: SegmentKind, span: &Span, ns: u64) {
        if ns > 0
            && let Some(part) = SegmentKind::OF_STACKS.iter().position(|it| *it == segment)
        {
            self.of_layer(span)[part] += ns;
        }
    }

    fn of_layer(&mut self, span: &Span) -> &mut StackTimes {
        let layer = StackLayer {
            dev: span.place,
            of_file: span.layer == Layer::StackFile,
        };
        let found = self.stack.binary_search_by_key(&layer, |it| it.0);
        let at = found.unwrap_or_else(|at| {
            self.stack.insert(at, (layer, StackTimes::default()));
            at
        });
        &mut self.stack[at].1
    }
}

/// Charges the whole length of `root`; of its threads nothing is asked.
pub(crate) fn walk(root: &Span) -> Times {
    walk_with(root, None)
}

/// The same, with what the threads did that were waited for.
pub(crate) fn walk_with(root: &Span, cpu: Option<&CpuLookup>) -> Times {
    let mut walk = Walk {
        times: Times::default(),
        cpu: cpu.filter(|cpu| cpu.is_recorded()),
        ahead_ns: 0,
    };
    let end_ns = root.end_ns.max(root.start_ns);
    walk.descend(root, root.start_ns, end_ns);
    walk.times
}

struct Walk<'a> {
    times: Times,
    cpu: Option<&'a CpuLookup>,
    /// The guest's clock minus the host's at the guest's request that is walked.
    ahead_ns: i64,
}

impl Walk<'_> {
    /// Charges what lies in `from_ns ..= to_ns` of a span.
    fn descend(&mut self, span: &Span, from_ns: u64, to_ns: u64) {
        let (submit, between, complete) = match Own::of(span.layer, span.what, span.below) {
            Own::All(segment) => (segment, segment, segment),
            Own::Parts {
                submit,
                between,
                complete,
            } => (submit, between, complete),
        };
        let length_ns = to_ns - from_ns;
        if span.layer == Layer::GuestBio && span.what == What::OthersData {
            self.times.others_data_ns += length_ns;
        }
        match span.what {
            What::LayerMetadata => self.times.layer_metadata_ns += length_ns,
            What::ReadModifyWrite => self.times.read_modify_write_ns += length_ns,
            _ => {}
        }
        if span.layer == Layer::GuestJournal {
            self.times.under_journal_ns += length_ns;
        }
        if span.layer == Layer::FileIo && span.what == What::Sync {
            self.times.under_image_sync_ns += length_ns;
        }
        if span.layer == Layer::GuestRequest {
            self.ahead_ns = span.actors.ahead_ns;
        }
        let mut cursor = to_ns;
        let mut after_child = complete;
        // The thread that ends what is left of the span's own time.
        let mut ends = span.actors.ends;
        let mut visit = |child: &Span| {
            let start_ns = child.start_ns.max(from_ns);
            let end_ns = child.end_ns.min(cursor);
            if start_ns > end_ns {
                return;
            }
            self.charge((after_child, span), end_ns, cursor, ends);
            self.descend(child, start_ns, end_ns);
            after_child = between;
            ends = span.ends_before(child);
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
        self.charge((submit, span), from_ns, cursor, ends);
    }

    fn charge(
        &mut self,
        (segment, span): (SegmentKind, &Span),
        from_ns: u64,
        to_ns: u64,
        actor: Actor,
    ) {
        let length_ns = to_ns - from_ns;
        self.times.charge_layer(segment, span, length_ns);
        self.times.by_segment[segment as usize] += length_ns;
        let cpu = &mut self.times.cpu[segment as usize];
        match self.cpu {
            Some(lookup) if length_ns > 0 => {
                cpu.add(lookup.between(actor, (from_ns, to_ns), self.ahead_ns));
            }
            _ => cpu.unknown += length_ns,
        }
    }
}

impl Span {
    /// The thread that ends its own time before a child: who waits for the whole of it, or who begins the child.
    fn ends_before(&self, child: &Self) -> Actor {
        let waits = matches!(
            self.layer,
            Layer::Call | Layer::Throttle | Layer::PageWait | Layer::GuestJournal
        );
        match self.actors.ends {
            Actor::Unknown => child.actors.begins,
            ends if waits => ends,
            _ => child.actors.begins,
        }
    }
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
    use nestrace_abi::Kind;
    use proptest::prelude::*;

    use super::*;
    use crate::model::actor::Actors;
    use crate::model::threads::Threads;

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
            below: Below::Nothing,
            actors: Actors::default(),
            children,
        }
    }

    fn check(root: &Span, expected: &[(SegmentKind, u64)]) {
        let times = walk(root);
        let found: Vec<(SegmentKind, u64)> = SegmentKind::OF_CALL
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
    use SegmentKind as S;

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

    fn on(dev: u32, stacked: bool, layer: Layer, times: (u64, u64), children: Vec<Span>) -> Span {
        Span {
            place: dev,
            below: if stacked {
                Below::Devices
            } else {
                Below::Nothing
            },
            ..span(layer, times.0, times.1, children)
        }
    }

    #[test]
    fn a_stacked_device_is_no_device() {
        let lowest = on(1, false, HostRequest, (14, 18), vec![]);
        let beneath = on(1, false, HostBio, (13, 18), vec![lowest]);
        let file = on(7, true, StackFile, (12, 19), vec![beneath]);
        let request = on(7, true, HostRequest, (10, 20), vec![file]);
        let bio = on(7, true, HostBio, (5, 22), vec![request]);
        check(
            &bio,
            &[
                (S::StackSubmit, 5 + 2 + 1),
                (S::HostQueue, 1),
                (S::Device, 4),
                (S::StackComplete, 1 + 1 + 2),
            ],
        );
        let layer = |of_file| StackLayer { dev: 7, of_file };
        assert_eq!(
            walk(&bio).stack,
            [(layer(false), [7, 0, 3]), (layer(true), [1, 0, 1])]
        );
    }

    #[test]
    fn a_device_on_a_server_is_no_device() {
        let on_server = |layer, what, times: (u64, u64), children| Span {
            below: Below::Server,
            what,
            ..span(layer, times.0, times.1, children)
        };
        let data = on_server(HostRequest, What::Write, (15, 40), vec![]);
        let flush = on_server(HostRequest, What::Flush, (41, 60), vec![]);
        let bio = on_server(HostBio, What::Write, (10, 60), vec![data, flush]);
        let upper = on(9, true, HostRequest, (5, 70), vec![bio]);
        check(
            &upper,
            &[
                (S::StackSubmit, 5),
                (S::HostQueue, 5 + 1),
                (S::Remote, 25 + 19),
                (S::StackComplete, 10),
            ],
        );
        let file = on_server(FileIo, What::Read, (2, 9), vec![]);
        check(
            &span(Qemu, 0, 10, vec![file]),
            &[(S::QemuSubmit, 2), (S::Remote, 7), (S::QemuComplete, 1)],
        );
    }

    #[test]
    fn of_a_mirror_the_later_leg_counts() {
        let leg = |dev, end_ns| {
            let request = on(dev, false, HostRequest, (4, end_ns), vec![]);
            on(dev, false, HostBio, (3, end_ns), vec![request])
        };
        let whole = on(9, true, HostRequest, (0, 30), vec![leg(1, 10), leg(2, 29)]);
        check(
            &whole,
            &[
                (S::StackSubmit, 3),
                (S::HostQueue, 1),
                (S::Device, 25),
                (S::StackComplete, 1),
            ],
        );
    }

    #[test]
    fn a_stacked_device_without_anything_below_keeps_its_time() {
        let request = on(9, true, HostRequest, (0, 30), vec![]);
        check(&request, &[(S::StackSubmit, 30)]);
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

    /// The same with threads at the ends of each span.
    fn with_actors(span: &Span, ahead_ns: i64) -> Span {
        let tid = (span.start_ns % 4) as u32;
        Span {
            actors: Actors {
                begins: Actor::host(tid),
                ends: Actor::guest(3 - tid),
                ahead_ns,
            },
            children: span
                .children
                .iter()
                .map(|child| with_actors(child, ahead_ns))
                .collect(),
            ..span.clone()
        }
    }

    /// The thread that a segment waits for is the one that ends it.
    #[test]
    fn who_is_waited_for() {
        let cpu = CpuLookup::default();
        // Thread 7 runs from 15 to 25, thread 8 waits for a processor until 90.
        let event = |ts_ns, tid, sub, next: u64, dev| nestrace_trace::Event {
            ts_ns,
            kind: Kind::Switch as u8,
            tid,
            sub,
            object: next,
            dev,
            ..nestrace_trace::Event::default()
        };
        for event in [
            event(5, 7, 1, 8, 3),
            event(6, 8, 0, 3, 1),
            event(15, 3, 0, 7, 2),
            event(25, 7, 1, 3, 1),
            event(90, 3, 0, 8, 2),
        ] {
            let mut states = cpu.host.borrow_mut();
            states.event(Kind::Switch, &event, &Threads::default());
        }
        let by = |begins, ends, span: Span| Span {
            actors: Actors::of(Actor::host(begins), Actor::host(ends)),
            ..span
        };
        let file = by(7, 7, span(FileIo, 20, 80, vec![]));
        let qemu = by(3, 8, span(Qemu, 10, 100, vec![file]));
        let times = walk_with(&qemu, Some(&cpu));
        let parts = |segment| {
            let cpu = times.cpu(segment);
            [cpu.running, cpu.runnable, cpu.asleep, cpu.unknown]
        };
        // It came from its sleep without a wake-up that was seen: unknown until 15.
        assert_eq!(parts(S::QemuSubmit), [5, 0, 0, 5]);
        assert_eq!(parts(S::HostFsSubmit), [5, 0, 55, 0]);
        assert_eq!(parts(S::QemuComplete), [10, 10, 0, 0]);
    }

    proptest! {
        /// Overflow checks are on in tests, so no segment can be negative on the way either.
        #[test]
        fn segments_sum_to_the_whole(root in tree()) {
            let length = root.end_ns.saturating_sub(root.start_ns);
            prop_assert_eq!(walk(&root).total(), length);
        }

        /// What threads did adds up to each segment, to the nanosecond, however they are switched.
        #[test]
        fn threads_times_sum_to_the_segments(
            root in tree(),
            switches in prop::collection::vec((0u64..200, 1u32..4, prop::bool::ANY), 0..40),
            ahead_ns in -100i64..100,
        ) {
            let cpu = CpuLookup::default();
            let mut switches = switches;
            switches.sort_unstable();
            for (ts_ns, tid, comes) in switches {
                let switch = nestrace_trace::Event {
                    ts_ns,
                    kind: Kind::Switch as u8,
                    tid: if comes { 9 } else { tid },
                    object: u64::from(if comes { tid } else { 9 }),
                    dev: if comes { 2 } else { 1 },
                    sub: (tid % 2) as u8,
                    ..nestrace_trace::Event::default()
                };
                for states in [&cpu.host, &cpu.guest] {
                    states.borrow_mut().event(Kind::Switch, &switch, &Threads::default());
                }
            }
            let times = walk_with(&with_actors(&root, ahead_ns), Some(&cpu));
            for segment in SegmentKind::OF_CALL {
                prop_assert_eq!(times.cpu(segment).total(), times.of(segment));
            }
        }

        #[test]
        fn the_order_of_children_does_not_matter(root in tree()) {
            let mut turned = root.clone();
            turned.children.reverse();
            prop_assert_eq!(walk(&root), walk(&turned));
        }
    }
}
