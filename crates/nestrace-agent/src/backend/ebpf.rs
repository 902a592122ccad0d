//! nestrace's own probes, as on the host.
//!
//! They are loaded when the agent starts, attached when a recording begins and detached at its end, so
//! that the guest pays nothing in between. Files are chosen by mount: every process' calls on files of
//! the recorded disks, but the agent's own. Where no recorded disk is mounted, nothing looks at calls, of
//! which every one of every process would have to be looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use nestrace_abi::{OwnedRecord, maps::DoneSlot};
use nestrace_kernel::{
    facts::KernelFacts,
    layout::Layout,
    plan::{Detail, ProbePlan, Wanted as PlanWanted, plan},
};
use nestrace_probes::{
    ProbeError, clock,
    collect::{SLACK_NS, translate::translation},
    globals::Globals,
    kernel_facts,
    load::{Mounts, Probes, Wanted},
    refusal::with_causes,
};
use nestrace_trace::{Source, manifest::Refused};
use nestrace_wire::kernel_buffers::{Format, put_record};
use nix::sys::resource::{Resource, setrlimit};

use super::pace::Pace;
use super::{Attached, Backend, Piece};
use crate::guest::{Facts, memory};
use crate::names::noted::{NewFiles, Noted};

/// How long a probe may take that was running when the gate was shut.
const LAST_PROBE: Duration = Duration::from_millis(10);
/// Room for all rings together, and for one. Less than the host's: a guest has less to spare.
const RINGS_BYTES: u32 = 16 << 20;
const MAX_RING_BYTES: u32 = 4 << 20;
const MIN_RING_BYTES: u32 = 256 << 10;
/// Numbers of buffers from here on are those of whole requests, before it those of rings.
const FIRST_DONE: u32 = 1 << 16;
/// Bytes that are handed over at once, and with what goes beyond.
const PORTION: usize = 128 << 10;
const MAX_PORTION: usize = PORTION + 1024;
/// The same for whole requests of light detail.
const DONE_BYTES: u32 = 8 << 20;
const MAX_DONE_BYTES: u32 = 2 << 20;
const MIN_DONE_BYTES: u32 = 128 << 10;
const DONE_SLOT_BYTES: u32 = size_of::<DoneSlot>() as u32;
/// The longest entry of a ring, with the kernel's own header.
const ENTRY_BYTES: u32 = 8 + size_of::<OwnedRecord>() as u32;

/// Why the probes do not work.
pub struct NotLoaded {
    /// In words.
    pub reason: String,
    /// It may be otherwise later.
    pub passes: bool,
}

/// Loaded probes.
pub struct Ebpf {
    probes: Probes,
    facts: KernelFacts,
    layout: Layout,
    globals: Globals,
    /// Modules that were loaded when the kernel was looked at.
    modules: BTreeSet<&'static str>,
    /// Losses of the recordings before.
    lost_before: BTreeMap<Source, u64>,
    pace: Pace,
    /// What is being copied.
    portion: Vec<u8>,
    /// Entries that one processor has room for.
    room: u64,
    /// Of one processor: the room of its ring, and places for whole requests of light detail.
    ring_bytes: u32,
    done_slots: u32,
    /// Probes of calls that wait for the first mount.
    calls: Option<ProbePlan>,
    /// Files with I/O, of the recording that runs.
    files: Noted,
}

impl Ebpf {
    /// Loads everything and attaches nothing.
    ///
    /// # Errors
    /// Why the probes do not work here.
    pub fn load() -> Result<Self, NotLoaded> {
        memory::has_room_for_probes().map_err(|reason| NotLoaded {
            reason,
            passes: true,
        })?;
        // First: what is loaded meanwhile is found at the next look.
        let modules = kernel_facts::modules();
        let (facts, layout) = kernel_facts::gather();
        let globals = Globals::resolve(&layout, false);
        let loaded = Self::load_for(facts, layout, globals, modules);
        loaded.map_err(|reason| NotLoaded {
            reason,
            passes: false,
        })
    }

    /// What was found out about the kernel.
    pub fn kernel(&self) -> (&KernelFacts, &Layout) {
        (&self.facts, &self.layout)
    }

    /// Loads the same probes for something else.
    ///
    /// # Errors
    /// Why it cannot be, in words.
    pub fn load_beside(&self, wanted: &Wanted) -> Result<Probes, String> {
        let loaded = self.probes.load_beside(&self.globals, wanted);
        loaded.map_err(|error| with_causes(&error))
    }

    fn load_for(
        facts: KernelFacts,
        layout: Layout,
        globals: Globals,
        modules: BTreeSet<&'static str>,
    ) -> Result<Self, String> {
        if !facts.btf {
            let problem = facts.btf_problem.as_ref();
            return Err(problem.map_or_else(
                || ProbeError::NoBtf.to_string(),
                |why| format!("its type information cannot be read: {why}"),
            ));
        }
        if !facts.may_trace() {
            return Err(ProbeError::NoPrivilege.to_string());
        }
        // Kernels before 5.11 charge maps to it.
        let _ = setrlimit(
            Resource::RLIMIT_MEMLOCK,
            nix::sys::resource::RLIM_INFINITY,
            nix::sys::resource::RLIM_INFINITY,
        );
        let planned = planned(&facts, &layout, (Detail::Full, true));
        if let Some(obstacle) = planned.obstacle() {
            return Err(obstacle.to_owned());
        }
        let ring_bytes = share(RINGS_BYTES, MIN_RING_BYTES..=MAX_RING_BYTES);
        // On PREEMPT_RT kernels before 7.0 let tracepoints be preempted, too; there the probes do not turn it off.
        let done_slots = match Path::new("/sys/kernel/realtime").exists() {
            true => 0,
            false => share(DONE_BYTES, MIN_DONE_BYTES..=MAX_DONE_BYTES) / DONE_SLOT_BYTES,
        };
        let wanted = Wanted {
            mounts: Some(Mounts {
                devices: BTreeSet::new(),
                except: vec![std::process::id()],
            }),
            ring_bytes,
            done_slots,
            ..Wanted::default()
        };
        let mut probes = Probes::load(&globals, &wanted).map_err(|error| with_causes(&error))?;
        probes.prepare(&planned);
        Ok(Self {
            probes,
            facts,
            layout,
            globals,
            modules,
            lost_before: BTreeMap::new(),
            pace: Pace::default(),
            portion: Vec::with_capacity(MAX_PORTION),
            room: 0,
            ring_bytes,
            done_slots,
            calls: None,
            files: Noted::default(),
        })
    }

    /// File systems that were loaded since the last look bring tracepoints, and places of fields that the
    /// probes were loaded without: then they are loaded anew, which takes as long as at the start, and as much memory
    /// beside those that are there. Gives what stays out otherwise.
    fn look_at_modules(&mut self) -> Option<Refused> {
        let modules = kernel_facts::modules();
        if modules == self.modules {
            return None;
        }
        let changed: Vec<&str> = modules
            .symmetric_difference(&self.modules)
            .copied()
            .collect();
        let changed = changed.join(", ");
        let reason = self.load_anew(modules).err()?;
        eprintln!("nestrace-agent: the probes stay as they are: {reason}");
        Some(Refused {
            name: format!("probes of {changed}"),
            source: Source::HostFs.name().to_owned(),
            reason,
            cost: format!(
                "what only these file systems show, which were loaded after the agent, is not recorded: {changed}"
            ),
            guest: None,
        })
    }

    fn load_anew(&mut self, modules: BTreeSet<&'static str>) -> Result<(), String> {
        memory::has_room_for_probes()?;
        let (facts, layout) = kernel_facts::gather();
        let globals = Globals::resolve(&layout, false);
        if globals.give_the_same_probes_as(&self.globals) {
            (self.facts, self.layout, self.globals) = (facts, layout, globals);
            self.modules = modules;
            return Ok(());
        }
        *self = Self::load_for(facts, layout, globals, modules)?;
        Ok(())
    }

    fn begin(&mut self, facts: &Facts) -> Result<(), ProbeError> {
        self.choose(facts)?;
        // Whatever a probe wrote after the last recording's end.
        self.copy(usize::MAX, &mut |_| {});
        self.probes.set_gate(true)?;
        self.lost_before = self.lost_in_all();
        self.pace = Pace::default();
        Ok(())
    }

    /// Attaches what is needed now, and gives what will be attached by the end.
    fn attach(&mut self, facts: &Facts, asked: (Detail, bool)) -> Attached {
        let mut plan = planned(&self.facts, &self.layout, asked);
        let mut calls = ProbePlan::default();
        (calls.attach, plan.attach) =
            (plan.attach.into_iter()).partition(|probe| probe.source == Source::File);
        self.probes.attach(&plan);
        self.calls = Some(calls);
        self.attach_calls(facts);
        let mut attached = Attached {
            probes: self.probes.attached.clone(),
            refused: self.probes.refused.clone(),
        };
        let waiting = self.calls.iter().flat_map(|calls| &calls.attach);
        attached.probes.extend(waiting.map(Probes::entry));
        attached
    }

    /// Attaches the probes of calls once there is a file that they could be about; gives those that the kernel refuses.
    fn attach_calls(&mut self, facts: &Facts) -> Vec<Refused> {
        if facts.mounts.is_empty() {
            return Vec::new();
        }
        let Some(calls) = self.calls.take() else {
            return Vec::new();
        };
        let n_refused = self.probes.refused.len();
        self.probes.attach(&calls);
        self.probes.refused[n_refused..].to_vec()
    }

    /// Copies what the probes have sent, at most so many bytes; gives how many records, and whether that was all.
    fn copy(&mut self, max_bytes: usize, sink: &mut dyn FnMut(Piece<'_>)) -> (u64, bool) {
        let Self {
            probes,
            portion,
            files,
            ..
        } = self;
        let (mut n_records, mut n_bytes) = (0, 0);
        let mut hand_over = |number, portion: &mut Vec<u8>, n| {
            n_records += n;
            n_bytes += portion.len();
            sink(Piece::Buffer {
                number,
                bytes: portion,
            });
            portion.clear();
            n_bytes + MAX_PORTION <= max_bytes
        };
        portion.clear();
        if let Some(done) = probes.done_mut() {
            for (cpu, number) in (0..done.n_cpus()).zip(FIRST_DONE..) {
                loop {
                    let n = done.take(cpu, PORTION / size_of::<DoneSlot>(), portion);
                    if n == 0 {
                        break;
                    }
                    if !hand_over(number, portion, n) {
                        return (n_records, false);
                    }
                }
            }
        }
        for (ring, number) in probes.rings_mut().iter_mut().zip(0..) {
            loop {
                let mut n = 0;
                while portion.len() < PORTION
                    && let Some(entry) = ring.next()
                {
                    files.note(&entry);
                    n += u64::from(put_record(&entry, portion));
                }
                if portion.is_empty() {
                    break;
                }
                if !hand_over(number, portion, n) {
                    return (n_records, false);
                }
            }
        }
        (n_records, true)
    }

    fn choose(&mut self, facts: &Facts) -> Result<(), ProbeError> {
        self.probes.choose_devices(&facts.devices())?;
        self.probes.choose_mounts(&facts.mounted())
    }

    fn lost_in_all(&self) -> BTreeMap<Source, u64> {
        Source::ALL
            .iter()
            .filter_map(|source| Some((*source, self.probes.lost(*source).ok()?)))
            .collect()
    }
}

impl Backend for Ebpf {
    fn name(&self) -> &'static str {
        "ebpf"
    }

    fn start(&mut self, facts: &Facts, asked: (Detail, bool)) -> Result<Attached, String> {
        let stays_out = self.look_at_modules();
        let mut attached = self.attach(facts, asked);
        attached.refused.extend(stays_out);
        let (detail, _) = asked;
        self.room = match (detail, self.done_slots) {
            (Detail::Full | Detail::Io | Detail::Sums, _) | (_, 0) => {
                u64::from(self.ring_bytes / ENTRY_BYTES)
            }
            (Detail::Light, done_slots) => u64::from(done_slots),
        };
        let vital = match detail {
            Detail::Full | Detail::Io => ["block_rq_issue", "block_rq_complete"].as_slice(),
            Detail::Light | Detail::Sums => &["block_rq_complete"],
        };
        let missing = vital
            .iter()
            .find(|name| !attached.probes.iter().any(|probe| probe.name == **name));
        let begun = match missing {
            Some(name) => {
                let refused = attached.refused.iter().find(|probe| probe.name == *name);
                Err(refused.map_or_else(
                    || format!("{name} is not there"),
                    |probe| format!("{name}: {}", probe.reason),
                ))
            }
            None => self.begin(facts).map_err(|error| with_causes(&error)),
        };
        if begun.is_err() {
            self.probes.detach();
        }
        begun.map(|()| attached)
    }

    fn update(&mut self, facts: &Facts) -> Vec<Refused> {
        let disks = self.probes.choose_devices(&facts.devices());
        let mounts = self.probes.choose_mounts(&facts.mounted());
        let refused = |what: &str, source: Source, chosen: Result<(), ProbeError>| {
            let error = chosen.err()?;
            Some(Refused {
                name: format!("{what} that came later"),
                source: source.name().to_owned(),
                reason: with_causes(&error),
                cost: format!("{what} that came while it recorded may be missing"),
                guest: None,
            })
        };
        let disks = refused("disks", Source::Block, disks);
        let mounts = refused("mounts", Source::File, mounts);
        let calls = self.attach_calls(facts);
        disks.into_iter().chain(mounts).chain(calls).collect()
    }

    fn drain(&mut self, max_bytes: usize, sink: &mut dyn FnMut(Piece<'_>)) {
        if max_bytes < MAX_PORTION {
            return;
        }
        let now_ns = clock::monotonic_ns();
        let (n_records, everything) = self.copy(max_bytes, sink);
        if everything {
            sink(Piece::Until(now_ns.saturating_sub(SLACK_NS)));
        }
        self.pace.found(n_records, self.room);
    }

    fn stop(&mut self, sink: &mut dyn FnMut(Piece<'_>)) {
        // If the gate cannot be shut, what comes after this is left in the rings.
        let _ = self.probes.set_gate(false);
        std::thread::sleep(LAST_PROBE);
        self.copy(usize::MAX, sink);
    }

    fn release(&mut self) {
        let _ = self.probes.set_gate(false);
        self.probes.detach();
    }

    fn lost(&self) -> BTreeMap<u32, u64> {
        let before = |source| self.lost_before.get(&source).copied().unwrap_or(0);
        self.lost_in_all()
            .into_iter()
            .map(|(source, total)| (source as u32, total.saturating_sub(before(source))))
            .collect()
    }

    fn note_files(&mut self, wanted: bool) {
        self.files.begin(wanted);
    }

    fn take_files(&mut self) -> NewFiles {
        self.files.take()
    }

    fn format(&self) -> Format {
        Format::Probes(translation(&self.layout, &self.globals.end_io))
    }

    fn period(&self) -> Duration {
        self.pace.period()
    }
}

fn planned(facts: &KernelFacts, layout: &Layout, (detail, cpu): (Detail, bool)) -> ProbePlan {
    let wanted = PlanWanted {
        detail,
        processes: false,
        mounts: true,
        cpu,
    };
    plan(facts, layout, wanted)
}

/// A processor's share of the room, a power of two.
fn share(room: u32, bounds: RangeInclusive<u32>) -> u32 {
    let n_cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|list| list.trim().rsplit(['-', ',']).next()?.parse::<u32>().ok())
        .map_or(1, |last| last.saturating_add(1));
    let share = (room / n_cpus).clamp(*bounds.start(), *bounds.end());
    1 << share.ilog2()
}
