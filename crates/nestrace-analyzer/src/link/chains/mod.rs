//! Chains: one guest bio followed to the host requests that served it.
//!
//! [`join`] waits until every guest request of a bio has its QEMU request (the clock's work) and puts
//! the trees together on the guest's clock; [`walk`] charges each nanosecond of the bio to the layer
//! that held it up; [`segment`] keeps the distributions, [`story`] the whole trees of those bios that
//! somebody asked for.
//!
//! Bios are counted before any of this: what could not be followed is *unlinked* and has a reason.

mod join;
mod segment;
mod story;
mod walk;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::link::cpu::CpuLookup;
use crate::link::guest_memory::MemoryCheck;
use crate::measure::histogram::Histogram;
use crate::measure::series::SeriesMeter;
use crate::model::chain::Chain;
use crate::model::clocks::HostNs;
use crate::model::operation::Operation;
use crate::model::span::{Served, Span, What};
use crate::result::analysis;
use crate::result::segments::SegmentKind;
use crate::result::series::{Series, joined};
use crate::result::sums::{ChainSums, FLUSH, WRITE};
use crate::result::unlinked::UnlinkedReason;

pub(crate) use join::{Join, Link};
pub(crate) use segment::SegmentMeter;
pub use story::StoryChoice;
pub(crate) use story::{CallTeller, Names, Stories, segments_of};
use walk::outside;
pub(crate) use walk::{Times, walk, walk_with};

/// What is kept of the chains of one disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskChains {
    linked: u64,
    unlinked: BTreeMap<UnlinkedReason, u64>,
    wrong_order: u64,
    stretched: u64,
    shared: u64,
    ambiguous: u64,
    data: SegmentMeter,
    read: SegmentMeter,
    write: SegmentMeter,
    discard: SegmentMeter,
    flush: SegmentMeter,
    /// Empty flushes, and those before and behind data.
    under_flush: Histogram,
    /// Pairs of requests, by what the guest's memory says of them.
    pub memory_check: MemoryCheck,
    /// By the guest's clock.
    series: SeriesMeter<ChainSums>,
    /// What the guest's clock is ahead of the host's, at the last bio that was followed.
    ahead_ns: i64,
    /// Of other sessions, by the host's clock.
    merged_series: Series<ChainSums>,
}

impl DiskChains {
    /// Adds a bio that was followed.
    pub(crate) fn linked(&mut self, chain: &Chain, cpu: &CpuLookup) {
        let times = walk_with(&chain.tree, Some(cpu));
        let latency_ns = chain.tree.end_ns.saturating_sub(chain.tree.start_ns);
        self.linked += 1;
        if chain.stretched {
            self.stretched += 1;
        } else {
            self.wrong_order += u64::from(outside(&chain.tree) > 0);
        }
        self.shared += u64::from(waits_with_others(&chain.tree));
        self.ambiguous += u64::from(chain.ambiguous);
        let of_operation = match chain.operation {
            _ if chain.empty_flush => &mut self.flush,
            Operation::Read => &mut self.read,
            Operation::Discard => &mut self.discard,
            Operation::Write | Operation::Other => &mut self.write,
        };
        of_operation.add(&times, latency_ns);
        let place = match chain.operation {
            _ if chain.empty_flush => FLUSH,
            operation => operation.place().unwrap_or(WRITE),
        };
        self.ahead_ns = chain.offset_ns;
        let sums = &mut self.series.at(chain.tree.end_ns).by_op[place];
        sums.latency.record(latency_ns);
        for (segment, sum_ns) in SegmentKind::OF_BIO.into_iter().zip(&mut sums.segments) {
            *sum_ns = sum_ns.saturating_add(times.of(segment));
        }
        if chain.empty_flush {
            self.under_flush.record(latency_ns);
        } else {
            self.data.add(&times, latency_ns);
            flushes_of(&chain.tree).for_each(|ns| self.under_flush.record(ns));
        }
    }

    /// Adds a bio that was not.
    pub(crate) fn unlinked(&mut self, reason: UnlinkedReason) {
        *self.unlinked.entry(reason).or_default() += 1;
    }

    /// Adds what another session of the guest did on the disk.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.linked += other.linked;
        for (reason, n) in &other.unlinked {
            *self.unlinked.entry(*reason).or_default() += n;
        }
        self.wrong_order += other.wrong_order;
        self.stretched += other.stretched;
        self.shared += other.shared;
        self.ambiguous += other.ambiguous;
        self.memory_check.add(other.memory_check);
        self.data.merge(&other.data);
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.discard.merge(&other.discard);
        self.flush.merge(&other.flush);
        self.under_flush.merge(&other.under_flush);
        self.merged_series = joined(std::mem::take(&mut self.merged_series), other.series());
    }

    /// Sums by time of all sessions, by the host's clock.
    fn series(&self) -> Series<ChainSums> {
        let own = self.series.finish().moved(self.ahead_ns.saturating_neg());
        joined(self.merged_series.clone(), own)
    }

    /// `chains[]`, but for names and what the host's layers know. Of `guest_bios`, those that are
    /// neither linked nor unlinked had not ended: `open` is the reason for them.
    pub(crate) fn finish(&self, guest_bios: u64, open: UnlinkedReason) -> analysis::Chains {
        let mut unlinked = self.unlinked.clone();
        let known = self.linked + unlinked.values().sum::<u64>();
        if guest_bios > known {
            *unlinked.entry(open).or_default() += guest_bios - known;
        }
        let guest_bios = guest_bios.max(known);
        analysis::Chains {
            guest_bios,
            linked: self.linked,
            fraction: (guest_bios > 0).then(|| self.linked as f64 / guest_bios as f64),
            unlinked,
            wrong_order: self.wrong_order,
            stretched: self.stretched,
            q2c_mean_ns: self.data.mean_ns(),
            segments: self.data.finish(),
            by_op: analysis::SegmentsByOperation {
                read: self.read.finish(),
                write: self.write.finish(),
                flush: self.flush.finish(),
                discard: self.discard.finish(),
            },
            latency_ns: analysis::ChainLatency {
                data: self.data.latency(),
                read: self.read.latency(),
                write: self.write.latency(),
                flush: self.flush.latency(),
                discard: self.discard.latency(),
            },
            under_flush: self.under_flush.dist(),
            residual_share: self.data.residual_share(),
            stacks: self.data.stacks(),
            shared: self.shared,
            ambiguous: self.ambiguous,
            memory_check: self.memory_check.finish(),
            series: self.series(),
            ..analysis::Chains::default()
        }
    }
}

/// How long a bio with data was under each flush before or behind that: a journal's commit (PREFLUSH, FUA).
fn flushes_of(bio: &Span) -> impl Iterator<Item = u64> + '_ {
    let flushes = bio.children.iter();
    let flushes = flushes.filter(|child| child.what == What::Flush);
    flushes.map(|child| {
        let end_ns = child.end_ns.min(bio.end_ns);
        end_ns.saturating_sub(child.start_ns.max(bio.start_ns))
    })
}

/// Whether something below QEMU was waited for by others too.
fn waits_with_others(span: &Span) -> bool {
    let host = |child: &Span| {
        use crate::model::span::Layer::{FileIo, HostBio, HostRequest, Qemu};
        matches!(child.layer, Qemu | FileIo | HostBio | HostRequest)
    };
    span.children
        .iter()
        .any(|child| host(child) && child.shared || waits_with_others(child))
}

/// A tree of the host on the guest's clock.
fn on_guest_clock(served: Rc<Served>, offset_ns: i64) -> Span {
    let mut span = Rc::try_unwrap(served).map_or_else(|shared| shared.span.clone(), |own| own.span);
    shift(&mut span, offset_ns);
    span
}

fn shift(span: &mut Span, offset_ns: i64) {
    span.start_ns = HostNs(span.start_ns).in_guest(offset_ns).0;
    span.end_ns = HostNs(span.end_ns).in_guest(offset_ns).0;
    span.children
        .iter_mut()
        .for_each(|child| shift(child, offset_ns));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::actor::Actors;
    use crate::model::span::{Below, Layer};

    #[test]
    fn a_commit_is_under_its_flushes() {
        let span = |layer, what, (start_ns, end_ns), children| Span {
            layer,
            start_ns,
            end_ns,
            offset: 0,
            bytes: 4096,
            what,
            shared: false,
            place: 0,
            below: Below::Nothing,
            actors: Actors::default(),
            children,
        };
        let request = |what, times| span(Layer::GuestRequest, what, times, Vec::new());
        let parts = vec![
            request(What::Flush, (10, 60)),
            request(What::Write, (61, 80)),
            // It served others too, and went on.
            request(What::Flush, (81, 130)),
        ];
        let chain = |empty_flush, children| Chain {
            bio: 0,
            device: 0,
            number: 0,
            operation: Operation::Write,
            empty_flush,
            marked_urgent: false,
            of_file_system: false,
            tree: span(Layer::GuestBio, What::Write, (0, 101), children),
            unlinked: None,
            disk: Some(0),
            offset_ns: 0,
            offsets_ns: Vec::new(),
            bound_ns: 0,
            stretched: false,
            ambiguous: false,
        };
        let mut chains = DiskChains::default();
        chains.linked(&chain(false, parts), &CpuLookup::default());
        let under = chains.finish(1, UnlinkedReason::NoEnd).under_flush;
        assert_eq!((under.n, under.sum), (2, 50 + 20));
        chains.linked(&chain(true, Vec::new()), &CpuLookup::default());
        let under = chains.finish(2, UnlinkedReason::NoEnd).under_flush;
        assert_eq!((under.n, under.sum), (3, 50 + 20 + 101));
    }
}
