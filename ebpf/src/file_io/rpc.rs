//! Calls that carry an image's data to and from a server, on the host.

use nestrace_abi::{Kind, Owner, Record};

use crate::{caller, owner, ring};

/// A record about a wanted inode: what `object` points to is the client's own structure for the call.
#[inline(always)]
pub fn record_of(kind: Kind, operation: u8, call: u64, inode: u64) -> Option<(Record, Owner)> {
    if !ring::open() {
        return None;
    }
    let mut file = Owner::default();
    owner::describe_inode(&mut file, &owner::inode_at(inode));
    if !caller::wants_inode(file.inode, file.owner_dev) {
        return None;
    }
    let mut record = ring::stamp(kind);
    record.sub = operation;
    record.object = call;
    Some((record, file))
}

/// Names the kiocb that a call is for, if it is for one, beside the inode that is known.
#[inline(always)]
pub fn describe_iocb(file: &mut Owner, iocb: u64) {
    if iocb != 0 {
        let (inode, dev) = (file.inode, file.owner_dev);
        owner::describe_iocb(file, iocb);
        (file.inode, file.owner_dev) = (inode, dev);
    }
}
