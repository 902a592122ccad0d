//! The block layer of one machine on its own, as btt looks at it.

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;
use nestrace_trace::manifest::Topology;

use crate::follow::block::{BlockLayer, Lent};
use crate::measure::block_stats::processes::{self, ProcessMeter};
use crate::measure::collects::Collects;
use crate::measure::device::DeviceMeter;
use crate::measure::histogram::Histogram;
use crate::measure::intervals::Intervals;
use crate::measure::parts::PartMeters;
use crate::model::plausible;
use crate::model::threads::Threads;
use crate::result::analysis::{
    Active, BlockAnalysis, BlockDevice, BlockProcess, FirstSeeks, Io, IostatRow, Way,
};
use crate::result::loss_counts::LossCounts;
use crate::result::unlinked::Reasons;

/// What a [`BlockAnalyzer`] is to do.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BlockOptions {
    /// Names and schedulers of devices, where they are known.
    pub topology: Topology,
    /// Ignore events before this time of their clock.
    pub from_ns: Option<u64>,
    /// Ignore events after this time of their clock.
    pub to_ns: Option<u64>,
    /// Collect what plots, comparisons and vscsiStats' histograms are made of too
    /// ([`DeviceFigures`](crate::result::analysis::DeviceFigures), [`Histograms`](crate::result::analysis::Histograms)), and sizes at Q and
    /// D. btt has none of them, and they take a tenth of the time. Without them there are no quantiles of times between
    /// queued I/Os of a device or a process, of Q2D and of completed sizes.
    pub figures: bool,
    /// Hand out every I/O ([`BlockAnalyzer::drain_ios`]).
    pub list_ios: bool,
    /// Hand out a row for each device and interval of this length ([`BlockAnalyzer::drain_rows`]).
    pub interval_ns: Option<u64>,
}

/// Takes the block events of one machine in the order of time: devices, processes, and all together.
///
/// Events must name bios and requests; those of blktrace get their identities from
/// [`crate::Identified`].
///
/// ```
/// use nestrace_analyzer::{BlockAnalyzer, BlockOptions, Identified};
/// use nestrace_trace::{Event, Kind};
///
/// let at = |ts_ns, kind: Kind| Event { ts_ns, kind: kind as u8, offset: 4096, bytes: 8192, ..Event::default() };
/// let capture = [at(10, Kind::Queue), at(15, Kind::GetRequest), at(20, Kind::Issue), at(90, Kind::Complete)];
/// let mut analyzer = BlockAnalyzer::new(BlockOptions::default());
/// Identified::new(capture.into_iter()).for_each(|event| analyzer.push(&event));
/// let blocks = analyzer.finish();
/// assert_eq!(blocks.all.parts.d2c.and_then(|d2c| d2c.mean), Some(70));
/// ```
#[derive(Debug)]
pub struct BlockAnalyzer {
    options: BlockOptions,
    /// The first and the last time that are wanted.
    within_ns: (u64, u64),
    block: BlockLayer,
    threads: Threads,
    reasons: Reasons,
    losses: LossCounts,
    implausible: u64,
    intervals: Option<Intervals>,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl BlockAnalyzer {
    /// An analyzer that has seen nothing.
    #[must_use]
    pub fn new(options: BlockOptions) -> Self {
        let mut block = BlockLayer::default();
        block.gathered.machine.whole = Some(Box::default());
        if !options.figures {
            block.gathered.collects = Collects::WhatBttHas;
        }
        block.gathered.machine.ios = options.list_ios.then(Vec::new);
        Self {
            intervals: options.interval_ns.map(Intervals::new),
            within_ns: (
                options.from_ns.unwrap_or(0),
                options.to_ns.unwrap_or(u64::MAX),
            ),
            options,
            block,
            threads: Threads::default(),
            reasons: Reasons {
                live_ns: 0,
                lost_so_far: false,
                lost_sometime: false,
            },
            losses: LossCounts::default(),
            implausible: 0,
            first_ns: None,
            last_ns: 0,
        }
    }

    /// Takes one event; what is not of the block layer is passed over.
    pub fn push(&mut self, event: &Event) {
        self.push_all([event]);
    }

    /// Takes events in their order.
    pub fn push_all<'e>(&mut self, events: impl IntoIterator<Item = &'e Event>) {
        let mut events = events.into_iter();
        while let Some(event) = self.push_blocks(&mut events) {
            if event.kind() == Some(Kind::Thread) {
                self.threads.name(event);
            } else {
                self.loss(event);
            }
        }
    }

    /// Takes events of the block layer up to the first that tells of others, a name or a loss; gives that one.
    fn push_blocks<'e>(
        &mut self,
        events: &mut impl Iterator<Item = &'e Event>,
    ) -> Option<&'e Event> {
        let (from_ns, to_ns) = self.within_ns;
        let mut lent = Lent {
            observer: &mut (),
            threads: &self.threads,
            reasons: self.reasons,
        };
        for event in events {
            let ts_ns = event.ts_ns;
            let kind = match event.kind() {
                Some(Kind::Thread | Kind::Loss) => return Some(event),
                Some(kind) if kind.source() == Source::Block => kind,
                _ => continue,
            };
            if ts_ns < from_ns || ts_ns > to_ns {
                continue;
            }
            if !plausible::of_blocks(kind, event) {
                self.implausible += 1;
                continue;
            }
            if self.first_ns.is_none() {
                self.first_ns = Some(ts_ns);
                self.reasons.live_ns = ts_ns;
                lent.reasons = self.reasons;
            }
            self.last_ns = self.last_ns.max(ts_ns);
            if let Some(intervals) = &mut self.intervals {
                intervals.before(ts_ns, &mut self.block.gathered.devices);
            }
            self.block.push(kind, event, &mut lent);
        }
        None
    }

    fn loss(&mut self, event: &Event) {
        if !self.losses.grow(event) || !LossCounts::is_of_blocks(event) {
            return;
        }
        self.reasons.lost_so_far = true;
        if event.sub != Source::Block as u8 {
            return;
        }
        if let Some(intervals) = &mut self.intervals {
            intervals.before(event.ts_ns, &mut self.block.gathered.devices);
        }
        let mut lent = Lent {
            observer: &mut (),
            threads: &self.threads,
            reasons: self.reasons,
        };
        self.block.interrupted(event.ts_ns, &mut lent);
    }

    /// Events with a size or place that nothing has: they are in no figure.
    #[must_use]
    pub const fn implausible(&self) -> u64 {
        self.implausible
    }

    /// The I/Os that have ended since the last call, in the order of their ends.
    pub fn drain_ios(&mut self) -> impl Iterator<Item = Io> + '_ {
        self.block
            .gathered
            .machine
            .ios
            .as_mut()
            .into_iter()
            .flat_map(|ios| ios.drain(..))
    }

    /// The rows of intervals that have ended since the last call.
    pub fn drain_rows(&mut self) -> impl Iterator<Item = IostatRow> + '_ {
        let intervals = self.intervals.as_mut().into_iter();
        intervals.flat_map(Intervals::drain)
    }

    /// A row for each device over everything that was taken.
    pub fn total_rows(&mut self) -> Vec<IostatRow> {
        match &self.intervals {
            Some(intervals) => intervals.total(self.last_ns, &mut self.block.gathered.devices),
            None => Vec::new(),
        }
    }

    /// The result.
    #[must_use]
    pub fn finish(mut self) -> BlockAnalysis {
        self.block.finish();
        let start_ns = self.first_ns.unwrap_or(0);
        let duration_ns = self.last_ns - start_ns;
        let mut whole = self.block.gathered.machine.whole.take().unwrap_or_default();
        let (activity, of_devices, of_processes) = whole.activities();
        let mut sums = Sums::default();
        let mut devices = Vec::new();
        for (place, meter) in self.block.gathered.devices.iter_mut().enumerate() {
            if !meter.has_io() {
                continue;
            }
            let stacked = meter.stacked();
            let processes = meter.take_processes();
            sums.add(meter, &processes, stacked);
            let first_seek = FirstSeeks {
                q2q: meter.seek_q.first(),
                d2d: meter.seek_d.first(),
            };
            let mut device = meter.finish(&self.options.topology, self.last_ns, duration_ns);
            if let Some(stats) = &mut device.stats {
                stats.processes = processes::finish(&processes, stacked);
            }
            devices.push(BlockDevice {
                number: (meter.dev >> 20, meter.dev & 0xf_ffff),
                stacked,
                device,
                first_seek,
                activity: of_devices.get(place).cloned().unwrap_or_default(),
            });
        }
        let first = devices.first();
        let first = first.and_then(|first: &BlockDevice| first.device.stats.as_ref());
        let active_of_first = first.map(|stats| stats.active).unwrap_or_default();
        let names = self.block.gathered.machine.names.all();
        let active_processes = names
            .zip(of_processes)
            .map(|((_, name), active)| (name, active));
        BlockAnalysis {
            start_ns,
            devices,
            processes: sums.processes(active_processes.collect()),
            all: sums.with_requests.way(false),
            all_stacked: sums.stacked.way(true),
            active: whole.active(start_ns, active_of_first),
            activity,
            losses: self.losses,
        }
    }
}

/// Q to Q anywhere and the parts, of several devices.
#[derive(Debug, Default)]
struct Sum {
    q2q: Histogram,
    parts: PartMeters,
}

impl Sum {
    fn way(&self, stacked: bool) -> Way {
        Way {
            q2q: self.q2q.dist(),
            parts: self.parts.parts(true, !stacked),
        }
    }
}

/// Devices added up.
#[derive(Debug, Default)]
struct Sums {
    with_requests: Sum,
    stacked: Sum,
    by_process: Vec<(String, Sum, Sum)>,
}

impl Sums {
    fn add(&mut self, meter: &DeviceMeter, processes: &[ProcessMeter], is_stacked: bool) {
        let sum = if is_stacked {
            &mut self.stacked
        } else {
            &mut self.with_requests
        };
        sum.q2q.merge(&meter.stats.q2q_anywhere);
        for parts in [&meter.read, &meter.write, &meter.discard] {
            sum.parts.merge(parts);
        }
        for process in processes {
            let (with_requests, stacked) = self.process(&process.name());
            let sum = if is_stacked { stacked } else { with_requests };
            sum.q2q.merge(&process.q2q_anywhere);
            sum.parts.merge(&process.parts());
        }
    }

    fn process(&mut self, name: &str) -> (&mut Sum, &mut Sum) {
        let place = self.by_process.iter().position(|(known, ..)| known == name);
        let place = place.unwrap_or_else(|| {
            let new = (name.to_owned(), Sum::default(), Sum::default());
            self.by_process.push(new);
            self.by_process.len() - 1
        });
        let (_, with_requests, stacked) = &mut self.by_process[place];
        (with_requests, stacked)
    }

    /// Every process that queued, or ran while something was completed, by name.
    fn processes(&mut self, mut active: Vec<(String, Active)>) -> Vec<BlockProcess> {
        let mut processes: Vec<BlockProcess> = self
            .by_process
            .iter()
            .map(|(name, with_requests, stacked)| BlockProcess {
                name: name.clone(),
                way: with_requests.way(false),
                stacked: stacked.way(true),
                activity: Active::default(),
            })
            .collect();
        active.retain(|(_, active)| !active.queued.is_empty() || !active.completed.is_empty());
        for (name, active) in active {
            match processes.iter_mut().find(|known| known.name == name) {
                // Names of threads that became known late: the same process twice.
                Some(known) => {
                    known.activity.queued.extend(active.queued);
                    known.activity.completed.extend(active.completed);
                    known.activity.queued.sort_unstable();
                    known.activity.completed.sort_unstable();
                }
                None => processes.push(BlockProcess {
                    name,
                    activity: active,
                    ..BlockProcess::default()
                }),
            }
        }
        processes.sort_by(|a, b| a.name.cmp(&b.name));
        processes
    }
}
