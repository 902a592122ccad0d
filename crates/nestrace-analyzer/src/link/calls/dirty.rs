//! Who made which pages dirty: the page cache writes them back later, and no call waits for that.

use std::collections::BTreeMap;

use nestrace_abi::flags::op;

use crate::model::call::{Call, Caller, FileId};
use crate::model::pointer::PointerMap;

/// Dirty ranges that are remembered; the writers of further ones are not known.
const MOST: usize = 1 << 18;
const PAGE: u64 = 4096;
/// Writes in a row that lie within this time count as one.
const ONE_TIME_NS: u64 = 50_000_000;

/// A range of a file that a call has changed in the page cache.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    writer: Writer,
}

/// Who wrote, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    pub caller: Caller,
    pub wrote_ns: u64,
}

/// Dirty ranges of all files, by their begin.
#[derive(Debug, Default)]
pub(super) struct DirtyPages {
    files: PointerMap<u64, BTreeMap<u64, Range>>,
    n: usize,
}

/// Files by one word: inode numbers of two file systems may be equal, and their devices' numbers then differ.
const fn key(file: FileId) -> u64 {
    file.inode ^ (file.dev as u64) << 40
}

impl DirtyPages {
    /// A call has changed these bytes.
    pub(super) fn written(&mut self, caller: Caller, offset: u64, bytes: u64, ts_ns: u64) {
        let begin = offset & !(PAGE - 1);
        let end = offset.saturating_add(bytes);
        let end = end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        if bytes == 0 {
            return;
        }
        self.cleaned(caller.file, begin, end - begin);
        if self.n >= MOST {
            return;
        }
        let ranges = self.files.entry(key(caller.file)).or_default();
        let writer = Writer {
            caller,
            wrote_ns: ts_ns,
        };
        // Small writes in a row are one range: it keeps the time of its first.
        if let Some((_, before)) = ranges.range_mut(..=begin).next_back()
            && before.end == begin
            && before.writer.caller.tid == caller.tid
            && ts_ns.saturating_sub(before.writer.wrote_ns) < ONE_TIME_NS
        {
            before.end = end;
            return;
        }
        self.n += 1;
        ranges.insert(begin, Range { end, writer });
    }

    /// These bytes were written back: who wrote them last, of the first dirty range among them.
    pub(super) fn cleaned(&mut self, file: FileId, offset: u64, bytes: u64) -> Option<Writer> {
        let ranges = self.files.get_mut(&key(file))?;
        let end = offset.saturating_add(bytes);
        let mut first = None;
        loop {
            let last = ranges.range(..end).next_back();
            let last = last.map(|(begin, range)| (*begin, *range));
            let Some((begin, range)) = last.filter(|(_, range)| range.end > offset) else {
                break;
            };
            first = Some(range.writer);
            ranges.remove(&begin);
            self.n -= 1;
            if range.end > end {
                ranges.insert(end, range);
                self.n += 1;
            }
            if begin < offset {
                let kept = Range {
                    end: offset,
                    ..range
                };
                ranges.insert(begin, kept);
                self.n += 1;
            }
        }
        if ranges.is_empty() {
            self.files.remove(&key(file));
        }
        first
    }
}

/// The one of these calls in flight that changes these bytes in the page cache and had begun by this time.
pub(super) fn only_writer<'a>(
    in_flight: impl Iterator<Item = &'a mut Call>,
    file: FileId,
    (offset, bytes): (u64, u64),
    by_ns: u64,
) -> Option<Writer> {
    let mut writers = in_flight.filter(|call| {
        call.caller.file == file
            && call.caller.op == op::WRITE
            && !call.direct
            && call.start_ns <= by_ns
            && call.touches(offset, bytes)
    });
    match (writers.next(), writers.next()) {
        (Some(only), None) => Some(Writer {
            caller: only.caller,
            wrote_ns: only.start_ns,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tid: u32) -> Caller {
        Caller {
            tid,
            op: 2,
            file: FileId { dev: 1, inode: 7 },
        }
    }

    fn who(dirty: &mut DirtyPages, offset: u64, bytes: u64) -> Option<u32> {
        let writer = dirty.cleaned(caller(0).file, offset, bytes);
        writer.map(|writer| writer.caller.tid)
    }

    #[test]
    fn pages_are_the_last_writer_s_until_they_are_written_back() {
        let mut dirty = DirtyPages::default();
        dirty.written(caller(1), 0, 16384, 10);
        dirty.written(caller(2), 4096, 100, 20);
        assert_eq!(who(&mut dirty, 4096, 4096), Some(2));
        assert_eq!(who(&mut dirty, 4096, 4096), None);
        assert_eq!(who(&mut dirty, 0, 4096), Some(1));
        assert_eq!(who(&mut dirty, 8192, 4096), Some(1));
        assert_eq!(who(&mut dirty, 12288, 4096), Some(1));
        assert_eq!((dirty.n, dirty.files.len()), (0, 0));
    }

    #[test]
    fn what_is_written_back_in_the_middle_leaves_both_ends() {
        let mut dirty = DirtyPages::default();
        dirty.written(caller(1), 0, 5 * 4096, 10);
        assert_eq!(who(&mut dirty, 2 * 4096, 4096), Some(1));
        assert_eq!(dirty.n, 2);
        assert_eq!(who(&mut dirty, 0, 2 * 4096), Some(1));
        assert_eq!(who(&mut dirty, 0, u64::MAX), Some(1));
        assert_eq!(dirty.n, 0);
    }

    #[test]
    fn a_stream_is_one_range() {
        let mut dirty = DirtyPages::default();
        for n in 0..100 {
            dirty.written(caller(1), n * 4096, 4096, n);
        }
        assert_eq!(dirty.n, 1);
        let writer = dirty.cleaned(caller(1).file, 50 * 4096, 4096);
        assert_eq!(writer.map(|writer| writer.wrote_ns), Some(0));
    }
}
