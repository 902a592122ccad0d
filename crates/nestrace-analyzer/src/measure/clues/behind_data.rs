//! Metadata of the guest that waits on the host while data is served.
//!
//! What is the guest's metadata, the guest says; when it came to QEMU, and when it and the data were done,
//! the host's clock alone. So no error of the guest's clock can put one before another.

use std::collections::{BTreeSet, VecDeque};

use crate::measure::histogram::Histogram;
use crate::model::chain::Chain;
use crate::model::clocks::{GuestNs, HostNs};
use crate::model::span::{Layer, Span, What};

/// Ends of data that are remembered, and bios with metadata that wait to be judged.
const RECENT: usize = 8192;
/// Chains become known some time after they have ended, in no certain order: this long is waited.
const LATE_NS: u64 = 2_000_000_000;
/// One request may be done at any time; several between come and end of another stood before it.
const SEVERAL: usize = 2;

/// What was counted of a disk, of bios that reached the host's device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BehindDataCounts {
    /// Bios with metadata.
    pub metadata: u64,
    /// Their latency in the guest.
    pub metadata_latency_ns: u64,
    /// Their time in QEMU and below.
    pub metadata_host_ns: u64,
    /// Those during which several requests with data were done.
    pub behind: u64,
    /// How much longer than [`Self::undisturbed_ns`] these took in QEMU and below.
    pub behind_ns: u64,
    /// What a request takes in QEMU and below where it has the host for itself: the quickest hundredth.
    pub undisturbed_ns: u64,
    /// Other bios.
    pub data: u64,
    /// Their time in QEMU and below.
    pub data_host_ns: u64,
    /// Bios that found no room.
    pub given_up: u64,
}

impl BehindDataCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.metadata += other.metadata;
        self.metadata_latency_ns = self
            .metadata_latency_ns
            .saturating_add(other.metadata_latency_ns);
        self.metadata_host_ns = self.metadata_host_ns.saturating_add(other.metadata_host_ns);
        self.behind += other.behind;
        self.behind_ns = self.behind_ns.saturating_add(other.behind_ns);
        self.undisturbed_ns = match (self.undisturbed_ns, other.undisturbed_ns) {
            (0, ns) | (ns, 0) => ns,
            (ns, more_ns) => ns.min(more_ns),
        };
        self.data += other.data;
        self.data_host_ns = self.data_host_ns.saturating_add(other.data_host_ns);
        self.given_up += other.given_up;
    }
}

/// A bio's time in QEMU and below, by the host's clock.
#[derive(Clone, Copy, Debug)]
struct OnHost {
    came_ns: HostNs,
    done_ns: HostNs,
}

/// The last bios of a disk.
#[derive(Debug, Default)]
pub(super) struct BehindData {
    /// When data was done, with a number to tell equal times apart.
    data_done: BTreeSet<(HostNs, u64)>,
    /// Metadata that is not judged yet.
    waiting: VecDeque<OnHost>,
    newest_ns: HostNs,
    number: u64,
    took: Histogram,
    /// Time on the host of what stood behind data.
    behind_host_ns: u64,
    counts: BehindDataCounts,
}

impl BehindData {
    /// A bio was followed.
    pub(super) fn chain(&mut self, chain: &Chain, is_metadata: bool) {
        if chain.ambiguous || chain.stretched {
            return;
        }
        let Some(on_host) = on_host(chain) else {
            return;
        };
        let host_ns = on_host.done_ns.since(on_host.came_ns);
        self.took.record(host_ns);
        if is_metadata {
            self.counts.metadata += 1;
            self.counts.metadata_host_ns = self.counts.metadata_host_ns.saturating_add(host_ns);
            let latency_ns = chain.tree.end_ns.saturating_sub(chain.tree.start_ns);
            let total = &mut self.counts.metadata_latency_ns;
            *total = total.saturating_add(latency_ns);
            self.waiting.push_back(on_host);
        } else {
            self.counts.data += 1;
            self.counts.data_host_ns = self.counts.data_host_ns.saturating_add(host_ns);
            self.number += 1;
            self.data_done.insert((on_host.done_ns, self.number));
        }
        self.newest_ns = self.newest_ns.max(on_host.done_ns);
        self.judge(self.newest_ns.saturating_sub(LATE_NS));
        self.bound();
    }

    /// Judges what was done before this time.
    fn judge(&mut self, before_ns: HostNs) {
        while let Some(first) = self.waiting.front().copied()
            && first.done_ns < before_ns
        {
            self.waiting.pop_front();
            let meanwhile = (first.came_ns, 0)..(first.done_ns, 0);
            if self.data_done.range(meanwhile).take(SEVERAL).count() == SEVERAL {
                self.counts.behind += 1;
                let host_ns = first.done_ns.since(first.came_ns);
                self.behind_host_ns = self.behind_host_ns.saturating_add(host_ns);
            }
        }
        // Nearly in the order of their coming.
        let oldest = self.waiting.front().map_or(HostNs::MAX, |it| it.came_ns);
        let oldest = oldest.min(before_ns);
        while let Some(first) = self.data_done.first()
            && first.0 < oldest
        {
            self.data_done.pop_first();
        }
    }

    fn bound(&mut self) {
        if self.waiting.len() > RECENT {
            self.waiting.pop_front();
            self.counts.given_up += 1;
        }
        if self.data_done.len() > RECENT {
            self.data_done.pop_first();
            self.counts.given_up += 1;
        }
    }

    /// Judges what is left.
    pub(super) fn finish(&mut self) -> BehindDataCounts {
        self.judge(HostNs::MAX);
        let undisturbed_ns = self.took.quantile(0.01).unwrap_or(0);
        let alone_ns = self.counts.behind.saturating_mul(undisturbed_ns);
        BehindDataCounts {
            undisturbed_ns,
            behind_ns: self.behind_host_ns.saturating_sub(alone_ns),
            ..self.counts
        }
    }
}

/// The first request of a bio that reached the host's device.
fn on_host(chain: &Chain) -> Option<OnHost> {
    let requests = chain.tree.children.iter().enumerate();
    let reached = requests.filter_map(|(n, request)| {
        let qemu = request
            .children
            .iter()
            .find(|it| it.layer == Layer::Qemu && matches!(it.what, What::Read | What::Write))?;
        let offset_ns = chain.offsets_ns.get(n).copied().unwrap_or(chain.offset_ns);
        let host = |guest_ns: u64| GuestNs(guest_ns).on_host(offset_ns);
        let way = OnHost {
            came_ns: host(qemu.start_ns),
            done_ns: host(qemu.end_ns),
        };
        (moves_at_device(qemu) && way.done_ns >= way.came_ns).then_some(way)
    });
    reached.min_by_key(|way| way.came_ns)
}

/// Data was moved to or from the device for it, while it waited.
fn moves_at_device(span: &Span) -> bool {
    let moves = matches!(span.what, What::Read | What::Write);
    let at_device = span.layer == Layer::HostRequest;
    moves && (at_device || span.children.iter().any(moves_at_device))
}
