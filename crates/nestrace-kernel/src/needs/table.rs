//! The table: each program of the kernel with what it reads.

use super::Needs;

/// By program.
pub const NEEDS: &[Needs] = &[
    Needs {
        program: "block_bio_queue",
        arguments: &["bio"],
        reads: &[
            DISK,
            BIO_DISK,
            BIO_PLACE,
            INODE,
            MAPPING,
            KIOCB,
            FIRST_PAGE,
            &[
                "BIO_END_IO",
                "BIO_IOPRIO",
                "BIO_PRIVATE",
                "PAGE_HEAD",
                "PAGE_INDEX",
                "PAGE_MAPPING",
                "PAGE_SIZEOF",
                "TASK_COMM",
            ],
        ],
        any_of: &[],
    },
    Needs {
        program: "block_getrq",
        arguments: &["bio"],
        reads: &[DISK, BIO_DISK],
        any_of: &[],
    },
    Needs {
        program: "block_bio_backmerge",
        arguments: &["bio"],
        reads: &[DISK, BIO_DISK],
        any_of: &[],
    },
    Needs {
        program: "block_bio_frontmerge",
        arguments: &["bio"],
        reads: &[DISK, BIO_DISK],
        any_of: &[],
    },
    Needs {
        program: "block_split",
        arguments: &["bio"],
        reads: &[DISK, BIO_DISK, BIO_PLACE, FIRST_PAGE, &["BIO_PRIVATE"]],
        any_of: &[],
    },
    Needs {
        program: "block_bio_remap",
        arguments: &["bio", "dev_t", "sector_t"],
        reads: &[DISK, BIO_DISK, BIO_PLACE, &["BIO_PRIVATE"]],
        any_of: &[],
    },
    Needs {
        program: "block_bio_complete",
        arguments: &["_", "bio"],
        reads: &[DISK, BIO_DISK, BIO_PLACE, &["BIO_STATUS"]],
        any_of: &[],
    },
    Needs {
        program: "block_rq_insert",
        arguments: &["request"],
        reads: &[DISK, REQUEST, &["RQ_QUEUE"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "block_rq_issue",
        arguments: &["request"],
        reads: &[
            DISK,
            REQUEST,
            &["BIO_NEXT", "RQ_BIO", "RQ_QUEUE", "TASK_COMM"],
        ],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "block_rq_requeue",
        arguments: &["request"],
        reads: &[DISK, REQUEST, &["RQ_QUEUE"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "block_rq_merge",
        arguments: &["request"],
        reads: &[DISK, REQUEST, &["RQ_QUEUE"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "block_rq_complete",
        arguments: &["request", "_", "unsigned int"],
        reads: &[DISK, REQUEST, &["RQ_BIO", "RQ_QUEUE"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "block_rq_remap",
        arguments: &["request", "dev_t", "sector_t"],
        reads: &[DISK, REQUEST, &["RQ_QUEUE"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "block_plug",
        arguments: &["request_queue"],
        reads: &[DISK],
        any_of: &["QUEUE_DISK"],
    },
    Needs {
        program: "block_unplug",
        arguments: &["request_queue", "unsigned int", "bool"],
        reads: &[DISK],
        any_of: &["QUEUE_DISK"],
    },
    Needs {
        program: "light_rq_issue",
        arguments: &["request"],
        reads: &[DISK, &["RQ_QUEUE", "RQ_CMD_FLAGS"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "light_rq_complete",
        arguments: &["request", "_", "unsigned int"],
        reads: &[DISK, REQUEST, &["RQ_QUEUE"]],
        any_of: &["RQ_DISK", "QUEUE_DISK"],
    },
    Needs {
        program: "sys_enter",
        arguments: &["pt_regs", "long int"],
        reads: &[
            INODE,
            MAPPING,
            OPEN_FILE,
            &["FILE_POS", "INODE_SIZE", "TASK_COMM"],
        ],
        any_of: &[],
    },
    Needs {
        program: "sys_enter_io_submit",
        arguments: &["pt_regs", "long int"],
        reads: &[INODE, MAPPING, OPEN_FILE, &["TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "sys_exit",
        arguments: &["pt_regs", "long int"],
        reads: &[INODE, MAPPING, OPEN_FILE, &["TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "iomap_dio_rw_begin",
        arguments: &["kiocb", "iov_iter"],
        reads: &[INODE, MAPPING, KIOCB, &["ITER_COUNT"]],
        any_of: &[],
    },
    Needs {
        program: "iomap_dio_complete",
        arguments: &["kiocb", "int"],
        reads: &[INODE, MAPPING, KIOCB],
        any_of: &[],
    },
    Needs {
        program: "ext4_sync_file_enter",
        arguments: &["file", "int"],
        reads: &[INODE, MAPPING, &["FILE_FLAGS", "TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "ext4_sync_file_exit",
        arguments: &["inode", "int"],
        reads: &[INODE],
        any_of: &[],
    },
    Needs {
        program: "xfs_file_fsync",
        arguments: &["xfs_inode"],
        reads: &[INODE, &["TASK_COMM"]],
        any_of: &["XFS_INODE_VFS"],
    },
    Needs {
        program: "btrfs_sync_file",
        arguments: &["file", "int"],
        reads: &[INODE, MAPPING, &["FILE_FLAGS", "TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "nfs_initiate_read",
        arguments: &["nfs_pgio_header"],
        reads: &[INODE, MAPPING, KIOCB, NFS_HEADER],
        any_of: &[],
    },
    Needs {
        program: "nfs_initiate_write",
        arguments: &["nfs_pgio_header"],
        reads: &[INODE, MAPPING, KIOCB, NFS_HEADER],
        any_of: &[],
    },
    Needs {
        program: "nfs_initiate_commit",
        arguments: &["nfs_commit_data"],
        reads: &[
            INODE,
            MAPPING,
            KIOCB,
            &["NFS_COMMIT_DIRECT", "NFS_COMMIT_INODE", "NFS_DIRECT_IOCB"],
        ],
        any_of: &[],
    },
    Needs {
        program: "nfs_readpage_done",
        arguments: &["rpc_task", "nfs_pgio_header"],
        reads: &[INODE, RPC, &["NFS_HEADER_INODE"]],
        any_of: &[],
    },
    Needs {
        program: "nfs_writeback_done",
        arguments: &["rpc_task", "nfs_pgio_header"],
        reads: &[INODE, RPC, &["NFS_HEADER_INODE"]],
        any_of: &[],
    },
    Needs {
        program: "nfs_commit_done",
        arguments: &["rpc_task", "nfs_commit_data"],
        reads: &[INODE, RPC, &["NFS_COMMIT_INODE"]],
        any_of: &[],
    },
    Needs {
        program: "smb2_async_readv",
        arguments: &["cifs_readdata|cifs_io_subrequest"],
        reads: &[INODE, MAPPING, KIOCB],
        any_of: &["SMB_READ_FILE", "SMB_CALL_REQUEST"],
    },
    Needs {
        program: "smb2_async_writev",
        arguments: &["cifs_writedata|cifs_io_subrequest"],
        reads: &[INODE, MAPPING, KIOCB],
        any_of: &["SMB_WRITE_FILE", "SMB_CALL_REQUEST"],
    },
    Needs {
        program: "smb2_readv_callback",
        arguments: &["mid_q_entry|TCP_Server_Info"],
        reads: &[INODE, &["SMB_MESSAGE_DATA"]],
        any_of: &["SMB_READ_FILE", "SMB_CALL_REQUEST"],
    },
    Needs {
        program: "smb2_writev_callback",
        arguments: &["mid_q_entry|TCP_Server_Info"],
        reads: &[INODE, &["SMB_MESSAGE_DATA"]],
        any_of: &["SMB_WRITE_FILE", "SMB_CALL_REQUEST"],
    },
    Needs {
        program: "smb2_flush_file",
        arguments: &["unsigned int", "cifs_tcon", "cifs_fid"],
        reads: &[INODE],
        any_of: &["SMB_FILE_FID"],
    },
    Needs {
        program: "page_cache_sync_ra",
        arguments: &[
            "inode",
            "long unsigned int",
            "file_ra_state",
            "long unsigned int",
        ],
        reads: &[INODE],
        any_of: &[],
    },
    Needs {
        program: "page_cache_async_ra",
        arguments: &[
            "inode",
            "long unsigned int",
            "file_ra_state",
            "long unsigned int",
        ],
        reads: &[INODE],
        any_of: &[],
    },
    Needs {
        program: "page_cache_ra_order",
        arguments: &["inode", "long unsigned int", "file_ra_state"],
        reads: &[INODE],
        any_of: &[],
    },
    Needs {
        program: "page_cache_ra_unbounded",
        arguments: &[
            "inode",
            "long unsigned int",
            "long unsigned int",
            "long unsigned int",
        ],
        reads: &[INODE],
        any_of: &[],
    },
    Needs {
        program: "mm_filemap_add_to_page_cache",
        arguments: &["folio|page"],
        reads: &[INODE, &["FOLIO_INDEX", "FOLIO_MAPPING", "MAPPING_HOST"]],
        any_of: &[],
    },
    of_journal("jbd2_start_commit"),
    of_journal("jbd2_commit_locking"),
    of_journal("jbd2_commit_flushing"),
    of_journal("jbd2_commit_logging"),
    of_journal("jbd2_end_commit"),
    Needs {
        program: "xfs_log_force",
        arguments: &["xfs_mount"],
        reads: &[&["SB_DEV"]],
        any_of: &["XFS_MOUNT_SUPER"],
    },
    Needs {
        program: "xlog_iclog_wait_on",
        arguments: &["xlog_in_core"],
        reads: &[&[
            "SB_DEV",
            "TASK_COMM",
            "XFS_ICLOG_HEADER",
            "XFS_ICLOG_LOG",
            "XFS_ICLOG_STATE",
            "XFS_LOG_MOUNT",
            "XFS_MOUNT_SUPER",
            "XFS_RECORD_LSN",
        ]],
        any_of: &["XFS_ICLOG_BIO"],
    },
    of_log_space("xfs_log_grant_sleep"),
    of_log_space("xfs_log_grant_wake"),
    Needs {
        program: "__jbd2_log_wait_for_space",
        arguments: &["journal_t|journal_s"],
        reads: &[&["BDEV_DEV", "TASK_COMM"]],
        any_of: &["JOURNAL_DEV"],
    },
    Needs {
        program: "btrfs_sync_log",
        arguments: &["btrfs_trans_handle", "btrfs_root", "btrfs_log_ctx"],
        reads: &[&[
            "BTRFS_FS_SUPER",
            "BTRFS_ROOT_FS",
            "BTRFS_ROOT_ID",
            "SB_DEV",
            "TASK_COMM",
        ]],
        any_of: &["BTRFS_LOG_TRANSID"],
    },
    Needs {
        program: "btrfs_commit_transaction",
        arguments: &["btrfs_trans_handle"],
        reads: &[&["BTRFS_FS_SUPER", "BTRFS_HANDLE_FS", "SB_DEV", "TASK_COMM"]],
        any_of: &["BTRFS_HANDLE_TRANSID"],
    },
    Needs {
        program: "f2fs_write_checkpoint",
        arguments: &["super_block"],
        reads: &[&["SB_DEV", "TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "f2fs_issue_checkpoint",
        arguments: &["f2fs_sb_info"],
        reads: &[&["SB_DEV", "TASK_COMM"]],
        any_of: &["F2FS_SUPER"],
    },
    Needs {
        program: "writeback_single_inode_start",
        arguments: &["inode", "writeback_control", "long unsigned int"],
        reads: &[INODE, &["TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "writeback_single_inode",
        arguments: &["inode", "writeback_control", "long unsigned int"],
        reads: &[INODE, &["WBC_TO_WRITE"]],
        any_of: &[],
    },
    Needs {
        program: "balance_dirty_pages",
        arguments: &["bdi_writeback"],
        reads: &[],
        any_of: &[],
    },
    Needs {
        program: "mm_filemap_fault",
        arguments: &["address_space", "long unsigned int"],
        reads: &[INODE, &["MAPPING_HOST", "TASK_COMM"]],
        any_of: &[],
    },
    Needs {
        program: "io_uring_submit_req",
        arguments: &[],
        reads: &[
            INODE,
            MAPPING,
            OPEN_FILE,
            &[
                "KIOCB_POS",
                "TASK_COMM",
                "URING_FILE",
                "URING_FLAGS",
                "URING_RW_LEN",
            ],
        ],
        any_of: &["URING_OPCODE"],
    },
    Needs {
        program: "io_uring_complete",
        arguments: &[],
        reads: &[&["URING_CQE_RES", "URING_CQE_USER_DATA"]],
        any_of: &["URING_OPCODE"],
    },
    Needs {
        program: "io_uring_queue_async_work",
        arguments: &[],
        reads: &[],
        any_of: &["URING_OPCODE"],
    },
    Needs {
        program: "sched_switch",
        arguments: &["bool", "task_struct", "task_struct"],
        reads: &[&["TASK_COMM", "TASK_PID", "TASK_STATE"]],
        any_of: &[],
    },
    Needs {
        program: "sched_waking",
        arguments: &["task_struct"],
        reads: &[&["TASK_PID"]],
        any_of: &[],
    },
];

/// Of a commit of jbd2.
const fn of_journal(program: &'static str) -> Needs {
    Needs {
        program,
        arguments: &["journal_t", "transaction_t"],
        reads: &[DISK, &["BDEV_DISK", "TASK_COMM", "TRANSACTION_TID"]],
        any_of: &["JOURNAL_DEV"],
    }
}

/// Of a wait for space in XFS' log.
const fn of_log_space(program: &'static str) -> Needs {
    Needs {
        program,
        arguments: &["xlog"],
        reads: LOG_SPACE,
        any_of: &["XFS_LOG_MOUNT"],
    }
}

/// From a log of XFS to the number of its super block, and the thread.
const LOG_SPACE: &[&[&str]] = &[&["SB_DEV", "TASK_COMM", "XFS_MOUNT_SUPER"]];
/// Of a disk.
const DISK: &[&str] = &["DISK_MAJOR", "DISK_MINOR"];
/// From a bio to its disk.
const BIO_DISK: &[&str] = &["BDEV_DISK", "BIO_BDEV"];
/// Place, length and operation of a bio.
const BIO_PLACE: &[&str] = &["BIO_OPF", "BIO_SECTOR", "BIO_SIZE"];
/// Where a bio's memory begins.
const FIRST_PAGE: &[&str] = &[
    "BIO_BVEC_DONE",
    "BIO_IDX",
    "BIO_VEC",
    "BVEC_OFFSET",
    "BVEC_PAGE",
    "BVEC_SIZE",
];
/// Place, length and operation of a request.
const REQUEST: &[&str] = &["RQ_CMD_FLAGS", "RQ_FLAGS", "RQ_LEN", "RQ_SECTOR"];
/// Of an inode.
const INODE: &[&str] = &["INODE_INO", "INODE_MODE", "INODE_SB", "SB_DEV"];
/// From an open file to its inode.
const MAPPING: &[&str] = &["FILE_MAPPING", "MAPPING_HOST"];
/// Of a direct I/O's control block.
const KIOCB: &[&str] = &["KIOCB_COMPLETE", "KIOCB_FILE", "KIOCB_POS"];
/// When a call to a server was sent and answered.
const NFS_HEADER: &[&str] = &[
    "NFS_DIRECT_IOCB",
    "NFS_HEADER_COUNT",
    "NFS_HEADER_DIRECT",
    "NFS_HEADER_INODE",
    "NFS_HEADER_OFFSET",
];
const RPC: &[&str] = &["RPC_REQUEST_SENT", "RPC_REQUEST_TOOK", "RPC_TASK_REQUEST"];
/// From a descriptor to the open file.
const OPEN_FILE: &[&str] = &["FDT_MAX", "FILE_FLAGS"];
