//! The kernel's blktrace: an ioctl per disk, and a relay file per disk and processor in debugfs. For
//! guests that cannot run BPF; the static agent needs Linux 3.2.
//!
//! Two things make it exact without any slack:
//!
//! - A record is reserved, stamped and filled with interrupts off (`__blk_add_trace()`), so a reader that
//!   runs *on that processor* never sees half of one. Like blktrace, the agent reads each processor's
//!   files there.
//! - So everything stamped before a round of reading is in what the round has read, and whoever puts the files together
//!   ([`nestrace_wire::kernel_buffers`]) can hand it over in order.
//!
//! The stamps are `CLOCK_MONOTONIC`, as BPF's are.

mod affinity;
mod ioctl;
mod relay;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nestrace_blktrace::RECORD_BYTES;
use nestrace_kernel::plan::Detail;
use nestrace_probes::clock;
use nestrace_trace::Source;
use nestrace_trace::manifest::{GuestDisk, Probe, Refused};
use nestrace_wire::kernel_buffers::Format;

use super::pace::Pace;
use super::{Attached, Backend, Piece};
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
    detail: Detail,
    n_dropped: u64,
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
            match DiskTrace::start(disk, &folder, self.detail) {
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

    /// Reads all files, at most so many bytes. What was stamped before is complete then, unless
    /// there is more.
    fn round(&mut self, max_bytes: usize, sink: &mut dyn FnMut(Piece<'_>)) {
        let begin_ns = clock::monotonic_ns();
        let affinity = Affinity::save();
        let (mut everywhere, mut everything, mut n_bytes) = (true, true, 0);
        let cpus: BTreeSet<usize> = self.traces.iter().flat_map(DiskTrace::cpus).collect();
        for cpu in cpus {
            everywhere &= affinity.move_to(cpu);
            for (place, trace) in self.traces.iter_mut().enumerate() {
                let number = file_number(place, cpu);
                let left = max_bytes.saturating_sub(n_bytes);
                everything &= trace.read(cpu, left, |bytes| {
                    n_bytes += bytes.len();
                    sink(Piece::Buffer { number, bytes });
                });
            }
        }
        drop(affinity);
        self.pace
            .found((n_bytes / RECORD_BYTES) as u64, trace::ROOM);
        self.look_for_loss(sink);
        let slack_ns = if everywhere { 0 } else { SLACK_NS };
        if everything {
            sink(Piece::Until(begin_ns.saturating_sub(slack_ns)));
        }
    }

    fn look_for_loss(&mut self, sink: &mut dyn FnMut(Piece<'_>)) {
        let n_dropped = self.dropped();
        if n_dropped != self.n_dropped {
            self.n_dropped = n_dropped;
            sink(Piece::Incomplete);
        }
    }

    fn dropped(&self) -> u64 {
        self.traces.iter().map(DiskTrace::dropped).sum()
    }
}

/// A number that no other relay file has.
fn file_number(place: usize, cpu: usize) -> u32 {
    let [place, cpu] = [place, cpu].map(|number| u16::try_from(number).unwrap_or(u16::MAX));
    u32::from(place) << 16 | u32::from(cpu)
}

impl Backend for Blktrace {
    fn name(&self) -> &'static str {
        "blktrace"
    }

    fn start(&mut self, facts: &Facts, (detail, _): (Detail, bool)) -> Result<Attached, String> {
        self.traces.clear();
        (self.detail, self.n_dropped) = (detail, 0);
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

    fn drain(&mut self, max_bytes: usize, sink: &mut dyn FnMut(Piece<'_>)) {
        self.round(max_bytes, sink);
    }

    fn stop(&mut self, sink: &mut dyn FnMut(Piece<'_>)) {
        for trace in &mut self.traces {
            trace.stop();
        }
        self.round(usize::MAX, sink);
    }

    fn release(&mut self) {
        self.traces.clear();
    }

    fn lost(&self) -> BTreeMap<u32, u64> {
        BTreeMap::from([(Source::Block as u32, self.dropped())])
    }

    fn format(&self) -> Format {
        let light = self.detail == Detail::Light;
        Format::Blktrace { light }
    }

    fn period(&self) -> Duration {
        self.pace.period()
    }
}
