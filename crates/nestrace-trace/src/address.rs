//! Which columns hold addresses, and how a recording hides them.
//!
//! An address says where a kernel or a process keeps its memory, which helps whoever attacks it and explains no
//! I/O: all that an analysis asks is whether two addresses are equal, and how far apart they are. So a recorder adds
//! one secret to all addresses of a kernel and another to those of its processes. Equality and differences stay.
//!
//! The secrets are whole multiples of [`GRAIN`], so an address keeps its place in its page. Processes of one machine
//! share a secret: the completion of a process's I/O is recorded in whatever process the interrupt finds.

use crate::{Event, Kind};

/// Secrets are multiples of this: the largest page of any supported architecture.
pub const GRAIN: u64 = 1 << 16;
/// Where the kernel's half of an address space begins.
const KERNEL: u64 = 1 << 63;
/// Size of each half without its end: null and small numbers below, error pointers above.
const HALF: u64 = KERNEL - GRAIN;
/// Kernels keep their memory within the last 2^57 bytes, and processes theirs within the first. A secret moves both
/// by more, so that no address is one that a kernel could have.
const LEAST: u64 = 1 << 57;
/// No secret is larger, so that no address of a real machine leaves its half.
const MOST: u64 = 1 << 61;

/// A column that can hold an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Column {
    Object,
    Related,
    Offset,
    Bytes,
    Iocb,
    Origin,
}

impl Column {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Object,
        Self::Related,
        Self::Offset,
        Self::Bytes,
        Self::Iocb,
        Self::Origin,
    ];

    /// The column of an event.
    #[must_use]
    pub const fn of(self, event: &Event) -> u64 {
        match self {
            Self::Object => event.object,
            Self::Related => event.related,
            Self::Offset => event.offset,
            Self::Bytes => event.bytes,
            Self::Iocb => event.iocb,
            Self::Origin => event.origin,
        }
    }

    const fn of_mut(self, event: &mut Event) -> &mut u64 {
        match self {
            Self::Object => &mut event.object,
            Self::Related => &mut event.related,
            Self::Offset => &mut event.offset,
            Self::Bytes => &mut event.bytes,
            Self::Iocb => &mut event.iocb,
            Self::Origin => &mut event.origin,
        }
    }
}

/// The columns of a kind that hold addresses, as [`Kind`]'s documentation has them. Every kind is listed, so that
/// a new one has to be decided. `user_data` of io_uring counts as one: QEMU and most others put a pointer there.
#[must_use]
pub const fn columns(kind: Kind) -> &'static [Column] {
    use Column::{Bytes, Iocb, Object, Offset, Origin, Related};
    match kind {
        Kind::Queue | Kind::Split | Kind::BioRemap | Kind::BioMade | Kind::Issue => {
            &[Object, Related, Iocb, Origin]
        }
        // Up to three bios.
        Kind::Link => &[Object, Related, Offset, Bytes, Iocb, Origin],
        Kind::GetRequest
        | Kind::BackMerge
        | Kind::FrontMerge
        | Kind::BioComplete
        | Kind::SleepRequest
        | Kind::Insert
        | Kind::Requeue
        | Kind::RequestMerge
        | Kind::RequestRemap => &[Object, Iocb, Origin],
        // `related` is what remains, or a time.
        Kind::Complete | Kind::RequestDone => &[Object, Iocb, Origin],
        Kind::Plug | Kind::Unplug => &[Iocb, Origin],
        // `object` is a file descriptor; `related` a time.
        Kind::SyscallEnter | Kind::SyscallExit | Kind::CallDone => &[Iocb, Origin],
        Kind::AioSubmit | Kind::DioBegin | Kind::DioComplete => &[Object, Iocb, Origin],
        Kind::UringSubmit | Kind::UringComplete | Kind::UringAsync => {
            &[Object, Related, Iocb, Origin]
        }
        // `related` is the direct I/O; a time.
        Kind::RpcBegin => &[Object, Related, Iocb, Origin],
        Kind::RpcEnd => &[Object, Iocb, Origin],
        Kind::SyncEnter
        | Kind::SyncExit
        | Kind::Readahead
        | Kind::CacheInsert
        | Kind::WritebackStart
        | Kind::WritebackEnd
        | Kind::DirtyThrottle
        | Kind::PageFault => &[Iocb, Origin],
        // `object` is a transaction's number, or a place in the log.
        Kind::JournalCommitStart
        | Kind::JournalCommitPhase
        | Kind::JournalCommitEnd
        | Kind::LogForce
        | Kind::CommitWait
        | Kind::LogSpace => &[Iocb, Origin],
        Kind::LogWait => &[Object, Iocb, Origin],
        Kind::AcctStart
        | Kind::AcctDone
        | Kind::AcctFailed
        | Kind::AcctInvalid
        | Kind::AioPreadv
        | Kind::AioPwritev
        | Kind::AioPwriteZeroes
        | Kind::AioFlush
        | Kind::AioPdiscard
        | Kind::VirtqueuePush
        | Kind::GuestRun
        | Kind::GuestReset => &[Object, Related, Iocb, Origin],
        // A name and a process id; a total; threads and a name.
        Kind::Thread | Kind::Loss | Kind::Switch | Kind::Wake => &[],
    }
}

/// For each number of a kind a bit for each column. Of a kind that a newer release added nothing is known: all that may
/// be an address is taken for one.
const MASKS: [u8; 256] = {
    let mut masks = [bits(&[
        Column::Object,
        Column::Related,
        Column::Iocb,
        Column::Origin,
    ]); 256];
    let mut at = 0;
    while at < Kind::ALL.len() {
        masks[Kind::ALL[at] as usize] = bits(columns(Kind::ALL[at]));
        at += 1;
    }
    masks
};

const fn bits(columns: &[Column]) -> u8 {
    let (mut mask, mut at) = (0, 0);
    while at < columns.len() {
        mask |= 1 << columns[at] as u8;
        at += 1;
    }
    mask
}

/// How the addresses of one machine are shifted. It never leaves the program, so it has no `Debug`.
///
/// ```
/// use nestrace_trace::{Event, Kind, address::Shift};
/// let shift = Shift::of_random([7; 16]);
/// let mut bio = Event { kind: Kind::Queue as u8, object: 0xffff_8880_1234_5678, ..Event::default() };
/// let mut next = Event { object: bio.object + 64, ..bio };
/// (shift.event(&mut bio), shift.event(&mut next));
/// assert!(bio.object < 0xff00_0000_0000_0000 && bio.object % 4096 == 0x678);
/// assert_eq!((next.object - bio.object, bio.related), (64, 0));
/// ```
#[derive(Clone, Copy)]
pub struct Shift {
    kernel: u64,
    processes: u64,
}

impl Shift {
    /// From random bytes that are used once.
    #[must_use]
    pub fn of_random(bytes: [u8; 16]) -> Self {
        let secret = |bytes: u128| {
            let wide = (bytes as u64) % (MOST - LEAST);
            LEAST + wide / GRAIN * GRAIN
        };
        let bytes = u128::from_le_bytes(bytes);
        Self {
            // Downwards.
            kernel: HALF - secret(bytes),
            processes: secret(bytes >> 64),
        }
    }

    /// An address as the recording has it. Null, small numbers and error pointers are none and stay.
    #[must_use]
    #[inline]
    pub const fn address(&self, address: u64) -> u64 {
        let (start, secret) = match address {
            GRAIN..KERNEL => (GRAIN, self.processes),
            KERNEL..=LAST => (KERNEL, self.kernel),
            _ => return address,
        };
        let place = address - start;
        let room = HALF - secret;
        // Within its half, without an overflow.
        start
            + if place < room {
                place + secret
            } else {
                place - room
            }
    }

    /// Shifts the addresses of an event.
    #[inline]
    pub fn event(&self, event: &mut Event) {
        let mask = MASKS.get(usize::from(event.kind)).copied().unwrap_or(0);
        for column in Column::ALL {
            if mask & 1 << column as u8 != 0 {
                let value = column.of_mut(event);
                *value = self.address(*value);
            }
        }
    }
}

/// The last address that is no error pointer.
const LAST: u64 = u64::MAX - GRAIN;

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const KERNEL_TEXT: u64 = 0xffff_ffff_8123_4567;
    const HEAP: u64 = 0x7f12_3456_7890;

    #[test]
    fn what_is_no_address_stays() {
        let shift = Shift::of_random([0xa5; 16]);
        for value in [
            0,
            1,
            3,
            4095,
            GRAIN - 1,
            u64::MAX,
            Event::NOWHERE,
            u64::MAX - 4095,
        ] {
            assert_eq!(shift.address(value), value, "{value:#x}");
        }
    }

    #[test]
    fn each_column_that_a_kind_has_is_shifted_and_no_other() {
        let shift = Shift::of_random(*b"0123456789abcdef");
        for kind in Kind::ALL {
            let before = Event {
                ts_ns: KERNEL_TEXT,
                kind: *kind as u8,
                sub: 1,
                cpu: 2,
                tid: 3,
                dev: 4,
                object: KERNEL_TEXT,
                related: HEAP,
                offset: KERNEL_TEXT + 1,
                bytes: KERNEL_TEXT + 2,
                flags: 5,
                inode: KERNEL_TEXT,
                file_offset: KERNEL_TEXT,
                owner_dev: 6,
                iocb: HEAP + 4096,
                origin: KERNEL_TEXT + 3,
                end_io: 7,
                cgroup: KERNEL_TEXT,
                aux: 8,
            };
            let mut after = before;
            shift.event(&mut after);
            let changed = Column::ALL.map(|column| column.of(&before) != column.of(&after));
            let expected = Column::ALL.map(|column| columns(*kind).contains(&column));
            assert_eq!(changed, expected, "{kind:?}");
            // All other columns.
            for column in Column::ALL {
                *column.of_mut(&mut after) = column.of(&before);
            }
            assert_eq!(after, before, "{kind:?}");
        }
    }

    #[test]
    fn a_kind_that_is_not_known_gives_nothing_away() {
        let mut event = Event {
            kind: 250,
            object: KERNEL_TEXT,
            origin: HEAP,
            ..Event::default()
        };
        Shift::of_random([1; 16]).event(&mut event);
        assert!(event.object != KERNEL_TEXT && event.origin != HEAP);
    }

    proptest! {
        #[test]
        fn equality_differences_and_places_in_pages_stay(
            secret in any::<[u8; 16]>(),
            kernel in 0xff00_0000_0000_0000..LAST - (1 << 40),
            process in GRAIN..1u64 << 56,
            apart in 0u64..1 << 40,
        ) {
            let shift = Shift::of_random(secret);
            for address in [kernel, process] {
                let (one, other) = (shift.address(address), shift.address(address + apart));
                prop_assert_eq!(other.wrapping_sub(one), apart);
                prop_assert_eq!(one % GRAIN, address % GRAIN);
                prop_assert_eq!(one >= KERNEL, address >= KERNEL, "it stays in its half");
            }
            prop_assert!(shift.address(kernel) < 0xff00_0000_0000_0000, "no kernel's address");
            prop_assert!(shift.address(process) >= 1 << 57, "no process's address");
        }

        #[test]
        fn no_two_addresses_become_one(secret in any::<[u8; 16]>(), a in any::<u64>(), b in any::<u64>()) {
            let shift = Shift::of_random(secret);
            prop_assert_eq!(shift.address(a) == shift.address(b), a == b);
            let is_none = |value: u64| !(GRAIN..=LAST).contains(&value);
            prop_assert_eq!(is_none(shift.address(a)), is_none(a));
        }
    }
}
