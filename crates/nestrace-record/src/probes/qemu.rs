//! Attaching the entry probes of one QEMU.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use aya::programs::{
    UProbe,
    uprobe::{UProbeAttachLocation, UProbeScope},
};
use nestrace_kernel::{
    facts::KernelFacts,
    plan::{PlannedProbe, plan_qemu},
    probes::{How, QEMU},
};

use super::counted;
use super::load::{Probes, describe};
use crate::qemu_symbols::{self, Located};

impl Probes {
    /// Attaches every entry probe to the QEMU with this pid. The executable is reached through
    /// `/proc/PID/exe`, so that neither another mount namespace nor an upgrade of the package matters.
    pub fn attach_qemu(&mut self, facts: &KernelFacts, pid: u32, guest: &str) {
        let path = PathBuf::from(format!("/proc/{pid}/exe"));
        let names: Vec<&str> = QEMU.iter().map(|row| row.target).collect();
        // An executable that cannot be read has no symbols either; its probes are refused one by one.
        let located = qemu_symbols::locate_in(&path, &names).unwrap_or_default();
        let functions = located.symbols.keys().cloned().collect();
        let usdt = located
            .usdt
            .iter()
            .map(|probe| probe.name.clone())
            .collect();
        let plan = plan_qemu(facts, &functions, &usdt);
        self.note_planned_refusals(&plan, Some(guest));
        for probe in &plan.attach {
            let place = place(&located, probe);
            match place.and_then(|place| self.attach_entry(probe, place, &path, pid)) {
                Ok(()) => self.note_attached(probe, Some(guest)),
                Err(reason) => self.note_refused(probe, reason, Some(guest)),
            }
        }
    }

    fn attach_entry(
        &mut self,
        probe: &PlannedProbe,
        place: Place,
        path: &Path,
        pid: u32,
    ) -> Result<(), String> {
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
        let event = if let Some(semaphore) = place.semaphore {
            let program = program.fd().map_err(|error| describe(&error))?;
            let event = counted::attach(program, path, pid, place.offset, semaphore);
            Some(event.map_err(|error| format!("the USDT probe cannot be switched on: {error}"))?)
        } else {
            let location = UProbeAttachLocation::AbsoluteOffset(place.offset);
            program
                .attach(location, path, UProbeScope::OneProcess(process))
                .map_err(|error| describe(&error))?;
            None
        };
        self.counted.extend(event);
        if is_new {
            self.watch_misses(probe.program, probe.source);
        }
        Ok(())
    }
}

/// Where in the file a probe goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    /// The counter that switches it on.
    semaphore: Option<u64>,
}

/// Where in the file a planned probe goes. The programs take their arguments from the registers of a
/// call, so a USDT probe serves only where its note names just these.
fn place(located: &Located, probe: &PlannedProbe) -> Result<Place, String> {
    if probe.how != How::Usdt {
        let offset = located.symbols.get(probe.target).copied();
        return offset
            .map(|offset| Place {
                offset,
                semaphore: None,
            })
            .ok_or_else(|| "this QEMU exports no such function".to_owned());
    }
    let note = located
        .usdt
        .iter()
        .find(|note| note.provider == "qemu" && note.name == probe.target)
        .ok_or_else(|| "this QEMU has no such USDT probe".to_owned())?;
    if !note.args.starts_with("8@%rdi 8@%rsi") {
        return Err(format!(
            "the USDT probe has its arguments elsewhere ({})",
            note.args
        ));
    }
    Ok(Place {
        offset: note.location,
        semaphore: note.semaphore,
    })
}
