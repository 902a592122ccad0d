//! Attaching the entry probes of one QEMU.

use std::{fs::File, num::NonZeroU32, path::Path};

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
use super::{load::Probes, refusal::describe};
use crate::guest::program::{ParsedProgram, Program};
use crate::qemu_symbols::Located;
use crate::qemu_symbols::debug_file::{self, DebugFileError};

/// Why a guest's QEMU has no probes.
const NOT_PARSED: &str = "its program could not be looked into";

impl Probes {
    /// Attaches every entry probe to the QEMU with this pid that started at `start_ticks`. Only the inode that was `parsed`
    /// is probed, whatever the process executes meanwhile, and in which mount namespace.
    ///
    /// Functions that it does not name are looked for in `debug`, a file of its debug symbols. Gives back why that is of no
    /// use.
    pub fn attach_qemu(
        &mut self,
        facts: &KernelFacts,
        (pid, start_ticks): (u32, u64),
        parsed: Option<&ParsedProgram>,
        guest: &str,
        debug: Option<&File>,
    ) -> Option<DebugFileError> {
        let program = Program::open(pid, start_ticks);
        // A program that cannot be read has no symbols either; its probes are refused one by one.
        let found = program.as_ref().map_err(ToString::to_string);
        let found = found.and_then(|program| {
            let parsed = parsed.ok_or_else(|| NOT_PARSED.to_owned())?;
            let located = parsed.located(program);
            Ok((program, located.map_err(|error| error.to_string())?))
        });
        let mut located = found
            .as_ref()
            .map_or_else(|_| Located::default(), |(_, located)| (*located).clone());
        let of_no_use = found
            .as_ref()
            .ok()
            .zip(debug)
            .and_then(|((program, _), debug)| {
                let names: Vec<&str> = QEMU.iter().map(|row| row.target).collect();
                debug_file::add(&mut located, program.file(), debug, &names).err()
            });
        let functions = located.symbols.keys().cloned().collect();
        let usdt = located
            .usdt
            .iter()
            .map(|probe| probe.name.clone())
            .collect();
        let mut plan = plan_qemu(facts, &functions, &usdt);
        let program = match &found {
            Ok((program, _)) => *program,
            Err(reason) => {
                for probe in &mut plan.refused {
                    probe.reason.clone_from(reason);
                }
                self.note_planned_refusals(&plan, Some(guest));
                return of_no_use;
            }
        };
        self.note_planned_refusals(&plan, Some(guest));
        let code = program.mapped_code();
        for probe in &plan.attach {
            let place = place(&located, probe).and_then(|place| {
                let code = code.as_ref().map_err(ToString::to_string)?;
                code.check(place.offset)
                    .map_err(|error| error.to_string())?;
                Ok(place)
            });
            let attached =
                place.and_then(|place| self.attach_entry(probe, place, &program.path(), pid));
            match attached {
                Ok(()) => self.note_attached(probe, Some(guest)),
                Err(reason) => self.note_refused(probe, reason, Some(guest)),
            }
        }
        of_no_use
    }

    fn attach_entry(
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
