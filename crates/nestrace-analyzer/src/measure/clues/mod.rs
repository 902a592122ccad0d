//! What only the findings ask of the streams, gathered in the pass: each rule that needs more than the
//! analysis says has a file here. Memory is bounded everywhere; what finds no room is counted.
//!
//! What files a guest's I/O was for is gathered here too, since the rules have to tell files' data from the file
//! system's own; the analysis shows it.
//!
//! [`GuestClues`] belongs to a disk of a guest's session, [`HostClues`] to the host.

mod access_times;
mod behind_data;
mod brought_again;
mod call_waits;
mod file_syncs;
mod files;
mod held_back;
mod ranges;
mod read_again;
mod rewrites;
mod writeback;

use nestrace_abi::{Kind, end_io, flags, flags::op};
use nestrace_trace::Event;
use nestrace_trace::manifest::GuestMount;

use crate::model::call::FileId;
use crate::model::chain::Chain;
use crate::model::data_path::DataPath;
use crate::model::file_io_span::{FileEnd, FileIoSpan};
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::{BioSpan, Layer, Served, Span, What};
use crate::result::analysis::GuestFile;

pub(crate) use access_times::AccessTimeCounts;
use access_times::AccessTimes;
use behind_data::BehindData;
pub(crate) use behind_data::BehindDataCounts;
use brought_again::BroughtAgain;
pub(crate) use brought_again::BroughtAgainCounts;
pub(crate) use call_waits::{CallWaits, Waiter, Waits};
pub(crate) use file_syncs::{FileSyncs, SyncCounts};
use files::Files;
use held_back::HeldBack;
pub(crate) use held_back::{HeldBackTimes, Pace, Rate};
use read_again::ReadAgain;
pub(crate) use read_again::ReadAgainCounts;
pub(crate) use rewrites::RewriteCounts;
use rewrites::Rewrites;
use writeback::Writeback;
pub(crate) use writeback::WritebackTimes;

/// What a disk's guest says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FromGuest {
    pub(crate) rewrites: RewriteCounts,
    pub(crate) access_times: AccessTimeCounts,
    pub(crate) behind_data: BehindDataCounts,
    pub(crate) reads: GuestReads,
    pub(crate) brought_again: BroughtAgainCounts,
    /// Calls of file I/O were recorded.
    pub(crate) files_seen: bool,
}

impl FromGuest {
    /// Adds what another session says.
    pub(crate) fn add(&mut self, other: Self) {
        self.rewrites.add(other.rewrites);
        self.access_times.add(other.access_times);
        self.behind_data.add(other.behind_data);
        self.reads.cached_bytes += other.reads.cached_bytes;
        self.reads.direct_bytes += other.reads.direct_bytes;
        self.reads.unknown_bytes += other.reads.unknown_bytes;
        self.brought_again.add(other.brought_again);
        self.files_seen |= other.files_seen;
    }
}

/// What the host says of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FromHost {
    pub(crate) access_times: AccessTimeCounts,
    pub(crate) read_again: ReadAgainCounts,
    pub(crate) writeback: WritebackTimes,
    pub(crate) held_back: HeldBackTimes,
    /// QEMU's reads of what the image's map has no data at, bytes.
    pub(crate) table_reads: u64,
    /// Its reads of backing files for no request of the guest's: for a job (`block-stream`), bytes.
    pub(crate) backing_reads_of_jobs: u64,
}

/// Both, and the clocks of the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskClues {
    /// The guest's name.
    pub guest: String,
    /// The disk's name.
    pub disk: String,
    /// How far its I/O was seen.
    pub path: DataPath,
    /// Its requests are virtio-blk's.
    pub virtio_blk: bool,
    pub from_guest: FromGuest,
    /// What its guest's programs waited for in calls on its file systems.
    pub calls: CallWaits,
    pub from_host: FromHost,
    /// Files on it that programs of the guest sync.
    pub file_syncs: Vec<FileSyncs>,
    /// Time with a request in QEMU.
    pub qemu_ns: u64,
    /// Time with file I/O in flight.
    pub file_ns: u64,
    /// Time with file I/O in flight and a bio of it in the host's queue or at the device.
    pub bio_ns: u64,
}

/// What a guest read from its disk, by where it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuestReads {
    /// Into the guest's page cache.
    pub cached_bytes: u64,
    /// Into a process' own memory.
    pub direct_bytes: u64,
    /// It is not known: blktrace does not tell.
    pub unknown_bytes: u64,
}

/// The owner of the pages that a guest's bio carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    File,
    FileSystem,
    /// Nothing tells: blktrace, or a log in memory of its own (jfs).
    Unknown,
}

/// A disk in a guest's session.
#[derive(Debug, Default)]
pub(crate) struct GuestClues {
    /// Super blocks of the file systems mounted from it.
    mounted: Vec<u32>,
    rewrites: Rewrites,
    access_times: AccessTimes,
    behind_data: BehindData,
    reads: GuestReads,
    brought_again: BroughtAgain,
    files: Files,
    files_seen: bool,
}

impl GuestClues {
    pub(crate) fn new(mounted: Vec<u32>) -> Self {
        Self {
            mounted,
            ..Self::default()
        }
    }

    /// Super blocks of the file systems mounted from the disk.
    pub(crate) fn mounted(&self) -> &[u32] {
        &self.mounted
    }

    /// A process of the guest called the file system.
    pub(crate) fn file_io(&mut self, kind: Kind, event: &Event) {
        self.files_seen = true;
        let begins = matches!(
            kind,
            Kind::SyscallEnter | Kind::AioSubmit | Kind::UringSubmit
        );
        if !begins || !self.mounted.contains(&event.owner_dev) {
            return;
        }
        match event.sub {
            op::READ => self.access_times.called(event.ts_ns),
            op::WRITE | op::FALLOCATE => self.access_times.changed(event.ts_ns),
            _ => {}
        }
    }

    /// A bio has ended.
    pub(crate) fn bio(&mut self, bio: &BioSpan) {
        if bio.empty_flush {
            return;
        }
        let carries = self.carries(bio);
        self.files.bio(bio, carries == Carries::File);
        if carries == Carries::File && bio.owner_kind == flags::OWNER_PAGES {
            self.moved_pages(bio);
        }
        match bio.operation {
            Operation::Read => {
                self.access_times.read(bio.queued_ns);
                let total = match (bio.owner_kind, carries) {
                    (flags::OWNER_DIRECT | flags::OWNER_ANONYMOUS, _) => {
                        &mut self.reads.direct_bytes
                    }
                    (_, Carries::Unknown) => &mut self.reads.unknown_bytes,
                    _ => &mut self.reads.cached_bytes,
                };
                *total += bio.bytes;
            }
            Operation::Write => {
                let of_file = carries == Carries::File;
                self.rewrites
                    .written(bio.offset, bio.bytes, bio.queued_ns, of_file);
                if of_file {
                    self.access_times.changed(bio.queued_ns);
                } else {
                    self.access_times.metadata(bio.queued_ns, bio.bytes);
                }
            }
            Operation::Discard | Operation::Other => {}
        }
    }

    /// A bio has moved pages of a file between the page cache and the disk.
    fn moved_pages(&mut self, bio: &BioSpan) {
        let file = FileId {
            dev: bio.owner_dev,
            inode: bio.inode,
        };
        match bio.operation {
            Operation::Read => self.brought_again.read(file, bio.file_offset, bio.bytes),
            Operation::Write => {
                self.brought_again
                    .written_back(file, bio.file_offset, bio.bytes);
            }
            Operation::Discard | Operation::Other => {}
        }
    }

    fn carries(&self, bio: &BioSpan) -> Carries {
        match bio.owner_kind {
            flags::OWNER_DIRECT | flags::OWNER_ANONYMOUS => Carries::File,
            // A file system's own inodes have small numbers: btrfs' trees 1, jfs' maps 0 and 1.
            flags::OWNER_PAGES if self.mounted.contains(&bio.owner_dev) && bio.inode > 1 => {
                Carries::File
            }
            flags::OWNER_PAGES if self.mounted.is_empty() && bio.owner != Owner::FileSystem => {
                Carries::File
            }
            flags::OWNER_PAGES => Carries::FileSystem,
            _ => match bio.end_io {
                end_io::BUFFER_HEAD | end_io::XFS_LOG | end_io::XFS_BUF => Carries::FileSystem,
                _ => Carries::Unknown,
            },
        }
    }

    /// A bio was followed to the host.
    pub(crate) fn chain(&mut self, chain: &Chain) {
        let own = chain.of_file_system && !self.mounted.is_empty();
        self.behind_data.chain(chain, chain.marked_urgent || own);
    }

    /// The mount of the file that the data belongs to.
    pub(crate) fn files(&self, mounts: &[GuestMount]) -> Vec<GuestFile> {
        self.files.finish(mounts)
    }

    pub(crate) fn finish(&mut self) -> FromGuest {
        FromGuest {
            rewrites: self.rewrites.counts,
            access_times: self.access_times.counts,
            behind_data: self.behind_data.finish(),
            reads: self.reads,
            brought_again: self.brought_again.finish(),
            files_seen: self.files_seen,
        }
    }
}

/// A disk on the host.
#[derive(Debug, Default)]
struct DiskOnHost {
    access_times: AccessTimes,
    read_again: ReadAgain,
    writeback: Writeback,
    held_back: HeldBack,
    table_reads: u64,
    backing_reads_of_jobs: u64,
}

/// What is known of the image that a file I/O is on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageOf {
    /// The number of its disk in `Images::disks`.
    pub disk: u32,
    /// QEMU opened it with O_DIRECT.
    pub is_direct: bool,
    /// It is a backing file.
    pub is_backing: bool,
}

/// All disks on the host, by the numbers of `Images::disks`.
#[derive(Debug, Default)]
pub(crate) struct HostClues {
    disks: Vec<DiskOnHost>,
}

impl HostClues {
    pub(crate) fn new(n_disks: usize) -> Self {
        Self {
            disks: (0..n_disks).map(|_| DiskOnHost::default()).collect(),
        }
    }

    /// A bio on a device right under an image has ended. `journal`: it is of the file system's journal.
    /// `is_direct`: it carries the data of an image that QEMU opened with O_DIRECT; `volumes`: what images lie on at
    /// its place, whether that is a file system, and the disks with an image there.
    pub(crate) fn bio<'v>(
        &mut self,
        bio: &BioSpan,
        journal: bool,
        is_direct: bool,
        volumes: impl Iterator<Item = (bool, &'v [u32])>,
    ) {
        if bio.empty_flush || bio.for_another {
            return;
        }
        let of_file_system = journal || bio.owner == Owner::FileSystem;
        // O_DIRECT that fell back to the page cache writes at its own pace.
        let written_back = bio.owner_kind == flags::OWNER_PAGES
            && bio.operation == Operation::Write
            && !of_file_system
            && !is_direct;
        // No file system of the host writes on a block device that a guest has.
        let volumes = volumes.filter(|(is_file_system, _)| *is_file_system || !of_file_system);
        for disk in volumes.flat_map(|(_, disks)| disks) {
            let Some(disk) = self.disks.get_mut(*disk as usize) else {
                continue;
            };
            match bio.operation {
                Operation::Write if of_file_system => {
                    disk.access_times.metadata(bio.queued_ns, bio.bytes);
                }
                Operation::Read => disk.access_times.read(bio.queued_ns),
                _ => disk.access_times.changed(bio.queued_ns),
            }
            if written_back {
                disk.writeback.bio(bio.queued_ns, bio.ended_ns, bio.bytes);
            }
        }
    }

    /// A file I/O of QEMU has ended. `is_data`: it does not read the image's own tables; `of_job`: QEMU's requests were
    /// seen, and it is for none of them.
    pub(crate) fn file_io(
        &mut self,
        file: &FileIoSpan,
        image: ImageOf,
        is_data: bool,
        of_job: bool,
    ) {
        let Some(disk) = self.disks.get_mut(image.disk as usize) else {
            return;
        };
        match file.op {
            op::READ => disk.access_times.called(file.start_ns),
            op::WRITE | op::FALLOCATE => disk.access_times.changed(file.end_ns),
            _ => {}
        }
        let reads = file.op == op::READ && file.end == FileEnd::Done;
        if reads && !is_data {
            disk.table_reads += file.bytes;
        }
        if reads && of_job && image.is_backing {
            disk.backing_reads_of_jobs += file.bytes;
        }
        if reads && is_data && !image.is_direct {
            let cached = file.bios.is_empty();
            disk.read_again
                .read(file.image, file.offset, file.bytes, cached);
        }
    }

    /// A request of QEMU has ended.
    pub(crate) fn served(&mut self, served: &Served) {
        let Some(disk) = self.disks.get_mut(served.disk as usize) else {
            return;
        };
        let span = &served.span;
        let read_device = span.what == What::Read && reaches_device(span);
        disk.writeback
            .request(span.start_ns, span.end_ns, read_device);
        disk.held_back.request(served);
    }

    pub(crate) fn finish(&mut self, disk: u32) -> FromHost {
        let Some(disk) = self.disks.get_mut(disk as usize) else {
            return FromHost::default();
        };
        FromHost {
            access_times: disk.access_times.counts,
            read_again: disk.read_again.finish(),
            writeback: disk.writeback.finish(),
            held_back: disk.held_back.finish(),
            table_reads: disk.table_reads,
            backing_reads_of_jobs: disk.backing_reads_of_jobs,
        }
    }
}

fn reaches_device(span: &Span) -> bool {
    span.layer == Layer::HostRequest || span.children.iter().any(reaches_device)
}
