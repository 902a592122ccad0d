//! Which bio of a bcache device a bio on its backing device or its cache was made for. bcache reports no remap, but each of them
//! leads to the `search` that it keeps for the bio above.

use crate::layout::*;

/// The `search` that a bio is a part of, by the function that is called at its end; 0 if it is of none.
#[inline(always)]
fn search_of(bio: *const u8) -> u64 {
    let end_io: u64 = follow(bio, &BIO_END_IO);
    if end_io == 0 {
        return 0;
    }
    let closure: u64 = follow(bio, &BIO_PRIVATE);
    if end_io == FN_BCACHE_BACKING.load() || end_io == FN_BCACHE_READ.load() {
        return closure.wrapping_sub(u64::from(SEARCH_CLOSURE.load()));
    }
    if end_io != FN_BCACHE_INSERT.load() {
        return 0;
    }
    // The closure of an insert, which is the first of its parts. Not only a `search` has one.
    let search = closure.wrapping_sub(u64::from(SEARCH_INSERT.load()));
    let parent: u64 = copy_field(closure, &CLOSURE_PARENT);
    if parent == search.wrapping_add(u64::from(SEARCH_CLOSURE.load())) { search } else { 0 }
}

/// The bio above one that bcache has made, and the gendisk of its bcache device.
pub struct MadeFor {
    pub bio: u64,
    pub disk: u64,
}

#[inline(always)]
fn has_all() -> bool {
    has(&SEARCH_CLOSURE)
        && has(&SEARCH_BIO)
        && has(&SEARCH_DEVICE)
        && has(&SEARCH_INSERT)
        && has(&BCACHE_DISK)
        && has(&CLOSURE_PARENT)
}

/// What a bio was made for; `None` of those that are not bcache's, or for no bio.
#[inline(always)]
pub fn made_for(bio: *const u8) -> Option<MadeFor> {
    if !has_all() {
        return None;
    }
    let search = search_of(bio);
    if search == 0 {
        return None;
    }
    let above: u64 = copy_field(search, &SEARCH_BIO);
    let disk: u64 = copy_field(copy_field(search, &SEARCH_DEVICE), &BCACHE_DISK);
    if above == 0 || disk == 0 { None } else { Some(MadeFor { bio: above, disk }) }
}
