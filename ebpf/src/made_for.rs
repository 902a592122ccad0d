//! Which bio of a device above a driver made a bio for, where it reports no remap: bcache, and dm's mirror, which has dm-io
//! make its writes. Each leads from its bio to what it keeps for the one above.

use crate::layout::*;

/// The bio above, and the gendisk of its device.
pub struct MadeFor {
    pub bio: u64,
    pub disk: u64,
}

/// What a bio was made for; `None` of those that no such driver made, or made for no bio.
#[inline(always)]
pub fn made_for(bio: *const u8) -> Option<MadeFor> {
    let end_io: u64 = follow(bio, &BIO_END_IO);
    if end_io == 0 {
        return None;
    }
    let private: u64 = follow(bio, &BIO_PRIVATE);
    let found = if end_io == FN_DM_IO_END.load() { of_dm_io(private) } else { of_bcache(end_io, private) }?;
    if found.bio == 0 || found.disk == 0 { None } else { Some(found) }
}

/// `DM_TIO_MAGIC` of drivers/md/dm-core.h.
const TARGET_IO_MAGIC: u16 = 28714;
/// The low bits of a bio's `bi_private` are dm-io's number of the device (`DM_IO_MAX_REGIONS`).
const REGION_MASK: u64 = 63;

/// dm-io is called for a bio of a target, which is a clone of the one above.
#[inline(always)]
fn of_dm_io(private: u64) -> Option<MadeFor> {
    if !has(&DM_IO_CONTEXT) || !has(&DM_TARGET_MAGIC) || !has(&DM_TARGET_CLONE) || !has(&DM_TARGET_OF) {
        return None;
    }
    if !has(&DM_BIO) || !has(&DM_DEVICE) || !has(&DM_DISK) {
        return None;
    }
    let clone: u64 = copy_field(private & !REGION_MASK, &DM_IO_CONTEXT);
    let target = clone.wrapping_sub(u64::from(DM_TARGET_CLONE.load()));
    // Others call it with contexts of their own.
    if copy_field::<u16>(target, &DM_TARGET_MAGIC) != TARGET_IO_MAGIC {
        return None;
    }
    let whole: u64 = copy_field(target, &DM_TARGET_OF);
    let disk = copy_field(copy_field(whole, &DM_DEVICE), &DM_DISK);
    Some(MadeFor { bio: copy_field(whole, &DM_BIO), disk })
}

/// bcache keeps a `search` for the bio above.
#[inline(always)]
fn of_bcache(end_io: u64, closure: u64) -> Option<MadeFor> {
    if !has(&SEARCH_CLOSURE) || !has(&SEARCH_BIO) || !has(&SEARCH_DEVICE) || !has(&SEARCH_INSERT) {
        return None;
    }
    if !has(&BCACHE_DISK) || !has(&CLOSURE_PARENT) {
        return None;
    }
    let search = if end_io == FN_BCACHE_BACKING.load() || end_io == FN_BCACHE_READ.load() {
        closure.wrapping_sub(u64::from(SEARCH_CLOSURE.load()))
    } else if end_io == FN_BCACHE_INSERT.load() {
        // The closure of an insert, which is the first of its parts. Not only a `search` has one.
        let search = closure.wrapping_sub(u64::from(SEARCH_INSERT.load()));
        let parent: u64 = copy_field(closure, &CLOSURE_PARENT);
        if parent != search.wrapping_add(u64::from(SEARCH_CLOSURE.load())) {
            return None;
        }
        search
    } else {
        return None;
    };
    let disk = copy_field(copy_field(search, &SEARCH_DEVICE), &BCACHE_DISK);
    Some(MadeFor { bio: copy_field(search, &SEARCH_BIO), disk })
}
