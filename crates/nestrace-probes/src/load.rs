//! Loading and attaching the host's probes.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
};

use aya::{
    Btf, Ebpf, Endianness,
    maps::{Array, ArrayOfMaps, HashMap, MapData, MapError, PerCpuArray, RingBuf},
};
use nestrace_abi::{
    Source,
    maps::{
        CARRIER_FILTER, CARRIER_FILTER_SLOTS, CARRIERS, DEVICES, DONE, DONE_COUNTS, DROPS,
        FIRST_DEVICES, FirstDevices, GATE, INODES, InodeKey, MOUNTS, NESTED_PROGRAM, PROCESSES,
        RESCUED, RINGS,
    },
};
use nestrace_kernel::{
    plan::{PlannedProbe, ProbePlan},
    probes::{QEMU, TRACEPOINTS},
};
use nestrace_trace::manifest::{Probe, Refused};

use crate::{
    ProbeError,
    attachment::Attachment,
    closer::{Closer, Held},
    done::DoneRequests,
    globals::Globals,
    inode_bytes::InodeBytes,
    map_error,
    object::PROBES,
    preemption::{self, PreemptFunctions},
    rings::{create_rings, recursion_misses},
    sums::Sums,
    uprobe_multi::UprobeMulti,
    wanted::load_with,
};

pub use crate::rings::n_cpus;
pub use crate::wanted::{Mounts, Wanted};

/// Loaded probes. Dropping it detaches everything.
pub struct Probes {
    pub(super) ebpf: Ebpf,
    // Programs are loaded one by one and refer to the outer map, so it must stay open.
    _rings_by_cpu: ArrayOfMaps<MapData, MapData>,
    rings: Vec<RingBuf<MapData>>,
    done: Option<DoneRequests>,
    sums: Option<Sums>,
    drops: PerCpuArray<MapData, u64>,
    rescued: PerCpuArray<MapData, u64>,
    gate: Array<MapData, u32>,
    pub(super) devices: HashMap<MapData, u32, u32>,
    pub(super) first_devices: Array<MapData, FirstDevices>,
    processes: HashMap<MapData, u32, u32>,
    inodes: HashMap<MapData, InodeBytes, u32>,
    pub(super) mounts: HashMap<MapData, u32, u32>,
    carriers: HashMap<MapData, u32, u32>,
    carrier_filter: Array<MapData, u32>,
    /// Tens of megabytes: those that are loaded beside these have the same.
    pub(super) kernel_btf: Arc<Btf>,
    /// Attachments, for whoever detaches before the end.
    pub(super) links: Vec<Attachment>,
    /// The object that was loaded, for programs that are loaded in a way of their own.
    object: Vec<u8>,
    /// Probes of QEMU whose links can all be taken away at once; the outer `None` before the first of them.
    uprobe_multi: Option<Option<UprobeMulti>>,
    /// Probes of QEMU with no such link, each with the process that it is about: on for as long as these are held.
    pub(super) entries: Vec<(u32, Held)>,
    pub(super) closer: Closer,
    /// `fdinfo` of every loaded program, with its source: the kernel counts there what it skipped.
    programs: Vec<(Source, File)>,
    /// How often the gate was opened.
    n_recordings: u32,
    /// What was skipped before the gate was opened, by source. It is not a loss of the recording.
    skipped_before: BTreeMap<Source, u64>,
    /// What was skipped until the gate was shut.
    skipped_in_all: Option<BTreeMap<Source, u64>>,
    /// What is attached.
    pub attached: Vec<Probe>,
    /// What is not, and why.
    pub refused: Vec<Refused>,
}

impl Probes {
    /// Loads the object with this kernel's globals, creates the rings and fills the filters. Nothing is
    /// attached yet and the gate is shut.
    ///
    /// # Errors
    /// [`ProbeError`] where nothing can work.
    pub fn load(globals: &Globals, wanted: &Wanted) -> Result<Self, ProbeError> {
        Self::load_object(PROBES, globals, wanted)
    }

    /// The same with another build of the probes.
    ///
    /// # Errors
    /// As [`Probes::load`].
    pub fn load_object(
        object: &[u8],
        globals: &Globals,
        wanted: &Wanted,
    ) -> Result<Self, ProbeError> {
        let kernel_btf = Btf::parse_file("/sys/kernel/btf/vmlinux", Endianness::default())
            .map_err(|error| ProbeError::Load(Box::new(error.into())))?;
        Self::load_for_kernel(Arc::new(kernel_btf), object, globals, wanted)
    }

    /// The probes once more, for something else.
    ///
    /// # Errors
    /// As [`Probes::load`].
    pub fn load_beside(&self, globals: &Globals, wanted: &Wanted) -> Result<Self, ProbeError> {
        let kernel_btf = Arc::clone(&self.kernel_btf);
        Self::load_for_kernel(kernel_btf, PROBES, globals, wanted)
    }

    fn load_for_kernel(
        kernel_btf: Arc<Btf>,
        object: &[u8],
        globals: &Globals,
        wanted: &Wanted,
    ) -> Result<Self, ProbeError> {
        let functions = globals
            .preemptible
            .then(|| PreemptFunctions::find(&kernel_btf));
        let object = preemption::settle(object, functions.flatten());
        let mut ebpf = load_with(&object, globals, wanted)?;
        let mut take = |name: &'static str| {
            ebpf.take_map(name).ok_or(ProbeError::Map {
                map: name,
                source: Box::new(MapError::InvalidName {
                    name: name.to_owned(),
                }),
            })
        };
        let mut outer: ArrayOfMaps<MapData, MapData> =
            ArrayOfMaps::try_from(take(RINGS)?).map_err(map_error(RINGS))?;
        let drops = PerCpuArray::try_from(take(DROPS)?).map_err(map_error(DROPS))?;
        let rescued = PerCpuArray::try_from(take(RESCUED)?).map_err(map_error(RESCUED))?;
        let gate = Array::try_from(take(GATE)?).map_err(map_error(GATE))?;
        let devices = HashMap::try_from(take(DEVICES)?).map_err(map_error(DEVICES))?;
        let first_devices =
            Array::try_from(take(FIRST_DEVICES)?).map_err(map_error(FIRST_DEVICES))?;
        let processes = HashMap::try_from(take(PROCESSES)?).map_err(map_error(PROCESSES))?;
        let inodes = HashMap::try_from(take(INODES)?).map_err(map_error(INODES))?;
        let mounts = HashMap::try_from(take(MOUNTS)?).map_err(map_error(MOUNTS))?;
        let carriers = HashMap::try_from(take(CARRIERS)?).map_err(map_error(CARRIERS))?;
        let carrier_filter =
            Array::try_from(take(CARRIER_FILTER)?).map_err(map_error(CARRIER_FILTER))?;
        let rings = create_rings(&mut outer, wanted.ring_bytes)?;
        // What is not taken stays with the programs, which are loaded one by one and refer to it.
        let done = match wanted.done_slots as usize {
            0 => None,
            n_slots => {
                let (slots, counts) = (take(DONE)?, take(DONE_COUNTS)?);
                Some(DoneRequests::of(slots, counts, rings.len(), n_slots)?)
            }
        };
        let sums = match wanted.sum_slots {
            0 => None,
            n_slots => Some(Sums::of(&ebpf, n_slots)?),
        };
        let mut probes = Self {
            ebpf,
            _rings_by_cpu: outer,
            rings,
            done,
            sums,
            drops,
            rescued,
            gate,
            devices,
            first_devices,
            processes,
            inodes,
            mounts,
            carriers,
            carrier_filter,
            kernel_btf,
            links: Vec::new(),
            object,
            uprobe_multi: None,
            entries: Vec::new(),
            closer: Closer::default(),
            programs: Vec::new(),
            n_recordings: 0,
            skipped_before: BTreeMap::new(),
            skipped_in_all: None,
            attached: Vec::new(),
            refused: Vec::new(),
        };
        probes.choose_devices(&wanted.devices)?;
        for (pid, guest) in &wanted.processes {
            probes.add_process(*pid, *guest)?;
        }
        for (inode, dev) in &wanted.inodes {
            probes.add_inode(*inode, *dev)?;
        }
        if let Some(mounts) = &wanted.mounts {
            for dev in &mounts.devices {
                probes.add_mount(*dev)?;
            }
            for pid in &mounts.except {
                probes.add_process(*pid, 0)?;
            }
        }
        Ok(probes)
    }

    /// Sends file I/O on regular files of this super block from now on, if files are chosen by mount.
    ///
    /// # Errors
    /// The map's.
    pub fn add_mount(&mut self, dev: u32) -> Result<(), ProbeError> {
        self.mounts.insert(dev, 1, 0).map_err(map_error(MOUNTS))
    }

    /// Sends file I/O and QEMU events of this process from now on; leaves it out if files are chosen by
    /// mount.
    ///
    /// # Errors
    /// The map's.
    pub fn add_process(&mut self, pid: u32, guest: u32) -> Result<(), ProbeError> {
        self.processes
            .insert(pid, guest, 0)
            .map_err(map_error(PROCESSES))
    }

    /// Sends it when this thread gets and loses a processor from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn add_carrier(&mut self, tid: u32) -> Result<(), ProbeError> {
        self.carriers
            .insert(tid, 1, 0)
            .map_err(map_error(CARRIERS))?;
        let slot = tid & (CARRIER_FILTER_SLOTS as u32 - 1);
        self.carrier_filter
            .set(slot, 1, 0)
            .map_err(map_error(CARRIER_FILTER))
    }

    /// Sends page-cache, read-ahead, direct I/O and sync events of this file from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn add_inode(&mut self, inode: u64, dev: u32) -> Result<(), ProbeError> {
        let key = InodeBytes(InodeKey { inode, dev, pad: 0 });
        self.inodes.insert(key, 1, 0).map_err(map_error(INODES))
    }

    /// Attaches what was planned; success and refusal are both noted.
    pub fn attach(&mut self, plan: &ProbePlan) {
        self.note_planned_refusals(plan, None);
        for probe in &plan.attach {
            match self.try_attach(probe) {
                Ok(()) => self.note_attached(probe, None),
                Err(reason) => self.note_refused(probe, reason, None),
            }
        }
    }

    /// What the plan does without.
    pub fn note_planned_refusals(&mut self, plan: &ProbePlan, guest: Option<&str>) {
        let refused = plan.refused.iter().map(|probe| Refused {
            name: probe.target.to_owned(),
            source: probe.source.name().to_owned(),
            reason: probe.reason.clone(),
            cost: probe.cost.clone(),
            guest: guest.map(str::to_owned),
        });
        self.refused.extend(refused);
    }

    /// An attached probe, of this guest's QEMU or of the kernel.
    pub fn note_attached(&mut self, probe: &PlannedProbe, guest: Option<&str>) {
        self.attached.push(Probe {
            guest: guest.map(str::to_owned),
            ..Self::entry(probe)
        });
    }

    /// What a manifest says of an attached probe.
    #[must_use]
    pub fn entry(probe: &PlannedProbe) -> Probe {
        Probe {
            name: probe.target.to_owned(),
            source: probe.source.name().to_owned(),
            how: probe.how.name().to_owned(),
            guest: None,
        }
    }

    /// A probe that could not be attached, and why.
    pub fn note_refused(&mut self, probe: &PlannedProbe, reason: String, guest: Option<&str>) {
        let row = TRACEPOINTS
            .iter()
            .chain(QEMU)
            .find(|row| row.program == probe.program);
        self.refused.push(Refused {
            name: probe.target.to_owned(),
            source: probe.source.name().to_owned(),
            reason,
            cost: row.map(|row| row.cost.to_owned()).unwrap_or_default(),
            guest: guest.map(str::to_owned),
        });
    }

    pub(super) fn ebpf_mut(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    /// Opens or shuts the gate: probes send events only while it is open, and only what is lost
    /// meanwhile counts.
    ///
    /// # Errors
    /// The map's.
    pub fn set_gate(&mut self, open: bool) -> Result<(), ProbeError> {
        if open {
            self.skipped_before = self.skipped_by_source();
            self.skipped_in_all = None;
            self.n_recordings += 1;
        }
        let recording = if open { self.n_recordings } else { 0 };
        self.gate.set(0, recording, 0).map_err(map_error(GATE))?;
        if let Some(sums) = &mut self.sums {
            sums.begin(recording)?;
        }
        if !open {
            self.skipped_in_all = Some(self.skipped_by_source());
        }
        Ok(())
    }

    /// The rings, one per possible processor.
    pub fn rings_mut(&mut self) -> &mut [RingBuf<MapData>] {
        &mut self.rings
    }

    /// Whole requests of light detail, with [`Wanted::done_slots`].
    pub fn done_mut(&mut self) -> Option<&mut DoneRequests> {
        self.done.as_mut()
    }

    /// What the probes sum, with [`Wanted::sum_slots`].
    pub fn sums(&mut self) -> Option<&mut Sums> {
        self.sums.as_mut()
    }

    /// Sums the requests of a device in this slot from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn sum_device(&mut self, dev: u32, slot: u32) -> Result<(), ProbeError> {
        self.devices
            .insert(dev, slot, 0)
            .map_err(map_error(DEVICES))?;
        match &mut self.sums {
            Some(sums) => sums.device_added(),
            None => Ok(()),
        }
    }

    /// Sums no further request of a device.
    pub fn forget_device(&mut self, dev: u32) {
        // One that is not there is forgotten.
        let _ = self.devices.remove(&dev);
    }

    /// Forgets a process.
    pub fn forget_process(&mut self, pid: u32) {
        let _ = self.processes.remove(&pid);
    }

    /// Events of a source that were lost since the gate was opened: records that found no room, and events
    /// for which the kernel skipped a program because the same one was already running on that processor
    /// (an interrupt within it; `recursion_misses`, counted since 5.12, 9ed9e9ba2337) unless another took
    /// over. What is skipped can be an event of another device, so this is an upper bound. Of system calls
    /// none is ever skipped before 7.0: they do not interrupt one another, and their programs run with preemption off.
    ///
    /// # Errors
    /// The map's.
    pub fn lost(&self, source: Source) -> Result<u64, ProbeError> {
        let no_room: u64 = self
            .drops
            .get(&(source as u32), 0)
            .map_err(map_error(DROPS))?
            .iter()
            .sum();
        let in_all = match &self.skipped_in_all {
            Some(in_all) => in_all.get(&source).copied().unwrap_or(0),
            None => self.skipped(source),
        };
        let before = self.skipped_before.get(&source).copied().unwrap_or(0);
        Ok(no_room + in_all.saturating_sub(before))
    }

    fn skipped_by_source(&self) -> BTreeMap<Source, u64> {
        let skipped = |source: &Source| (*source, self.skipped(*source));
        Source::ALL.iter().map(skipped).collect()
    }

    /// What the kernel skipped since the programs were loaded and no other program took over.
    fn skipped(&self, source: Source) -> u64 {
        let programs = self.programs.iter().filter(|(of, _)| *of == source);
        let skipped: u64 = programs.map(|(_, fdinfo)| recursion_misses(fdinfo)).sum();
        let rescued = self.rescued.get(&(source as u32), 0);
        let rescued = rescued.map_or(0, |by_cpu| by_cpu.iter().sum());
        skipped.saturating_sub(rescued)
    }

    /// Links for probes of QEMU that can all be taken away at once, where this kernel has such. Call it when the
    /// tracepoints' programs have been loaded.
    pub(super) fn uprobe_multi(&mut self) -> Option<&mut UprobeMulti> {
        let prepare = || UprobeMulti::prepare(&self.object, &self.ebpf);
        self.uprobe_multi.get_or_insert_with(prepare).as_mut()
    }

    /// Keeps an eye on what the kernel skips of this program. A second program misses only what the
    /// first one took.
    pub(super) fn watch_misses(&mut self, program: &str, source: Source) {
        if program.ends_with(NESTED_PROGRAM) {
            return;
        }
        let loaded = self.ebpf.program(program);
        if let Some(fd) = loaded.and_then(|program| program.fd().ok()) {
            let fd = fd.as_fd().as_raw_fd();
            self.watch_misses_of(fd, source);
        }
    }

    /// The same of a program by its descriptor.
    pub(super) fn watch_misses_of(&mut self, fd: RawFd, source: Source) {
        if let Ok(fdinfo) = File::open(format!("/proc/self/fdinfo/{fd}")) {
            self.programs.push((source, fdinfo));
        }
    }
}
