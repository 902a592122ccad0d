//! What QEMU's jobs copy, and which of the guest's writes had to wait for them.
//!
//! A job reads data of an image into a buffer of its own and writes this buffer to another file. So a read that no guest's
//! request asked for, and a write of the same buffer after it, are a copy. A guest's write has waited for a job in these
//! cases, and nothing else is called a wait for a job:
//!
//! - **Backup.** Before a guest's write changes what was not copied yet, QEMU copies the old data, and only then lets the
//!   guest's write go on (`block/copy-before-write.c`, `block/block-copy.c`). The write goes into the range that was read,
//!   was there before the copy ended, and its own file I/O began after that.
//! - **Stream.** What is copied up into the image is locked meanwhile (`bdrv_co_do_copy_on_readv`): as for a backup, by the
//!   place on the guest's disk.
//! - **Mirror with `write-blocking`.** QEMU writes the guest's data to the image, then the same buffer to the target, and
//!   only then ends the request (`bdrv_mirror_top_do_write`).

use std::collections::{BTreeMap, HashMap, VecDeque};

use nestrace_abi::{Kind, flags::op};
use nestrace_trace::Event;
use nestrace_trace::manifest::{Guest, Job, Manifest};

use super::calls::Fate;
use super::clusters::Clusters;
use super::copying::Copying;
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
/// Ended writes of a guest that are remembered: those that a request waits for end shortly before it.
const MAX_SENT: usize = 4096;

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
    on_disk: Option<(u64, u64)>,
    /// No request of the guest asked for it, for certain.
    is_unasked: bool,
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
    /// Where it lies on the guest's disk, from and to.
    on_disk: Option<(u64, u64)>,
    start_ns: u64,
    end_ns: u64,
}

impl Copied {
    fn touches(&self, file: &Span) -> bool {
        self.image == file.place
            && self.offset < file.offset.saturating_add(file.bytes)
            && file.offset < self.offset.saturating_add(self.bytes)
    }

    fn is_under(&self, request: &Span) -> bool {
        self.on_disk.is_some_and(|(from, to)| {
            from < request.offset.saturating_add(request.bytes) && request.offset < to
        })
    }
}

/// A write of QEMU's, to whatever file.
#[derive(Clone, Copy, Debug)]
struct Sent {
    guest: u32,
    buffer: u64,
    bytes: u64,
    start_ns: u64,
    end_ns: u64,
}

/// Data of a request that was written to its image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub buffer: u64,
    pub bytes: u64,
    pub end_ns: u64,
}

/// What is known of a guest's QEMU.
#[derive(Debug, Default)]
struct OfGuest {
    /// By the buffer's address.
    reads: BTreeMap<u64, Read>,
    /// In the order of their ends.
    copies: VecDeque<Copied>,
    /// In the order of their ends, where QEMU mirrors a disk.
    sent: VecDeque<Sent>,
    has_mirror: bool,
}

/// Sums of a disk.
#[derive(Debug, Default)]
struct OfDisk {
    /// What a job of QEMU's did with it.
    copying: Option<Copying>,
    bytes: u64,
    read: Histogram,
    write: Histogram,
    waits: Histogram,
}

/// The jobs of all guests.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    guests: Vec<OfGuest>,
    /// By the numbers in `Images::disks`.
    disks: Vec<OfDisk>,
    /// Writes in flight that take from a read's buffer: guest, buffer, bytes.
    writes: HashMap<WriteKey, (u32, u64, u64)>,
    /// Writes in flight of guests with a mirror.
    sent: HashMap<WriteKey, Sent>,
    /// Images of the reads that no request asked for and that have become copies, for the caller to drain.
    pub copied_from: Vec<u32>,
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

impl Jobs {
    pub(super) fn new(manifest: &Manifest, images: &Images) -> Self {
        let guests = &manifest.topology.guests;
        let disk = |number: usize| {
            let disk = images.disks.get(number)?;
            let guest = guests.get(disk.guest as usize)?;
            let is_its = |job: &&Job| disk_of_job(guest, job) == Some(disk.name.as_str());
            Some(OfDisk {
                copying: guest.jobs.iter().filter(is_its).find_map(Copying::of),
                ..OfDisk::default()
            })
        };
        let disks: Vec<OfDisk> = (0..images.disks.len())
            .map(|number| disk(number).unwrap_or_default())
            .collect();
        let of_guest = |guest: &Guest| OfGuest {
            has_mirror: guest.jobs.iter().any(|job| job.kind == "mirror"),
            ..OfGuest::default()
        };
        Self {
            guests: guests.iter().map(of_guest).collect(),
            has_any: disks.iter().any(|disk| disk.copying.is_some()),
            disks,
            ..Self::default()
        }
    }

    /// What a job of QEMU's did with this disk.
    pub(super) fn copying(&self, disk: u32) -> Option<Copying> {
        self.disks.get(disk as usize)?.copying
    }

    /// Whether a file I/O writes what a job has read.
    pub(super) fn is_copy(&self, file: &FileIoSpan) -> bool {
        let Some(guest) = self.guests.get(file.guest as usize) else {
            return false;
        };
        let read = guest.reads.range(..=file.buffer).next_back();
        file.op == op::WRITE
            && read.is_some_and(|(start, read)| file.buffer < start.saturating_add(read.bytes))
    }

    /// A file I/O on an image has ended, for which there was this or no request of the guest.
    pub(super) fn file_ended(
        &mut self,
        file: &FileIoSpan,
        fate: Fate,
        images: &Images,
        clusters: &Clusters,
    ) {
        if !self.has_any || file.op != op::READ || file.buffer == 0 || file.bytes == 0 {
            return;
        }
        let disks = images.disks_of(ImageId(file.image), GuestId(file.guest));
        let is_copied = matches!(fate, Fate::NoCall | Fate::Ambiguous)
            && file.end == FileEnd::Done
            && disks.iter().any(|disk| self.copying(*disk).is_some());
        let ranges = || clusters.guest_ranges(file.image, file.offset, file.bytes);
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
                on_disk: ranges().first().map(|range| (range.start, range.end)),
                is_unasked: fate == Fate::NoCall,
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
        let (before, sent) = (self.writes.remove(&key), self.sent.remove(&key));
        if begins {
            self.write_began(key, event, images);
            return;
        }
        let has_failed = match kind {
            Kind::DioComplete => event.errno() != 0,
            _ => event.result() < 0,
        };
        if let Some(sent) = sent.filter(|_| !has_failed)
            && let Some(guest) = self.guests.get_mut(sent.guest as usize)
        {
            if guest.sent.len() >= MAX_SENT {
                guest.sent.pop_front();
            }
            let end_ns = event.ts_ns;
            guest.sent.push_back(Sent { end_ns, ..sent });
        }
        if let Some(write) = before {
            self.write_ended(write, has_failed, event.ts_ns, images);
        }
    }

    /// A write takes from a buffer that a read has filled.
    fn write_began(&mut self, key: WriteKey, event: &Event, images: &Images) {
        let buffer = event.first_buffer();
        if event.sub != op::WRITE || buffer == 0 || self.writes.len() >= MAX_WRITES {
            return;
        }
        let Some(guest) = self.guests.get_mut(event.dev as usize) else {
            return;
        };
        if guest.has_mirror && self.sent.len() < MAX_WRITES {
            let sent = Sent {
                guest: event.dev,
                buffer,
                bytes: event.bytes,
                start_ns: event.ts_ns,
                end_ns: 0,
            };
            self.sent.insert(key, sent);
        }
        let Some((start, read)) = guest.reads.range_mut(..=buffer).next_back() else {
            return;
        };
        let is_within = buffer.saturating_add(event.bytes) <= start.saturating_add(read.bytes);
        // A table of the image that is written back.
        let is_same_place = event.offset == read.offset.saturating_add(buffer - start);
        if is_same_place && images.is_on(event, read.image) {
            return;
        }
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
            on_disk: read.on_disk,
            start_ns: read.start_ns,
            end_ns: ts_ns,
        });
        if read.is_unasked {
            self.copied_from.push(read.image);
        }
        for disk in images.disks_of(ImageId(read.image), GuestId(guest)) {
            if let Some(disk) = self.disks.get_mut(disk as usize) {
                disk.bytes = disk.bytes.saturating_add(read.bytes);
                disk.read.record(read.end_ns.saturating_sub(read.start_ns));
                disk.write.record(ts_ns.saturating_sub(read.first_write_ns));
            }
        }
    }

    /// For a write of the guest with its file I/O below it: when it waited for a copy, as children of its span. `written` is
    /// its own data, by what is known of its file I/O.
    pub(super) fn waits(
        &self,
        guest: u32,
        disk: u32,
        span: &Span,
        written: impl Iterator<Item = Written> + Clone,
    ) -> Vec<Span> {
        let of_guest = self.guests.get(guest as usize);
        let Some((of_guest, copying)) = of_guest.zip(self.copying(disk)) else {
            return Vec::new();
        };
        if !matches!(span.what, What::Write | What::Discard) {
            return Vec::new();
        }
        let wait = |start_ns: u64, end_ns: u64, offset: u64, bytes: u64| Span {
            layer: Layer::QemuJob,
            start_ns: start_ns.max(span.start_ns),
            end_ns,
            offset,
            bytes,
            what: What::Other,
            // It may have begun for another request, or for the job itself.
            shared: true,
            place: disk,
            below: Below::Nothing,
            actors: Actors::default(),
            children: Vec::new(),
        };
        if copying == Copying::Along {
            let late = of_guest.sent.iter().rev();
            let late = late.take_while(|sent| sent.end_ns > span.start_ns);
            let mirrored = late.filter(|sent| sent.end_ns <= span.end_ns);
            let waits = mirrored.filter_map(|sent| {
                let is_same = |own: &Written| {
                    own.buffer == sent.buffer
                        && own.bytes == sent.bytes
                        && own.end_ns <= sent.start_ns
                };
                let own = written.clone().find(is_same)?;
                Some(wait(own.end_ns, sent.end_ns, span.offset, sent.bytes))
            });
            return waits.collect();
        }
        let own = |copy: &Copied| {
            span.children.iter().any(|file| {
                let is_there = match copying {
                    Copying::Up => copy.is_under(span),
                    _ => copy.touches(file),
                };
                file.layer == Layer::FileIo && copy.end_ns <= file.start_ns && is_there
            })
        };
        let late = of_guest.copies.iter().rev();
        late.take_while(|copy| copy.end_ns > span.start_ns)
            .filter(|copy| own(copy))
            .map(|copy| wait(copy.start_ns, copy.end_ns, copy.offset, copy.bytes))
            .collect()
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
        self.sent.clear();
        for guest in &mut self.guests {
            guest.reads.clear();
            guest.sent.clear();
        }
    }

    /// What a job did on a disk; `None` where there was none.
    pub(super) fn finish(&self, disk: u32) -> Option<JobHalf> {
        let disk = self
            .disks
            .get(disk as usize)
            .filter(|it| it.copying.is_some())?;
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
