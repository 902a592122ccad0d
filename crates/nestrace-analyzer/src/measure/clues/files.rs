//! Which files of a guest its disk's I/O was for.
//!
//! A bio tells the inode whose pages it carries, or whose direct I/O it is. It tells no path, so files are named by
//! what a person in the guest can look up: the mount point and the inode (`find MOUNT -xdev -inum N`).

use std::collections::BTreeMap;

use nestrace_trace::manifest::GuestMount;

use crate::model::operation::Operation;
use crate::model::span::BioSpan;
use crate::result::analysis::{GuestFile, ReadWrite};
use crate::result::units::share;

/// Files that are counted one by one; a load that makes more, a mail server say, has them in the rest.
const MAX_FILES: usize = 8192;
/// Files that are listed.
const TOLD: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bios: u64,
    bytes: ReadWrite,
    q2c_ns: u64,
}

/// What was done for each file, by super block and inode.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_inode: BTreeMap<(u32, u64), Counts>,
    /// Of every bio with data, whatever it carries.
    all_ns: u64,
}

impl Files {
    /// A bio with data has ended. `of_file`: it carries a file's data, not the file system's own.
    pub(super) fn bio(&mut self, bio: &BioSpan, of_file: bool) {
        let q2c_ns = bio.ended_ns.saturating_sub(bio.queued_ns);
        self.all_ns = self.all_ns.saturating_add(q2c_ns);
        let key = (bio.owner_dev, bio.inode);
        let has_room = self.by_inode.len() < MAX_FILES || self.by_inode.contains_key(&key);
        if !of_file || bio.inode == 0 || !has_room {
            return;
        }
        let counts = self.by_inode.entry(key).or_default();
        counts.bios += 1;
        counts.q2c_ns = counts.q2c_ns.saturating_add(q2c_ns);
        let bytes = match bio.operation {
            Operation::Read => &mut counts.bytes.read,
            _ => &mut counts.bytes.write,
        };
        *bytes = bytes.saturating_add(bio.bytes);
    }

    /// Those with most time first.
    pub(super) fn finish(&self, mounts: &[GuestMount]) -> Vec<GuestFile> {
        let file = |(&(dev, inode), counts): (&(u32, u64), &Counts)| {
            let mount = mounts.iter().find(|mount| mount.dev == dev)?;
            Some(GuestFile {
                mount_point: mount.mount_point.clone(),
                inode,
                bios: counts.bios,
                bytes: counts.bytes,
                q2c_ns: counts.q2c_ns,
                share: share(counts.q2c_ns, self.all_ns),
            })
        };
        let mut files: Vec<GuestFile> = self.by_inode.iter().filter_map(file).collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.q2c_ns));
        files.truncate(TOLD);
        files
    }
}
