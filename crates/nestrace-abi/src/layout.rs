//! What the probes must know of the running kernel: field offsets, sizes and constants that the
//! collector reads from BTF (and kallsyms) and hands over as one global each.
//!
//! A global that holds [`ABSENT`] says that this kernel has no such field; the verifier then prunes
//! the arm that would read it. One global per field, because loading a struct copies it to the
//! 512-byte stack.

/// Value of an offset whose field this kernel does not have.
pub const ABSENT: u16 = u16::MAX;

/// A kernel structure's field (or a structure's size), and the global that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the global in the probes.
    pub global: &'static str,
    /// `struct.member.member`; alternatives for other kernels separated by `|`. Without a dot: the
    /// size of that structure.
    pub path: &'static str,
}

/// Calls the macro `$then` with the table `NAME = "path";…`, so that the probes declare their
/// globals from the same table that the collector fills them from.
#[macro_export]
macro_rules! fields {
    ($then:ident) => {
        $then! {
            BIO_NEXT = "bio.bi_next";
            BIO_BDEV = "bio.bi_bdev";
            BIO_OPF = "bio.bi_opf";
            BIO_SECTOR = "bio.bi_iter.bi_sector";
            BIO_SIZE = "bio.bi_iter.bi_size";
            BIO_IDX = "bio.bi_iter.bi_idx";
            // bi_bvec_done became bi_offset in 7.3 and means the same.
            BIO_BVEC_DONE = "bio.bi_iter.bi_bvec_done|bio.bi_iter.bi_offset";
            BIO_END_IO = "bio.bi_end_io";
            BIO_PRIVATE = "bio.bi_private";
            BIO_VEC = "bio.bi_io_vec";
            BIO_IOPRIO = "bio.bi_ioprio";
            BIO_STATUS = "bio.bi_status";
            BIO_BLKG = "bio.bi_blkg";
            BLKG_BLKCG = "blkcg_gq.blkcg";
            BLKCG_CGROUP = "blkcg.css.cgroup";
            CGROUP_KN = "cgroup.kn";
            KN_ID = "kernfs_node.id";
            BVEC_PAGE = "bio_vec.bv_page";
            BVEC_OFFSET = "bio_vec.bv_offset";
            BVEC_SIZE = "bio_vec";
            BDEV_DEV = "block_device.bd_dev";
            BDEV_DISK = "block_device.bd_disk";
            DISK_MAJOR = "gendisk.major";
            DISK_MINOR = "gendisk.first_minor";
            RQ_QUEUE = "request.q";
            // 5.15 has no request_queue.disk use here: the request names its disk (rq_disk was removed by f3fa33acca9f in 5.17).
            RQ_DISK = "request.rq_disk";
            RQ_CMD_FLAGS = "request.cmd_flags";
            RQ_FLAGS = "request.rq_flags";
            RQ_LEN = "request.__data_len";
            RQ_SECTOR = "request.__sector";
            RQ_BIO = "request.bio";
            RQ_START = "request.start_time_ns";
            RQ_SIZE = "request";
            // From a request to the one that its hardware queue flushes with, as blk_get_flush_queue() goes: that of the
            // context's first type.
            RQ_CONTEXT = "request.mq_ctx";
            CONTEXT_HCTXS = "blk_mq_ctx.hctxs";
            HCTX_FLUSHES = "blk_mq_hw_ctx.fq";
            FLUSHES_REQUEST = "blk_flush_queue.flush_rq";
            QUEUE_DISK = "request_queue.disk";
            // compound_head became compound_info in 7.1 (8c846c879e22), which may hold a mask instead of a pointer.
            PAGE_HEAD = "page.compound_head|page.compound_info";
            PAGE_MAPPING = "page.mapping";
            // page.index became page.__folio_index in 6.16 (acc53a0b4c15).
            PAGE_INDEX = "page.index|page.__folio_index";
            PAGE_SIZEOF = "page";
            MAPPING_HOST = "address_space.host";
            INODE_INO = "inode.i_ino";
            INODE_SB = "inode.i_sb";
            INODE_MODE = "inode.i_mode";
            INODE_SIZE = "inode.i_size";
            SB_DEV = "super_block.s_dev";
            DIO_IOCB = "iomap_dio.iocb";
            BIO_POOL = "bio.bi_pool";
            DIO_SIMPLE_IOCB = "iomap_dio_simple.iocb";
            DIO_SIMPLE_BIO = "iomap_dio_simple.bio";
            BLKDEV_DIO_BIO = "blkdev_dio.bio";
            BLKDEV_DIO_IOCB = "blkdev_dio.iocb";
            BLKDEV_DIO_FLAGS = "blkdev_dio.flags";
            KIOCB_FILE = "kiocb.ki_filp";
            KIOCB_POS = "kiocb.ki_pos";
            KIOCB_COMPLETE = "kiocb.ki_complete";
            FILE_MAPPING = "file.f_mapping";
            FILE_FLAGS = "file.f_flags";
            FILE_POS = "file.f_pos";
            FILE_MODE = "file.f_mode";
            AIO_USER_IOCB = "aio_kiocb.ki_res.obj";
            LOOP_IOCB = "loop_cmd.iocb";
            URING_FILE = "io_kiocb.file";
            // The file is looked up at issue since 5.18 (6bf9c47a3989): until then its descriptor is here.
            URING_FD = "io_kiocb.cqe.fd|io_kiocb.fd";
            URING_FLAGS = "io_kiocb.flags";
            URING_OPCODE = "io_kiocb.opcode";
            URING_USER_DATA = "io_kiocb.cqe.user_data|io_kiocb.user_data";
            URING_CQE_USER_DATA = "io_uring_cqe.user_data";
            URING_CQE_RES = "io_uring_cqe.res";
            URING_RW_ADDR = "io_rw.addr";
            URING_RW_LEN = "io_rw.len";
            URING_RW_FLAGS = "io_rw.flags";
            URING_SYNC_FLAGS = "io_sync.flags";
            ITER_COUNT = "iov_iter.count";
            TASK_COMM = "task_struct.comm";
            TASK_PID = "task_struct.pid";
            // state became __state in 5.14 (2f064a59a11f).
            TASK_STATE = "task_struct.__state|task_struct.state";
            TASK_FILES = "task_struct.files";
            TASK_FS = "task_struct.fs";
            FS_PWD_MOUNT = "fs_struct.pwd.mnt";
            MOUNT_SB = "vfsmount.mnt_sb";
            TASK_STATUS = "task_struct.thread_info.status";
            FILES_FDT = "files_struct.fdt";
            FDT_FD = "fdtable.fd";
            FDT_MAX = "fdtable.max_fds";
            JOURNAL_DEV = "journal_s.j_fs_dev";
            TRANSACTION_TID = "transaction_s.t_tid";
            EXT4_INODE_VFS = "ext4_inode_info.vfs_inode";
            EXT4_SYNC_TID = "ext4_inode_info.i_sync_tid";
            EXT4_DATASYNC_TID = "ext4_inode_info.i_datasync_tid";
            XFS_MOUNT_SUPER = "xfs_mount.m_super";
            XFS_INODE_VFS = "xfs_inode.i_vnode";
            XFS_ICLOG_BIO = "xlog_in_core.ic_bio";
            XFS_ICLOG_STATE = "xlog_in_core.ic_state";
            XFS_ICLOG_LOG = "xlog_in_core.ic_log";
            // Both point to the header of the log's record.
            XFS_ICLOG_HEADER = "xlog_in_core.ic_header|xlog_in_core.ic_data";
            XFS_LOG_MOUNT = "xlog.l_mp";
            XFS_RECORD_LSN = "xlog_rec_header.h_lsn";
            BTRFS_LOG_TRANSID = "btrfs_log_ctx.log_transid";
            BTRFS_ROOT_FS = "btrfs_root.fs_info";
            BTRFS_ROOT_ID = "btrfs_root.root_key.objectid";
            BTRFS_HANDLE_TRANSID = "btrfs_trans_handle.transid";
            BTRFS_HANDLE_FS = "btrfs_trans_handle.fs_info";
            BTRFS_FS_SUPER = "btrfs_fs_info.sb";
            F2FS_SUPER = "f2fs_sb_info.sb";
            NFS_HEADER_INODE = "nfs_pgio_header.inode";
            NFS_HEADER_OFFSET = "nfs_pgio_header.args.offset";
            NFS_HEADER_COUNT = "nfs_pgio_header.args.count";
            NFS_HEADER_DIRECT = "nfs_pgio_header.dreq";
            NFS_COMMIT_INODE = "nfs_commit_data.inode";
            NFS_COMMIT_DIRECT = "nfs_commit_data.dreq";
            NFS_DIRECT_IOCB = "nfs_direct_req.iocb";
            RPC_TASK_REQUEST = "rpc_task.tk_rqstp";
            RPC_REQUEST_SENT = "rpc_rqst.rq_xtime";
            RPC_REQUEST_TOOK = "rpc_rqst.rq_rtt";
            SMB_READ_FILE = "cifs_readdata.cfile";
            SMB_READ_CONTEXT = "cifs_readdata.ctx";
            SMB_READ_OFFSET = "cifs_readdata.offset";
            SMB_READ_BYTES = "cifs_readdata.bytes";
            SMB_WRITE_FILE = "cifs_writedata.cfile";
            SMB_WRITE_CONTEXT = "cifs_writedata.ctx";
            SMB_WRITE_OFFSET = "cifs_writedata.offset";
            SMB_WRITE_BYTES = "cifs_writedata.bytes";
            SMB_CONTEXT_IOCB = "cifs_aio_ctx.iocb";
            SMB_FILE_DENTRY = "cifsFileInfo.dentry";
            SMB_FILE_FID = "cifsFileInfo.fid";
            SMB_CALL_REQUEST = "cifs_io_subrequest.rreq";
            SMB_CALL_OFFSET = "cifs_io_subrequest.subreq.start";
            SMB_CALL_BYTES = "cifs_io_subrequest.subreq.len";
            SMB_MESSAGE_DATA = "mid_q_entry.callback_data";
            NETFS_INODE = "netfs_io_request.inode";
            NETFS_IOCB = "netfs_io_request.iocb";
            DENTRY_INODE = "dentry.d_inode";
            DM_IO_CONTEXT = "io.context";
            DM_TARGET_MAGIC = "dm_target_io.magic";
            DM_TARGET_CLONE = "dm_target_io.clone";
            DM_TARGET_OF = "dm_target_io.io";
            DM_BIO = "dm_io.orig_bio";
            DM_DEVICE = "dm_io.md";
            DM_DISK = "mapped_device.disk";
            SEARCH_CLOSURE = "search.cl";
            SEARCH_BIO = "search.orig_bio";
            SEARCH_DEVICE = "search.d";
            SEARCH_INSERT = "search.iop";
            CLOSURE_PARENT = "closure.parent";
            BCACHE_DISK = "bcache_device.disk";
            WBC_TO_WRITE = "writeback_control.nr_to_write";
            FOLIO_FLAGS = "folio.flags";
            FOLIO_FLAGS_1 = "folio._flags_1";
            // Before 6.6 the order had a byte of its own (ebc1baf5c9b4 moved it into _flags_1).
            FOLIO_ORDER = "folio._folio_order";
            FOLIO_MAPPING = "folio.mapping|page.mapping";
            FOLIO_INDEX = "folio.index|page.index";
            RA_SIZE = "file_ra_state.size";
        }
    };
}

macro_rules! declare_table {
    ($($name:ident = $path:literal;)+) => {
        /// Every offset and size that the probes ask for.
        pub const FIELDS: &[Field] = &[$(Field { global: stringify!($name), path: $path },)+];
    };
}
fields!(declare_table);

/// Globals that hold addresses of the kernel's functions and variables, from kallsyms (0 = hidden or absent).
pub const SYMBOLS: &[(&str, &str)] = &[
    ("FN_IOMAP_DIO_END_IO", "iomap_dio_bio_end_io"),
    ("FN_BLKDEV_END_IO", "blkdev_bio_end_io"),
    ("FN_BLKDEV_END_IO_ASYNC", "blkdev_bio_end_io_async"),
    ("FN_AIO_COMPLETE", "aio_complete_rw"),
    ("FN_LOOP_COMPLETE", "lo_rw_aio_complete"),
    // Ends of bios that dm-io makes for a target.
    ("FN_DM_IO_END", "endio"),
    // Ends of bios that bcache makes for a bio above: on the backing device, reads of the cache, writes into it.
    ("FN_BCACHE_BACKING", "backing_request_endio"),
    ("FN_BCACHE_READ", "bch_cache_read_endio"),
    ("FN_BCACHE_INSERT", "bch_data_insert_endio"),
    // Reads by direct I/O that one bio carries, since 7.3: the pool that their bios are of, whoever is told of their end.
    ("POOL_IOMAP_DIO_SIMPLE", "iomap_dio_simple_pool"),
    ("FN_IOMAP_DIO_SIMPLE_END_IO", "iomap_dio_simple_end_io"),
];

/// Global: 1 where the completion tracepoint of io_uring passes a CQE instead of its parts
/// (`io_uring_complete`, since 6.15).
pub const URING_COMPLETE_CQE: &str = "URING_COMPLETE_CQE";
/// Global: 1 to send every disk's events without asking the device map.
pub const ALL_DEVICES: &str = "ALL_DEVICES";
/// Global: 1 to choose file I/O by the mount that the file lies on (a guest's way), not by process.
pub const BY_MOUNT: &str = "BY_MOUNT";
/// Global: places that a processor has in [`DONE`](crate::maps::DONE), a power of two; 0 where light detail sends requests
/// through the rings.
pub const DONE_SLOTS: &str = "DONE_SLOTS";
/// Global: how the probes sum instead of sending records ([`SUMS`](crate::maps::SUMS)); 0 where they do not.
pub const SUMMING: &str = "SUMMING";
/// [`SUMMING`]: a device's own layer is from D to C.
pub const SUMMING_FROM_ISSUE: u8 = 1;
/// [`SUMMING`]: it is from the request's start to C, which is a guest's way.
pub const SUMMING_FROM_START: u8 = 2;
/// Global: bit number of the page flag PG_head.
pub const PG_HEAD_BIT: &str = "PG_HEAD_BIT";
/// Global: bit number of RQF_FLUSH_SEQ in `request.rq_flags`: an enumerator since 6.11, before that
/// the macro `1 << 4`.
pub const RQF_FLUSH_SEQ_BIT: &str = "RQF_FLUSH_SEQ_BIT";
/// [`RQF_FLUSH_SEQ_BIT`] of kernels that have no enumerator.
pub const RQF_FLUSH_SEQ_BIT_BEFORE_6_11: u8 = 4;
/// Global: which argument of the io_uring submit tracepoint is the request (1 before 6.0, else 0).
pub const URING_SUBMIT_ARG: &str = "URING_SUBMIT_ARG";
/// Global: which argument of the tracepoint balance_dirty_pages is the pause in jiffies (10, or 6 since 6.16); 0 if neither.
pub const THROTTLE_PAUSE_ARG: &str = "THROTTLE_PAUSE_ARG";
/// Global: which argument of the SMB client's callbacks is the message (0, or 1 where its server stands before it).
pub const SMB_MESSAGE_ARG: &str = "SMB_MESSAGE_ARG";
/// Global: nanoseconds of a jiffy.
pub const JIFFY_NS: &str = "JIFFY_NS";
/// Global: 1 where a tracepoint's programs may be preempted between two of them (Linux 7.0).
pub const PREEMPTIBLE: &str = "PREEMPTIBLE";
/// Global: 1 where the tracepoint sched_switch passes the state of the thread that leaves (since 5.18).
pub const SWITCH_STATE: &str = "SWITCH_STATE";
/// Number of the helper that stands in the programs for the kernel's `bpf_preempt_disable`.
pub const PREEMPT_DISABLE_MARK: u32 = 0x4e53_0001;
/// The same for `bpf_preempt_enable`.
pub const PREEMPT_ENABLE_MARK: u32 = 0x4e53_0002;
