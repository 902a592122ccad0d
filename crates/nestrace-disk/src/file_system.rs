//! The file system: one file, read and written without the page cache.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, SessionACL,
    WriteFlags,
};
use nestrace_modelled_disk::request::{Operation, SECTOR_BYTES};
use nestrace_modelled_disk::troubles::TroubleKind;

use crate::pacer::{MAX_REQUEST_BYTES, Pacer, Reply};
use crate::store::Store;

/// The file's name.
pub const FILE: &str = "disk";

const FILE_INODE: INodeNo = INodeNo(2);
/// Nothing changes.
const VALID: Duration = Duration::from_secs(3600);
/// More than a loop device has in flight (128).
const MAX_IN_FLIGHT: u16 = 256;

/// A disk as a file.
#[derive(Debug)]
pub struct DiskFs {
    pacer: Arc<Pacer>,
    store: Store,
    size: u64,
}

impl DiskFs {
    /// A file system with a disk of `size` bytes.
    pub fn new(pacer: Arc<Pacer>, store: Store, size: u64) -> Self {
        Self { pacer, store, size }
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE_INODE;
        FileAttr {
            ino: inode,
            size: if is_file { self.size } else { 0 },
            blocks: if is_file { self.size / SECTOR_BYTES } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for DiskFs {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it a loop device has one request in flight.
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let is_ready = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_ok()
            && config.set_max_write(MAX_REQUEST_BYTES).is_ok()
            && config.set_max_background(MAX_IN_FLIGHT).is_ok()
            && config.set_congestion_threshold(MAX_IN_FLIGHT).is_ok();
        is_ready.then_some(()).ok_or_else(unsupported)
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&VALID, &self.attributes(FILE_INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(inode));
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size.min(MAX_REQUEST_BYTES)).min(self.size.saturating_sub(offset));
        if length == 0 {
            reply.data(&[]);
            return;
        }
        let now = self.pacer.now();
        let trouble = self.pacer.trouble(Operation::Read, offset, length);
        // Read now, while the modelled disk would be busy.
        match self.store.read(offset, length as usize) {
            Ok(data) => {
                let reply = Reply::Data(reply, data);
                self.pacer
                    .submit(now, Operation::Read, (offset, length), trouble, reply);
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            reply.error(Errno::ENOSPC);
            return;
        }
        let now = self.pacer.now();
        let trouble = self.pacer.trouble(Operation::Write, offset, length);
        let kept = match trouble {
            Some(TroubleKind::Fail) => 0,
            Some(TroubleKind::Tear) => length / 2 / SECTOR_BYTES * SECTOR_BYTES,
            _ => length,
        };
        if self.store.write(offset, &data[..kept as usize]).is_err() {
            reply.error(Errno::EIO);
            return;
        }
        let reply = Reply::Written(reply, data.len() as u32);
        self.pacer
            .submit(now, Operation::Write, (offset, length), trouble, reply);
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let now = self.pacer.now();
        let trouble = self.pacer.trouble(Operation::Flush, 0, 0);
        let reply = Reply::Empty(reply);
        self.pacer
            .submit(now, Operation::Flush, (0, 0), trouble, reply);
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // What a loop device sends for discards and zeros.
        let clears = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & clears == 0 {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        let length = length.min(self.size.saturating_sub(offset));
        if length == 0 {
            reply.ok();
            return;
        }
        let now = self.pacer.now();
        let trouble = self.pacer.trouble(Operation::Discard, offset, length);
        let fails = matches!(trouble, Some(TroubleKind::Fail | TroubleKind::Tear));
        if !fails && self.store.clear(offset, length).is_err() {
            reply.error(Errno::EIO);
            return;
        }
        let reply = Reply::Empty(reply);
        self.pacer
            .submit(now, Operation::Discard, (offset, length), trouble, reply);
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A close, which no disk sees.
        reply.ok();
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if offset == 0 {
            let _ = reply.add(FILE_INODE, 1, FileType::RegularFile, FILE);
        }
        reply.ok();
    }

    fn destroy(&mut self) {
        self.pacer.end();
    }
}

/// Mounts it, and serves it in a thread.
pub fn mount(file_system: DiskFs, mount_point: &Path) -> anyhow::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(String::from("nestrace-disk")),
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
    ];
    config.acl = SessionACL::Owner;
    let mounted = || format!("mount a file system at {}", mount_point.display());
    let session = fuser::Session::new(file_system, mount_point, &config).with_context(mounted)?;
    session.spawn().context("start a thread")
}
