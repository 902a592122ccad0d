//! Calls of the guests' programs: who waits, for which file, and where the time goes.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{CallRow, GuestCalls};

use super::{Page, only_guest};
pub(crate) use crate::call_file::file_name;
use crate::table::{Table, shorten};
use crate::units::{count, of, percent, share, size, time};

/// Rows of the table; the JSON has up to a thousand.
const MOST_ROWS: usize = 16;
/// Columns for a program's and for a file's name.
const PROGRAM: usize = 12;
const FILE: usize = 24;
/// A part of the latency that is worth a place in the sentence.
const WORTH_NAMING: f64 = 0.08;
/// Parts that are named.
const MAX_PARTS: usize = 3;
/// Where a call spends its time, in words of the table and of the sentence, and the segments of each.
const PARTS: [(&str, &str, &[&str]); 9] = [
    (
        "guest fs",
        "in the guest's file system",
        &["guest_fs_submit", "guest_fs_between", "guest_fs_complete"],
    ),
    (
        "throttled",
        "paused because too many pages were dirty",
        &["guest_dirty_throttle"],
    ),
    ("journal", "in the guest's journal", &["guest_journal"]),
    (
        "guest queue",
        "in the guest's queue",
        &["guest_queue", "guest_page_wait"],
    ),
    (
        "guest–QEMU",
        "between guest and QEMU",
        &["virt_submit", "virt_complete"],
    ),
    (
        "QEMU",
        "in QEMU",
        &["qemu_submit", "qemu_between", "qemu_complete"],
    ),
    (
        "host fs",
        "in the host's file system",
        &["host_fs_submit", "host_fs_between", "host_fs_complete"],
    ),
    ("host queue", "in the host's queue", &["host_queue"]),
    (
        "device",
        "at the host's device",
        &["device", "device_flush"],
    ),
];

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let Some(calls) = &analysis.calls else {
        return;
    };
    let guests = &analysis.guest_calls;
    let known = guests.iter().filter(|guest| guest.why_none.is_none());
    for guest in known {
        of_guest(analysis, calls, guest, page);
    }
}

fn of_guest(analysis: &Analysis, calls: &[CallRow], guest: &GuestCalls, page: &mut Page) {
    let rows: Vec<&CallRow> = calls
        .iter()
        .filter(|row| row.guest == guest.guest)
        .collect();
    if rows.is_empty() {
        return;
    }
    let of_whom = match only_guest(analysis) {
        Some(_) => String::from("Calls of the guest's programs"),
        None => format!("Calls of {}'s programs", shorten(&guest.guest, 24)),
    };
    page.section(&format!("{of_whom}: who waits, and where the time goes"));
    let mut table = Table::new(&[
        "program and file",
        "call",
        "n",
        "no I/O",
        "mean",
        "p99",
        "mostly",
    ]);
    let cell = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
    for row in rows.iter().take(MOST_ROWS) {
        table.row(vec![
            format!(
                "{}: {}",
                shorten(&row.process, PROGRAM),
                shorten(&file_name(&row.file), FILE)
            ),
            row.op.name().to_owned(),
            count(row.n),
            percent(share(row.without_io, row.n)),
            cell(row.latency_ns.mean),
            cell(row.latency_ns.p99),
            mostly(row),
        ]);
    }
    page.table(&table);
    if rows.len() > MOST_ROWS {
        let more = of((rows.len() - MOST_ROWS) as u64, "more row", "more rows");
        page.paragraph(&format!("{more} in the JSON, all with less time."));
    }
    remarks(guest)
        .iter()
        .for_each(|remark| page.paragraph(remark));
}

fn remarks(guest: &GuestCalls) -> Vec<String> {
    let io = |what: &str, io: nestrace_analyzer::analysis::CallIo| {
        (io.bios > 0).then(|| format!("{} {what} ({})", of(io.bios, "bio", "bios"), size(io.bytes)))
    };
    let whose = [
        io("that a call waited for", guest.waited),
        io("that a call caused and did not wait for", guest.deferred),
        io("of commits that no call waited for", guest.journal),
        io(
            "of the file systems' own, or of calls that were not seen",
            guest.other,
        ),
    ];
    let whose: Vec<String> = whose.into_iter().flatten().collect();
    let mut remarks = Vec::new();
    if !whose.is_empty() {
        remarks.push(format!("The guest's block layer did {}.", whose.join(", ")));
    }
    if guest.unended > 0 {
        let calls = of(guest.unended, "call has", "calls have");
        remarks.push(format!("{calls} no recorded end and are left out."));
    }
    remarks
}

/// The part with the most time.
fn mostly(row: &CallRow) -> String {
    let parts = parts(row);
    parts.first().map_or_else(
        || String::from("–"),
        |(share, words, _)| format!("{} {words}", percent(*share)),
    )
}

/// The parts, the largest first.
fn parts(row: &CallRow) -> Vec<(f64, &'static str, &'static str)> {
    let share_of = |names: &[&str]| -> f64 {
        let segments = row.segments.iter();
        let segments = segments.filter(|segment| names.contains(&segment.name));
        segments.map(|segment| segment.share).sum()
    };
    let mut parts: Vec<(f64, &str, &str)> = PARTS
        .iter()
        .map(|(short, long, names)| (share_of(names), *short, *long))
        .filter(|(share, ..)| *share > 0.0)
        .collect();
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    parts
}

/// The answer for the program and file that wait the most; `None` where no call waited for I/O.
pub(super) fn sentence(analysis: &Analysis) -> Option<String> {
    let calls = analysis.calls.as_ref()?;
    let waits =
        |row: &&CallRow| row.n > row.without_io && row.linked > 0 && row.file.inode.is_some();
    let row = calls
        .iter()
        .filter(waits)
        .max_by_key(|row| row.latency_ns.sum)?;
    let of_program = calls
        .iter()
        .filter(|other| (&other.guest, &other.process) == (&row.guest, &row.process));
    let all_ns: u64 = of_program.map(|other| other.latency_ns.sum).sum();
    let mean_ns = row.latency_ns.mean?;
    let mut words: Vec<String> = Vec::new();
    let ns_of = |share: f64| time((mean_ns as f64 * share).round() as u64);
    for (share, _, long) in parts(row).into_iter().take(MAX_PARTS) {
        if share >= WORTH_NAMING {
            words.push(format!("{} {long}", ns_of(share)));
        }
    }
    let mut text = format!(
        "{} waits {} on average in each of {} of {} ({} of the time of its calls)",
        row.process,
        time(mean_ns),
        of(row.n, row.op.name(), &many(row.op.name())),
        file_name(&row.file),
        percent(share(row.latency_ns.sum, all_ns)),
    );
    if !words.is_empty() {
        text.push_str(&format!(", of which {}", words.join(", ")));
    }
    text.push('.');
    if row.journal_share >= WORTH_NAMING {
        text.push_str(&format!(
            " {} of the {} are under the guest's journal",
            ns_of(row.journal_share),
            time(mean_ns)
        ));
        if row.others_data_share >= WORTH_NAMING {
            text.push_str(&format!(
                ", {} of that for other files' data",
                ns_of(row.others_data_share)
            ));
        }
        text.push('.');
    }
    Some(text)
}

/// Several calls of an operation.
fn many(op: &str) -> String {
    match op {
        "sync_file_range" | "fallocate" | "truncate" => format!("{op} calls"),
        "other" => String::from("other calls"),
        op => format!("{op}s"),
    }
}
