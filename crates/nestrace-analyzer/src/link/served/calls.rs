//! QEMU's calls in flight, and which file I/O serves which.
//!
//! Data is tied by where it lies: a range of the file is a range of the guest's disk, and where
//! several calls want the same range, the address of the buffer tells them apart. What a map does not
//! know is tied by the buffer alone. A sync belongs to the flushes that wait for it, and to the writes
//! that must be on the device. What is left is the image's metadata: it belongs to whoever could wait
//! for it, which is proof only where that is one.

use nestrace_abi::flags::op;

use super::clusters::{Clusters, GuestRange};
use super::copying::Copying;
use crate::follow::image::Images;
use crate::follow::qemu::Call;
use crate::model::file_io_span::{FileEnd, FileIoSpan};
use crate::model::ids::{GuestDiskId, GuestId, ImageId};
use crate::model::pointer::PointerMap;
use crate::model::span::What;

/// Calls without an accounted request or a recorded end that are remembered.
const MAX_UNACCOUNTED: usize = 256;

/// How a file I/O came to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The guest's own data.
    Data,
    Sync,
    Metadata,
}

/// A file I/O of a call.
#[derive(Clone, Debug)]
pub(super) struct Tied {
    pub file: u64,
    pub how: How,
    pub shared: bool,
    pub ambiguous: bool,
    /// The call waited for it from then on: a sync may have begun for somebody else.
    pub waits_from_ns: u64,
    start_ns: u64,
    /// Bytes of the call's data that it moves.
    bytes: u64,
    /// `None` while it is in flight.
    pub span: Option<FileIoSpan>,
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub call: Call,
    /// The number in `Images::disks`; `None` where it is not known (yet).
    pub disk: Option<u32>,
    pub files: Vec<Tied>,
}

impl OpenCall {
    const fn key(&self) -> (u32, u64) {
        (self.call.guest, self.call.serial)
    }

    /// It is of these disks, and was there when the file I/O began.
    fn was_there(&self, file: &FileIoSpan, disks: &[u32]) -> bool {
        self.call.guest == file.guest
            && self.call.start_ns <= file.start_ns
            && self.disk.is_none_or(|disk| disks.contains(&disk))
    }

    /// The file I/O moves the buffer that the call has to move next.
    fn has_next_buffer(&self, file: &FileIoSpan) -> bool {
        file.buffer != 0
            && self.next_buffer() == Some(file.buffer)
            && file.bytes <= self.call.bytes.saturating_sub(self.data_bytes())
            && matches!(
                (file.op, self.call.what),
                (op::READ, What::Read) | (op::WRITE, What::Write)
            )
    }

    fn data(&self) -> impl Iterator<Item = &Tied> {
        self.files.iter().filter(|tied| tied.how == How::Data)
    }

    /// Bytes of its data that file I/Os have taken. QEMU has no more of them than that.
    fn data_bytes(&self) -> u64 {
        self.data().map(|tied| tied.bytes).sum()
    }

    /// All of its data is under way at this time: the call waits for that and for nothing else.
    fn busy_with_data(&self, ts_ns: u64) -> bool {
        let under_way = |tied: &Tied| {
            tied.start_ns < ts_ns && tied.span.as_ref().is_none_or(|span| span.end_ns > ts_ns)
        };
        self.data_bytes() >= self.call.bytes && self.data().any(under_way)
    }

    /// When all of its data was with the kernel; `None` as long as it is not.
    fn data_ended_ns(&self) -> Option<u64> {
        let mut last = None;
        for tied in self.data() {
            last = last.max(Some(tied.span.as_ref()?.end_ns));
        }
        last
    }

    /// What of its buffers comes next, if they follow each other in memory.
    fn next_buffer(&self) -> Option<u64> {
        let start = Some(self.call.buffer).filter(|buffer| *buffer != 0)?;
        start.checked_add(self.data_bytes())
    }

    fn must_sync(&self, writes_through: bool) -> bool {
        self.call.what == What::Write && (writes_through || self.call.fua)
    }
}

/// What became of a file I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Tied,
    /// More than one call could be the one; it was given to all of them.
    Ambiguous,
    /// QEMU does not account for the request.
    Unaccounted,
    /// No call was in flight.
    NoCall,
}

/// Calls in flight, by guest and serial.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: PointerMap<(u32, u64), OpenCall>,
    /// The call that a file I/O in flight was tied to.
    of_file: PointerMap<u64, (u32, u64)>,
    unaccounted: Vec<OpenCall>,
    /// File I/Os without a recorded end when their call ended.
    ended_with_call: PointerMap<u64, ()>,
    /// Disks with a sync by QEMU after every write.
    writes_through: Vec<bool>,
    /// How QEMU copies each disk: no request of the guest asked for what it reads for that.
    copied: Vec<Option<Copying>>,
}

impl Calls {
    pub(super) fn new(writes_through: Vec<bool>, copied: Vec<Option<Copying>>) -> Self {
        Self {
            writes_through,
            copied,
            ..Self::default()
        }
    }

    pub(super) fn began(&mut self, call: Call, images: &Images) {
        let disk = call
            .disk
            .and_then(|disk| images.disk_number(GuestId(call.guest), GuestDiskId(disk)));
        let open = OpenCall {
            call,
            disk,
            files: Vec::new(),
        };
        if call.unaccounted {
            if self.unaccounted.len() >= MAX_UNACCOUNTED {
                self.unaccounted.remove(0);
            }
            self.unaccounted.push(open);
        } else {
            let key = open.key();
            self.unaccounted.retain(|other| other.key() != key);
            self.open.insert(key, open);
        }
    }

    pub(super) fn get(&self, guest: u32, serial: u64) -> Option<&OpenCall> {
        self.open.get(&(guest, serial))
    }

    #[cfg(test)]
    pub(super) fn n_open(&self) -> usize {
        self.open.len()
    }

    pub(super) fn over(&mut self, guest: u32, serial: u64) {
        if let Some(call) = self.open.remove(&(guest, serial)) {
            for tied in call.files.iter().filter(|tied| tied.span.is_none()) {
                self.of_file.remove(&tied.file);
                self.ended_with_call.insert(tied.file, ());
            }
        }
    }

    /// A file I/O began: its data is tied at once, so that it is known who waits for what.
    pub(super) fn file_began(
        &mut self,
        file: &FileIoSpan,
        clusters: &mut Clusters,
        images: &Images,
    ) {
        if !matches!(file.op, op::READ | op::WRITE | op::FALLOCATE) || file.bytes == 0 {
            return;
        }
        let disks = images.disks_of(ImageId(file.image), GuestId(file.guest));
        let Some((key, sure)) = self.by_data(file, &disks, clusters, images) else {
            return;
        };
        self.tie(key, file, How::Data, false, !sure);
        self.of_file.insert(file.serial, key);
    }

    /// The call that a file I/O moves the data of, and whether no other could be it.
    fn by_data(
        &self,
        file: &FileIoSpan,
        disks: &[u32],
        clusters: &mut Clusters,
        images: &Images,
    ) -> Option<((u32, u64), bool)> {
        let ranges = clusters.guest_ranges(file.image, file.offset, file.bytes);
        let mut best: Vec<(Fit, &OpenCall)> = Vec::new();
        let is_copied = file.op == op::READ && self.is_copied(disks, Copying::BeforeWrite);
        for call in self.in_flight(file, disks) {
            // A backup reads the old data before the guest's write.
            if is_copied && call.call.what != What::Read {
                continue;
            }
            let copies = !clusters.is_raw(file.image) || images.is_backing(file.image);
            let fit = ranges
                .iter()
                .filter_map(|range| Fit::of(file, call, *range, copies))
                .max();
            if let Some(fit) = fit {
                match best.first().map(|(known, _)| fit.cmp(known)) {
                    Some(std::cmp::Ordering::Less) => {}
                    Some(std::cmp::Ordering::Equal) => best.push((fit, call)),
                    _ => best = vec![(fit, call)],
                }
            }
        }
        if best.is_empty() && !clusters.is_raw(file.image) {
            let (key, guest_offset) = self.by_buffer(file, disks)?;
            clusters.learn(file.image, guest_offset, file.offset, file.bytes);
            return Some((key, true));
        }
        let first = best
            .iter()
            .map(|(_, call)| *call)
            .min_by_key(|call| call.key())?;
        Some((first.key(), best.len() == 1))
    }

    /// Newly allocated clusters are in no map: the buffer is the guest's own, unless it was copied. Gives the
    /// call and where on the guest's disk the data lies.
    fn by_buffer(&self, file: &FileIoSpan, disks: &[u32]) -> Option<((u32, u64), u64)> {
        let in_flight = self.in_flight(file, disks);
        let mut found = in_flight.filter(|call| call.has_next_buffer(file));
        let call = found.next()?;
        let alone = found.next().is_none();
        alone.then(|| {
            (
                call.key(),
                call.call.offset.saturating_add(call.data_bytes()),
            )
        })
    }

    /// Calls of these disks that were there when the file I/O began.
    fn in_flight<'a>(
        &'a self,
        file: &'a FileIoSpan,
        disks: &'a [u32],
    ) -> impl Iterator<Item = &'a OpenCall> {
        let calls = self.open.values();
        calls.filter(move |call| call.was_there(file, disks))
    }

    fn tie(&mut self, key: (u32, u64), file: &FileIoSpan, how: How, shared: bool, ambiguous: bool) {
        if let Some(call) = self.open.get_mut(&key) {
            let ended = file.end != FileEnd::Open;
            call.files.push(Tied {
                file: file.serial,
                how,
                shared,
                ambiguous,
                waits_from_ns: match how {
                    How::Sync => call.data_ended_ns().unwrap_or(0),
                    How::Data | How::Metadata => 0,
                },
                start_ns: file.start_ns,
                bytes: match (how, file.op, call.call.what) {
                    (How::Data, op::READ, What::Read) | (How::Data, op::WRITE, What::Write) => {
                        file.bytes
                    }
                    _ => 0,
                },
                span: ended.then(|| file.clone()),
            });
        }
    }

    /// A file I/O ended: it goes to its call, or to those that could have waited for it; `is_copy`: it writes what a job has
    /// read.
    pub(super) fn file_ended(
        &mut self,
        file: &FileIoSpan,
        is_copy: bool,
        clusters: &mut Clusters,
        images: &Images,
    ) -> Fate {
        if is_copy && !self.of_file.contains_key(&file.serial) {
            return Fate::NoCall;
        }
        let decided = self.of_file.contains_key(&file.serial)
            || self.ended_with_call.contains_key(&file.serial);
        if !decided {
            // Its length may be known only now.
            self.file_began(file, clusters, images);
        }
        if let Some(key) = self.of_file.remove(&file.serial) {
            return self.data_ended(key, file);
        }
        if self.ended_with_call.remove(&file.serial).is_some() {
            return Fate::Tied;
        }
        let disks = images.disks_of(ImageId(file.image), GuestId(file.guest));
        let (how, keys) = if matches!(file.op, op::FSYNC | op::FDATASYNC | op::SYNC_FILE_RANGE) {
            (How::Sync, self.who_syncs(file, &disks))
        } else {
            (How::Metadata, Vec::new())
        };
        if keys.is_empty() && self.is_data_of_unaccounted(file, &disks) {
            return Fate::Unaccounted;
        }
        // Data that a job reads is no table of the image.
        let any = [Copying::BeforeWrite, Copying::Up, Copying::Along];
        let has_job = any.iter().any(|how| self.is_copied(&disks, *how));
        let is_copied = file.op == op::READ
            && has_job
            && clusters.holds_data(file.image, file.offset, file.bytes) == Some(true);
        let (how, keys) = if keys.is_empty() && !is_copied && !clusters.is_raw(file.image) {
            (How::Metadata, self.who_could_wait(file, &disks))
        } else {
            (how, keys)
        };
        let several = keys.len() > 1;
        // A job reads clusters that are in no map yet, and one that copies into the image writes tables, too.
        let may_be_of_job = match file.op {
            op::READ => has_job,
            _ => self.is_copied(&disks, Copying::Up),
        };
        let ambiguous = how == How::Metadata && (several || may_be_of_job);
        for key in &keys {
            self.tie(*key, file, how, several, ambiguous);
        }
        match keys.len() {
            0 if self.is_unaccounted(file, &disks) => Fate::Unaccounted,
            0 => Fate::NoCall,
            _ if ambiguous => Fate::Ambiguous,
            _ => Fate::Tied,
        }
    }

    fn data_ended(&mut self, key: (u32, u64), file: &FileIoSpan) -> Fate {
        let Some(call) = self.open.get_mut(&key) else {
            return Fate::NoCall;
        };
        let Some(place) = call.files.iter().position(|tied| tied.file == file.serial) else {
            return Fate::NoCall;
        };
        if file.end == FileEnd::Refused {
            call.files.remove(place);
            return Fate::Tied;
        }
        let tied = &mut call.files[place];
        tied.span = Some(file.clone());
        if tied.ambiguous {
            Fate::Ambiguous
        } else {
            Fate::Tied
        }
    }

    /// A sync is waited for by every flush that is there when it ends, or by writes that must be on
    /// the device and whose data is with the kernel. QEMU lets one flush of a node run at a time and
    /// the others wait for it (`bdrv_co_flush`).
    fn who_syncs(&self, file: &FileIoSpan, disks: &[u32]) -> Vec<(u32, u64)> {
        let writes_through = disks
            .iter()
            .any(|disk| self.writes_through.get(*disk as usize) == Some(&true));
        self.open
            .values()
            .filter(|call| {
                call.call.guest == file.guest
                    && call.call.start_ns < file.end_ns
                    && call.disk.is_none_or(|disk| disks.contains(&disk))
                    && (call.call.what == What::Flush
                        || call.must_sync(writes_through)
                            && call
                                .data_ended_ns()
                                .is_some_and(|data_ns| data_ns < file.end_ns))
            })
            .map(OpenCall::key)
            .collect()
    }

    /// Those that were there when it began and did not wait for data of their own at that time. Tables
    /// are written for writes, discards and flushes, for a read only to make room for another table.
    fn who_could_wait(&self, file: &FileIoSpan, disks: &[u32]) -> Vec<(u32, u64)> {
        let idle = |call: &&OpenCall| !call.busy_with_data(file.start_ns);
        let could: Vec<&OpenCall> = self.in_flight(file, disks).filter(idle).collect();
        let changes = |call: &&&OpenCall| call.call.what != What::Read;
        let of_changes: Vec<(u32, u64)> = could
            .iter()
            .filter(changes)
            .map(|call| call.key())
            .collect();
        if file.op == op::READ || of_changes.is_empty() {
            could.iter().map(|call| call.key()).collect()
        } else {
            of_changes
        }
    }

    fn is_copied(&self, disks: &[u32], how: Copying) -> bool {
        let mut disks = disks.iter();
        disks.any(|disk| self.copied.get(*disk as usize) == Some(&Some(how)))
    }

    fn is_unaccounted(&self, file: &FileIoSpan, disks: &[u32]) -> bool {
        self.unaccounted_of(file, disks).next().is_some()
    }

    /// Whether it moves the guest's own buffer for one of them: it is no table of the image.
    fn is_data_of_unaccounted(&self, file: &FileIoSpan, disks: &[u32]) -> bool {
        let mut calls = self.unaccounted_of(file, disks);
        calls.any(|call| call.has_next_buffer(file))
    }

    fn unaccounted_of<'a>(
        &'a self,
        file: &'a FileIoSpan,
        disks: &'a [u32],
    ) -> impl Iterator<Item = &'a OpenCall> {
        let calls = self.unaccounted.iter();
        calls.filter(move |call| call.was_there(file, disks))
    }
}

/// How well a file I/O fits a call; more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// It begins with the call's own buffer.
    same_buffer: bool,
    /// It does what the call does, not a copy or a read of what surrounds it.
    same_kind: bool,
    /// Nothing rules the buffer out.
    buffer_possible: bool,
    /// It lies within what the guest asked for.
    within: bool,
    /// No other data I/O of the call has been there.
    fresh: bool,
}

impl Fit {
    fn of(file: &FileIoSpan, open: &OpenCall, range: GuestRange, copies: bool) -> Option<Self> {
        let call = &open.call;
        let end = call.offset.saturating_add(call.bytes);
        if call.bytes == 0 || range.end <= call.offset || range.start >= end {
            return None;
        }
        let start_rounded = call.offset - call.offset % range.grain;
        if range.start < start_rounded || range.end > end.next_multiple_of(range.grain) {
            return None;
        }
        let same_kind = match (file.op, call.what) {
            (op::READ, What::Read) | (op::WRITE, What::Write) => true,
            (op::FALLOCATE, What::Discard) => true,
            (op::FALLOCATE, What::Write) if call.zeroes => true,
            // qcow2 zeroes what surrounds the data in new clusters (`handle_alloc_space`).
            (op::FALLOCATE, What::Write) if copies => false,
            // What surrounds an unaligned write, or is copied up.
            (op::READ, What::Write) => {
                if !copies && range.start >= call.offset && range.end <= end {
                    return None;
                }
                false
            }
            _ => return None,
        };
        let begins = range.start == call.offset && same_kind && !range.bounced;
        let known = begins && file.buffer != 0 && call.buffer != 0;
        Some(Self {
            same_buffer: known && file.buffer == call.buffer,
            same_kind,
            buffer_possible: !known || file.buffer == call.buffer,
            within: range.start >= call.offset && range.end <= end,
            fresh: open.data().next().is_none(),
        })
    }
}
