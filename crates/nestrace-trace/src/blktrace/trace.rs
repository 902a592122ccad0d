//! One record of a blktrace file (`struct blk_io_trace`).
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use super::action::{self, Action, CGROUP, Notify};

/// Bytes of a record without its payload.
pub const RECORD_BYTES: usize = 48;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Number of the event on its processor and device, from 1; notifications have 0.
    pub sequence: u32,
    /// `CLOCK_MONOTONIC` of the recording machine, nanoseconds.
    pub time_ns: u64,
    /// Where on the whole disk, in sectors of 512 bytes; 0 for flushes and for drivers' commands.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Action, a bit for the cgroup, and [`super::category`] bits, as stored.
    pub raw_action: u32,
    /// Thread id; 0 in the idle task.
    pub tid: u32,
    /// The whole disk, `MAJOR << 20 | MINOR`.
    pub device: u32,
    /// Processor.
    pub cpu: u32,
    /// Error of a completion (an errno or a `blk_status_t`, by kernel); 0 for none.
    pub error: u16,
    /// The cgroup, where blktrace was told to record it (`-o blk_cgroup`).
    pub cgroup: Option<u64>,
    /// What follows the record, the cgroup's id not included.
    pub payload: Vec<u8>,
    pub(super) order: ByteOrder,
}

/// What a remap's payload holds: where the I/O was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// The device before (partition, dm, md), `MAJOR << 20 | MINOR`.
    pub from_device: u32,
    /// The device after. Kernels disagree on whether this is the disk or the device of the trace.
    pub to_device: u32,
    /// The sector before.
    pub from_sector: u64,
}

impl Trace {
    /// What happened; `None` for a notification or an action that is newer than this reader.
    #[must_use]
    pub const fn action(&self) -> Option<Action> {
        action::action(self.raw_action)
    }

    /// Which notification this is, if it is one.
    #[must_use]
    pub const fn notify(&self) -> Option<Notify> {
        action::notify(self.raw_action)
    }

    /// The [`super::category`] bits.
    #[must_use]
    pub const fn category(&self) -> u16 {
        (self.raw_action >> 16) as u16
    }

    /// A payload of 8 bytes as a number: requests of an unplug, the second half's sector of a split.
    /// Such payloads are big-endian on every machine.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.payload.first_chunk()?))
    }

    /// Where a remapped bio or request was before.
    #[must_use]
    pub fn remap(&self) -> Option<Remap> {
        let (from_device, rest) = self.payload.split_first_chunk()?;
        let (to_device, rest) = rest.split_first_chunk()?;
        Some(Remap {
            from_device: u32::from_be_bytes(*from_device),
            to_device: u32::from_be_bytes(*to_device),
            from_sector: u64::from_be_bytes(*rest.first_chunk()?),
        })
    }

    /// Takes the cgroup's id off the payload where there is one.
    pub(super) fn split_cgroup(&mut self) {
        if self.raw_action & CGROUP == 0 {
            return;
        }
        if let Some(id) = self.payload.first_chunk() {
            self.cgroup = Some(self.order.u64(*id));
            self.payload.drain(..size_of::<u64>());
        }
    }
}

/// Byte order of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ByteOrder {
    #[default]
    Little,
    Big,
}

impl ByteOrder {
    const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Takes the record's fields, all but the payload, and the payload's length.
pub(super) fn parse(record: &[u8; RECORD_BYTES], order: ByteOrder) -> (Trace, usize) {
    let mut fields = Fields {
        rest: record,
        order,
    };
    let _magic = fields.u32();
    let trace = Trace {
        sequence: fields.u32(),
        time_ns: fields.u64(),
        sector: fields.u64(),
        bytes: fields.u32(),
        raw_action: fields.u32(),
        tid: fields.u32(),
        device: fields.u32(),
        cpu: fields.u32(),
        error: fields.u16(),
        order,
        ..Trace::default()
    };
    (trace, usize::from(fields.u16()))
}

/// Reads one field after the other; the record has room for all of them.
struct Fields<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.rest.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.rest = rest;
        *field
    }

    fn u16(&mut self) -> u16 {
        let bytes = self.take();
        self.order.u16(bytes)
    }

    fn u32(&mut self) -> u32 {
        let bytes = self.take();
        self.order.u32(bytes)
    }

    fn u64(&mut self) -> u64 {
        let bytes = self.take();
        self.order.u64(bytes)
    }
}
