//! How programs sync their files, summed for the rules about that.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nestrace_abi::flags::op;
use nestrace_trace::manifest::GuestSide;

use super::CallLinks;
use super::rows::{ANY_FILE, Row, RowKey};
use super::summary::{file, others_data};
use crate::measure::clues::FileSyncs;
use crate::model::call::FileId;

impl CallLinks {
    /// Files of this session that a program has synced.
    pub(crate) fn file_syncs(&self, side: &GuestSide) -> Vec<FileSyncs> {
        let mut sums: BTreeMap<(u32, FileId), Row> = BTreeMap::new();
        let is_about_a_file = |key: &RowKey| {
            key.file != ANY_FILE && matches!(key.op, op::WRITE | op::FSYNC | op::FDATASYNC)
        };
        for (key, row) in self.rows.sorted() {
            if is_about_a_file(&key) {
                sums.entry((key.program, key.file)).or_default().merge(row);
            }
        }
        sums.retain(|_, row| row.syncs.syncs > 0);
        let mut all: Vec<FileSyncs> = sums
            .into_iter()
            .map(|((program, of), row)| FileSyncs {
                program: self.program(program),
                dev: of.dev,
                file: file(of, side),
                counts: row.syncs,
                others_data: others_data(self, &row, side),
                behind: row
                    .behind
                    .iter()
                    .map(|(of, program)| (self.program(*program), file(*of, side)))
                    .collect(),
            })
            .collect();
        all.sort_by_key(|it| Reverse(it.counts.latency_ns));
        all
    }
}
