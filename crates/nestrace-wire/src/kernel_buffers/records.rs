//! What the agent copies of its probes' records, in this machine's byte order. Out of rings: for each record a byte that says
//! how many [`Record`]s long it is (2 with its [`Owner`]), then it. Out of [`DONE`](nestrace_abi::maps::DONE), whose places
//! are copied many at a time: a byte 0, their number in 4 bytes, then they.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use nestrace_abi::maps::DoneSlot;
use nestrace_abi::{OwnedRecord, Owner, Record};

/// Bytes of a plain record. One with its owner has twice as many.
pub const PLAIN_BYTES: usize = size_of::<Record>();

/// A record with its owner as a ring holds it: in the order of `repr(C)`, without gaps. A plain one is the first
/// [`PLAIN_BYTES`].
#[must_use]
pub fn record_bytes(OwnedRecord { record, owner }: &OwnedRecord) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of::<OwnedRecord>());
    bytes.extend(record.ts_ns.to_ne_bytes());
    bytes.extend([record.kind, record.sub]);
    bytes.extend(record.cpu.to_ne_bytes());
    bytes.extend(record.tid.to_ne_bytes());
    for field in [record.object, record.related, record.offset, record.bytes] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(record.flags.to_ne_bytes());
    bytes.extend(record.dev.to_ne_bytes());
    for field in [
        owner.inode,
        owner.file_offset,
        owner.iocb,
        owner.origin,
        owner.end_io,
        owner.cgroup,
    ] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(owner.owner_dev.to_ne_bytes());
    bytes.extend(owner.aux.to_ne_bytes());
    bytes
}

/// Appends what a ring holds as one entry; `false` if no record has that length.
#[inline]
pub fn put_record(entry: &[u8], to: &mut Vec<u8>) -> bool {
    let n = match entry.len() {
        PLAIN_BYTES => 1,
        n if n == size_of::<OwnedRecord>() => 2,
        _ => return false,
    };
    to.push(n);
    to.extend_from_slice(entry);
    true
}

/// Appends filled places of [`DONE`](nestrace_abi::maps::DONE), as they are.
pub fn put_slots(slots: &[u8], to: &mut Vec<u8>) {
    let n_slots = slots.chunks_exact(size_of::<DoneSlot>()).len();
    let n = u32::try_from(n_slots).unwrap_or(0);
    if n > 0 {
        to.push(SLOTS);
        to.extend_from_slice(&n.to_ne_bytes());
        to.extend_from_slice(slots);
    }
}

/// In the place of a record's length: places follow.
const SLOTS: u8 = 0;

/// The records that were appended, and how many bytes at the end are none.
pub(super) fn take_records(mut bytes: &[u8], mut sink: impl FnMut(&OwnedRecord)) -> usize {
    while let Some((n, rest)) = bytes.split_first() {
        let rest = match *n {
            SLOTS => take_slots(rest, &mut sink),
            n => record(n, rest).map(|(record, rest)| {
                sink(&record);
                rest
            }),
        };
        let Some(rest) = rest else {
            return bytes.len();
        };
        bytes = rest;
    }
    0
}

/// The records of places; gives what is behind them, if they are all there.
fn take_slots<'b>(bytes: &'b [u8], sink: &mut impl FnMut(&OwnedRecord)) -> Option<&'b [u8]> {
    let (n, rest) = bytes.split_first_chunk()?;
    let n_slots = usize::try_from(u32::from_ne_bytes(*n)).ok()?;
    let n_bytes = n_slots.checked_mul(size_of::<DoneSlot>())?;
    let (slots, rest) = rest.split_at_checked(n_bytes)?;
    for slot in slots.chunks_exact(size_of::<DoneSlot>()) {
        let (record, _) = record(1, slot)?;
        sink(&record);
    }
    Some(rest)
}

fn record(n: u8, bytes: &[u8]) -> Option<(OwnedRecord, &[u8])> {
    let (record, rest) = bytes.split_first_chunk::<PLAIN_BYTES>()?;
    let mut fields = Fields { rest: record };
    let record = Record {
        ts_ns: fields.u64(),
        kind: fields.u8(),
        sub: fields.u8(),
        cpu: fields.u16(),
        tid: fields.u32(),
        object: fields.u64(),
        related: fields.u64(),
        offset: fields.u64(),
        bytes: fields.u64(),
        flags: fields.u32(),
        dev: fields.u32(),
    };
    let (owner, rest) = match n {
        1 => (Owner::default(), rest),
        2 => {
            let (owner, rest) = rest.split_first_chunk::<{ size_of::<Owner>() }>()?;
            let mut fields = Fields { rest: owner };
            let owner = Owner {
                inode: fields.u64(),
                file_offset: fields.u64(),
                iocb: fields.u64(),
                origin: fields.u64(),
                end_io: fields.u64(),
                cgroup: fields.u64(),
                owner_dev: fields.u32(),
                aux: fields.u32(),
            };
            (owner, rest)
        }
        _ => return None,
    };
    Some((OwnedRecord { record, owner }, rest))
}

/// Reads one field after the other; past the end they are 0.
struct Fields<'b> {
    rest: &'b [u8],
}

impl Fields<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.rest.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.rest = rest;
        *field
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

    use proptest::prelude::*;

    use super::*;

    fn any(n: u64) -> OwnedRecord {
        OwnedRecord {
            record: Record {
                ts_ns: n,
                kind: 2,
                sub: 3,
                cpu: 4,
                tid: 5,
                object: 6,
                related: 7,
                offset: 8,
                bytes: 9,
                flags: 10,
                dev: 11,
            },
            owner: Owner {
                inode: 12,
                file_offset: 13,
                iocb: 14,
                origin: 15,
                end_io: 16,
                cgroup: 17,
                owner_dev: 18,
                aux: 19,
            },
        }
    }

    fn taken(bytes: &[u8]) -> (Vec<OwnedRecord>, usize) {
        let mut records = Vec::new();
        let rest = take_records(bytes, |record| records.push(*record));
        (records, rest)
    }

    #[test]
    fn what_was_put_comes_back() {
        let (plain, owned) = (any(1), any(2));
        let mut bytes = Vec::new();
        assert!(put_record(&record_bytes(&plain)[..PLAIN_BYTES], &mut bytes));
        assert!(put_record(&record_bytes(&owned), &mut bytes));
        for n in [0, 55, 57, 111, 113] {
            assert!(!put_record(&vec![1; n], &mut bytes));
        }
        let plain = OwnedRecord {
            owner: Owner::default(),
            ..plain
        };
        assert_eq!(taken(&bytes), (vec![plain, owned], 0));
        let cut = bytes.len() - 1;
        assert_eq!(taken(&bytes[..cut]), (vec![plain], 112));
        bytes[0] = 7;
        assert_eq!(taken(&bytes), (vec![], bytes.len()));
    }

    #[test]
    fn places_come_back() {
        let mut slots = Vec::new();
        for n in 0..3 {
            slots.extend_from_slice(&record_bytes(&any(n))[..PLAIN_BYTES]);
            slots.extend((n + 1).to_ne_bytes());
        }
        let mut bytes = Vec::new();
        put_slots(&[], &mut bytes);
        put_slots(&slots, &mut bytes);
        assert!(put_record(&record_bytes(&any(9)), &mut bytes));
        let (records, rest) = taken(&bytes);
        let times: Vec<u64> = records.iter().map(|owned| owned.record.ts_ns).collect();
        assert_eq!((times, rest), (vec![0, 1, 2, 9], 0));
        // More places than there are bytes.
        bytes[1] = 255;
        assert_eq!(taken(&bytes), (vec![], bytes.len()));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(0_u8..4, 0..500)) {
            let (records, rest) = taken(&bytes);
            prop_assert!(rest <= bytes.len() && records.len() <= bytes.len() / PLAIN_BYTES);
        }
    }
}
