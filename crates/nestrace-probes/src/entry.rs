//! Attaching a program to the entry of a function, or to a USDT probe, in one process.

use std::num::NonZeroU32;
use std::path::Path;

use aya::programs::{
    UProbe,
    uprobe::{UProbeAttachLocation, UProbeScope},
};
use nestrace_kernel::plan::PlannedProbe;

use crate::closer::Held;
use crate::counted;
use crate::{load::Probes, refusal::describe};

/// Where in the file a probe goes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Of the first instruction.
    pub offset: u64,
    /// The counter that switches it on.
    pub semaphore: Option<u64>,
}

impl Probes {
    /// Runs the probe's program at this place of the file, which the process with this pid executes. Note afterwards how it
    /// went ([`Probes::note_attached`], [`Probes::note_refused`]).
    ///
    /// # Errors
    /// Why the kernel refused it, in words.
    pub fn attach_entry(
        &mut self,
        probe: &PlannedProbe,
        place: Place,
        path: &Path,
        pid: u32,
    ) -> Result<(), String> {
        if let Some(multi) = self.uprobe_multi() {
            let attached = multi.attach(probe.program, path, pid, place.offset, place.semaphore);
            if let Ok(new_program) = attached {
                if let Some(fd) = new_program {
                    self.watch_misses_of(fd, probe.source);
                }
                return Ok(());
            }
        }
        let process = NonZeroU32::new(pid).ok_or_else(|| "not a process".to_owned())?;
        let program = self
            .ebpf_mut()
            .program_mut(probe.program)
            .ok_or_else(|| "not in the probe object".to_owned())?;
        let program: &mut UProbe = program.try_into().map_err(|error| describe(&error))?;
        let is_new = program.fd().is_err();
        if is_new {
            program.load().map_err(|error| describe(&error))?;
        }
        let held: Held = if let Some(semaphore) = place.semaphore {
            let program = program.fd().map_err(|error| describe(&error))?;
            let event = counted::attach(program, path, pid, place.offset, semaphore);
            Box::new(
                event.map_err(|error| format!("the USDT probe cannot be switched on: {error}"))?,
            )
        } else {
            let location = UProbeAttachLocation::AbsoluteOffset(place.offset);
            let link = program
                .attach(location, path, UProbeScope::OneProcess(process))
                .and_then(|id| program.take_link(id));
            Box::new(link.map_err(|error| describe(&error))?)
        };
        self.entries.push((pid, held));
        if is_new {
            self.watch_misses(probe.program, probe.source);
        }
        Ok(())
    }

    /// Takes away the probes of a process that is gone, soon: nobody waits for it.
    pub fn detach_entries(&mut self, pid: u32) {
        let is_its = |(of, _): &mut (u32, Held)| *of == pid;
        let held = self.entries.extract_if(.., is_its).map(|(_, held)| held);
        let mut all: Vec<Held> = held.collect();
        if let Some(multi) = self.uprobe_multi() {
            all.extend(multi.detach(pid).map(|link| Box::new(link) as Held));
        }
        self.closer.close(all);
    }
}
