//! Loading and attaching the host's probes.

use std::{
    collections::BTreeSet,
    fs::File,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt,
    },
};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader, Endianness,
    maps::{Array, ArrayOfMaps, HashMap, MapData, MapError, PerCpuArray, RingBuf},
    programs::{BtfTracePoint, ProgramError, RawTracePoint},
};
use nestrace_abi::{
    Source,
    maps::{DEVICES, DROPS, GATE, INODES, InodeKey, NESTED_PROGRAM, PROCESSES, RESCUED, RINGS},
};
use nestrace_kernel::{
    plan::{PlannedProbe, ProbePlan},
    probes::{How, QEMU, TRACEPOINTS},
};
use nestrace_trace::manifest::{Probe, Refused};

use super::{ProbeError, globals::Globals, object::PROBES};

/// `BPF_MAP_TYPE_RINGBUF` of the kernel's user interface.
const RINGBUF: u32 = 27;

/// What the probes are to look at.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Device numbers (`MAJOR << 20 | MINOR`) of disks and partitions.
    pub devices: BTreeSet<u32>,
    /// Processes, each with its guest's index.
    pub processes: Vec<(u32, u32)>,
    /// Image files (and loop backing files): inode and device of the super block.
    pub inodes: BTreeSet<(u64, u32)>,
    /// Bytes of one processor's ring; a power of two, at least one page.
    pub ring_bytes: u32,
}

/// Loaded probes. Dropping it detaches everything.
pub struct Probes {
    ebpf: Ebpf,
    // Programs are loaded one by one and refer to the outer map, so it must stay open.
    _rings_by_cpu: ArrayOfMaps<MapData, MapData>,
    rings: Vec<RingBuf<MapData>>,
    drops: PerCpuArray<MapData, u64>,
    rescued: PerCpuArray<MapData, u64>,
    gate: Array<MapData, u32>,
    devices: HashMap<MapData, u32, u32>,
    processes: HashMap<MapData, u32, u32>,
    inodes: HashMap<MapData, InodeBytes, u32>,
    kernel_btf: Btf,
    /// `fdinfo` of every loaded program, with its source: the kernel counts there what it skipped.
    programs: Vec<(Source, File)>,
    /// What is attached.
    pub attached: Vec<Probe>,
    /// What is not, and why.
    pub refused: Vec<Refused>,
}

/// An [`InodeKey`] as a map key.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct InodeBytes(InodeKey);
// SAFETY: integers without implicit padding (asserted in nestrace-abi).
unsafe impl aya::Pod for InodeBytes {}

fn map_error(map: &'static str) -> impl Fn(MapError) -> ProbeError {
    move |source| ProbeError::Map {
        map,
        source: Box::new(source),
    }
}

fn load_error(error: EbpfError) -> ProbeError {
    ProbeError::Load(Box::new(error))
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
        let mut ebpf = load_with(object, globals)?;
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
        let processes = HashMap::try_from(take(PROCESSES)?).map_err(map_error(PROCESSES))?;
        let inodes = HashMap::try_from(take(INODES)?).map_err(map_error(INODES))?;
        let rings = create_rings(&mut outer, wanted.ring_bytes)?;
        let kernel_btf = Btf::parse_file("/sys/kernel/btf/vmlinux", Endianness::default())
            .map_err(|error| ProbeError::Load(Box::new(error.into())))?;
        let mut probes = Self {
            ebpf,
            _rings_by_cpu: outer,
            rings,
            drops,
            rescued,
            gate,
            devices,
            processes,
            inodes,
            kernel_btf,
            programs: Vec::new(),
            attached: Vec::new(),
            refused: Vec::new(),
        };
        for dev in &wanted.devices {
            probes.add_device(*dev)?;
        }
        for (pid, guest) in &wanted.processes {
            probes.add_process(*pid, *guest)?;
        }
        for (inode, dev) in &wanted.inodes {
            probes.add_inode(*inode, *dev)?;
        }
        Ok(probes)
    }

    /// Sends block events of this device from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn add_device(&mut self, dev: u32) -> Result<(), ProbeError> {
        self.devices.insert(dev, 1, 0).map_err(map_error(DEVICES))
    }

    /// Sends file I/O and QEMU events of this process from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn add_process(&mut self, pid: u32, guest: u32) -> Result<(), ProbeError> {
        self.processes
            .insert(pid, guest, 0)
            .map_err(map_error(PROCESSES))
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
                Ok(()) => {
                    self.note_attached(probe, None);
                    self.watch_misses(probe.program, probe.source);
                }
                Err(reason) => self.note_refused(probe, reason, None),
            }
        }
    }

    fn try_attach(&mut self, probe: &PlannedProbe) -> Result<(), String> {
        let program = self
            .ebpf
            .program_mut(probe.program)
            .ok_or_else(|| "not in the probe object".to_owned())?;
        let attached: Result<(), ProgramError> = match probe.how {
            How::TpBtf => (|| {
                let program: &mut BtfTracePoint = program.try_into()?;
                program.load(probe.target, &self.kernel_btf)?;
                program.attach()?;
                Ok(())
            })(),
            _ => (|| {
                let program: &mut RawTracePoint = program.try_into()?;
                program.load()?;
                program.attach(probe.target)?;
                Ok(())
            })(),
        };
        attached.map_err(|error| describe(&error))
    }

    /// What the plan does without.
    pub(super) fn note_planned_refusals(&mut self, plan: &ProbePlan, guest: Option<&str>) {
        let refused = plan.refused.iter().map(|probe| Refused {
            name: probe.target.to_owned(),
            source: probe.source.name().to_owned(),
            reason: probe.reason.clone(),
            cost: probe.cost.clone(),
            guest: guest.map(str::to_owned),
        });
        self.refused.extend(refused);
    }

    pub(super) fn note_attached(&mut self, probe: &PlannedProbe, guest: Option<&str>) {
        self.attached.push(Probe {
            name: probe.target.to_owned(),
            source: probe.source.name().to_owned(),
            how: probe.how.name().to_owned(),
            guest: guest.map(str::to_owned),
        });
    }

    pub(super) fn note_refused(
        &mut self,
        probe: &PlannedProbe,
        reason: String,
        guest: Option<&str>,
    ) {
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

    /// Opens or shuts the gate: probes send events only while it is open.
    ///
    /// # Errors
    /// The map's.
    pub fn set_gate(&mut self, open: bool) -> Result<(), ProbeError> {
        self.gate
            .set(0, u32::from(open), 0)
            .map_err(map_error(GATE))
    }

    /// The rings, one per possible processor.
    pub fn rings_mut(&mut self) -> &mut [RingBuf<MapData>] {
        &mut self.rings
    }

    /// Events of a source that were lost so far: records that found no room, and events for which the
    /// kernel skipped a program because the same one was already running on that processor (an interrupt
    /// within it; `recursion_misses`, counted since 5.12, 9ed9e9ba2337) unless another took over. What is
    /// skipped can be an event of another device, so this is an upper bound.
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
        let programs = self.programs.iter().filter(|(of, _)| *of == source);
        let skipped: u64 = programs.map(|(_, fdinfo)| recursion_misses(fdinfo)).sum();
        let rescued: u64 = match source {
            Source::Block => self
                .rescued
                .get(&0, 0)
                .map_err(map_error(RESCUED))?
                .iter()
                .sum(),
            _ => 0,
        };
        Ok(no_room + skipped.saturating_sub(rescued))
    }

    /// Keeps an eye on what the kernel skips of this program. A second program misses only what the
    /// first one took.
    pub(super) fn watch_misses(&mut self, program: &str, source: Source) {
        if program.ends_with(NESTED_PROGRAM) {
            return;
        }
        let Some(fd) = self
            .ebpf
            .program(program)
            .and_then(|program| program.fd().ok())
        else {
            return;
        };
        if let Ok(fdinfo) = File::open(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())) {
            self.programs.push((source, fdinfo));
        }
    }
}

fn recursion_misses(fdinfo: &File) -> u64 {
    let mut buffer = [0u8; 1024];
    let n = fdinfo.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..n])
        .lines()
        .find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse().ok())
        .unwrap_or(0)
}

fn load_with(object: &[u8], globals: &Globals) -> Result<Ebpf, ProbeError> {
    let mut loader = EbpfLoader::new();
    for (name, value) in &globals.fields {
        loader.override_global(name, value, false);
    }
    for (name, value) in &globals.addresses {
        loader.override_global(name, value, false);
    }
    for (name, value) in &globals.constants {
        loader.override_global(name, value, false);
    }
    loader.load(object).map_err(load_error)
}

fn create_rings(
    outer: &mut ArrayOfMaps<MapData, MapData>,
    ring_bytes: u32,
) -> Result<Vec<RingBuf<MapData>>, ProbeError> {
    let n_cpus = aya::util::nr_cpus().map_or(1, |n| u32::try_from(n).unwrap_or(1));
    let mut rings = Vec::new();
    for cpu in 0..n_cpus.min(outer.len()) {
        let definition = aya_obj::Map::new_from_params(RINGBUF, 0, 0, ring_bytes, 0);
        let data = MapData::create(definition, "nestrace_ring", None).map_err(map_error(RINGS))?;
        outer.set(cpu, &data, 0).map_err(map_error(RINGS))?;
        rings.push(
            aya::maps::Map::RingBuf(data)
                .try_into()
                .map_err(map_error(RINGS))?,
        );
    }
    Ok(rings)
}

/// What the verifier says at the end of every log.
fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time ", "stack depth "]
        .iter()
        .any(|start| line.starts_with(start))
}

/// One line of a program error: the last line of the verifier's log says why.
pub(super) fn describe(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            if std::env::var_os("NESTRACE_VERIFIER_LOG").is_some() {
                eprintln!("{log}");
            }
            let reason = log
                .lines()
                .rev()
                .find(|line| !line.is_empty() && !is_statistics(line))
                .unwrap_or("no verifier log");
            format!("refused by the verifier ({io_error}): {reason}")
        }
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        }
    }
}
