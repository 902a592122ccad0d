//! What a session says of its calls in the end.

use nestrace_abi::flags::op;
use nestrace_trace::manifest::GuestSide;

use super::CallLinks;
use super::rows::{ANY_FILE, Row, RowKey};
use crate::measure::clues::CallWaits;
use crate::measure::device::major_minor;
use crate::model::call::{FileId, PAGE_FAULT};
use crate::result::analysis::{CallFile, CallOperation, CallRow, GuestCalls, OthersData, SUM};
use crate::result::side::Side;

/// Rows of one guest that stand alone in the result.
const MAX_ROWS: usize = 1000;
/// Other files that a row names.
const MAX_OTHERS: usize = 8;

impl CallLinks {
    /// `guest_calls[]` of this session.
    pub(crate) fn totals(&self, guest: &str) -> GuestCalls {
        GuestCalls {
            guest: guest.to_owned(),
            unended: self.calls.unended,
            ..self.totals.clone()
        }
    }

    /// What calls on the file systems of these devices waited for.
    pub(crate) fn waits(&self, devs: &[u32], side: &GuestSide) -> CallWaits {
        self.page_cache.of(devs, &|program, id| {
            let file = file(id, side);
            let of_mount = || format!("inode {} of {}", id.inode, file.mount);
            (
                self.program(program),
                file.path.clone().unwrap_or_else(of_mount),
            )
        })
    }

    /// `calls[]` of this session, the costliest first.
    pub(crate) fn rows(&self, side: &GuestSide) -> Vec<CallRow> {
        let all = self.rows.sorted();
        let alone = all.iter().filter(|(key, _)| key.file != ANY_FILE);
        let mut rows: Vec<CallRow> = alone
            .take(MAX_ROWS)
            .map(|(key, row)| self.row(*key, row, side))
            .collect();
        let mut rest: Vec<(u8, Row)> = Vec::new();
        let summed = all.iter().filter(|(key, _)| key.file == ANY_FILE);
        let further = all.iter().filter(|(key, _)| key.file != ANY_FILE);
        for (key, row) in further.skip(MAX_ROWS).chain(summed) {
            match rest.iter_mut().find(|(op, _)| *op == key.op) {
                Some((_, sum)) => sum.merge(row),
                None => {
                    let mut sum = Row::default();
                    sum.merge(row);
                    rest.push((key.op, sum));
                }
            }
        }
        rows.extend(rest.iter().map(|(op, row)| {
            let key = RowKey {
                program: u32::MAX,
                file: ANY_FILE,
                op: *op,
            };
            self.row(key, row, side)
        }));
        rows
    }

    fn row(&self, key: RowKey, row: &Row, side: &GuestSide) -> CallRow {
        let dist = row.latency.dist();
        let linked = row.segments.latency();
        let share = |part_ns: u128| match linked.sum {
            0 => 0.0,
            sum => part_ns as f64 / sum as f64,
        };
        CallRow {
            side: Side::Guest,
            guest: side.guest.clone(),
            process: self.program(key.program),
            file: file(key.file, side),
            op: operation(key.op),
            n: dist.n,
            without_io: row.without_io,
            failed: row.failed,
            submitted: row.submitted,
            linked: linked.n,
            bytes: row.bytes,
            latency_ns: dist,
            segments: row.segments.finish_calls(),
            residual_share: row.segments.residual_share(),
            journal_share: share(row.under_journal_ns),
            others_data_share: share(row.others_data_ns),
            image_sync_share: share(row.under_image_sync_ns),
            others_data: others_data(self, row, side),
            waited: row.waited,
            deferred: row.deferred,
            deferred_delay_ns: (row.delay.n() > 0).then(|| row.delay.dist()),
            series: row.series.as_ref().map(|series| series.finish()),
        }
    }

    pub(crate) fn program(&self, number: u32) -> String {
        let name = self.programs.names.get(number as usize);
        name.cloned().unwrap_or_else(|| String::from("…"))
    }
}

/// Other files that a row names, most bytes first.
pub(super) fn others_data(links: &CallLinks, row: &Row, side: &GuestSide) -> Vec<OthersData> {
    let mut others = row.others.clone();
    others.sort_by_key(|(file, program, bytes)| (std::cmp::Reverse(*bytes), *file, *program));
    let others = others.into_iter().take(MAX_OTHERS);
    let named = others.map(|(id, program, bytes)| OthersData {
        process: program.map(|program| links.program(program)),
        file: file(id, side),
        bytes,
    });
    named.collect()
}

pub(super) fn file(id: FileId, side: &GuestSide) -> CallFile {
    if id == ANY_FILE {
        return CallFile {
            mount: String::from(SUM),
            ..CallFile::default()
        };
    }
    // `sync` is about every file system.
    if id == FileId::default() {
        return CallFile::default();
    }
    let mount = side.mounts.iter().find(|mount| mount.dev == id.dev);
    CallFile {
        mount: mount.map_or_else(|| major_minor(id.dev), |mount| mount.mount_point.clone()),
        inode: (id.inode != 0).then_some(id.inode),
        path: path(id, side),
    }
}

/// The name that was recorded. A manifest that was read has its files in order.
fn path(id: FileId, side: &GuestSide) -> Option<String> {
    let key = (id.dev, id.inode);
    let files = &side.files;
    let found = files.binary_search_by_key(&key, |file| (file.dev, file.inode));
    found
        .ok()
        .and_then(|at| files.get(at))
        .map(|file| file.path.clone())
}

/// What a call is called in the result.
pub(crate) const fn operation(op: u8) -> CallOperation {
    match op {
        op::READ => CallOperation::Read,
        op::WRITE => CallOperation::Write,
        op::FSYNC => CallOperation::Fsync,
        op::FDATASYNC => CallOperation::Fdatasync,
        op::SYNC_FILE_RANGE => CallOperation::SyncFileRange,
        op::MSYNC => CallOperation::Msync,
        op::SYNC => CallOperation::Sync,
        op::SYNCFS => CallOperation::Syncfs,
        op::FALLOCATE => CallOperation::Fallocate,
        op::TRUNCATE => CallOperation::Truncate,
        op::OPEN => CallOperation::Open,
        op::UNLINK => CallOperation::Unlink,
        op::RENAME => CallOperation::Rename,
        op::MKDIR => CallOperation::Mkdir,
        op::RMDIR => CallOperation::Rmdir,
        PAGE_FAULT => CallOperation::PageFault,
        _ => CallOperation::Other,
    }
}

#[cfg(test)]
mod tests {
    use nestrace_trace::manifest::GuestFile;

    use super::*;

    #[test]
    fn a_file_has_the_name_that_was_recorded() {
        let named = |dev, inode, path: &str| GuestFile {
            dev,
            inode,
            path: path.to_owned(),
        };
        let side = GuestSide {
            files: vec![named(1, 5, "/a"), named(1, 7, "/b"), named(2, 5, "/c")],
            ..GuestSide::default()
        };
        for (dev, inode, expected) in [
            (1, 7, Some("/b")),
            (2, 5, Some("/c")),
            (1, 6, None),
            (3, 5, None),
            (1, 0, None),
        ] {
            let file = file(FileId { dev, inode }, &side);
            assert_eq!(file.path.as_deref(), expected, "{dev} {inode}");
        }
        let sum = file(ANY_FILE, &side);
        assert_eq!((sum.mount.as_str(), sum.inode, sum.path), ("…", None, None));
        assert_eq!(file(FileId::default(), &side), CallFile::default());
    }
}
