//! Which files the probes' records are about.

use std::mem::offset_of;

use nestrace_abi::flags::op;
use nestrace_abi::{Kind, OwnedRecord, Owner, Record};
use nestrace_trace::manifest::MAX_FILES;

/// Device number of the super block, and inode.
pub type FileId = (u32, u64);

/// Places for files, twice as many as there may be files.
const PLACES: usize = 2 * MAX_FILES;
/// Places that a file is looked for at, whatever inodes a guest's users choose. One that finds none free has no name.
const MAX_STEPS: usize = 16;
/// Spreads numbers that follow one another over the places.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Files that were noted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewFiles {
    /// Seen for the first time.
    pub fresh: Vec<FileId>,
    /// Inodes that were used again: another file was made with them, so what they are called now is not what they were.
    pub again: Vec<FileId>,
}

/// The files of a recording. It takes some nanoseconds a record.
#[derive(Debug, Default)]
pub struct Noted {
    /// Each at the place of its hash or a few behind it; inode 0 is a free place. None at all: nothing is noted.
    places: Vec<Place>,
    n_files: usize,
    new: NewFiles,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    file: FileId,
    /// Its earliest record.
    first_ns: u64,
    is_again: bool,
}

impl Noted {
    /// Begins anew.
    pub fn begin(&mut self, wanted: bool) {
        *self = Self::default();
        let n = if wanted { PLACES } else { 0 };
        self.places.resize(n, Place::default());
    }

    /// Notes the file of an entry of a ring, if it has one.
    #[inline]
    pub fn note(&mut self, entry: &[u8]) {
        const INODE: usize = offset_of!(OwnedRecord, owner) + offset_of!(Owner, inode);
        if self.places.is_empty() || entry.len() != size_of::<OwnedRecord>() {
            return;
        }
        let inode = number(entry, INODE);
        if inode != 0 {
            self.note_file(inode, entry);
        }
    }

    fn note_file(&mut self, inode: u64, entry: &[u8]) {
        const RECORD: usize = offset_of!(OwnedRecord, record);
        const DEV: usize = offset_of!(OwnedRecord, owner) + offset_of!(Owner, owner_dev);
        let dev = entry.get(DEV..).and_then(<[u8]>::first_chunk);
        let file = (dev.map_or(0, |dev| u32::from_ne_bytes(*dev)), inode);
        let byte = |at: usize| entry.get(RECORD + at).copied();
        let is_made = byte(offset_of!(Record, kind)) == Some(Kind::CallDone as u8)
            && byte(offset_of!(Record, sub)) == Some(op::OPEN);
        // Of a file that was made: when that call began.
        let at_ns = match is_made {
            true => number(entry, RECORD + offset_of!(Record, related)),
            false => number(entry, RECORD + offset_of!(Record, ts_ns)),
        };
        let Some(place) = self.place_of(file) else {
            return;
        };
        if place.file != file {
            let first_ns = at_ns;
            *place = Place {
                file,
                first_ns,
                is_again: false,
            };
            self.n_files += 1;
            self.new.fresh.push(file);
        } else if is_made && at_ns > place.first_ns && !place.is_again {
            place.is_again = true;
            self.new.again.push(file);
        } else {
            // Processors' rings are read one after the other.
            place.first_ns = place.first_ns.min(at_ns);
        }
    }

    /// The place of a file, or a free one if there may be one more.
    fn place_of(&mut self, file: FileId) -> Option<&mut Place> {
        let mixed = (file.1 ^ u64::from(file.0).rotate_left(40)).wrapping_mul(MIX);
        let first = (mixed >> 32) as usize;
        let may_be_more = self.n_files < MAX_FILES;
        let at = (0..MAX_STEPS)
            .map(|step| first.wrapping_add(step) % PLACES)
            .find(|at| {
                let place = self.places.get(*at);
                place.is_some_and(|place| place.file == file || place.file.1 == 0)
            })?;
        let place = self.places.get_mut(at)?;
        (may_be_more || place.file == file).then_some(place)
    }

    /// What is new since the last call.
    pub fn take(&mut self) -> NewFiles {
        std::mem::take(&mut self.new)
    }
}

fn number(entry: &[u8], at: usize) -> u64 {
    let bytes = entry.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use nestrace_wire::kernel_buffers::record_bytes;

    use super::*;

    fn entry(owner_dev: u32, inode: u64, record: Record) -> Vec<u8> {
        let owner = Owner {
            inode,
            owner_dev,
            ..Owner::default()
        };
        record_bytes(&OwnedRecord { record, owner })
    }

    fn call(owner_dev: u32, inode: u64) -> Vec<u8> {
        entry(owner_dev, inode, Record::default())
    }

    #[test]
    fn each_file_is_noted_once() {
        let mut noted = Noted::default();
        noted.note(&call(1, 5));
        assert_eq!(noted.take(), NewFiles::default(), "nothing is wanted");
        noted.begin(true);
        for (dev, inode) in [(1, 5), (1, 5), (2, 5), (1, 5), (1, 0), (1, 5 + 512)] {
            noted.note(&call(dev, inode));
        }
        noted.note(&call(1, 6)[..56]);
        assert_eq!(noted.take().fresh, [(1, 5), (2, 5), (1, 517)]);
        noted.note(&call(2, 5));
        assert_eq!(noted.take(), NewFiles::default());
    }

    #[test]
    fn there_is_an_end_to_it() {
        let mut noted = Noted::default();
        noted.begin(true);
        for inode in 1..20_000 {
            noted.note(&call(1, inode));
        }
        let n = noted.take().fresh.len();
        assert!(n > MAX_FILES - 100 && n <= MAX_FILES, "{n}");
    }

    #[test]
    fn an_inode_that_is_used_again_is_known() {
        let made = |begun_ns| Record {
            ts_ns: begun_ns + 10,
            kind: Kind::CallDone as u8,
            sub: op::OPEN,
            related: begun_ns,
            ..Record::default()
        };
        let written = |ts_ns| Record {
            ts_ns,
            kind: Kind::SyscallEnter as u8,
            sub: op::WRITE,
            ..Record::default()
        };
        for (records, expected) in [
            (vec![made(100), written(120)], 0),
            // Out of another processor's ring.
            (vec![written(120), made(100), written(130)], 0),
            (vec![written(120), made(130), written(150), made(160)], 1),
            (vec![made(100), made(200)], 1),
        ] {
            let mut noted = Noted::default();
            noted.begin(true);
            let entries = records.iter().map(|record| entry(1, 5, *record));
            entries.for_each(|entry| noted.note(&entry));
            let new = noted.take();
            assert_eq!(
                (new.fresh.len(), new.again.len()),
                (1, expected),
                "{records:?}"
            );
        }
    }
}
