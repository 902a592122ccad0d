//! How much each layer made of what the guest asked for.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::Amplification;

use super::{Page, disk_name, only_guest};
use crate::table::Table;
use crate::units::{count, percent, share, size};

/// Less of the host's bytes than this is not worth a line.
const NOTABLE: f64 = 0.005;

/// What the table is called.
pub(crate) const MADE_OF_IT: &str = "Bytes and flushes in each layer";

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let (table, remarks) = layers(analysis, only_guest(analysis));
    if !table.is_empty() {
        page.section(MADE_OF_IT);
        page.table(&table);
        remarks.iter().for_each(|line| page.paragraph(line));
    }
}

/// Bytes and flushes of each layer for each disk, and what besides data the host moved. Of the only guest the
/// name is left out.
pub(crate) fn layers(analysis: &Analysis, only: Option<&str>) -> (Table, Vec<String>) {
    let mut table = Table::new(&["disk", "", "asked", "file I/O", "host", "device"]);
    let mut remarks = Vec::new();
    for disk in &analysis.amplification {
        let guest = only.map_or(disk.guest.as_str(), |_| "");
        let mut name = disk_name(guest, Some(&disk.disk));
        for (what, bytes) in [("read", disk.read), ("written", disk.write)] {
            let layers = [bytes.image, bytes.host, bytes.device];
            if bytes.qemu.unwrap_or(0) == 0 && layers.iter().flatten().all(|bytes| *bytes == 0) {
                continue;
            }
            let asked = bytes.qemu;
            let mut row = vec![std::mem::take(&mut name), what.to_owned(), plain(asked)];
            row.extend(layers.map(|layer| times(layer, asked)));
            table.row(row);
        }
        if disk.flushes != Default::default() && flushed(disk) {
            let mut row = vec![std::mem::take(&mut name), "flushes".to_owned()];
            let flushes = disk.flushes;
            for layer in [flushes.qemu, flushes.host, None, flushes.device] {
                row.push(layer.map_or_else(|| String::from("–"), count));
            }
            table.row(row);
        }
        remarks.extend(classes(disk, &disk_name(guest, Some(&disk.disk))));
    }
    (table, remarks)
}

fn flushed(disk: &Amplification) -> bool {
    [disk.flushes.qemu, disk.flushes.host]
        .iter()
        .flatten()
        .any(|n| *n > 0)
}

fn plain(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| String::from("–"), size)
}

/// `26.1 MiB ×1.2`.
fn times(bytes: Option<u64>, asked: Option<u64>) -> String {
    match (bytes, asked) {
        (Some(bytes), Some(asked)) if asked > 0 => {
            format!("{} ×{:.2}", size(bytes), bytes as f64 / asked as f64)
        }
        (bytes, _) => plain(bytes),
    }
}

/// What besides data the host moved, where it is worth saying.
fn classes(disk: &Amplification, name: &str) -> Option<String> {
    let host = disk.host_bytes.filter(|bytes| *bytes > 0)?;
    let classes = disk.by_class;
    let parts: Vec<String> = [
        (classes.image_metadata, "tables of the image"),
        (classes.host_journal, "the host's journal"),
        (
            classes.host_metadata,
            "other metadata of the host's file system",
        ),
        (classes.readahead, "read-ahead"),
    ]
    .into_iter()
    .filter_map(|(bytes, what)| {
        let bytes = bytes.filter(|bytes| share(*bytes, host) >= NOTABLE)?;
        Some(format!(
            "{} {} ({what})",
            percent(share(bytes, host)),
            size(bytes)
        ))
    })
    .collect();
    let shared = match disk.shared_with {
        0 => String::new(),
        1 => String::from(
            "; another disk lies on the same file system, so its journal is divided between them",
        ),
        n => format!(
            "; {n} other disks lie on the same file system, so its journal is divided among them"
        ),
    };
    (!parts.is_empty())
        .then(|| format!("{name}: of the host's bytes, {}{shared}.", parts.join(", ")))
}
