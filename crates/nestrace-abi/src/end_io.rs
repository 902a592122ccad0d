//! Who is told that a bio has ended: `bio->bi_end_io`, which names the kernel code that made the bio.
//!
//! A stored event holds an index into [`SYMBOLS`] (0 = a function that is not listed, or addresses
//! are hidden), never an address. Append only.

/// Kernel symbols by number.
pub const SYMBOLS: &[&str] = &[
    "",
    "iomap_dio_bio_end_io",
    "end_bio_bh_io_sync",
    "xlog_bio_end_io",
    "xfs_buf_bio_end_io",
    "ext4_end_bio",
    "mpage_end_io",
    "mpage_read_end_io",
    "mpage_write_end_io",
    "iomap_read_end_io",
    "iomap_writepage_end_bio",
    "ioend_writeback_end_bio",
    "xfs_end_bio",
    "btrfs_simple_end_io",
    "btrfs_orig_write_end_io",
    "btrfs_raid56_end_io",
    "btrfs_clone_write_end_io",
    "blkdev_bio_end_io",
    "blkdev_bio_end_io_async",
    "blkdev_bio_end_io_simple",
    "submit_bio_wait_endio",
    "bio_chain_endio",
    "clone_endio",
    "md_end_clone_io",
    "end_swap_bio_write",
    "end_swap_bio_read",
    "dio_bio_end_aio",
    "dio_bio_end_io",
    "end_workqueue_bio",
    "iomap_finish_ioend_direct",
    "iomap_fail_ioend_buffered",
    "ext4_end_io_rsv_work",
    "iomap_dio_simple_end_io",
    "bio_wait_end_io",
    "md_end_flush",
    "super_written",
    "end_sync_read",
    "end_sync_write",
    "f2fs_write_end_io",
    "f2fs_read_end_io",
];

/// [`SYMBOLS`] index of iomap's direct I/O: the bio's `bi_private` is an `iomap_dio`.
pub const IOMAP_DIO: u8 = 1;
/// [`SYMBOLS`] index of buffer heads (metadata of ext2/3/4, jbd2).
pub const BUFFER_HEAD: u8 = 2;
/// [`SYMBOLS`] index of XFS' log.
pub const XFS_LOG: u8 = 3;
/// [`SYMBOLS`] index of XFS' metadata buffers.
pub const XFS_BUF: u8 = 4;
/// [`SYMBOLS`] index of the flushes that md sends to its members.
pub const MD_FLUSH: u8 = 34;
/// [`SYMBOLS`] index of what f2fs writes.
pub const F2FS_WRITE: u8 = 38;
/// [`SYMBOLS`] index of what f2fs reads.
pub const F2FS_READ: u8 = 39;
