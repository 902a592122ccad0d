//! The kernel's blktrace: an ioctl per disk, and a relay file per disk and processor in debugfs. For
//! guests that cannot run BPF; the static agent needs Linux 3.2.
//!
//! Two things make it exact without any slack:
//!
//! - A record is reserved, stamped and filled with interrupts off (`__blk_add_trace()`), so a reader that
//!   runs *on that processor* never sees half of one. Like blktrace, the agent reads each processor's
//!   files there.
//! - So everything stamped before a round of reading is in what the round has read, and can be handed
//!   over in order.
//!
//! The stamps are `CLOCK_MONOTONIC`, as BPF's are.

mod affinity;
mod ioctl;
mod relay;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nestrace_kernel::plan::Detail;
use nestrace_record::clock;
use nestrace_trace::manifest::{GuestDisk, Probe, Refused};
use nestrace_trace::{Event, Source};

use super::pace::Pace;
use super::{Attached, Backend};
use crate::guest::Facts;
use crate::guest::filesystems::DebugFs;
use affinity::Affinity;
use trace::DiskTrace;
pub use trace::end_left_behind;

/// What is held back if the agent may not run on every processor: a record may be half written then.
const SLACK_NS: u64 = 25_000_000;

/// Traces of the disks of one recording; none between recordings.
#[derive(Default)]
pub struct Blktrace {
    debugfs: Option<DebugFs>,
    traces: Vec<DiskTrace>,
    /// Read and not yet handed over, nearly in order.
    pending: Vec<Event>,
    last_ns: u64,
    out_of_order: u64,
    pace: Pace,
}

impl Blktrace {
    fn open_debugfs(&mut self) -> Result<&DebugFs, String> {
        if self.debugfs.is_none() {
            let opened =
                DebugFs::open().map_err(|error| format!("debugfs cannot be mounted: {error}"))?;
            self.debugfs = Some(opened);
        }
        self.debugfs
            .as_ref()
            .ok_or_else(|| "there is no debugfs".to_owned())
    }

    /// Starts tracing disks that are not traced yet.
    fn add(&mut self, disks: &[GuestDisk]) -> Result<Vec<Refused>, String> {
        let folder = self.open_debugfs()?.path().join("block");
        let mut refused = Vec::new();
        for disk in disks {
            if self.traces.iter().any(|trace| trace.dev == disk.dev) {
                continue;
            }
            match DiskTrace::start(disk, &folder) {
                Ok(trace) => self.traces.push(trace),
                Err(reason) => refused.push(Refused {
                    name: disk.name.clone(),
                    source: Source::Block.name().to_owned(),
                    reason,
                    cost: "nothing of this disk is recorded".to_owned(),
                    guest: None,
                }),
            }
        }
        Ok(refused)
    }

    /// Reads all files, and hands over what is older than the beginning of this round.
    fn round(&mut self, last: bool, sink: &mut dyn FnMut(&Event)) {
        let begin_ns = clock::monotonic_ns();
        let n_pending = self.pending.len();
        let affinity = Affinity::save();
        let mut everywhere = true;
        let cpus: BTreeSet<usize> = self.traces.iter().flat_map(DiskTrace::cpus).collect();
        for cpu in cpus {
            everywhere &= affinity.move_to(cpu);
            for trace in &mut self.traces {
                trace.read(cpu, &mut self.pending);
            }
        }
        drop(affinity);
        let n_found = (self.pending.len() - n_pending) as u64;
        self.pace.found(n_found, trace::ROOM);
        let slack_ns = if everywhere { 0 } else { SLACK_NS };
        let horizon_ns = if last {
            u64::MAX
        } else {
            begin_ns.saturating_sub(slack_ns)
        };
        self.hand_over(horizon_ns, sink);
    }

    fn hand_over(&mut self, horizon_ns: u64, sink: &mut dyn FnMut(&Event)) {
        // A stable sort of a few ordered runs is a merge.
        self.pending.sort_by_key(|event| event.ts_ns);
        let n = self
            .pending
            .partition_point(|event| event.ts_ns < horizon_ns);
        for event in self.pending.drain(..n) {
            self.out_of_order += u64::from(event.ts_ns < self.last_ns);
            self.last_ns = self.last_ns.max(event.ts_ns);
            sink(&event);
        }
    }
}

impl Backend for Blktrace {
    fn name(&self) -> &'static str {
        "blktrace"
    }

    fn start(&mut self, facts: &Facts, detail: Detail) -> Result<Attached, String> {
        self.traces.clear();
        self.pending.clear();
        (self.last_ns, self.out_of_order) = (0, 0);
        self.pace = Pace::default();
        let mut refused = self.add(&facts.disks)?;
        if self.traces.is_empty() {
            let reasons: Vec<String> = refused
                .iter()
                .map(|disk| format!("{}: {}", disk.name, disk.reason))
                .collect();
            return Err(reasons.join("; "));
        }
        refused.push(Refused {
            name: "file systems' calls".to_owned(),
            source: Source::File.name().to_owned(),
            reason: "blktrace sees the block layer only".to_owned(),
            cost: "reads, writes and syncs of the guest's programs are not recorded".to_owned(),
            guest: None,
        });
        if detail == Detail::Light {
            eprintln!("nestrace-agent: blktrace has one level of detail, the full one");
        }
        let probes = self
            .traces
            .iter()
            .map(|trace| Probe {
                name: trace.name.clone(),
                source: Source::Block.name().to_owned(),
                how: "blktrace".to_owned(),
                guest: None,
            })
            .collect();
        Ok(Attached { probes, refused })
    }

    fn update(&mut self, facts: &Facts) -> Vec<Refused> {
        self.add(&facts.disks).unwrap_or_else(|reason| {
            vec![Refused {
                name: "disks that came later".to_owned(),
                source: Source::Block.name().to_owned(),
                reason,
                cost: "nothing of them is recorded".to_owned(),
                guest: None,
            }]
        })
    }

    fn look(&mut self) {
        for trace in &mut self.traces {
            // What cannot be opened now is tried again; the kernel counts what finds no room meanwhile.
            let _ = trace.look();
        }
    }

    fn drain(&mut self, sink: &mut dyn FnMut(&Event)) {
        self.round(false, sink);
    }

    fn stop(&mut self, sink: &mut dyn FnMut(&Event)) {
        for trace in &mut self.traces {
            trace.stop();
        }
        self.round(true, sink);
    }

    fn release(&mut self) {
        self.traces.clear();
        self.pending.clear();
    }

    fn lost(&self) -> BTreeMap<u32, u64> {
        let dropped: u64 = self.traces.iter().map(DiskTrace::dropped).sum();
        BTreeMap::from([(Source::Block as u32, dropped)])
    }

    fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    fn period(&self) -> Duration {
        self.pace.period()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_all_processors_come_in_order_and_the_youngest_wait() {
        let at = |ts_ns| Event {
            ts_ns,
            ..Event::default()
        };
        let mut blktrace = Blktrace::default();
        let mut seen = Vec::new();
        blktrace.pending = [10, 30, 50, 20, 40].map(at).to_vec();
        blktrace.hand_over(45, &mut |event| seen.push(event.ts_ns));
        blktrace.pending.extend([42, 60].map(at));
        blktrace.hand_over(u64::MAX, &mut |event| seen.push(event.ts_ns));
        assert_eq!(seen, [10, 20, 30, 40, 42, 50, 60]);
        assert_eq!(blktrace.out_of_order(), 0);
        blktrace.pending.push(at(7));
        blktrace.hand_over(u64::MAX, &mut |event| seen.push(event.ts_ns));
        assert_eq!((seen.last(), blktrace.out_of_order()), (Some(&7), 1));
    }
}
