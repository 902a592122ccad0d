//! Attaching the entry probes of one QEMU.

use std::{fs, num::NonZeroU32, path::PathBuf};

use aya::programs::{UProbe, uprobe::{UProbeAttachLocation, UProbeScope}};
use nestrace_abi::Source;
use nestrace_kernel::probes::{How, ProbeRow, QEMU};

use super::load::{Probes, describe};

impl Probes {
    /// Attaches every entry probe to the QEMU with this pid. The executable is reached through
    /// `/proc/PID/exe`, so that neither another mount namespace nor an upgrade of the package matters.
    pub fn attach_qemu(&mut self, pid: u32, guest: &str) {
        let path = PathBuf::from(format!("/proc/{pid}/exe"));
        let located = fs::read(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
            .map(|elf| crate::qemu_symbols::locate(&elf, &QEMU.iter().map(|row| row.program).collect::<Vec<_>>()));
        for row in QEMU {
            let offset = match &located {
                Ok(located) => located
                    .symbols
                    .get(row.program)
                    .copied()
                    .ok_or_else(|| "this QEMU exports no such function (built without symbols)".to_owned()),
                Err(reason) => Err(reason.clone()),
            };
            match offset.and_then(|offset| self.attach_entry(row, offset, &path, pid)) {
                Ok(()) => self.note_attached(row.program, Source::Qemu, How::Uprobe, Some(guest)),
                Err(reason) => self.refuse(row, row.program, reason, Some(guest)),
            }
        }
    }

    fn attach_entry(&mut self, row: &ProbeRow, offset: u64, path: &PathBuf, pid: u32) -> Result<(), String> {
        let pid = NonZeroU32::new(pid).ok_or_else(|| "not a process".to_owned())?;
        let program = self
            .ebpf_mut()
            .program_mut(row.program)
            .ok_or_else(|| "not in the probe object".to_owned())?;
        let program: &mut UProbe = program.try_into().map_err(|error| describe(&error))?;
        if program.fd().is_err() {
            program.load().map_err(|error| describe(&error))?;
        }
        program
            .attach(UProbeAttachLocation::AbsoluteOffset(offset), path, UProbeScope::OneProcess(pid))
            .map_err(|error| describe(&error))?;
        Ok(())
    }
}
