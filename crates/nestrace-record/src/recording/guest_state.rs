//! What happens to guests while they are recorded: they exit, open and close images, are reset and paused.

use std::collections::BTreeSet;
use std::io;

use nestrace_output::bundle_dir::{BundleDir, BundleError};
use nestrace_probes::block_device;
use nestrace_trace::bundle::IMAGE_MAPS;
use nestrace_trace::manifest::{Backend, Guest, Image};

use super::open_manifest::OpenManifest;
use super::sink::Sink;
use super::watch::{self, Watched};
use super::{End, Options};
use crate::roles::reader::Reader;
use crate::roles::watcher::{Changes, Watcher};
use crate::topology::image_file::FileIdentity;

/// Of all notices, so many at most tell of resets and pauses: a guest that resets itself in a loop must not
/// leave no room for the others.
const MAX_MACHINE_NOTICES: usize = 100;
/// The same of files: QEMU opens one for each that a guest opens in a folder of the host's.
const MAX_FILE_NOTICES: usize = 100;
/// BlockBackends of a guest that are looked at and kept in the manifest; a QEMU has one for each disk.
pub(super) const MAX_BACKENDS: usize = 1024;

/// What is known of a guest beyond the manifest.
struct GuestState {
    watched: Watched,
    known: BTreeSet<u64>,
    gone: bool,
}

/// The guests of a recording, and the processes that look at them.
pub(super) struct Guests {
    states: Vec<GuestState>,
    watcher: Watcher,
    reader: Reader,
    has_image_maps: bool,
    n_machine_notices: usize,
    n_file_notices: usize,
}

impl Guests {
    /// Those of the topology.
    pub fn new(options: &Options, watcher: Watcher, reader: Reader, has_image_maps: bool) -> Self {
        let guests = options.topology.guests.iter();
        let states = guests.map(|guest| GuestState {
            watched: Watched::new(guest.pid),
            known: BTreeSet::new(),
            gone: false,
        });
        Self {
            states: states.collect(),
            watcher,
            reader,
            has_image_maps,
            n_machine_notices: 0,
            n_file_notices: 0,
        }
    }

    /// Says which have exited, and which files of images were opened and closed. Gives why the recording has to end, if
    /// it has to.
    pub fn look(&mut self, manifest: &mut OpenManifest) -> Option<End> {
        let mut exited = Vec::new();
        for (state, guest) in self.states.iter_mut().zip(&manifest.value.topology.guests) {
            if state.gone {
                continue;
            }
            if !state.watched.is_alive() {
                state.gone = true;
                exited.push(format!("guest {} (pid {}) exited", guest.name, guest.pid));
            }
        }
        for message in exited {
            manifest.notice("guest_exited", &message);
        }
        for (what, message) in self.changes_of_files(manifest) {
            self.n_file_notices += 1;
            match self.n_file_notices {
                ..MAX_FILE_NOTICES => manifest.notice(what, &message),
                MAX_FILE_NOTICES => {
                    manifest.notice(
                        what,
                        &format!("{message}; further such files are not reported"),
                    );
                }
                _ => break,
            }
        }
        let all_gone = !self.states.is_empty() && self.states.iter().all(|guest| guest.gone);
        all_gone.then_some(End::GuestsGone)
    }

    /// What the watcher has noticed.
    fn changes_of_files(&mut self, manifest: &mut OpenManifest) -> Vec<(&'static str, String)> {
        let all = match self.watcher.changes() {
            Ok(all) => all,
            Err(error) => {
                let message = format!(
                    "images that guests open or close are not noticed any more: the watcher has failed ({error})"
                );
                manifest.notice("watcher_gone", &message);
                Vec::new()
            }
        };
        let mut notices = Vec::new();
        for changes in all {
            let guest = manifest.value.topology.guests.get(changes.guest);
            let is_gone = |state: &GuestState| state.gone;
            if let Some(guest) = guest
                && !self.states.get(changes.guest).is_none_or(is_gone)
            {
                notices_of(&changes, guest, &mut notices);
            }
        }
        notices
    }

    /// Has it looked for in QEMU's memory which disk a BlockBackend belongs to, once each, and takes what was found.
    pub fn identify_backends(&mut self, sink: &mut Sink, manifest: &mut OpenManifest) {
        for (index, address) in std::mem::take(&mut sink.new_backends) {
            let guest = index as usize;
            let Some(state) = self.states.get_mut(guest) else {
                continue;
            };
            if state.known.len() >= MAX_BACKENDS {
                continue;
            }
            let is_first = state.known.is_empty();
            if state.known.insert(address) {
                self.reader.ask(guest, address, is_first);
            }
        }
        let found = self.reader.found();
        take_backends(found, sink, manifest);
    }

    /// The same at the end, when what has not been answered is found by elimination.
    pub fn identify_last_backends(&mut self, sink: &mut Sink, manifest: &mut OpenManifest) {
        self.identify_backends(sink, manifest);
        if self.states.iter().any(|state| !state.known.is_empty()) {
            let found = self.reader.last();
            take_backends(found, sink, manifest);
        }
    }

    /// Says which guests were reset, stopped and started, at the time at which they were.
    pub fn note_machine_states(&mut self, sink: &mut Sink, manifest: &mut OpenManifest) {
        for event in std::mem::take(&mut sink.machine_states) {
            let guest = manifest.value.topology.guests.get(event.dev as usize);
            let notice = guest.and_then(|guest| watch::machine_notice(&event, &guest.name));
            if let Some((what, message)) = notice
                && self.n_machine_notices < MAX_MACHINE_NOTICES
            {
                self.n_machine_notices += 1;
                manifest.notice_at(event.ts_ns, what, &message);
            }
        }
    }

    /// Reads the tables of the images for the first time.
    ///
    /// # Errors
    /// If there is no file for them.
    pub fn read_image_maps(
        &mut self,
        dir: &mut BundleDir,
        manifest: &mut OpenManifest,
    ) -> Result<(), BundleError> {
        if self.has_image_maps {
            let file = dir.new_file(IMAGE_MAPS)?;
            if let Err(error) = self.reader.read_first(&file) {
                let message = format!("the first look at the images' tables failed: {error}");
                manifest.notice("image_maps", &message);
            }
        }
        Ok(())
    }

    /// Has the tables read for another bundle, without waiting for it.
    ///
    /// # Errors
    /// If there is no file for them.
    pub fn begin_image_maps(&self, dir: &BundleDir) -> Result<(), BundleError> {
        if self.has_image_maps {
            let file = dir.new_file(IMAGE_MAPS)?;
            // Where the reader is gone, a notice has said so.
            let _ = self.reader.begin_first(&file);
        }
        Ok(())
    }

    /// Has the tables read again and written, without waiting for it.
    pub fn ask_for_image_maps(&mut self) {
        if self.has_image_maps {
            let _ = self.reader.begin_maps();
        }
    }

    /// Whether that is over.
    pub fn has_image_maps_written(&mut self) -> bool {
        !self.has_image_maps || self.reader.are_maps_written().is_some()
    }

    /// The tables as they are now; QEMU's newest entries may still be in its memory.
    pub fn write_image_maps(&mut self, manifest: &mut OpenManifest) {
        if self.has_image_maps
            && let Err(error) = self.reader.write_maps()
        {
            manifest.notice(
                "image_maps",
                &format!("{IMAGE_MAPS} cannot be written: {error}"),
            );
        }
        for note in self.reader.notes() {
            manifest.notice("image_maps", &note);
        }
    }
}

/// Takes BlockBackends whose disks are known into the manifest.
fn take_backends(
    found: io::Result<Vec<(usize, Backend)>>,
    sink: &Sink,
    manifest: &mut OpenManifest,
) {
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let message = format!(
                "some of QEMU's I/O cannot be assigned to a disk: the reader has failed ({error})"
            );
            manifest.notice("reader_gone", &message);
            return;
        }
    };
    for (index, mut backend) in found {
        if let Some(guest) = manifest.value.topology.guests.get_mut(index) {
            // As in the stream.
            backend.address = sink.shift.address(backend.address);
            guest.backends.push(backend);
            manifest.changed = true;
        }
    }
}

/// Images that a guest closed, and what it opened since it was found.
fn notices_of(changes: &Changes, guest: &Guest, notices: &mut Vec<(&'static str, String)>) {
    for file in &changes.closed {
        let mut disks = guest.disks.iter();
        let disk = disks.find(|disk| disk.images.iter().any(|image| is_image(*file, image)));
        if let Some(disk) = disk {
            let message = format!("guest {} closed an image of disk {}", guest.name, disk.name);
            notices.push(("disk_removed", message));
        }
    }
    for (_, inode) in &changes.opened {
        let message = format!(
            "guest {} opened another file (inode {inode}); if that is a new disk, its image is not followed",
            guest.name
        );
        notices.push(("file_opened", message));
    }
}

/// A file's device is that of the file system below overlays in the manifest, which `stat` does not show.
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
