//! Whose data a bio carries: direct I/O by its control block, buffered I/O by the inode of its pages.

use nestrace_abi::{
    Owner, PAGE_IDENTITY_SHIFT, PAGE_IDENTITY_SIZE, Record,
    flags::{OWNER_ANONYMOUS, OWNER_DIRECT, OWNER_NONE, OWNER_PAGES},
};

use crate::layout::*;

/// Bits of `page->mapping` that are not part of the address (PAGE_MAPPING_FLAGS).
const MAPPING_FLAGS: u64 = 3;
/// Set in `page->mapping` of anonymous memory.
const MAPPING_ANON: u64 = 1;
const PAGE_SHIFT: u64 = 12;
const PAGE_MASK: u64 = (1 << PAGE_SHIFT) - 1;
/// Least `page->compound_info` of a tail page that is a mask.
const HEAD_MASK: u64 = 0xffff_ff00_0000_0000;
/// DIO_IS_SYNC of block/fops.c, as in 6.1 to 7.3.
const BLKDEV_DIO_IS_SYNC: u32 = 2;

/// Owner of a bio; sets `sub` (how it is known) and `related` (the first page) of its record.
#[inline(always)]
pub fn of_bio(bio: *const u8, record: &mut Record) -> Owner {
    let mut owner = Owner {
        end_io: follow(bio, &BIO_END_IO),
        aux: u32::from(follow::<u16>(bio, &BIO_IOPRIO)),
        cgroup: cgroup_of(bio),
        ..Owner::default()
    };
    let iocb = iocb_of(bio, owner.end_io);
    if iocb != 0 {
        record.sub = OWNER_DIRECT;
        describe_iocb(&mut owner, iocb);
        // Of a guest's bio its memory is wanted, too: QEMU reads or writes the same. The host's owner is known by now.
        if BY_MOUNT.load() != 0 && record.bytes != 0 {
            record.related = first_page(bio).identity();
        }
        return owner;
    }
    record.sub = if record.bytes == 0 { OWNER_NONE } else { describe_pages(&mut owner, bio, record) };
    owner
}

/// The kiocb of a direct I/O's bio, or 0.
#[inline(always)]
fn iocb_of(bio: *const u8, end_io: u64) -> u64 {
    if FN_IOMAP_DIO_END_IO.load() != 0 && end_io == FN_IOMAP_DIO_END_IO.load() && has(&DIO_IOCB) {
        return copy_field(follow::<u64>(bio, &BIO_PRIVATE), &DIO_IOCB);
    }
    if has(&DIO_SIMPLE_IOCB) && has(&DIO_SIMPLE_BIO) && is_simple_dio(bio, end_io) {
        // The bio is embedded in its iomap_dio_simple.
        return copy((bio as u64) - u64::from(DIO_SIMPLE_BIO.load()) + u64::from(DIO_SIMPLE_IOCB.load()));
    }
    if !has(&BLKDEV_DIO_IOCB) || !has(&BLKDEV_DIO_BIO) {
        return 0;
    }
    if FN_BLKDEV_END_IO_ASYNC.load() != 0 && end_io == FN_BLKDEV_END_IO_ASYNC.load() {
        // The bio is embedded in its blkdev_dio.
        return copy((bio as u64) - u64::from(BLKDEV_DIO_BIO.load()) + u64::from(BLKDEV_DIO_IOCB.load()));
    }
    if has(&BLKDEV_DIO_FLAGS) && FN_BLKDEV_END_IO.load() != 0 && end_io == FN_BLKDEV_END_IO.load() {
        // One of several bios. Where the caller waits, its task stands in the place of the kiocb.
        let dio: u64 = follow(bio, &BIO_PRIVATE);
        if copy_field::<u32>(dio, &BLKDEV_DIO_FLAGS) & BLKDEV_DIO_IS_SYNC == 0 {
            return copy_field(dio, &BLKDEV_DIO_IOCB);
        }
    }
    0
}

/// Whether a bio is a direct I/O's that needs no other one. Where the caller waits, `submit_bio_wait()` is told of its end,
/// and only the pool says whose the bio is.
#[inline(always)]
fn is_simple_dio(bio: *const u8, end_io: u64) -> bool {
    let pool = POOL_IOMAP_DIO_SIMPLE.load();
    if pool != 0 && has(&BIO_POOL) {
        return follow::<u64>(bio, &BIO_POOL) == pool;
    }
    let function = FN_IOMAP_DIO_SIMPLE_END_IO.load();
    function != 0 && end_io == function
}

/// Fills file, place and origin from a kiocb.
#[inline(always)]
pub fn describe_iocb(owner: &mut Owner, iocb: u64) {
    // An aio_kiocb's `ki_res.obj` is the tenth word.
    let block = Window::<10>::copy(iocb, &KIOCB_FILE);
    owner.iocb = iocb;
    owner.file_offset = block.field(&KIOCB_POS);
    owner.origin = origin_of(&block, iocb);
    describe_inode(owner, &inode_of(block.field(&KIOCB_FILE)));
}

/// What a kiocb was made from, by its `ki_complete`: the user's iocb, the loop device's request, or (io_uring,
/// synchronous calls) the kiocb itself.
#[inline(always)]
fn origin_of(block: &Window<10>, iocb: u64) -> u64 {
    let complete: u64 = block.field(&KIOCB_COMPLETE);
    if complete != 0 && complete == FN_AIO_COMPLETE.load() && has(&AIO_USER_IOCB) {
        return block.field(&AIO_USER_IOCB);
    }
    if complete != 0 && complete == FN_LOOP_COMPLETE.load() && has(&LOOP_IOCB) && has(&RQ_SIZE) {
        // A loop_cmd is the driver's data right behind its request.
        return iocb - u64::from(LOOP_IOCB.load()) - u64::from(RQ_SIZE.load());
    }
    iocb
}

/// What is read of a `struct inode`; all 0 where there is none.
#[derive(Clone, Copy, Default)]
pub struct Inode {
    pub address: u64,
    pub number: u64,
    /// Of its super block.
    pub dev: u32,
    /// `i_mode`.
    pub mode: u16,
}

/// The inode at an address.
#[inline(always)]
pub fn inode_at(address: u64) -> Inode {
    if address == 0 {
        return Inode::default();
    }
    let head = Window::<9>::copy(address, &INODE_MODE);
    Inode {
        address,
        number: head.field(&INODE_INO),
        dev: copy_field(head.field(&INODE_SB), &SB_DEV),
        mode: head.field(&INODE_MODE),
    }
}

/// The inode of a `struct file`. The mapping's host, not `f_inode`: for a block device that is the device's
/// own inode, for a file on overlayfs the real one.
#[inline(always)]
pub fn inode_of(file: u64) -> Inode {
    if file == 0 {
        return Inode::default();
    }
    let mapping: u64 = copy_field(file, &FILE_MAPPING);
    if mapping == 0 {
        return Inode::default();
    }
    inode_at(copy_field(mapping, &MAPPING_HOST))
}

/// Fills inode number and device.
#[inline(always)]
pub fn describe_inode(owner: &mut Owner, inode: &Inode) {
    owner.inode = inode.number;
    owner.owner_dev = inode.dev;
}

/// Where a bio's memory begins.
#[derive(Clone, Copy, Default)]
struct FirstPage {
    /// Its `struct page`; 0 where the bio has none.
    page: u64,
    /// Bytes before the memory within that page.
    offset: u64,
}

impl FirstPage {
    /// The page's address, whose low bits are free, with the place within the page in units of 64 bytes: a `struct page` of
    /// 64 bytes stands for 4,096. Where it has another size, the page alone.
    #[inline(always)]
    fn identity(self) -> u64 {
        if self.page == 0 || PAGE_SIZEOF.load() != PAGE_IDENTITY_SIZE {
            return self.page;
        }
        self.page | (self.offset >> PAGE_IDENTITY_SHIFT)
    }
}

/// The first page that the bio still has to carry: a clone shares its vector with the bio that it was split from and begins
/// within it.
#[inline(always)]
fn first_page(bio: *const u8) -> FirstPage {
    // Copied: of a pointer that it follows, the verifier allows no arithmetic with what it does not know.
    let vectors: u64 = copy_field(bio as u64, &BIO_VEC);
    first_page_in(vectors, follow(bio, &BIO_IDX), follow(bio, &BIO_BVEC_DONE))
}

/// The identity of the first page that the bio at an address still has to carry.
#[inline(always)]
pub fn page_left(bio: u64) -> u64 {
    let vectors: u64 = copy_field(bio, &BIO_VEC);
    first_page_in(vectors, copy_field(bio, &BIO_IDX), copy_field(bio, &BIO_BVEC_DONE)).identity()
}

#[inline(always)]
fn first_page_in(vectors: u64, index: u32, done: u32) -> FirstPage {
    if vectors == 0 {
        return FirstPage::default();
    }
    let vector = vectors + u64::from(index) * u64::from(BVEC_SIZE.load());
    let start: u64 = copy_field(vector, &BVEC_PAGE);
    if start == 0 {
        return FirstPage::default();
    }
    let begin: u32 = copy_field(vector, &BVEC_OFFSET);
    let within_vector = u64::from(begin) + u64::from(done);
    FirstPage {
        // A vector of several pages may leave one folio for the next.
        page: start + (within_vector >> PAGE_SHIFT) * u64::from(PAGE_SIZEOF.load()),
        offset: within_vector & PAGE_MASK,
    }
}

/// The first page of the folio that a page belongs to, as the kernel's own `_compound_head` finds it.
#[inline(always)]
fn head_of(page: u64) -> u64 {
    let info: u64 = copy_field(page, &PAGE_HEAD);
    if info & 1 == 0 {
        return page;
    }
    // A mask (7.1, where huge pages may do without their `struct page`s) has its upper bits set, further than any address
    // of a `struct page`: 0xffffea0000000000 and up, or below.
    if info >= HEAD_MASK { page & info } else { info - 1 }
}

/// Fills the owner from the bio's first page. Tail pages of a large folio lead to its head.
#[inline(always)]
fn describe_pages(owner: &mut Owner, bio: *const u8, record: &mut Record) -> u8 {
    let first = first_page(bio);
    if first.page == 0 {
        return OWNER_NONE;
    }
    record.related = first.identity();
    let head = head_of(first.page);
    let mapping: u64 = copy_field(head, &PAGE_MAPPING);
    if mapping & MAPPING_ANON != 0 {
        return OWNER_ANONYMOUS;
    }
    if mapping == 0 || mapping & MAPPING_FLAGS != 0 {
        return OWNER_NONE;
    }
    describe_inode(owner, &inode_at(copy_field(mapping, &MAPPING_HOST)));
    let index: u64 = copy_field(head, &PAGE_INDEX);
    let further = first.page.wrapping_sub(head) / u64::from(PAGE_SIZEOF.load().max(1));
    owner.file_offset = ((index + further) << PAGE_SHIFT) + first.offset;
    OWNER_PAGES
}

/// cgroup id of the bio, which write-back by a kworker carries from the task that dirtied the page.
#[inline(always)]
fn cgroup_of(bio: *const u8) -> u64 {
    if !has(&BIO_BLKG) || !has(&BLKG_BLKCG) || !has(&BLKCG_CGROUP) || !has(&CGROUP_KN) || !has(&KN_ID) {
        return 0;
    }
    let group: *const u8 = follow(bio, &BIO_BLKG);
    if group.is_null() {
        return 0;
    }
    let blkcg: *const u8 = follow(group, &BLKG_BLKCG);
    if blkcg.is_null() {
        return 0;
    }
    let cgroup: *const u8 = follow(blkcg, &BLKCG_CGROUP);
    if cgroup.is_null() {
        return 0;
    }
    let node: *const u8 = follow(cgroup, &CGROUP_KN);
    if node.is_null() {
        return 0;
    }
    follow(node, &KN_ID)
}
