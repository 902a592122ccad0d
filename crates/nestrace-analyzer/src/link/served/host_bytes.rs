//! Bytes that reach the device for each disk, by what they are for.

use nestrace_abi::flags;

use super::clusters::Clusters;
use super::read_ahead::ReadAhead;
use crate::follow::image::Images;
use crate::model::ids::{DiskId, ImageId};
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::BioSpan;
use crate::result::analysis::{ClassBytes, Classes, ReadWrite};

/// Bytes of one disk's images.
#[derive(Clone, Copy, Debug, Default)]
struct DiskBytes {
    data: ReadWrite,
    image_metadata: ReadWrite,
    /// Some may be metadata of the image: the map is not known.
    unmapped: bool,
    readahead: u64,
    device: ReadWrite,
}

/// Bytes of one file system's own, on one device.
#[derive(Clone, Copy, Debug, Default)]
struct FileSystemBytes {
    /// Of [`Images::file_system_at`].
    number: u32,
    journal: ReadWrite,
    metadata: ReadWrite,
    device: ReadWrite,
}

/// What was counted, of all disks.
#[derive(Debug, Default)]
pub(super) struct HostBytes {
    disks: Vec<DiskBytes>,
    file_systems: Vec<FileSystemBytes>,
    read_ahead: ReadAhead,
}

/// The host's part of a disk's amplification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskOnHost {
    /// Bios at the first device under the images.
    pub host: ReadWrite,
    /// The requests that they became.
    pub device: ReadWrite,
    /// The bios by what they are for.
    pub by_class: ClassBytes,
    /// The same by direction, without what was read ahead.
    pub classes: Classes,
    /// Of the bytes read ahead, those that QEMU did not come for.
    pub readahead_unused: u64,
    /// Other disks on the same file systems.
    pub shared_with: u64,
}

/// What tells where in its image a bio is, and what lies there.
pub(super) struct InImage<'a> {
    /// Offset in the file, and bytes.
    pub range: (u64, u64),
    /// What the reader that queued it asked for, in whole pages: offset in the file, and end. Linux marks
    /// these pages as read-ahead too.
    pub asked: Option<(u64, u64)>,
    pub images: &'a Images,
    pub clusters: &'a Clusters,
}

impl InImage<'_> {
    /// Bytes of a read-ahead bio that somebody asked for.
    fn asked_bytes(&self) -> u64 {
        let (offset, bytes) = self.range;
        let end = offset.saturating_add(bytes);
        self.asked
            .map_or(0, |(from, to)| end.min(to).saturating_sub(offset.max(from)))
    }

    /// What of it was not asked for: before and behind what was.
    fn ahead(&self) -> [(u64, u64); 2] {
        let (offset, bytes) = self.range;
        let end = offset.saturating_add(bytes);
        let (from, to) = self.asked.unwrap_or((offset, offset));
        [(offset, from.min(end)), (to.max(offset), end)]
    }

    fn holds_data(&self, image: u32) -> Option<bool> {
        let (offset, bytes) = self.range;
        self.clusters.holds_data(image, offset, bytes)
    }
}

impl HostBytes {
    pub(super) fn new(n_disks: usize) -> Self {
        Self {
            disks: vec![DiskBytes::default(); n_disks],
            file_systems: Vec::new(),
            read_ahead: ReadAhead::new(n_disks),
        }
    }

    /// Counts a host bio that has ended. `journal`: it belongs to the file system's journal.
    pub(super) fn bio(&mut self, bio: &BioSpan, journal: bool, place: &InImage<'_>) {
        let images = place.images;
        if bio.empty_flush || !matches!(bio.operation, Operation::Read | Operation::Write) {
            return;
        }
        match bio.owner {
            Owner::Image(_) if bio.for_another => {}
            Owner::Image(image) if images.is_under(image, bio) => {
                let Some(number) = images.disk_of(image) else {
                    return;
                };
                let Some(disk) = self.disks.get_mut(number as usize) else {
                    return;
                };
                let holds_data = place.holds_data(image);
                disk.unmapped |= holds_data.is_none();
                add(&mut disk.device, bio.operation, at_the_device(bio));
                let ahead = bio.operation == Operation::Read && bio.flags & flags::RAHEAD != 0;
                let asked = if ahead {
                    place.asked_bytes()
                } else {
                    bio.bytes
                };
                disk.readahead += bio.bytes.saturating_sub(asked);
                for range in place.ahead().into_iter().filter(|_| ahead) {
                    let file = images.file_number(image);
                    self.read_ahead.read(ImageId(file), range, DiskId(number));
                }
                if holds_data == Some(false) {
                    add(&mut disk.image_metadata, bio.operation, asked);
                } else {
                    add(&mut disk.data, bio.operation, asked);
                }
            }
            Owner::FileSystem => {
                let Some(number) = images.file_system_at(bio.dev, bio.place()) else {
                    return;
                };
                let own = self.file_system(number);
                add(&mut own.device, bio.operation, at_the_device(bio));
                let total = if journal {
                    &mut own.journal
                } else {
                    &mut own.metadata
                };
                add(total, bio.operation, bio.bytes);
            }
            _ => {}
        }
    }

    /// QEMU has read these bytes of an image.
    pub(super) fn asked(&mut self, image: u32, range: (u64, u64), images: &Images) {
        self.read_ahead
            .asked(ImageId(images.file_number(image)), range);
    }

    fn file_system(&mut self, number: u32) -> &mut FileSystemBytes {
        let mut known = self.file_systems.iter();
        let place = known.position(|known| known.number == number);
        let place = place.unwrap_or_else(|| {
            self.file_systems.push(FileSystemBytes {
                number,
                ..FileSystemBytes::default()
            });
            self.file_systems.len() - 1
        });
        &mut self.file_systems[place]
    }

    /// What is known of a disk; of the file systems below it, its part.
    pub(super) fn finish(&self, disk: u32, images: &Images) -> DiskOnHost {
        let Some(own) = self.disks.get(disk as usize) else {
            return DiskOnHost::default();
        };
        let (mut host, mut device) = (sum(own.data, own.image_metadata), own.device);
        host.read += own.readahead;
        let (mut journal, mut metadata) = (ReadWrite::default(), ReadWrite::default());
        let mut neighbours: Vec<u32> = Vec::new();
        for file_system in &self.file_systems {
            let disks = images.disks_of_file_system(file_system.number);
            if !disks.contains(&disk) {
                continue;
            }
            neighbours.extend(disks.iter().copied().filter(|other| *other != disk));
            let part = |total: ReadWrite| self.part(total, disk, disks);
            let (of_journal, of_metadata) = (part(file_system.journal), part(file_system.metadata));
            journal = sum(journal, of_journal);
            metadata = sum(metadata, of_metadata);
            host = sum(host, sum(of_journal, of_metadata));
            device = sum(device, part(file_system.device));
        }
        neighbours.sort_unstable();
        neighbours.dedup();
        let classes = Classes {
            data: own.data,
            image_metadata: (!own.unmapped).then_some(own.image_metadata),
            host_journal: journal,
            host_metadata: metadata,
        };
        let both = |bytes: ReadWrite| bytes.read + bytes.write;
        DiskOnHost {
            host,
            device,
            by_class: ClassBytes {
                data: Some(both(classes.data)),
                image_metadata: classes.image_metadata.map(both),
                host_journal: Some(both(journal)),
                host_metadata: Some(both(metadata)),
                readahead: Some(own.readahead),
            },
            classes,
            readahead_unused: own
                .readahead
                .saturating_sub(self.read_ahead.settled(DiskId(disk))),
            shared_with: neighbours.len() as u64,
        }
    }

    /// A disk's part of what the file system did for all `disks` on it: as its written bytes are; without
    /// writes, the same for each.
    fn part(&self, total: ReadWrite, disk: u32, disks: &[u32]) -> ReadWrite {
        let written = |disk: &u32| {
            let bytes = self.disks.get(*disk as usize);
            bytes.map_or(0, |bytes| bytes.data.write + bytes.image_metadata.write)
        };
        let all: u64 = disks.iter().map(written).sum();
        let (mine, all) = match all {
            0 => (1, disks.len().max(1) as u64),
            all => (written(&disk), all),
        };
        let of = |bytes: u64| (u128::from(bytes) * u128::from(mine) / u128::from(all)) as u64;
        ReadWrite {
            read: of(total.read),
            write: of(total.write),
        }
    }
}

/// Bytes of a bio's requests that are its own: a request may carry others' bytes too, and a mirror has
/// one for each half.
fn at_the_device(bio: &BioSpan) -> u64 {
    let requests = bio.requests.iter().filter(|request| !request.flush);
    requests.map(|request| request.bytes.min(bio.bytes)).sum()
}

fn add(total: &mut ReadWrite, operation: Operation, bytes: u64) {
    match operation {
        Operation::Read => total.read += bytes,
        Operation::Write => total.write += bytes,
        Operation::Discard | Operation::Other => {}
    }
}

fn sum(a: ReadWrite, b: ReadWrite) -> ReadWrite {
    ReadWrite {
        read: a.read + b.read,
        write: a.write + b.write,
    }
}
