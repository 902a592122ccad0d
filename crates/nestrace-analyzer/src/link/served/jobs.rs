//! What QEMU's backup copies, and which of the guest's writes had to wait for it.
//!
//! Before a guest's write changes what was not copied yet, QEMU reads the old data from the image into a buffer of its own,
//! writes this buffer to the backup's target, and only then lets the guest's write go on (`block/copy-before-write.c`,
//! `block/block-copy.c`). So a read of the image that no guest's request asked for, and a write of the same buffer to
//! another file after it, are a copy; a write of the guest into the range that was read, which was there before the copy
//! ended and whose own file I/O began after that, has waited for it. Nothing else is called a wait for a job.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nestrace_abi::{Kind, flags::op};
use nestrace_trace::Event;
use nestrace_trace::manifest::{Guest, Job, Manifest};

use crate::follow::image::Images;
use crate::measure::histogram::Histogram;
use crate::model::actor::Actors;
use crate::model::aio_key::AioKey;
use crate::model::file_io_span::{FileEnd, FileIoSpan};
use crate::model::ids::{GuestId, ImageId};
use crate::model::span::{Below, Layer, Span, What};
use crate::result::analysis::{JobCopies, JobWaits};

/// Copies of a guest that are remembered: more are not made while one request waits.
const MAX_COPIES: usize = 4096;
/// Reads of a guest that may become copies. Each holds a buffer of QEMU's, which frees it after the copy.
const MAX_READS: usize = 4096;
/// Writes in flight.
const MAX_WRITES: usize = 1 << 16;

/// What a job did on a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobHalf {
    pub copies: JobCopies,
    pub waits: JobWaits,
}

/// What is known of a write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WriteKey {
    Thread(u32),
    Ring(u64),
    Aio(AioKey),
}

/// A read of the image into a buffer of QEMU's own.
#[derive(Clone, Copy, Debug)]
struct Read {
    image: u32,
    offset: u64,
    bytes: u64,
    start_ns: u64,
    end_ns: u64,
    /// Bytes of the buffer that writes to other files have taken, and those of them that have ended.
    taken: u64,
    written: u64,
    first_write_ns: u64,
}

/// A range that was copied.
#[derive(Clone, Copy, Debug)]
struct Copied {
    image: u32,
    offset: u64,
    bytes: u64,
    start_ns: u64,
    end_ns: u64,
}

impl Copied {
    fn touches(&self, file: &Span) -> bool {
        self.image == file.place
            && self.offset < file.offset.saturating_add(file.bytes)
            && file.offset < self.offset.saturating_add(self.bytes)
    }
}

/// What is known of a guest's QEMU.
#[derive(Debug, Default)]
struct OfGuest {
    /// By the buffer's address.
    reads: BTreeMap<u64, Read>,
    /// In the order of their ends.
    copies: VecDeque<Copied>,
}

/// Sums of a disk.
#[derive(Debug, Default)]
struct OfDisk {
    /// QEMU did a backup of it.
    has_backup: bool,
    bytes: u64,
    read: Histogram,
    write: Histogram,
    waits: Histogram,
}

/// The backups of all guests.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    guests: Vec<OfGuest>,
    /// By the numbers in `Images::disks`.
    disks: Vec<OfDisk>,
    /// Writes in flight that take from a read's buffer: guest, buffer, bytes.
    writes: HashMap<WriteKey, (u32, u64, u64)>,
    has_any: bool,
}

/// The disk that a job works on; of a guest with a single disk that one.
pub(crate) fn disk_of_job<'m>(guest: &'m Guest, job: &'m Job) -> Option<&'m str> {
    let only = || match guest.disks.as_slice() {
        [only] => Some(only.name.as_str()),
        _ => None,
    };
    job.disk.as_deref().or_else(only)
}

/// Whether a job copies before the guest's writes.
pub(crate) fn copies_before_write(job: &Job) -> bool {
    job.kind == "backup"
}

impl Jobs {
    pub(super) fn new(manifest: &Manifest, images: &Images) -> Self {
        let guests = &manifest.topology.guests;
        let disk = |number: usize| {
            let disk = images.disks.get(number)?;
            let guest = guests.get(disk.guest as usize)?;
            let mut jobs = guest.jobs.iter().filter(|job| copies_before_write(job));
            let is_its = |job: &Job| disk_of_job(guest, job) == Some(disk.name.as_str());
            Some(OfDisk {
                has_backup: jobs.any(is_its),
                ..OfDisk::default()
            })
        };
        let disks: Vec<OfDisk> = (0..images.disks.len())
            .map(|number| disk(number).unwrap_or_default())
            .collect();
        Self {
            guests: guests.iter().map(|_| OfGuest::default()).collect(),
            has_any: disks.iter().any(|disk| disk.has_backup),
            disks,
            writes: HashMap::new(),
        }
    }

    /// Whether QEMU did a backup of one of these disks.
    pub(super) fn has_backup(&self, disks: &[u32]) -> bool {
        let has = |disk: &u32| {
            self.disks
                .get(*disk as usize)
                .is_some_and(|it| it.has_backup)
        };
        self.has_any && disks.iter().any(has)
    }

    /// A file I/O on an image has ended; `is_unasked`: no request of the guest asked for it.
    pub(super) fn file_ended(&mut self, file: &FileIoSpan, is_unasked: bool, images: &Images) {
        if !self.has_any || file.op != op::READ || file.buffer == 0 || file.bytes == 0 {
            return;
        }
        let disks = images.disks_of(ImageId(file.image), GuestId(file.guest));
        let is_copied = is_unasked && file.end == FileEnd::Done && self.has_backup(&disks);
        let Some(guest) = self.guests.get_mut(file.guest as usize) else {
            return;
        };
        // The buffer holds something else from now on.
        let end = file.buffer.saturating_add(file.bytes);
        guest
            .reads
            .retain(|start, read| *start >= end || start.saturating_add(read.bytes) <= file.buffer);
        if is_copied {
            if guest.reads.len() >= MAX_READS {
                guest.reads.clear();
            }
            let read = Read {
                image: file.image,
                offset: file.offset,
                bytes: file.bytes,
                start_ns: file.start_ns,
                end_ns: file.end_ns,
                taken: 0,
                written: 0,
                first_write_ns: 0,
            };
            guest.reads.insert(file.buffer, read);
        }
    }

    /// An event of file I/O, on whatever file.
    pub(super) fn event(&mut self, kind: Kind, event: &Event, images: &Images) {
        if !self.has_any {
            return;
        }
        let (key, begins) = match kind {
            Kind::SyscallEnter => (WriteKey::Thread(event.tid), true),
            Kind::UringSubmit => (WriteKey::Ring(event.object), true),
            Kind::AioSubmit => (WriteKey::Aio(AioKey::of_submission(event)), true),
            Kind::SyscallExit => (WriteKey::Thread(event.tid), false),
            Kind::UringComplete => (WriteKey::Ring(event.object), false),
            Kind::DioComplete => (WriteKey::Aio(AioKey::of_direct_io(event)), false),
            _ => return,
        };
        let before = self.writes.remove(&key);
        if begins {
            self.write_began(key, event);
        } else if let Some(write) = before {
            let has_failed = match kind {
                Kind::DioComplete => event.errno() != 0,
                _ => event.result() < 0,
            };
            self.write_ended(write, has_failed, event.ts_ns, images);
        }
    }

    /// A write takes from a buffer that a read has filled.
    fn write_began(&mut self, key: WriteKey, event: &Event) {
        let buffer = event.first_buffer();
        if event.sub != op::WRITE || buffer == 0 || self.writes.len() >= MAX_WRITES {
            return;
        }
        let Some(guest) = self.guests.get_mut(event.dev as usize) else {
            return;
        };
        let Some((start, read)) = guest.reads.range_mut(..=buffer).next_back() else {
            return;
        };
        let is_within = buffer.saturating_add(event.bytes) <= start.saturating_add(read.bytes);
        if !is_within || event.bytes == 0 || event.ts_ns < read.end_ns {
            return;
        }
        if read.taken == 0 {
            read.first_write_ns = event.ts_ns;
        }
        read.taken = read.taken.saturating_add(event.bytes);
        let start = *start;
        self.writes.insert(key, (event.dev, start, event.bytes));
    }

    fn write_ended(
        &mut self,
        (guest, buffer, bytes): (u32, u64, u64),
        has_failed: bool,
        ts_ns: u64,
        images: &Images,
    ) {
        let Some(of_guest) = self.guests.get_mut(guest as usize) else {
            return;
        };
        let Some(read) = of_guest.reads.get_mut(&buffer) else {
            return;
        };
        read.written = read.written.saturating_add(bytes);
        let read = *read;
        if !has_failed && read.written < read.bytes {
            return;
        }
        of_guest.reads.remove(&buffer);
        // Written more than once: it was no copy.
        if has_failed || read.written != read.bytes || read.taken != read.bytes {
            return;
        }
        if of_guest.copies.len() >= MAX_COPIES {
            of_guest.copies.pop_front();
        }
        of_guest.copies.push_back(Copied {
            image: read.image,
            offset: read.offset,
            bytes: read.bytes,
            start_ns: read.start_ns,
            end_ns: ts_ns,
        });
        for disk in images.disks_of(ImageId(read.image), GuestId(guest)) {
            if let Some(disk) = self.disks.get_mut(disk as usize) {
                disk.bytes = disk.bytes.saturating_add(read.bytes);
                disk.read.record(read.end_ns.saturating_sub(read.start_ns));
                disk.write.record(ts_ns.saturating_sub(read.first_write_ns));
            }
        }
    }

    /// For a write of the guest with its file I/O below it: when it waited for a copy, as children of its span.
    pub(super) fn waits(&self, guest: u32, disk: u32, span: &Span) -> Vec<Span> {
        let Some(of_guest) = self.guests.get(guest as usize) else {
            return Vec::new();
        };
        if !matches!(span.what, What::Write | What::Discard) {
            return Vec::new();
        }
        let mut waits: Vec<Span> = Vec::new();
        let late = of_guest.copies.iter().rev();
        for copy in late.take_while(|copy| copy.end_ns > span.start_ns) {
            let own = |file: &&Span| {
                file.layer == Layer::FileIo && copy.end_ns <= file.start_ns && copy.touches(file)
            };
            if span.children.iter().any(|file| own(&file)) {
                waits.push(Span {
                    layer: Layer::QemuJob,
                    start_ns: copy.start_ns.max(span.start_ns),
                    end_ns: copy.end_ns,
                    offset: copy.offset,
                    bytes: copy.bytes,
                    what: What::Other,
                    // It may have begun for another request, or for the job itself.
                    shared: true,
                    place: disk,
                    below: Below::Nothing,
                    actors: Actors::default(),
                    children: Vec::new(),
                });
            }
        }
        waits
    }

    /// A request of the guest has waited.
    pub(super) fn waited(&mut self, disk: u32, span: &Span) {
        let waits = || span.children.iter().filter(|it| it.layer == Layer::QemuJob);
        let start = waits().map(|wait| wait.start_ns).min();
        let end = waits().map(|wait| wait.end_ns).max();
        if let (Some(start), Some(end)) = (start, end)
            && let Some(disk) = self.disks.get_mut(disk as usize)
        {
            disk.waits.record(end.saturating_sub(start));
        }
    }

    /// Events were lost: a buffer may have been used for something else meanwhile.
    pub(super) fn interrupted(&mut self) {
        self.writes.clear();
        for guest in &mut self.guests {
            guest.reads.clear();
        }
    }

    /// What its backup did on a disk; `None` where there was none.
    pub(super) fn finish(&self, disk: u32) -> Option<JobHalf> {
        let disk = self.disks.get(disk as usize).filter(|it| it.has_backup)?;
        Some(JobHalf {
            copies: JobCopies {
                n: disk.read.n(),
                bytes: disk.bytes,
                read_ns: disk.read.dist(),
                write_ns: disk.write.dist(),
            },
            waits: JobWaits {
                n: disk.waits.n(),
                latency_ns: disk.waits.dist(),
            },
        })
    }
}
