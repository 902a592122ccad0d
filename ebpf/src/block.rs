//! The block layer: blktrace's vocabulary with the identity of bios and requests.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use nestrace_abi::{Kind, Owner, Record, Source, flags::RAW_FLUSH_SEQ};

use crate::{flush_queue::flushed_with, layout::*, made_for::made_for, owner, preemption, ring, second_program, thread};

/// Most bios of one request that the walk at D follows; a longer chain counts as one `walk` loss.
const MAX_BIOS: u32 = 1024;
/// The kernel's own: the part of a request's flags that is its operation, and that of reads.
pub const OPERATION: u32 = 0xff;
const READ: u32 = 0;
/// Bios that one `Link` record holds.
const BIOS_PER_LINK: u32 = 3;

/// Number of the whole disk.
#[inline(always)]
pub fn disk_number(disk: *const u8) -> u32 {
    if disk.is_null() {
        return 0;
    }
    let major: u32 = follow(disk, &DISK_MAJOR);
    let minor: u32 = follow(disk, &DISK_MINOR);
    (major << 20) | (minor & 0xf_ffff)
}

#[inline(always)]
fn bio_disk(bio: *const u8) -> u32 {
    let bdev: *const u8 = follow(bio, &BIO_BDEV);
    if bdev.is_null() {
        return 0;
    }
    disk_number(follow(bdev, &BDEV_DISK))
}

#[inline(always)]
pub fn queue_disk(queue: *const u8) -> u32 {
    if queue.is_null() || !has(&QUEUE_DISK) {
        return 0;
    }
    disk_number(follow(queue, &QUEUE_DISK))
}

#[inline(always)]
pub fn request_disk(request: *const u8) -> u32 {
    if has(&RQ_DISK) {
        return disk_number(follow(request, &RQ_DISK));
    }
    queue_disk(follow(request, &RQ_QUEUE))
}

/// A record about a bio of a wanted disk.
#[inline(always)]
fn bio_record(kind: Kind, bio: *const u8) -> Option<Record> {
    if bio.is_null() || !ring::open() {
        return None;
    }
    let dev = bio_disk(bio);
    if !ring::wants_device(dev) {
        return None;
    }
    let mut record = ring::stamp(kind);
    record.dev = dev;
    record.object = bio as u64;
    Some(record)
}

/// Place, length and operation of a bio.
#[inline(always)]
fn describe_bio(record: &mut Record, bio: *const u8) {
    record.offset = follow::<u64>(bio, &BIO_SECTOR) << 9;
    record.bytes = u64::from(follow::<u32>(bio, &BIO_SIZE));
    record.flags = follow(bio, &BIO_OPF);
}

/// The number of a request's disk, if that is wanted.
#[inline(always)]
pub fn wanted_disk(request: *const u8) -> Option<u32> {
    let dev = request_disk(request);
    ring::wants_device(dev).then_some(dev)
}

/// A record about a request of a wanted disk, with place, length and operation.
#[inline(always)]
fn request_record(kind: Kind, request: *const u8) -> Option<Record> {
    if request.is_null() || !ring::open() {
        return None;
    }
    let dev = wanted_disk(request)?;
    let mut record = ring::stamp(kind);
    record.dev = dev;
    record.object = request as u64;
    describe_request(&mut record, request);
    Some(record)
}

/// Place, length and operation of a request.
#[inline(always)]
fn describe_request(record: &mut Record, request: *const u8) {
    record.offset = follow::<u64>(request, &RQ_SECTOR) << 9;
    record.bytes = u64::from(follow::<u32>(request, &RQ_LEN));
    record.flags = follow(request, &RQ_CMD_FLAGS);
    // The flush machinery has no reads.
    if record.flags & OPERATION != READ {
        let rq_flags: u32 = follow(request, &RQ_FLAGS);
        if (rq_flags >> (RQF_FLUSH_SEQ_BIT.load() & 31)) & 1 != 0 {
            record.flags |= RAW_FLUSH_SEQ;
        }
    }
}

#[btf_tracepoint(function = "block_bio_queue")]
pub fn block_bio_queue(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || queue(&ctx)))
}

#[btf_tracepoint(function = "block_bio_queue")]
pub fn block_bio_queue_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || queue(&ctx)))
}

#[inline(always)]
fn queue(ctx: &BtfTracePointContext) -> i32 {
    let bio: *const u8 = ctx.arg(0);
    if let Some(mut record) = bio_record(Kind::Queue, bio) {
        thread::introduce();
        describe_bio(&mut record, bio);
        if let Some(above) = made_for(bio) {
            let made = Record { kind: Kind::BioMade as u8, related: above.bio, ..record };
            let major: u32 = copy_field(above.disk, &DISK_MAJOR);
            let minor: u32 = copy_field(above.disk, &DISK_MINOR);
            let owner = Owner { owner_dev: major << 20 | minor, ..Owner::default() };
            ring::send_owned(made, owner, Source::Block);
        }
        let owner = owner::of_bio(bio, &mut record);
        ring::send_owned(record, owner, Source::Block);
    }
    0
}

#[inline(always)]
fn plain_bio(kind: Kind, bio: *const u8) -> i32 {
    if let Some(record) = bio_record(kind, bio) {
        ring::send(record, Source::Block);
    }
    0
}

#[btf_tracepoint(function = "block_getrq")]
pub fn block_getrq(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || get_request(&ctx)))
}

#[btf_tracepoint(function = "block_getrq")]
pub fn block_getrq_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || get_request(&ctx))
    })
}

#[inline(always)]
fn get_request(ctx: &BtfTracePointContext) -> i32 {
    plain_bio(Kind::GetRequest, ctx.arg(0))
}

#[btf_tracepoint(function = "block_bio_backmerge")]
pub fn block_bio_backmerge(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || back_merge(&ctx)))
}

#[btf_tracepoint(function = "block_bio_backmerge")]
pub fn block_bio_backmerge_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || back_merge(&ctx)))
}

#[inline(always)]
fn back_merge(ctx: &BtfTracePointContext) -> i32 {
    plain_bio(Kind::BackMerge, ctx.arg(0))
}

#[btf_tracepoint(function = "block_bio_frontmerge")]
pub fn block_bio_frontmerge(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || front_merge(&ctx)))
}

#[btf_tracepoint(function = "block_bio_frontmerge")]
pub fn block_bio_frontmerge_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || front_merge(&ctx))
    })
}

#[inline(always)]
fn front_merge(ctx: &BtfTracePointContext) -> i32 {
    plain_bio(Kind::FrontMerge, ctx.arg(0))
}

#[btf_tracepoint(function = "block_split")]
pub fn block_split(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || split(&ctx)))
}

#[btf_tracepoint(function = "block_split")]
pub fn block_split_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || split(&ctx)))
}

#[inline(always)]
fn split(ctx: &BtfTracePointContext) -> i32 {
    let bio: *const u8 = ctx.arg(0);
    if let Some(mut record) = bio_record(Kind::Split, bio) {
        describe_bio(&mut record, bio);
        record.related = follow(bio, &BIO_PRIVATE);
        // The rest begins elsewhere in memory than the bio did.
        if BY_MOUNT.load() != 0 && record.related != 0 {
            let owner = Owner { origin: owner::page_left(record.related), ..Owner::default() };
            ring::send_owned(record, owner, Source::Block);
        } else {
            ring::send(record, Source::Block);
        }
    }
    0
}

#[btf_tracepoint(function = "block_bio_remap")]
pub fn block_bio_remap(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || remap_bio(&ctx)))
}

#[btf_tracepoint(function = "block_bio_remap")]
pub fn block_bio_remap_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || remap_bio(&ctx)))
}

#[inline(always)]
fn remap_bio(ctx: &BtfTracePointContext) -> i32 {
    let bio: *const u8 = ctx.arg(0);
    if let Some(mut record) = bio_record(Kind::BioRemap, bio) {
        describe_bio(&mut record, bio);
        record.related = follow(bio, &BIO_PRIVATE);
        let owner = Owner { owner_dev: ctx.arg(1), file_offset: ctx.arg::<u64>(2) << 9, ..Owner::default() };
        ring::send_owned(record, owner, Source::Block);
    }
    0
}

#[btf_tracepoint(function = "block_bio_complete")]
pub fn block_bio_complete(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first(Source::Block, number_of(ctx.arg(1)), || send_bio_completion(ctx.arg(1)));
        0
    })
}

#[btf_tracepoint(function = "block_bio_complete")]
pub fn block_bio_complete_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second(Source::Block, number_of(ctx.arg(1)), || send_bio_completion(ctx.arg(1)));
        0
    })
}

#[inline(always)]
fn send_bio_completion(bio: *const u8) {
    if let Some(mut record) = bio_record(Kind::BioComplete, bio) {
        describe_bio(&mut record, bio);
        let owner = Owner { aux: u32::from(follow::<u8>(bio, &BIO_STATUS)), ..Owner::default() };
        ring::send_owned(record, owner, Source::Block);
    }
}

#[inline(always)]
fn plain_request(kind: Kind, request: *const u8) -> i32 {
    if let Some(record) = request_record(kind, request) {
        ring::send(record, Source::Block);
    }
    0
}

#[btf_tracepoint(function = "block_rq_insert")]
pub fn block_rq_insert(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || insert(&ctx)))
}

#[btf_tracepoint(function = "block_rq_insert")]
pub fn block_rq_insert_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || insert(&ctx)))
}

#[inline(always)]
fn insert(ctx: &BtfTracePointContext) -> i32 {
    plain_request(Kind::Insert, ctx.arg(0))
}

#[btf_tracepoint(function = "block_rq_requeue")]
pub fn block_rq_requeue(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| plain_request(Kind::Requeue, ctx.arg(0)))
}

#[btf_tracepoint(function = "block_rq_merge")]
pub fn block_rq_merge(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || merge_requests(&ctx))
    })
}

#[btf_tracepoint(function = "block_rq_merge")]
pub fn block_rq_merge_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || merge_requests(&ctx))
    })
}

#[inline(always)]
fn merge_requests(ctx: &BtfTracePointContext) -> i32 {
    plain_request(Kind::RequestMerge, ctx.arg(0))
}

#[btf_tracepoint(function = "block_rq_remap")]
pub fn block_rq_remap(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        let request: *const u8 = ctx.arg(0);
        if let Some(record) = request_record(Kind::RequestRemap, request) {
            let owner = Owner { owner_dev: ctx.arg(1), file_offset: ctx.arg::<u64>(2) << 9, ..Owner::default() };
            ring::send_owned(record, owner, Source::Block);
        }
        0
    })
}

#[btf_tracepoint(function = "block_rq_issue")]
pub fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || issue(&ctx)))
}

#[btf_tracepoint(function = "block_rq_issue")]
pub fn block_rq_issue_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || issue(&ctx)))
}

#[inline(always)]
fn issue(ctx: &BtfTracePointContext) -> i32 {
    let request: *const u8 = ctx.arg(0);
    let Some(mut record) = request_record(Kind::Issue, request) else { return 0 };
    // Kernel threads that queue no bio issue requests.
    thread::introduce();
    let first: *const u8 = follow(request, &RQ_BIO);
    record.related = first as u64;
    if first.is_null() {
        ring::send(record, Source::Block);
        return 0;
    }
    // Before the loops: the kernel checks what follows them for each number of bios.
    let flush = if record.flags & RAW_FLUSH_SEQ == 0 { 0 } else { flushed_with(request) };
    let second: *const u8 = follow(first, &BIO_NEXT);
    let further = count_bios(second);
    record.sub = if further > 255 { 255 } else { further as u8 };
    if flush == 0 {
        ring::send(record, Source::Block);
    } else {
        ring::send_owned(record, Owner { iocb: flush, ..Owner::default() }, Source::Block);
    }
    if further > 0 {
        link_bios(record, second);
    }
    0
}

#[inline(always)]
fn count_bios(mut bio: *const u8) -> u32 {
    let mut count = 0;
    while count < MAX_BIOS {
        if bio.is_null() {
            return count;
        }
        bio = follow(bio, &BIO_NEXT);
        count += 1;
    }
    ring::count_drop(Source::Walk);
    count
}

#[inline(always)]
fn link_bios(issue: Record, mut bio: *const u8) {
    let mut link = Record { kind: Kind::Link as u8, sub: 0, flags: 0, ..issue };
    let mut links = 0;
    while links < MAX_BIOS / BIOS_PER_LINK {
        if bio.is_null() {
            return;
        }
        link.related = bio as u64;
        link.offset = 0;
        link.bytes = 0;
        bio = follow(bio, &BIO_NEXT);
        if !bio.is_null() {
            link.offset = bio as u64;
            bio = follow(bio, &BIO_NEXT);
        }
        if !bio.is_null() {
            link.bytes = bio as u64;
            bio = follow(bio, &BIO_NEXT);
        }
        ring::send(link, Source::Block);
        links += 1;
    }
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first(Source::Block, number_of(ctx.arg(0)), || send_completion(&ctx));
        0
    })
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_complete_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second(Source::Block, number_of(ctx.arg(0)), || send_completion(&ctx));
        0
    })
}

#[inline(always)]
fn send_completion(ctx: &BtfTracePointContext) {
    let Some(record) = completion(Kind::Complete, ctx) else { return };
    // The end of a flush without data, or of a whole flush sequence: the kernel has put the request's bio back
    // (`blk_flush_restore_request()`) and ends it after this event (`blk_update_request()`).
    let moves_nothing = record.bytes == 0 && record.related == 0;
    let bio = if moves_nothing { follow(ctx.arg::<*const u8>(0), &RQ_BIO) } else { 0 };
    if bio == 0 {
        ring::send(record, Source::Block);
    } else {
        let owner = Owner { origin: bio, iocb: flushed_with(ctx.arg(0)), ..Owner::default() };
        ring::send_owned(record, owner, Source::Block);
    }
}

/// A completion: this part's bytes, and in `related` what remains of the request.
#[inline(always)]
fn completion(kind: Kind, ctx: &BtfTracePointContext) -> Option<Record> {
    let mut record = request_record(kind, ctx.arg(0))?;
    take_part(&mut record, ctx);
    Some(record)
}

/// The same in a record that somebody else made.
#[inline(always)]
pub fn describe_completion(record: &mut Record, ctx: &BtfTracePointContext) {
    describe_request(record, ctx.arg(0));
    take_part(record, ctx);
}

#[inline(always)]
fn take_part(record: &mut Record, ctx: &BtfTracePointContext) {
    // `blk_status_t` before and an errno at times in other kernels: what is not 0 is an error.
    record.sub = ctx.arg::<u64>(1) as u8;
    let done = done_bytes(ctx);
    record.related = record.bytes.saturating_sub(done);
    record.bytes = done;
}

/// Bytes of the part of a request that a completion ends.
#[inline(always)]
pub fn done_bytes(ctx: &BtfTracePointContext) -> u64 {
    u64::from(ctx.arg::<u64>(2) as u32)
}

/// What remains of a request after a completion.
#[inline(always)]
pub fn left_bytes(ctx: &BtfTracePointContext) -> u32 {
    let bytes = u64::from(follow::<u32>(ctx.arg(0), &RQ_LEN));
    bytes.saturating_sub(done_bytes(ctx)) as u32
}
