//! How far a disk's I/O was seen below QEMU.
//!
//! That file I/O and bios were recorded says nothing of one disk: its data may lie elsewhere (rbd, nbd), in a
//! file that QEMU opened later (a snapshot), or on no block device of this host (NFS, ZFS).

use nestrace_trace::{Manifest, manifest};

use crate::follow::image::{ImageState, Images};
use crate::follow::qemu::Overlap;
use crate::measure::overlap::Activity;
use crate::model::data_path::{DataPath, Unseen};
use crate::result::units::{count, of};

/// Writes without file I/O are of another file when more than one of this many: fewer were in flight when
/// the recording began, or are zeroes that the image has already.
const SOME: u64 = 50;

/// Whether QEMU served a disk's requests without file I/O on its images.
fn without_file_io(overlap: &Overlap, any_file_io: bool) -> bool {
    let nothing = !any_file_io && overlap.reads + overlap.writes > 0;
    nothing || overlap.writes_alone.saturating_mul(SOME) > overlap.writes
}

/// The images of a disk that have I/O: its own, and backing files as far as they were used.
fn in_use(images: &Images, number: u32) -> impl Iterator<Item = (u32, &ImageState)> {
    let of_disk = images.of_disk(number);
    of_disk.filter(|(image, state)| !images.is_backing(*image) || state.file.any())
}

/// An image that bios would have to come from, and none can.
fn without_device(images: &Images, number: u32) -> Option<u32> {
    let mut in_use = in_use(images, number);
    let lacks = in_use.find(|(image, _)| !images.has_device(*image));
    lacks.map(|(image, _)| image)
}

/// Whether servers have all data of a disk that is in use.
fn is_on_server(images: &Images, number: u32) -> bool {
    let mut in_use = in_use(images, number).peekable();
    in_use.peek().is_some() && in_use.all(|(_, state)| state.has_server())
}

/// What says how far the disks' I/O was seen.
pub(crate) struct DataPaths<'a> {
    pub manifest: &'a Manifest,
    pub images: &'a Images,
    pub activity: &'a [Activity],
    /// By the numbers of disks.
    pub overlap: &'a [Overlap],
    pub file_io_recorded: bool,
    pub bios_recorded: bool,
}

impl DataPaths<'_> {
    /// How far the I/O of a disk was seen.
    pub(crate) fn of(&self, number: u32) -> DataPath {
        let place = number as usize;
        let elsewhere = self
            .disk_of_manifest(number)
            .is_none_or(|disk| disk.images.is_empty() || disk.not_followed.is_some());
        let any_file_io = self.activity.get(place).is_some_and(|it| it.any_file_io);
        let overlap = self.overlap.get(place);
        let file_io = match overlap {
            _ if elsewhere => Some(Unseen::Elsewhere),
            _ if !self.file_io_recorded || self.by_unseen_uring(number) => {
                Some(Unseen::NotRecorded)
            }
            Some(overlap) if without_file_io(overlap, any_file_io) => Some(Unseen::NoFileIo),
            _ => None,
        };
        let host_bio = match file_io {
            Some(unseen @ (Unseen::Elsewhere | Unseen::NoFileIo)) => Some(unseen),
            _ if is_on_server(self.images, number) => Some(Unseen::OnServer),
            _ if !self.bios_recorded => Some(Unseen::NotRecorded),
            _ => without_device(self.images, number).map(|_| Unseen::NoDevice),
        };
        DataPath {
            file_io,
            host_bio,
            shared: self.images.shared_file(number).is_some(),
        }
    }

    /// Whether QEMU does a disk's file I/O by io_uring on a kernel that says too little of it.
    fn by_unseen_uring(&self, number: u32) -> bool {
        let uring = |disk: &manifest::Disk| disk.aio.as_deref() == Some("io_uring");
        let mut refused = self.manifest.refused.iter();
        self.disk_of_manifest(number).is_some_and(uring)
            && refused.any(|probe| probe.name == "io_uring_submit_req")
    }

    fn disk_of_manifest(&self, number: u32) -> Option<&manifest::Disk> {
        let disk = self.images.disks.get(number as usize)?;
        let guest = self.manifest.topology.guests.get(disk.guest as usize)?;
        guest.disks.get(disk.disk as usize)
    }

    /// Which disks' I/O was not seen or not distinguished from others', and why; of those that did something.
    pub(crate) fn unseen_disks(&self) -> Vec<String> {
        let numbers = (0u32..).take(self.images.disks.len());
        numbers
            .flat_map(|number| [self.unseen(number), self.undivided(number)])
            .flatten()
            .collect()
    }

    fn undivided(&self, number: u32) -> Option<String> {
        let disk = self.images.disks.get(number as usize)?;
        let overlap = self.overlap.get(number as usize)?;
        let file = self
            .images
            .shared_file(number)
            .filter(|_| overlap.requests > 0)?;
        Some(format!(
            "{} of {}: {file} serves other disks too, so its bytes cannot be attributed",
            disk.name, disk.guest_name
        ))
    }

    fn unseen(&self, number: u32) -> Option<String> {
        let disk = self.images.disks.get(number as usize)?;
        let overlap = self.overlap.get(number as usize)?;
        if overlap.requests == 0 {
            return None;
        }
        let name = format!("{} of {}", disk.name, disk.guest_name);
        let path = self.of(number);
        match path.file_io.or(path.host_bio)? {
            // The topology has its name.
            Unseen::NotRecorded | Unseen::OnServer => None,
            Unseen::Elsewhere => {
                let known = self.disk_of_manifest(number)?;
                let reason = known
                    .not_followed
                    .as_deref()
                    .unwrap_or("no file or device of it is known");
                Some(format!("{name} is not followed on this host: {reason}"))
            }
            Unseen::NoFileIo => {
                let which = if overlap.writes_alone > 0 {
                    let writes = of(overlap.writes, "write", "writes");
                    format!("{} of {writes}", count(overlap.writes_alone))
                } else {
                    of(overlap.reads, "read", "reads")
                };
                Some(format!(
                    "{name}: {which} came without file I/O on its images: QEMU used another file meanwhile (a \
                     snapshot, a mirror), or the image is another one than the recording knows"
                ))
            }
            Unseen::NoDevice => {
                let image = without_device(self.images, number)?;
                let fs = self
                    .images
                    .fs_type(image)
                    .map_or_else(String::new, |fs| format!(" ({fs})"));
                Some(format!(
                    "{name}: its image lies on no block device that is known{fs}"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_writes_alone_are_no_other_file() {
        let check = |reads, writes, writes_alone, any_file_io, expected| {
            let overlap = Overlap {
                reads,
                writes,
                writes_alone,
                ..Overlap::default()
            };
            assert_eq!(
                without_file_io(&overlap, any_file_io),
                expected,
                "{overlap:?}"
            );
        };
        check(0, 0, 0, false, false);
        check(10, 0, 0, true, false);
        check(10, 0, 0, false, true);
        check(0, 100, 2, true, false);
        check(0, 100, 3, true, true);
        check(900, 1, 1, true, true);
    }
}
