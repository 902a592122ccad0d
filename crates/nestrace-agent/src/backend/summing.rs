//! The probes as sums: for each disk a histogram in the kernel instead of events.
//!
//! They are loaded when the first recorder asks for sums, and kept: a slow guest takes seconds for it. They are attached while
//! somebody reads them.

use std::collections::{BTreeMap, VecDeque};

use nestrace_abi::maps::{SUM_OPS, SUM_PLACES};
use nestrace_kernel::plan::{Detail, ProbePlan, Wanted as PlanWanted, plan};
use nestrace_probes::{
    clock,
    load::{Probes, Wanted},
    refusal::with_causes,
};
use nestrace_trace::Source;
use nestrace_trace::manifest::{GuestDisk, Probe};
use nestrace_wire::sums::{DiskSums, MAX_DISKS, OpSums, Sums};

use super::ebpf::Ebpf;

/// Slots for disks that are plugged in later. A slot has 15 KiB.
const SPARE_SLOTS: u32 = 16;
/// Slots at most: more disks a Hello does not list.
const MAX_SLOTS: u32 = 256;
/// Room that the ordinary rings get, which carry nothing here.
const RING_BYTES: u32 = 4096;
/// Without these nothing is summed.
const VITAL: [&str; 2] = ["block_rq_issue", "block_rq_complete"];

/// A disk that is summed.
struct Summed {
    slot: u32,
    disk: GuestDisk,
}

/// Probes that sum.
pub struct Summing {
    probes: Probes,
    plan: ProbePlan,
    n_slots: u32,
    /// What becomes free is used again last: a request that began before may still end in it.
    free: VecDeque<u32>,
    disks: BTreeMap<u32, Summed>,
    /// What was lost before this session.
    lost_before: u64,
}

impl Summing {
    /// Loads them for so many disks, with what was found out about the kernel for the other probes.
    ///
    /// # Errors
    /// Why it cannot be, in words.
    pub fn load(ebpf: &Ebpf, n_disks: usize) -> Result<Self, String> {
        let (facts, layout) = ebpf.kernel();
        let wanted = PlanWanted {
            detail: Detail::Sums,
            ..PlanWanted::default()
        };
        let mut plan = plan(facts, layout, wanted);
        plan.attach.retain(|probe| probe.source == Source::Block);
        plan.refused.retain(|probe| probe.source == Source::Block);
        let n_slots = slots_for(n_disks);
        let wanted = Wanted {
            ring_bytes: RING_BYTES,
            sum_slots: n_slots,
            sum_from_start: true,
            ..Wanted::default()
        };
        let mut probes = ebpf.load_beside(&wanted)?;
        probes.prepare(&plan);
        give_memory_back();
        Ok(Self {
            probes,
            plan,
            n_slots,
            free: (0..n_slots).collect(),
            disks: BTreeMap::new(),
            lost_before: 0,
        })
    }

    /// Whether so many disks find slots.
    pub fn has_room(&self, n_disks: usize) -> bool {
        self.n_slots == MAX_SLOTS || n_disks <= self.n_slots as usize
    }

    /// Begins to sum these disks, from 0 on. Gives what is attached.
    ///
    /// # Errors
    /// Why not, in words; nothing is attached then.
    pub fn start(&mut self, disks: &[GuestDisk]) -> Result<Vec<Probe>, String> {
        self.probes.attach(&self.plan);
        let is_attached = |name: &&&str| self.probes.attached.iter().any(|it| it.name == **name);
        let begun = match VITAL.iter().find(|name| !is_attached(name)) {
            Some(missing) => Err(self.why_not(missing)),
            None => {
                self.follow(disks);
                self.lost_before = self.lost_in_all();
                self.probes.set_gate(true).map_err(|e| with_causes(&e))
            }
        };
        if begun.is_err() {
            self.stop();
        }
        begun.map(|()| self.probes.attached.clone())
    }

    fn why_not(&self, name: &str) -> String {
        let refused = self.probes.refused.iter().find(|probe| probe.name == name);
        refused.map_or_else(
            || format!("{name} is not there"),
            |probe| format!("{name}: {}", probe.reason),
        )
    }

    /// The disks are these now. One without a slot is not summed.
    pub fn follow(&mut self, disks: &[GuestDisk]) {
        let is_gone =
            |_: &u32, summed: &mut Summed| !disks.iter().any(|disk| disk.is_still(&summed.disk));
        for (dev, gone) in self.disks.extract_if(.., is_gone) {
            self.probes.forget_device(dev);
            self.free.push_back(gone.slot);
        }
        for disk in disks {
            if self.disks.contains_key(&disk.dev) {
                continue;
            }
            let Some(slot) = self.free.pop_front() else {
                eprintln!("nestrace-agent: {}: no room for its sums", disk.name);
                continue;
            };
            if let Some(sums) = self.probes.sums() {
                sums.clear(slot);
            }
            match self.probes.sum_device(disk.dev, slot) {
                Ok(()) => {
                    let disk = disk.clone();
                    self.disks.insert(disk.dev, Summed { slot, disk });
                }
                Err(error) => {
                    eprintln!("nestrace-agent: {}: {}", disk.name, with_causes(&error));
                    self.free.push_back(slot);
                }
            }
        }
    }

    /// What was done since the start, in messages: at least one.
    pub fn read(&mut self) -> Vec<Sums> {
        let lost = self.lost_in_all().saturating_sub(self.lost_before);
        let mut disks = self.read_disks();
        let mut messages = Vec::new();
        loop {
            let rest = disks.split_off(disks.len().min(MAX_DISKS));
            messages.push(Sums { lost, disks });
            if rest.is_empty() {
                return messages;
            }
            disks = rest;
        }
    }

    fn read_disks(&mut self) -> Vec<DiskSums> {
        let Some(sums) = self.probes.sums() else {
            return Vec::new();
        };
        let in_flight = sums.in_flight();
        let now_ns = clock::monotonic_ns();
        let read = |place: u32| {
            let values = sums.read(place);
            let now = in_flight.get(&place).copied().unwrap_or_default();
            OpSums {
                bytes: values.bytes,
                sum_ns: values.sum_ns,
                max_ns: values.max_ns,
                in_flight: now.n,
                oldest_ns: match now.n {
                    0 => 0,
                    _ => now_ns.saturating_sub(now.oldest_ns),
                },
                buckets: OpSums::buckets_of(&values.buckets),
            }
        };
        let disks = self.disks.iter().map(|(dev, summed)| DiskSums {
            dev: *dev,
            ops: places(summed.slot).map(read).collect(),
        });
        disks.collect()
    }

    /// Ends it, and detaches everything.
    pub fn stop(&mut self) {
        let _ = self.probes.set_gate(false);
        self.probes.detach();
        self.follow(&[]);
    }

    fn lost_in_all(&self) -> u64 {
        let sources = [Source::Block, Source::Meta];
        let lost = sources.map(|source| self.probes.lost(source).unwrap_or(0));
        lost.into_iter().fold(0, u64::saturating_add)
    }
}

/// Loading takes tens of megabytes for a moment, which the allocator would keep.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Places of the operations of a slot's first layer.
fn places(slot: u32) -> impl Iterator<Item = u32> {
    let first = slot * SUM_PLACES as u32;
    first..first + SUM_OPS as u32
}

fn slots_for(n_disks: usize) -> u32 {
    let n_disks = u32::try_from(n_disks).unwrap_or(MAX_SLOTS);
    n_disks.saturating_add(SPARE_SLOTS).min(MAX_SLOTS)
}
