//! Names for the columns of an event whose meaning depends on its kind. The table of kinds is at [`nestrace_abi::Kind`].
//!
//! A column is looked at as it is: the caller has matched the kind. For another kind the value means something else.

use super::Event;

/// Bios.
impl Event {
    /// Of [`Kind::Queue`](crate::Kind::Queue): page identity of its first byte
    /// ([`nestrace_abi::PAGE_IDENTITY_SHIFT`]); 0 if unknown. Column `related`.
    #[must_use]
    #[inline]
    pub const fn first_page(&self) -> u64 {
        self.related
    }

    /// Of [`Kind::Split`](crate::Kind::Split): the bio that was split, which goes on as the rest. Column `related`.
    #[must_use]
    #[inline]
    pub const fn parent_bio(&self) -> u64 {
        self.related
    }

    /// Of [`Kind::Split`](crate::Kind::Split) in a guest: page identity of the first byte of the rest; 0 if unknown.
    /// Column `origin`.
    #[must_use]
    #[inline]
    pub const fn first_page_of_rest(&self) -> u64 {
        self.origin
    }

    /// Of [`Kind::BioRemap`](crate::Kind::BioRemap) and [`Kind::RequestRemap`](crate::Kind::RequestRemap): the device
    /// that it was for before. Column `owner_dev`.
    #[must_use]
    #[inline]
    pub const fn former_dev(&self) -> u32 {
        self.owner_dev
    }

    /// Of the same kinds: its byte offset on the device that it was for before. Column `file_offset`.
    #[must_use]
    #[inline]
    pub const fn former_offset(&self) -> u64 {
        self.file_offset
    }

    /// Of [`Kind::BioComplete`](crate::Kind::BioComplete): not 0 if it failed. Column `aux`.
    #[must_use]
    #[inline]
    pub const fn status(&self) -> u32 {
        self.aux
    }
}

/// Requests.
impl Event {
    /// Of [`Kind::Issue`](crate::Kind::Issue): the first bio of the request; 0 if it has none. Column `related`.
    #[must_use]
    #[inline]
    pub const fn first_bio(&self) -> u64 {
        self.related
    }

    /// Of [`Kind::Link`](crate::Kind::Link): up to three further bios of a request; 0 where there is none. Columns
    /// `related`, `offset` and `bytes`.
    #[must_use]
    #[inline]
    pub const fn further_bios(&self) -> [u64; 3] {
        [self.related, self.offset, self.bytes]
    }

    /// Of [`Kind::Complete`](crate::Kind::Complete): bytes of the request that remain. Column `related`.
    #[must_use]
    #[inline]
    pub const fn remaining_bytes(&self) -> u64 {
        self.related
    }

    /// Of [`Kind::Complete`](crate::Kind::Complete) that moves no bytes: the bio that it ends; 0 if there is none or the
    /// backend does not give it. Column `origin`.
    #[must_use]
    #[inline]
    pub const fn ended_bio(&self) -> u64 {
        self.origin
    }

    /// Of [`Kind::Issue`](crate::Kind::Issue) of data in a flush sequence, and of [`Kind::Complete`](crate::Kind::Complete)
    /// that ends a bio and moves no bytes: the request that its hardware queue flushes with; 0 if unknown. Column `iocb`.
    #[must_use]
    #[inline]
    pub const fn flushed_with(&self) -> u64 {
        self.iocb
    }

    /// Of [`Kind::RequestDone`](crate::Kind::RequestDone): the time of D; `None` if it is not known. Column `related`.
    #[must_use]
    #[inline]
    pub const fn issued_ns(&self) -> Option<u64> {
        match self.related {
            0 => None,
            issued_ns => Some(issued_ns),
        }
    }

    /// Of [`Kind::Unplug`](crate::Kind::Unplug): how many requests were held. Column `bytes`.
    #[must_use]
    #[inline]
    pub const fn n_requests(&self) -> u64 {
        self.bytes
    }
}

/// Calls on files.
impl Event {
    /// Of [`Kind::SyscallExit`](crate::Kind::SyscallExit), [`Kind::UringComplete`](crate::Kind::UringComplete) and
    /// [`Kind::SyncExit`](crate::Kind::SyncExit): a count, or a negative errno. Column `offset`.
    #[must_use]
    #[inline]
    pub const fn result(&self) -> i64 {
        self.offset.cast_signed()
    }

    /// Of [`Kind::DioComplete`](crate::Kind::DioComplete): the errno, 0 if it succeeded. Column `aux`.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> u32 {
        self.aux
    }

    /// Of calls that move data, io_uring requests and `blk_aio_*`: the address of the first buffer; 0 if unknown. Column
    /// `iocb`.
    #[must_use]
    #[inline]
    pub const fn first_buffer(&self) -> u64 {
        self.iocb
    }
}

/// QEMU and its guest.
impl Event {
    /// Of `block_acct_*`: the `BlockAcctStats` of the disk. Column `related`.
    #[must_use]
    #[inline]
    pub const fn stats(&self) -> u64 {
        self.related
    }

    /// Of `blk_aio_*` ([`Kind::is_aio_call`](crate::Kind::is_aio_call)): the BlockBackend. Column `related`.
    #[must_use]
    #[inline]
    pub const fn backend(&self) -> u64 {
        self.related
    }

    /// Of [`Kind::VirtqueuePush`](crate::Kind::VirtqueuePush): the virtqueue. Column `related`.
    #[must_use]
    #[inline]
    pub const fn virtqueue(&self) -> u64 {
        self.related
    }

    /// Of [`Kind::GuestRun`](crate::Kind::GuestRun): QEMU's `RunState`. Column `aux`.
    #[must_use]
    #[inline]
    pub const fn run_state(&self) -> u32 {
        self.aux
    }
}

/// The scheduler.
impl Event {
    /// Of [`Kind::Switch`](crate::Kind::Switch): the thread that leaves carries I/O. Column `dev`.
    #[must_use]
    #[inline]
    pub const fn leaves_carrier(&self) -> bool {
        self.dev & 1 != 0
    }

    /// Of [`Kind::Switch`](crate::Kind::Switch): the thread that comes (column `object`) carries I/O. Column `dev`.
    #[must_use]
    #[inline]
    pub const fn comes_carrier(&self) -> bool {
        self.dev & 2 != 0
    }
}

/// The recording itself.
impl Event {
    /// Of [`Kind::Thread`](crate::Kind::Thread): the 16 bytes of its name, without the trailing zeros; of
    /// [`Kind::Switch`](crate::Kind::Switch) those of the other thread's. Columns `related` and `offset`.
    #[must_use]
    pub fn thread_name(&self) -> String {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&self.related.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Of [`Kind::Thread`](crate::Kind::Thread): its process. Column `object`.
    #[must_use]
    #[inline]
    pub const fn process_id(&self) -> u64 {
        self.object
    }

    /// Of [`Kind::Loss`](crate::Kind::Loss): how many events of the source this stream has lost so far. Column `object`.
    #[must_use]
    #[inline]
    pub const fn lost_so_far(&self) -> u64 {
        self.object
    }
}
