//! The observer of a block layer: takes each bio at its Q and at its end, and says which owner it has.
//!
//! The block layer itself does not know image files. On a host the observer does: it counts their bytes and runs the
//! clocks of their disks. A guest, or the capture of one machine, has no image files: there the observer is `()`, which
//! costs nothing.

use nestrace_trace::Event;

use crate::measure::overlap::Stages;
use crate::model::aio_key::AioKey;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::stacking::Stacking;
use crate::model::threads::Threads;
use crate::result::unlinked::Reasons;

/// What is lent to the block layer while it takes an event.
#[derive(Debug)]
pub(crate) struct Lent<'a, O> {
    pub observer: &'a mut O,
    pub threads: &'a Threads,
    pub reasons: Reasons,
}

/// The owner of a data bio at Q.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    /// The owner of its data.
    pub owner: Owner,
    /// The owner that it is charged to.
    pub charged: Owner,
    /// The clocks that it lets run.
    pub clocks: Option<ClocksOf>,
}

/// Which clocks of [`crate::measure::overlap`] run for a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClocksOf {
    /// Those of one disk: direct I/O on its image.
    Direct(u32),
    /// Those of one disk: pages of its image.
    Cached(u32),
    /// Those of every disk on a file system, by its number: metadata and journal.
    FileSystem(u32),
}

/// Observes the bios of one machine. By default each method does what is right for a machine without image files.
pub(crate) trait Observer {
    /// The Q of a bio with the owner that it has by the current call of its thread; `None`: the event is right as it is.
    fn explained(&self, _queue: &Event) -> Option<Event> {
        None
    }

    /// A bio with data was queued.
    fn queued(&mut self, queue: &Event, _threads: &Threads) -> Observed {
        let owner = Owner::by_pages(queue);
        Observed {
            owner,
            charged: owner,
            clocks: None,
        }
    }

    /// A device with requests gave a bio of an image back at once, which is queued again.
    fn refused(&mut self, _image: u32, _operation: Operation, _bytes: u64, _paged: bool) {}

    /// Serial of the file I/O in flight that a bio is queued for; 0 if there is none.
    fn carrier(&self, _queue: &Event) -> u64 {
        0
    }

    /// The driver that hands a device's bios on to devices that it stands on.
    fn stacking(&self, _dev: u32) -> Option<Stacking> {
        None
    }

    /// Whether it works in stripes with parity (RAID4, 5, 6).
    fn has_parity(&self, _dev: u32) -> bool {
        false
    }

    /// What is in flight of these clocks changes.
    fn in_flight(&mut self, _clocks: ClocksOf, _ts_ns: u64, _change: impl Fn(&mut Stages)) {}

    /// The device's flushes in flight change: they delay every sync on each of its partitions.
    fn flushes_in_flight(&mut self, _dev: u32, _ts_ns: u64, _change: impl Fn(&mut Stages)) {}

    /// A bio of native aio has ended.
    fn bio_ended(&mut self, _aio: AioKey, _bytes: u64, _ts_ns: u64) {}
}

impl Observer for () {}
