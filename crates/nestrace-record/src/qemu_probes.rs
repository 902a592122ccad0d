//! The entry probes of one QEMU: where they go, from its program and its debug symbols.

use std::fs::File;

use nestrace_kernel::{
    facts::KernelFacts,
    plan::{PlannedProbe, plan_qemu},
    probes::{How, QEMU},
};
use nestrace_probes::{entry::Place, load::Probes};

use crate::guest::program::{ParsedProgram, Program};
use crate::qemu_symbols::Located;
use crate::qemu_symbols::debug_file::{self, DebugFileError};

/// Why a guest's QEMU has no probes.
const NOT_PARSED: &str = "its program could not be read";

/// Attaches every entry probe to the QEMU with this pid that started at `start_ticks`. Only the inode that was `parsed`
/// is probed, whatever the process executes meanwhile, and in which mount namespace.
///
/// Attaches only programs for which `wanted` is true, by name. Functions that the program does not name are looked up in
/// `debug`, a file of its debug symbols. Returns why that file cannot be used.
pub(crate) fn attach(
    probes: &mut Probes,
    facts: &KernelFacts,
    (pid, start_ticks): (u32, u64),
    parsed: Option<&ParsedProgram>,
    guest: &str,
    debug: Option<&File>,
    wanted: &dyn Fn(&str) -> bool,
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
    plan.attach.retain(|probe| wanted(probe.program));
    plan.refused.retain(|probe| wanted(probe.program));
    let program = match &found {
        Ok((program, _)) => *program,
        Err(reason) => {
            for probe in &mut plan.refused {
                probe.reason.clone_from(reason);
            }
            probes.note_planned_refusals(&plan, Some(guest));
            return of_no_use;
        }
    };
    probes.note_planned_refusals(&plan, Some(guest));
    let code = program.mapped_code();
    for probe in &plan.attach {
        let place = place(&located, probe).and_then(|place| {
            let code = code.as_ref().map_err(ToString::to_string)?;
            code.check(place.offset)
                .map_err(|error| error.to_string())?;
            Ok(place)
        });
        let attached =
            place.and_then(|place| probes.attach_entry(probe, place, &program.path(), pid));
        match attached {
            Ok(()) => probes.note_attached(probe, Some(guest)),
            Err(reason) => probes.note_refused(probe, reason, Some(guest)),
        }
    }
    of_no_use
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
            "the USDT probe has its arguments in another place ({})",
            note.args
        ));
    }
    Ok(Place {
        offset: note.location,
        semaphore: note.semaphore,
    })
}
