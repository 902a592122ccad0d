//! Programs that are loaded and wait: the verifier has seen them, nothing runs them. An agent stands by
//! like this, so that a recording begins at once and nothing is paid until then.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, available_parallelism};

use aya::Btf;
use aya::maps::{self, MapData, MapError};
use aya::programs::{BtfTracePoint, KProbe, Program, ProgramError, RawTracePoint};
use nestrace_abi::maps::{DEVICES, FIRST_DEVICES, FirstDevices, MOUNTS};
use nestrace_kernel::{
    plan::{PlannedProbe, ProbePlan},
    probes::How,
};

use crate::{ProbeError, attachment::Attachment, load::Probes, map_error, refusal::describe};

impl Probes {
    /// Loads what was planned and attaches nothing. What the kernel refuses is noted by
    /// [`Probes::attach`].
    ///
    /// Nearly all of the time is the verifier's (6.1 looks at 1.5 million instructions), which lets
    /// privileged users verify side by side.
    pub fn prepare(&mut self, plan: &ProbePlan) {
        let btf = &self.kernel_btf;
        let mut programs: HashMap<&str, &mut Program> = self.ebpf.programs_mut().collect();
        let wanted: Vec<_> = plan
            .attach
            .iter()
            .filter_map(|probe| Some((probe, programs.remove(probe.program)?)))
            .filter(|(_, program)| program.fd().is_err())
            .collect();
        let n_threads = available_parallelism().map_or(1, usize::from);
        let next = Mutex::new(wanted.into_iter());
        let loaded = Mutex::new(Vec::new());
        // A statement of its own: in the loop's head the lock would be held for the whole round.
        let take = || lock(&next).next();
        let work = || {
            while let Some((probe, program)) = take() {
                // What fails will be tried again, and refused with a reason then.
                if load(program, probe, btf).is_ok() {
                    lock(&loaded).push(probe);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..n_threads.min(MAX_VERIFIERS) {
                // Without another thread this one does it all.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        for probe in loaded.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.watch_misses(probe.program, probe.source);
        }
    }

    /// Detaches every program of the kernel; they stay loaded. [`Probes::attach`] may follow.
    pub fn detach(&mut self) {
        for link in std::mem::take(&mut self.links) {
            let _ = match link {
                Attachment::BtfTracePoint(name, id) => self
                    .program::<BtfTracePoint>(name)
                    .map(|program| program.detach(id)),
                Attachment::RawTracePoint(name, id) => self
                    .program::<RawTracePoint>(name)
                    .map(|program| program.detach(id)),
                Attachment::Function(name, id) => self
                    .program::<KProbe>(name)
                    .map(|program| program.detach(id)),
            };
        }
        self.attached.clear();
        self.refused.clear();
    }

    /// Sends block events of these devices and of no others from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn choose_devices(&mut self, devices: &BTreeSet<u32>) -> Result<(), ProbeError> {
        let mut first = FirstDevices::default();
        first
            .iter_mut()
            .zip(devices)
            .for_each(|(place, dev)| *place = *dev);
        self.first_devices
            .set(0, first, 0)
            .map_err(map_error(FIRST_DEVICES))?;
        choose(&mut self.devices, devices).map_err(map_error(DEVICES))
    }

    /// Sends file I/O on regular files of these super blocks and of no others from now on, if files are
    /// chosen by mount.
    ///
    /// # Errors
    /// The map's.
    pub fn choose_mounts(&mut self, devices: &BTreeSet<u32>) -> Result<(), ProbeError> {
        choose(&mut self.mounts, devices).map_err(map_error(MOUNTS))
    }

    pub(super) fn try_attach(&mut self, probe: &PlannedProbe) -> Result<(), String> {
        self.load_program(probe)?;
        let name = probe.program;
        let link = match probe.how {
            How::TpBtf => self
                .program::<BtfTracePoint>(name)?
                .attach()
                .map(|id| Attachment::BtfTracePoint(name, id)),
            How::Kprobe | How::Kretprobe => self
                .program::<KProbe>(name)?
                .attach(probe.target, 0)
                .map(|id| Attachment::Function(name, id)),
            _ => self
                .program::<RawTracePoint>(name)?
                .attach(probe.target)
                .map(|id| Attachment::RawTracePoint(name, id)),
        };
        self.links.push(link.map_err(|error| describe(&error))?);
        Ok(())
    }

    /// Has the verifier look at a program, if it has not yet.
    fn load_program(&mut self, probe: &PlannedProbe) -> Result<(), String> {
        let program = self
            .ebpf
            .program_mut(probe.program)
            .ok_or_else(|| NOT_THERE.to_owned())?;
        if program.fd().is_ok() {
            return Ok(());
        }
        load(program, probe, &self.kernel_btf).map_err(|error| describe(&error))?;
        self.watch_misses(probe.program, probe.source);
        Ok(())
    }

    fn program<'p, P>(&'p mut self, name: &str) -> Result<&'p mut P, String>
    where
        &'p mut P: TryFrom<&'p mut Program, Error = ProgramError>,
    {
        let program = self
            .ebpf
            .program_mut(name)
            .ok_or_else(|| NOT_THERE.to_owned())?;
        program.try_into().map_err(|error| describe(&error))
    }
}

/// Programs that are verified at the same time: a guest's memory and its other work count too.
const MAX_VERIFIERS: usize = 4;

fn load(program: &mut Program, probe: &PlannedProbe, btf: &Btf) -> Result<(), ProgramError> {
    match probe.how {
        How::TpBtf => <&mut BtfTracePoint>::try_from(program)
            .and_then(|program| program.load(probe.target, btf)),
        How::Kprobe | How::Kretprobe => <&mut KProbe>::try_from(program).and_then(KProbe::load),
        _ => <&mut RawTracePoint>::try_from(program).and_then(RawTracePoint::load),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half done by a thread that panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const NOT_THERE: &str = "not in the probe object";

/// Makes the keys of a filter be just these.
fn choose(
    filter: &mut maps::HashMap<MapData, u32, u32>,
    keys: &BTreeSet<u32>,
) -> Result<(), MapError> {
    let before: Vec<u32> = filter.keys().collect::<Result<_, _>>()?;
    for key in before.iter().filter(|key| !keys.contains(key)) {
        filter.remove(key)?;
    }
    keys.iter().try_for_each(|key| filter.insert(key, 1, 0))
}
