//! What happens to guests while they are recorded: they exit, open and close images, are reset and paused.

use std::collections::BTreeSet;
use std::time::Instant;

use nestrace_trace::manifest::{Backend, Guest, Image};

use super::backends::{BackendFinder, LAST_ANSWERS};
use super::watch::{self, Watched};
use super::{End, Options, Recorder};
use crate::topology::block_device;
use crate::topology::image_file::FileIdentity;

/// Of all notices, so many at most tell of resets and pauses: a guest that resets itself in a loop must not
/// leave no room for the others.
const MAX_MACHINE_NOTICES: usize = 100;
/// The same of files: QEMU opens one for each that a guest opens in a folder of the host's.
const MAX_FILE_NOTICES: usize = 100;
/// BlockBackends of a guest that are looked at and kept in the manifest; a QEMU has one for each disk.
pub(super) const MAX_BACKENDS: usize = 1024;

/// What is known of a guest beyond the manifest.
pub(super) struct GuestState {
    watched: Watched,
    backends: BackendFinder,
    known: BTreeSet<u64>,
    gone: bool,
}

impl GuestState {
    /// Those of the topology.
    pub(super) fn all(options: &Options) -> Vec<Self> {
        let guests = options.topology.guests.iter();
        let mut open_files = options.open_files.iter();
        guests
            .map(|guest| Self {
                watched: Watched::new(guest.pid, open_files.next().cloned().flatten()),
                backends: BackendFinder::start(guest.pid),
                known: BTreeSet::new(),
                gone: false,
            })
            .collect()
    }
}

impl Recorder {
    pub(super) fn look_at_guests(&mut self) -> Option<End> {
        let (mut exited, mut files) = (Vec::new(), Vec::new());
        for (state, guest) in self.guests.iter_mut().zip(&self.manifest.topology.guests) {
            if state.gone {
                continue;
            }
            if state.watched.is_alive() {
                changes_of_files(&mut state.watched, guest, &mut files);
            } else {
                state.gone = true;
                exited.push(format!("guest {} (pid {}) exited", guest.name, guest.pid));
            }
        }
        for message in exited {
            self.notice("guest_exited", &message);
        }
        for (what, message) in files {
            self.n_file_notices += 1;
            match self.n_file_notices {
                ..MAX_FILE_NOTICES => self.notice(what, &message),
                MAX_FILE_NOTICES => {
                    self.notice(what, &format!("{message}; more such files are not told"));
                }
                _ => break,
            }
        }
        let all_gone = !self.guests.is_empty() && self.guests.iter().all(|guest| guest.gone);
        all_gone.then_some(End::GuestsGone)
    }

    /// Has it looked for in QEMU's memory which disk a BlockBackend belongs to, once each, and takes what was found.
    pub(super) fn identify_backends(&mut self) {
        for (index, address) in std::mem::take(&mut self.sink.new_backends) {
            let Some(state) = self.guests.get_mut(index as usize) else {
                continue;
            };
            let Some(guest) = self.manifest.topology.guests.get_mut(index as usize) else {
                continue;
            };
            if state.known.len() >= MAX_BACKENDS {
                continue;
            }
            let is_first = state.known.is_empty();
            if state.known.insert(address) {
                state.backends.ask(address, guest, is_first);
            }
        }
        self.take_backends(BackendFinder::found);
    }

    /// The same at the end, when what has not been answered is found by elimination.
    pub(super) fn identify_last_backends(&mut self) {
        self.identify_backends();
        let deadline = Instant::now() + LAST_ANSWERS;
        self.take_backends(|backends| backends.last(deadline));
    }

    fn take_backends(&mut self, found: impl Fn(&mut BackendFinder) -> Vec<Backend>) {
        let guests = self.manifest.topology.guests.iter_mut();
        for (state, guest) in self.guests.iter_mut().zip(guests) {
            for mut backend in found(&mut state.backends) {
                // As in the stream.
                backend.address = self.sink.shift.address(backend.address);
                guest.backends.push(backend);
                self.manifest_changed = true;
            }
        }
    }

    /// Says which guests were reset, stopped and started, at the time at which they were.
    pub(super) fn note_machine_states(&mut self) {
        for event in std::mem::take(&mut self.sink.machine_states) {
            let guest = self.manifest.topology.guests.get(event.dev as usize);
            let notice = guest.and_then(|guest| watch::machine_notice(&event, &guest.name));
            if let Some((what, message)) = notice
                && self.n_machine_notices < MAX_MACHINE_NOTICES
            {
                self.n_machine_notices += 1;
                self.notice_at(event.ts_ns, what, &message);
            }
        }
    }
}

/// Images that a guest closed, and what it opened since it was found.
fn changes_of_files(
    watched: &mut Watched,
    guest: &Guest,
    notices: &mut Vec<(&'static str, String)>,
) {
    let watch::Changes { closed, opened } = watched.changes();
    for file in closed {
        let mut disks = guest.disks.iter();
        let disk = disks.find(|disk| disk.images.iter().any(|image| is_image(file, image)));
        if let Some(disk) = disk {
            let message = format!("guest {} closed an image of disk {}", guest.name, disk.name);
            notices.push(("disk_removed", message));
        }
    }
    for (_, inode) in opened {
        let message = format!(
            "guest {} opened another file (inode {inode}); if that is a new disk, its image is not followed",
            guest.name
        );
        notices.push(("file_opened", message));
    }
}

/// A file's device is that of the file system beneath overlays in the manifest, which `stat` does not show.
fn is_image((device, inode): FileIdentity, image: &Image) -> bool {
    match (device, image.is_block_device) {
        // Of a block device, the number as `stat` has it.
        (0, true) => block_device::from_stat(inode) == image.dev,
        (0, false) | (_, true) => false,
        (_, false) => image.inode == inode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_inode_and_a_device_by_its_number() {
        let file = Image {
            inode: 7,
            dev: 64 << 20,
            ..Image::default()
        };
        assert!(is_image((64, 7), &file) && !is_image((64, 8), &file));
        assert!(!is_image((0, 7), &file));
        // A logical volume, a partition, and a minor that does not fit into the eight bits next to the major.
        for (major, minor) in [(253, 3), (8, 1), (259, 0x12345)] {
            let dev = (major << 20) | minor;
            let volume = Image {
                inode: u64::from(dev),
                dev,
                is_block_device: true,
                ..Image::default()
            };
            assert!(is_image((0, libc::makedev(major, minor)), &volume));
            assert!(!is_image((0, libc::makedev(major, minor + 1)), &volume));
            assert!(!is_image((64, u64::from(dev)), &volume));
        }
    }
}
