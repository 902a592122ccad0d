//! Files that several have: a backing file of many clones, one image that two guests use, or an image that another
//! process of the host reads beside QEMU, as a backup does. What that process reads is no I/O of the guest.
//!
//! What QEMU does with such a file is its guest's, and so is a bio that is queued for that. The rest, such as what
//! write-back writes, may be any disk's: where that is more than a little, no count of the file is reported for one
//! disk.

use nestrace_abi::flags;
use nestrace_trace::Event;
use nestrace_trace::manifest::{Guest, Topology};

use super::{ImageState, Images};
use crate::model::ids::{GuestId, ImageId};
use crate::model::threads::Threads;
use crate::result::verdict::FOLLOWED;

/// What was done to a file that several disks have: calls and bios.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// Known to be one disk's.
    divided: u64,
    /// May be any disk's.
    undivided: u64,
}

impl Use {
    fn is_divided(self) -> bool {
        let all = (self.divided + self.undivided) as f64;
        self.divided as f64 >= all * FOLLOWED
    }
}

/// What is known of a guest's QEMU.
#[derive(Clone, Copy, Debug)]
struct Qemu {
    /// Its cgroups have limits of I/O.
    is_limited: bool,
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
            is_limited: !guest.limits.is_empty()
                || guest.limits_at_end.iter().flatten().next().is_some(),
        };
        Self(topology.guests.iter().map(qemu).collect())
    }
}

impl Images {
    /// Whether a limit may hold direct I/O on the image back, whose bios are then queued after the call has returned.
    pub(crate) fn may_be_held(&self, image: u32) -> bool {
        let guest = self.guest_of(image);
        let qemu = guest.and_then(|guest| self.qemus.0.get(guest as usize));
        self.is_direct(image) && qemu.is_some_and(|qemu| qemu.is_limited)
    }

    /// Whether direct I/O on the image is calls to its server, which a worker of the kernel may begin after the call has
    /// returned (SMB, 7.3).
    pub(crate) fn is_direct_at_server(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        self.is_direct(image) && state.is_some_and(|state| state.has_rpcs(self.rpcs_recorded))
    }

    /// Whether two images are one file.
    pub(crate) fn same_file(&self, a: u32, b: u32) -> bool {
        let key = |image: u32| {
            let image = self.images.get(image as usize)?;
            Some((image.about.inode, image.about.dev))
        };
        a == b || key(a).is_some() && key(a) == key(b)
    }

    /// Whether an event of file I/O is on the file of an image.
    pub(crate) fn is_on(&self, event: &Event, image: u32) -> bool {
        let image = self.images.get(image as usize);
        image.is_some_and(|it| (it.about.inode, it.about.dev) == (event.inode, event.owner_dev))
    }

    /// All images that are one file with this one.
    pub(super) fn of_same_file(&self, image: u32) -> impl Iterator<Item = (u32, &ImageState)> {
        let all = (0u32..).zip(&self.images);
        all.filter(move |(other, _)| self.same_file(*other, image))
    }

    /// One number for all images that are one file.
    pub(crate) fn file_number(&self, image: u32) -> u32 {
        let same = self.is_shared(image).then(|| self.of_same_file(image));
        let first = same.and_then(|mut same| same.next());
        first.map_or(image, |(first, _)| first)
    }

    fn is_shared(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        state.is_some_and(|state| state.shared)
    }

    /// A file of the disk that others use too, and with which things were done that may be theirs.
    pub(crate) fn shared_file(&self, disk: u32) -> Option<&str> {
        let mut of_disk = self.of_disk(disk).map(|(_, state)| state);
        let found = of_disk.find(|state| state.shared && !state.usage.is_divided());
        found.map(|state| state.about.path.as_str())
    }

    /// Changes all images that are one file with this one.
    pub(crate) fn each_of_file(&mut self, image: u32, change: impl Fn(&mut ImageState)) {
        let same: Vec<u32> = self.of_same_file(image).map(|(other, _)| other).collect();
        for other in same {
            if let Some(state) = self.images.get_mut(other as usize) {
                change(state);
            }
        }
    }

    /// Something was done to a file of several disks: known to be one's, or not.
    fn note_use(&mut self, image: u32, is_known: bool) {
        self.each_of_file(image, |state| {
            state.usage.divided += u64::from(is_known);
            state.usage.undivided += u64::from(!is_known);
        });
    }

    /// A guest does I/O on a file: if several disks have it, it is one disk's where the guest has one with it.
    pub(crate) fn used_by(&mut self, image: ImageId, guest: GuestId) {
        if self.is_shared(image.0) {
            let is_known = self.disks_of(image, guest).len() == 1;
            self.note_use(image.0, is_known);
        }
    }

    /// The disk of a bio on a file of several disks: that of the file I/O that it is queued for, if it is known.
    pub(crate) fn charged(&mut self, image: u32, carrier: impl Fn() -> Option<u32>) -> u32 {
        if !self.is_shared(image) {
            return image;
        }
        let carrier = carrier().filter(|carrier| self.same_file(*carrier, image));
        self.note_use(image, carrier.is_some());
        carrier.unwrap_or(image)
    }

    /// Tells every disk of a guest that uses the file of an image.
    pub(crate) fn each_disk_with(&self, image: ImageId, guest: GuestId, mut tell: impl FnMut(u32)) {
        let Some(state) = self.images.get(image.0 as usize) else {
            return;
        };
        if !state.shared {
            return tell(state.disk());
        }
        self.disks_of(image, guest).into_iter().for_each(tell);
    }

    /// The disks of a guest that use the file of an image.
    pub(crate) fn disks_of(&self, image: ImageId, guest: GuestId) -> Vec<u32> {
        let same = self.of_same_file(image.0);
        let mut disks: Vec<u32> = same
            .filter(|(other, _)| self.guest_of(*other) == Some(guest.0))
            .map(|(_, image)| image.disk())
            .collect();
        disks.dedup();
        disks
    }

    /// A thread does file I/O for a guest.
    pub(crate) fn called_by(&mut self, guest: GuestId, tid: u32) {
        if let Some(qemu) = self.qemus.0.get_mut(guest.0 as usize) {
            qemu.caller = Some(tid);
        }
    }

    /// Whether a bio of an image is known to be for another process than the QEMUs that have the file. Any
    /// thread may write pages back, so of the bios of the page cache only reads name their process.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_that_nobody_knows_does_not_matter() {
        for (divided, undivided, expected) in
            [(0, 0, true), (98, 2, true), (97, 3, false), (0, 1, false)]
        {
            assert_eq!(Use { divided, undivided }.is_divided(), expected);
        }
    }
}
