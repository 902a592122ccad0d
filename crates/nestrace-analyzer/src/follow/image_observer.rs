//! The observer of the host's block layer: finds the image file that a bio is for, counts its bytes, and runs the clocks
//! of the disk.

use nestrace_abi::flags;
use nestrace_trace::Event;

use crate::follow::block::{ClocksOf, Observed, Observer};
use crate::follow::file_io::FileIo;
use crate::follow::image::Images;
use crate::measure::overlap::{Activity, Stages};
use crate::model::aio_key::AioKey;
use crate::model::ids::{DevNo, DiskId, ImageId};
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::stacking::Stacking;
use crate::model::threads::Threads;

/// Images, the clocks of their disks, and QEMU's file I/O on them.
#[derive(Debug)]
pub(crate) struct ImageObserver<'a> {
    pub images: &'a mut Images,
    /// By the numbers of [`Images::disks`].
    pub activity: &'a mut [Activity],
    pub files: &'a mut FileIo,
}

impl ImageObserver<'_> {
    /// The owner of a bio's data, and the owner that it is charged to.
    fn owner_of(&mut self, event: &Event, threads: &Threads) -> (Owner, Owner) {
        let mut owner = self.images.owner(event);
        if event.sub == flags::OWNER_ANONYMOUS
            && let Some(image) = self.files.submitting(event.tid)
            && self
                .images
                .is_over(ImageId(image), DevNo(event.dev), Some(event.offset))
        {
            owner = Owner::Image(image);
        }
        let Owner::Image(image) = owner else {
            return (owner, owner);
        };
        if self.images.is_for_another(image, event, threads) {
            return (owner, Owner::Thread(event.tid));
        }
        if self
            .images
            .is_over(ImageId(image), DevNo(event.dev), Some(event.offset))
        {
            let carrier = || self.files.carrying_image(event);
            owner = Owner::Image(self.images.charged(image, carrier));
        }
        (owner, owner)
    }

    /// Counts a data bio for its image; the clocks that run for it.
    fn clocks_of(&mut self, owner: Owner, event: &Event) -> Option<ClocksOf> {
        match owner {
            Owner::Image(image) => {
                let first = self.images.queued(image, event);
                let disk = self.images.images.get(image as usize)?.disk();
                let direct = matches!(event.sub, flags::OWNER_DIRECT | flags::OWNER_ANONYMOUS);
                first.then_some(if direct {
                    ClocksOf::Direct(disk)
                } else {
                    ClocksOf::Cached(disk)
                })
            }
            Owner::FileSystem => {
                let number = self.images.file_system_at(event.dev, Some(event.offset));
                number.map(ClocksOf::FileSystem)
            }
            Owner::Loop(_) | Owner::Thread(_) => None,
        }
    }
}

impl Observer for ImageObserver<'_> {
    /// Direct I/O from memory that processes share (memfd, `/dev/shm`, huge pages, as a guest with virtiofs has it), which
    /// names no kiocb: a bio that the current call of its thread explains, as one of anonymous memory. Its pages are of a
    /// file in memory, whose super block has no device (major 0); what the file system holds is of its own super block.
    fn explained(&self, queue: &Event) -> Option<Event> {
        if queue.sub != flags::OWNER_PAGES || queue.owner_dev >> 20 != 0 {
            return None;
        }
        let image = self.files.submitting(queue.tid)?;
        let is_memory = matches!(self.images.owner(queue), Owner::Thread(_))
            && !self.images.is_super_block(queue.owner_dev)
            && self
                .images
                .is_over(ImageId(image), DevNo(queue.dev), Some(queue.offset));
        let mut anonymous = *queue;
        anonymous.sub = flags::OWNER_ANONYMOUS;
        anonymous.inode = 0;
        anonymous.owner_dev = 0;
        anonymous.file_offset = 0;
        is_memory.then_some(anonymous)
    }

    fn queued(&mut self, queue: &Event, threads: &Threads) -> Observed {
        let (owner, charged) = self.owner_of(queue, threads);
        let clocks = self.clocks_of(charged, queue);
        self.files.bio_queued(queue);
        Observed {
            owner,
            charged,
            clocks,
        }
    }

    fn refused(&mut self, image: u32, operation: Operation, bytes: u64, paged: bool) {
        self.images.refused(image, operation, bytes, paged);
    }

    fn carrier(&self, queue: &Event) -> u64 {
        self.files.carrier(queue)
    }

    fn stacking(&self, dev: u32) -> Option<Stacking> {
        self.images.stacking(dev)
    }

    fn has_parity(&self, dev: u32) -> bool {
        self.images.stacks.has_parity(dev)
    }

    #[inline]
    fn in_flight(&mut self, clocks: ClocksOf, ts_ns: u64, change: impl Fn(&mut Stages)) {
        match clocks {
            ClocksOf::Direct(disk) => {
                if let Some(activity) = self.activity.get_mut(disk as usize) {
                    activity.advance(ts_ns);
                    change(&mut activity.direct);
                }
            }
            ClocksOf::Cached(disk) => {
                if let Some(activity) = self.activity.get_mut(disk as usize) {
                    activity.advance(ts_ns);
                    change(&mut activity.cached);
                }
            }
            ClocksOf::FileSystem(number) => {
                for disk in self.images.disks_of_file_system(number) {
                    if let Some(activity) = self.activity.get_mut(*disk as usize) {
                        activity.advance(ts_ns);
                        change(&mut activity.file_system);
                    }
                }
            }
        }
    }

    fn flushes_in_flight(&mut self, dev: u32, ts_ns: u64, change: impl Fn(&mut Stages)) {
        for (disk, activity) in (0u32..).zip(self.activity.iter_mut()) {
            if self.images.is_beneath(DevNo(dev), DiskId(disk)) {
                activity.advance(ts_ns);
                change(&mut activity.file_system);
            }
        }
    }

    fn bio_ended(&mut self, aio: AioKey, bytes: u64, ts_ns: u64) {
        self.files
            .bio_ended(aio, bytes, ts_ns, self.images, self.activity);
    }
}
