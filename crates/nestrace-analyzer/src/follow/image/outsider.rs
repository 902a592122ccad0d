//! Processes of the host that read a guest's image beside QEMU, as a backup does: what they read is no I/O of the
//! guest.

use nestrace_abi::flags;
use nestrace_trace::Event;
use nestrace_trace::manifest::{Guest, Topology};

use super::{ImageState, Images};
use crate::model::threads::Threads;

/// What is known of a guest's QEMU.
#[derive(Clone, Copy, Debug)]
struct Qemu {
    /// Its process, as the manifest has it; 0 if it is not known.
    pid: u32,
    /// The thread that did file I/O last.
    caller: Option<u32>,
}

impl Qemu {
    fn process(self, threads: &Threads) -> Option<u32> {
        let caller = self.caller.and_then(|tid| threads.get(tid));
        let process = caller.map_or(self.pid, |caller| caller.tgid);
        (process != 0).then_some(process)
    }
}

/// The QEMUs of all guests, by the guest's number.
#[derive(Debug, Default)]
pub(super) struct Qemus(Vec<Qemu>);

impl Qemus {
    pub(super) fn of(topology: &Topology) -> Self {
        let qemu = |guest: &Guest| Qemu {
            pid: guest.pid,
            caller: None,
        };
        Self(topology.guests.iter().map(qemu).collect())
    }
}

impl Images {
    /// A thread does file I/O for a guest.
    pub(crate) fn called_by(&mut self, guest: u32, tid: u32) {
        if let Some(qemu) = self.qemus.0.get_mut(guest as usize) {
            qemu.caller = Some(tid);
        }
    }

    /// Whether a bio of an image is known to be for another process than the QEMUs that have the file. Write-back is
    /// by whoever comes along, so that of what goes through the page cache only reads are anybody's own.
    pub(crate) fn is_for_another(&self, image: u32, event: &Event, threads: &Threads) -> bool {
        if event.op() != flags::OP_READ && event.sub == flags::OWNER_PAGES {
            return false;
        }
        let Some(thread) = threads.get(event.tid) else {
            return false;
        };
        let is_its_own = |state: &ImageState| {
            let guest = self.disks.get(state.disk() as usize).map(|disk| disk.guest);
            let qemu = guest.and_then(|guest| self.qemus.0.get(guest as usize));
            let qemu = qemu.and_then(|qemu| qemu.process(threads));
            qemu.is_none_or(|qemu| qemu == thread.tgid)
        };
        let is_own = match self.images.get(image as usize) {
            Some(state) if !state.shared => is_its_own(state),
            _ => self.of_same_file(image).any(|(_, state)| is_its_own(state)),
        };
        !is_own && !thread.is_of_kernel()
    }
}
