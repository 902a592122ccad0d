//! What the host does later because of the guest: write-back and read-ahead of images that nothing
//! waits for, and metadata that goes to its place after it was in the journal.

use std::collections::BTreeMap;

use nestrace_abi::flags;

use crate::follow::image::Images;
use crate::measure::histogram::Histogram;
use crate::model::file_io_span::FileIoSpan;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::BioSpan;
use crate::result::analysis::Deferred;

/// Written ranges remembered until they are written back. Where more is dirty, delays of the oldest
/// places are not measured.
const MAX_DIRTY: usize = 1 << 20;

/// A written range of an image's page cache.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    end: u64,
    written_ns: u64,
}

/// Deferred work by disk.
#[derive(Debug, Default)]
pub(super) struct DeferredWork {
    disks: Vec<Meter>,
    /// By image and start; ranges do not overlap.
    dirty: BTreeMap<(u32, u64), Dirty>,
}

#[derive(Debug, Default)]
struct Meter {
    reads: u64,
    writes: u64,
    bytes: u64,
    delay: Histogram,
}

impl DeferredWork {
    pub(super) fn new(n_disks: usize) -> Self {
        Self {
            disks: (0..n_disks).map(|_| Meter::default()).collect(),
            dirty: BTreeMap::new(),
        }
    }

    /// QEMU wrote to the page cache of an image.
    pub(super) fn written(&mut self, file: &FileIoSpan) {
        let (start, end) = (file.offset, file.offset.saturating_add(file.bytes));
        self.clean(file.image, start, end);
        if self.dirty.len() < MAX_DIRTY && start < end {
            let dirty = Dirty {
                end,
                written_ns: file.end_ns,
            };
            self.dirty.insert((file.image, start), dirty);
        }
    }

    /// Takes a range out. Gives the time of its last write.
    fn clean(&mut self, image: u32, start: u64, end: u64) -> Option<u64> {
        let overlapping: Vec<(u64, Dirty)> = self
            .dirty
            .range((image, 0)..(image, end))
            .rev()
            .take_while(|(_, dirty)| dirty.end > start)
            .map(|((_, at), dirty)| (*at, *dirty))
            .collect();
        for (at, dirty) in &overlapping {
            self.dirty.remove(&(image, *at));
            if *at < start {
                let head = Dirty {
                    end: start,
                    ..*dirty
                };
                self.dirty.insert((image, *at), head);
            }
            if dirty.end > end {
                self.dirty.insert((image, end), *dirty);
            }
        }
        overlapping.iter().map(|(_, dirty)| dirty.written_ns).max()
    }

    /// A host bio ended; `waited_for` says whether a file I/O waited for it.
    pub(super) fn bio(&mut self, bio: &BioSpan, waited_for: bool, images: &Images) {
        let (disk, image) = match bio.owner {
            _ if bio.for_another => return,
            Owner::Image(image) if bio.owner_kind == flags::OWNER_PAGES => {
                (images.disk_of(image), Some(image))
            }
            // Metadata of a file system that several disks lie on belongs to no single disk.
            Owner::FileSystem if bio.operation == Operation::Write => {
                let number = images.file_system_at(bio.dev, bio.place());
                match number.map(|number| images.disks_of_file_system(number)) {
                    Some([only]) => (Some(*only), None),
                    _ => return,
                }
            }
            _ => return,
        };
        let written_ns = image
            .filter(|_| bio.operation == Operation::Write)
            .and_then(|image| {
                let end = bio.file_offset.saturating_add(bio.bytes);
                self.clean(image, bio.file_offset, end)
            });
        let Some(meter) = disk.and_then(|disk| self.disks.get_mut(disk as usize)) else {
            return;
        };
        if waited_for {
            return;
        }
        match bio.operation {
            Operation::Read => meter.reads += 1,
            Operation::Write => meter.writes += 1,
            Operation::Discard | Operation::Other => return,
        }
        meter.bytes += bio.bytes;
        if let Some(written_ns) = written_ns.filter(|written_ns| *written_ns <= bio.queued_ns) {
            meter.delay.record(bio.queued_ns - written_ns);
        }
    }

    pub(super) fn finish(&self, disk: u32) -> Deferred {
        self.disks
            .get(disk as usize)
            .map_or_else(Deferred::default, |meter| Deferred {
                reads: meter.reads,
                writes: meter.writes,
                bytes: meter.bytes,
                delay_ns: Some(meter.delay.dist()).filter(|dist| dist.n > 0),
            })
    }
}
