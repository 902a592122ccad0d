//! One record of a blktrace file (`struct blk_io_trace`, and `blk_io_trace2` of Linux 6.19).
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use crate::action::{self, Action, CGROUP, Notify};

/// Bytes of a record of version 7 without its payload.
pub const RECORD_BYTES: usize = 48;
/// Bytes of a record of version 8 without its payload.
pub const RECORD_BYTES_V8: usize = 64;

/// Upper 24 bits of the magic number; the lowest 8 are the version.
const MAGIC: u32 = 0x6561_7400;

/// The magic number of version 7.
pub(super) const fn magic_v7() -> u32 {
    MAGIC | Version::V7.number()
}

/// Version of the records of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// `struct blk_io_trace`: every kernel since 2.6.17.
    #[default]
    V7,
    /// `struct blk_io_trace2`: an action of 64 bits, for zones; what was started with BLKTRACESETUP2.
    V8,
}

impl Version {
    const fn from_number(number: u32) -> Option<Self> {
        match number {
            7 => Some(Self::V7),
            8 => Some(Self::V8),
            _ => None,
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::V7 => 7,
            Self::V8 => 8,
        }
    }

    /// Bytes of a record without its payload.
    #[must_use]
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::V7 => RECORD_BYTES,
            Self::V8 => RECORD_BYTES_V8,
        }
    }
}

/// How the records of one file are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) order: ByteOrder,
    pub(super) version: Version,
}

impl Format {
    /// What this machine's kernel writes into version 7's relay files.
    pub(super) const NATIVE: Self = Self {
        order: ByteOrder::NATIVE,
        version: Version::V7,
    };

    /// What it writes there for an agent that asked for version 8.
    const NATIVE_V8: Self = Self {
        version: Version::V8,
        ..Self::NATIVE
    };

    /// Everything that can be read.
    pub(super) const ALL: [Self; 4] = [
        Self::new(ByteOrder::Little, Version::V7),
        Self::new(ByteOrder::Big, Version::V7),
        Self::new(ByteOrder::Little, Version::V8),
        Self::new(ByteOrder::Big, Version::V8),
    ];

    const fn new(order: ByteOrder, version: Version) -> Self {
        Self { order, version }
    }

    /// The magic number as it stands in a file.
    const fn magic(self) -> [u8; 4] {
        let number = MAGIC | self.version.number();
        match self.order {
            ByteOrder::Little => number.to_le_bytes(),
            ByteOrder::Big => number.to_be_bytes(),
        }
    }

    /// The format in which a magic number reads right; the version, if only that is not known.
    pub(super) fn of(magic: [u8; 4]) -> Result<Self, Option<u32>> {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let number = order.u32(magic);
            if number & !0xff == MAGIC {
                let version = Version::from_number(number & 0xff).ok_or(Some(number & 0xff))?;
                return Ok(Self { order, version });
            }
        }
        Err(None)
    }

    /// Whether `bytes` begin a record of this format.
    #[inline]
    pub(super) fn begins(self, bytes: &[u8]) -> bool {
        let magic = u32::from_ne_bytes(self.magic());
        bytes
            .first_chunk()
            .is_some_and(|four| u32::from_ne_bytes(*four) == magic)
    }

    /// Whether `bytes` begin a record, or are too few to decide.
    pub(super) fn may_begin(self, bytes: &[u8]) -> bool {
        if bytes.len() >= size_of::<u32>() {
            return self.begins(bytes);
        }
        self.magic().starts_with(bytes)
    }

    /// Where the next magic number stands.
    pub(super) fn find(self, bytes: &[u8]) -> Option<usize> {
        let magic = self.magic();
        bytes.windows(magic.len()).position(|four| *four == magic)
    }

    /// Where the next record stands that another one follows at once.
    pub(super) fn find_pair(self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0_usize;
        loop {
            at = at.saturating_add(self.find(bytes.get(at..)?)?);
            let record = bytes.get(at..)?;
            if record.len() >= self.version.record_bytes() {
                let (_, payload_len) = parse(record, self);
                let end = self.version.record_bytes().saturating_add(payload_len);
                if record.get(end..).is_some_and(|after| self.begins(after)) {
                    return Some(at);
                }
            }
            at = at.saturating_add(1);
        }
    }
}

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
    /// Action, a bit for the cgroup, and [`super::category`] bits, as stored. Of version 8 the upper
    /// half says which operation on a zone it is.
    pub raw_action: u64,
    /// Thread id; 0 in the idle task.
    pub tid: u32,
    /// The whole disk, `MAJOR << 20 | MINOR`.
    pub device: u32,
    /// Processor.
    pub cpu: u32,
    /// Error of a completion (an errno or a `blk_status_t`, by kernel); 0 for none.
    pub error: u16,
    /// The cgroup, where blktrace recorded it (`-o blk_cgroup`).
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
    #[inline]
    pub const fn action(&self) -> Option<Action> {
        action::action(self.raw_action)
    }

    /// Which notification this is, if it is one.
    #[must_use]
    #[inline]
    pub const fn notify(&self) -> Option<Notify> {
        action::notify(self.raw_action)
    }

    /// Whether it is an action or a notification that this reader knows.
    pub(super) const fn is_known(&self) -> bool {
        self.action().is_some() || self.notify().is_some()
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
    const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

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

/// Takes the fields of a record, all but the payload, and the payload's length. `record` holds at least
/// [`Version::record_bytes`].
pub(super) fn parse(record: &[u8], format: Format) -> (Trace, usize) {
    let mut trace = Trace::default();
    let payload_len = parse_into(&mut trace, record, format);
    (trace, payload_len)
}

/// The same, in the place of another record.
pub(super) fn parse_into(
    trace: &mut Trace,
    record: &[u8],
    Format { order, version }: Format,
) -> usize {
    match version {
        Version::V7 => parse_as::<RECORD_BYTES>(trace, record, order, version),
        Version::V8 => parse_as::<RECORD_BYTES_V8>(trace, record, order, version),
    }
}

/// The same of [`Format::NATIVE`]. All its fields are constants, so the compiled code has loads and no branches.
#[inline(always)]
pub(super) fn parse_native(trace: &mut Trace, record: &[u8; RECORD_BYTES]) -> usize {
    let Format { order, version } = Format::NATIVE;
    parse_as::<RECORD_BYTES>(trace, record, order, version)
}

/// What stands at the front of bytes out of a relay file of this machine's kernel.
pub enum Front {
    /// A record of so many bytes.
    Record(usize),
    /// The beginning of one, or nothing.
    Begun,
    /// Something else.
    Other,
}

/// Takes a record in this machine's byte order off the front of `bytes`, in the place of another one.
pub fn take_native(bytes: &[u8], trace: &mut Trace) -> Front {
    let Some(record) = bytes.first_chunk() else {
        return Front::Begun;
    };
    let (record_bytes, payload_len) = if Format::NATIVE.begins(record) {
        (RECORD_BYTES, parse_native(trace, record))
    } else if !Format::NATIVE_V8.begins(record) {
        return Front::Other;
    } else if bytes.len() < RECORD_BYTES_V8 {
        return Front::Begun;
    } else {
        (RECORD_BYTES_V8, parse_into(trace, bytes, Format::NATIVE_V8))
    };
    let end = record_bytes.saturating_add(payload_len);
    let Some(payload) = bytes.get(record_bytes..end) else {
        return Front::Begun;
    };
    trace.payload.extend_from_slice(payload);
    trace.split_cgroup();
    Front::Record(end)
}

#[inline(always)]
fn parse_as<const BYTES: usize>(
    trace: &mut Trace,
    record: &[u8],
    order: ByteOrder,
    version: Version,
) -> usize {
    let record: &[u8; BYTES] = record.first_chunk().unwrap_or(&[0; BYTES]);
    let mut fields = Fields {
        rest: record,
        order,
    };
    let _magic = fields.u32();
    trace.sequence = fields.u32();
    trace.time_ns = fields.u64();
    trace.sector = fields.u64();
    trace.bytes = fields.u32();
    trace.order = order;
    trace.cgroup = None;
    trace.payload.clear();
    // Version 8 has the thread before the action, which it aligns to 8 bytes.
    match version {
        Version::V7 => (trace.raw_action, trace.tid) = (u64::from(fields.u32()), fields.u32()),
        Version::V8 => (trace.tid, trace.raw_action) = (fields.u32(), fields.u64()),
    }
    trace.device = fields.u32();
    trace.cpu = fields.u32();
    trace.error = fields.u16();
    usize::from(fields.u16())
}

/// Reads one field after the other; past the end they are 0.
struct Fields<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl Fields<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.rest.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.rest = rest;
        *field
    }

    #[inline]
    fn u16(&mut self) -> u16 {
        let bytes = self.take();
        self.order.u16(bytes)
    }

    #[inline]
    fn u32(&mut self) -> u32 {
        let bytes = self.take();
        self.order.u32(bytes)
    }

    #[inline]
    fn u64(&mut self) -> u64 {
        let bytes = self.take();
        self.order.u64(bytes)
    }
}
