//! Calls of the guests' programs: who waits, for which file, and where the time goes.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{CallRow, GuestCalls};

use super::{Page, only_guest};
pub(crate) use crate::call_file::file_name;
use crate::table::{Table, shorten, shorten_path};
use crate::units::{count, of, percent, share, size, time};

/// Rows of the table; the JSON has up to a thousand.
const MAX_ROWS: usize = 16;
/// Columns for a program's name.
const PROGRAM: usize = 24;
/// Columns for a file's path in a sentence.
const FILE: usize = 64;
/// A part of the latency that is worth a place in the sentence.
const WORTH_NAMING: f64 = 0.08;
/// Parts that are named.
const MAX_PARTS: usize = 3;
/// Columns of the table, behind the call.
pub(crate) const COLUMNS: [&str; 6] = ["n", "no I/O", "in all", "p50", "p99", "mostly"];
/// What calls are that have "async" before them.
pub(crate) const WHAT_ASYNC: &str =
    "async: by aio or io_uring, from submission to completion. The program goes on meanwhile.";
/// Where a call spends its time, in words of the table and of the sentence, and the segments of each.
const PARTS: [(&str, &str, &[&str]); 12] = [
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
    (
        "journal",
        "in the guest's journal outside its I/O",
        &["guest_journal"],
    ),
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
    ("QEMU job", "for a job of QEMU's", &["qemu_job"]),
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
        "stacked",
        "in the host's stacked devices",
        &["stack_submit", "stack_between", "stack_complete"],
    ),
    (
        "device",
        "at the host's device",
        &["device", "device_flush"],
    ),
    ("server", "at the server that holds the disk", &["remote"]),
];

/// A program with its rows, the costliest first.
pub(crate) struct Program<'a> {
    pub name: &'a str,
    /// Those that are shown.
    pub rows: Vec<&'a CallRow>,
    all: Vec<&'a CallRow>,
}

/// The programs of a guest, the one that waits the most first, with so many rows of all of them together.
pub(crate) fn programs<'a>(
    calls: &'a [CallRow],
    guest: &str,
    most_rows: usize,
) -> Vec<Program<'a>> {
    let mut programs: Vec<Program<'a>> = Vec::new();
    let rows = calls.iter().filter(|row| row.guest == guest);
    for (place, row) in rows.enumerate() {
        let known = programs.iter().position(|it| it.name == row.process);
        let at = known.unwrap_or(programs.len());
        if known.is_none() {
            programs.push(Program {
                name: &row.process,
                rows: Vec::new(),
                all: Vec::new(),
            });
        }
        programs[at].all.push(row);
        if place < most_rows {
            programs[at].rows.push(row);
        }
    }
    programs.retain(|program| !program.rows.is_empty());
    programs.sort_by_key(|program| std::cmp::Reverse(program.waits_ns()));
    programs
}

impl Program<'_> {
    fn waiting(&self) -> impl Iterator<Item = &CallRow> {
        self.all.iter().copied().filter(|row| !is_async(row))
    }

    fn waits_ns(&self) -> u64 {
        let rows = self.waiting();
        rows.fold(0, |sum, row| sum.saturating_add(row.latency_ns.sum))
    }

    /// How long it waits, in how many calls, for how many files, and where.
    pub(crate) fn sentence(&self) -> String {
        let n: u64 = self.waiting().map(|row| row.n).sum();
        let without_io: u64 = self.waiting().map(|row| row.without_io).sum();
        let mut files: Vec<_> = self.all.iter().map(|row| &row.file).collect();
        files.sort_by_key(|file| (&file.mount, file.inode, &file.path));
        files.dedup();
        let name = match self.name {
            "…" => "further programs",
            name => name,
        };
        let mut said = Vec::new();
        if n > 0 {
            said.push(format!(
                "{} in {}, {} without I/O",
                time(self.waits_ns()),
                of(n, "call", "calls"),
                percent(share(without_io, n)),
            ));
        }
        let rows: Vec<&CallRow> = self.waiting().collect();
        if let Some((part, _, long)) = parts(&rows).first() {
            said.push(format!("{} {long}", percent(*part)));
        }
        let submitted = self.all.iter().filter(|row| is_async(row));
        let (n, ns) = submitted.fold((0, 0_u64), |(n, ns), row| {
            (n + row.n, ns.saturating_add(row.latency_ns.sum))
        });
        if let Some(mean_ns) = ns.checked_div(n) {
            let mean = time(mean_ns);
            said.push(format!(
                "{}, {mean} on average",
                of(n, "async one", "async ones")
            ));
        }
        format!(
            "{} ({}): {}",
            shorten(name, PROGRAM),
            of(files.len() as u64, "file", "files"),
            said.join("; ")
        )
    }

    /// Its rows by file, the file with the most time first.
    pub(crate) fn by_file(&self) -> Vec<(String, Vec<&CallRow>)> {
        let mut files: Vec<(String, Vec<&CallRow>)> = Vec::new();
        for row in &self.rows {
            let name = file_name(&row.file);
            match files.iter_mut().find(|(known, _)| *known == name) {
                Some((_, rows)) => rows.push(row),
                None => files.push((name, vec![row])),
            }
        }
        files
    }
}

/// Whether its calls were submitted, most of them: the program does not wait in these.
pub(crate) fn is_async(row: &CallRow) -> bool {
    row.submitted > row.n / 2
}

/// The call of a row, and the cells of [`COLUMNS`].
pub(crate) fn cells(row: &CallRow) -> (String, [String; COLUMNS.len()]) {
    let cell = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
    let name = row.op.name();
    let call = match is_async(row) {
        true => format!("async {name}"),
        false => name.to_owned(),
    };
    let cells = [
        count(row.n),
        percent(share(row.without_io, row.n)),
        time(row.latency_ns.sum),
        cell(row.latency_ns.p50),
        cell(row.latency_ns.p99),
        mostly(row),
    ];
    (call, cells)
}

/// The guests with recorded calls.
pub(crate) fn guests(analysis: &Analysis) -> impl Iterator<Item = (&GuestCalls, &[CallRow])> {
    let calls = analysis.calls.as_deref().unwrap_or_default();
    let known = analysis.guest_calls.iter();
    let known = known.filter(|guest| guest.why_none.is_none());
    let known = known.map(move |guest| (guest, calls));
    known.filter(|(guest, calls)| calls.iter().any(|row| row.guest == guest.guest))
}

/// The title of a guest's part.
pub(crate) fn title(analysis: &Analysis, guest: &GuestCalls) -> String {
    let of_whom = match only_guest(analysis) {
        Some(_) => String::from("Calls of the guest's programs"),
        None => format!("Calls of {}'s programs", shorten(&guest.guest, 24)),
    };
    format!("{of_whom}: who waits, and where the time goes")
}

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    for (guest, calls) in guests(analysis) {
        of_guest(analysis, calls, guest, page);
    }
}

fn of_guest(analysis: &Analysis, calls: &[CallRow], guest: &GuestCalls, page: &mut Page) {
    page.section(&title(analysis, guest));
    let programs = programs(calls, &guest.guest, MAX_ROWS);
    let mut header = vec!["call"];
    header.extend(COLUMNS);
    let mut table = Table::new(&header);
    // What stands above a row of the table.
    let mut above: Vec<Vec<String>> = Vec::new();
    for program in &programs {
        let mut headings = vec![format!("  {}", program.sentence())];
        for (file, rows) in program.by_file() {
            let room = page.options.width.saturating_sub(4);
            headings.push(format!("    {}", shorten_path(&file, room)));
            for row in rows {
                let (call, cells) = cells(row);
                let mut row = vec![format!("    {call}")];
                row.extend(cells);
                table.row(row);
                above.push(std::mem::take(&mut headings));
            }
        }
    }
    let mut lines = table.lines(page.options.width).into_iter();
    lines.by_ref().take(1).for_each(|header| page.line(&header));
    for (line, headings) in lines.zip(above) {
        for heading in headings {
            page.heading(&heading);
        }
        page.line(&line);
    }
    let n_rows = calls.iter().filter(|row| row.guest == guest.guest).count();
    if n_rows > MAX_ROWS {
        let more = of((n_rows - MAX_ROWS) as u64, "more row", "more rows");
        page.paragraph(&format!("{more} in the JSON, all with less time."));
    }
    if programs
        .iter()
        .flat_map(|it| &it.rows)
        .any(|row| is_async(row))
    {
        page.paragraph(WHAT_ASYNC);
    }
    remarks(guest)
        .iter()
        .for_each(|remark| page.paragraph(remark));
}

pub(crate) fn remarks(guest: &GuestCalls) -> Vec<String> {
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
    let parts = parts(&[row]);
    parts.first().map_or_else(
        || String::from("–"),
        |(share, words, _)| format!("{} {words}", percent(*share)),
    )
}

/// The parts of the latency of all rows together, the largest first.
fn parts(rows: &[&CallRow]) -> Vec<(f64, &'static str, &'static str)> {
    let ns_of = |row: &&CallRow, names: &[&str]| -> f64 {
        let segments = row.segments.iter();
        let segments = segments.filter(|segment| names.contains(&segment.name));
        let mean_ns: f64 = segments.map(|segment| segment.mean_ns).sum();
        mean_ns * row.linked as f64
    };
    let sum_of = |names: &[&str]| -> f64 { rows.iter().map(|row| ns_of(row, names)).sum() };
    let all_ns: f64 = PARTS.iter().map(|(.., names)| sum_of(names)).sum();
    let mut parts: Vec<(f64, &str, &str)> = PARTS
        .iter()
        .map(|(short, long, names)| (sum_of(names) / all_ns, *short, *long))
        .filter(|(share, ..)| *share > 0.0)
        .collect();
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    parts
}

/// The answer for the program and file that wait the most, and for the one with the most asynchronous I/O if that is more;
/// empty where no call waited for I/O.
pub(super) fn sentences(analysis: &Analysis) -> Vec<String> {
    let most = |is_wanted: fn(&CallRow) -> bool| {
        let calls = analysis.calls.iter().flatten();
        let waits = calls.filter(|row| {
            row.n > row.without_io && row.linked > 0 && row.file.inode.is_some() && is_wanted(row)
        });
        waits.max_by_key(|row| row.latency_ns.sum)
    };
    let (waiting, submitted) = (most(|row| !is_async(row)), most(is_async));
    let more =
        |row: &&CallRow| waiting.is_none_or(|waiting| row.latency_ns.sum > waiting.latency_ns.sum);
    let all = waiting.into_iter().chain(submitted.filter(more));
    all.filter_map(|row| sentence(analysis, row)).collect()
}

fn sentence(analysis: &Analysis, row: &CallRow) -> Option<String> {
    let mean_ns = row.latency_ns.mean?;
    let (mean, op) = (time(mean_ns), row.op.name());
    let file = shorten_path(&file_name(&row.file), FILE);
    let mut text = if is_async(row) {
        format!(
            "Each of the {} of {file} that {} submits takes {mean} on average until it has completed",
            of(row.n, op, &many(op)),
            row.process,
        )
    } else {
        let calls = analysis.calls.iter().flatten();
        let of_program = calls.filter(|other| {
            (&other.guest, &other.process) == (&row.guest, &row.process) && !is_async(other)
        });
        let all_ns: u64 = of_program.map(|other| other.latency_ns.sum).sum();
        format!(
            "{} waits {} of the time of its calls in {op} of {file}: {mean} each ({})",
            row.process,
            percent(share(row.latency_ns.sum, all_ns)),
            of(row.n, "call", "calls"),
        )
    };
    let ns_of = |share: f64| time((mean_ns as f64 * share).round() as u64);
    let words: Vec<String> = parts(&[row])
        .into_iter()
        .take(MAX_PARTS)
        .filter(|(share, ..)| *share >= WORTH_NAMING)
        .map(|(share, _, long)| format!("{} {long}", ns_of(share)))
        .collect();
    if !words.is_empty() {
        text.push_str(&format!(", of which {}", words.join(", ")));
    }
    if is_async(row) {
        text.push_str("; the program goes on meanwhile");
    }
    text.push('.');
    let mut for_what = Vec::new();
    if row.journal_share >= WORTH_NAMING {
        let journal = ns_of(row.journal_share);
        let mut part = format!("{journal} are for the guest's journal with its I/O");
        if row.others_data_share >= WORTH_NAMING {
            let data = ns_of(row.others_data_share);
            part.push_str(&format!(" ({data} of that {})", others(row)));
        }
        for_what.push(part);
    }
    if row.image_sync_share >= WORTH_NAMING {
        let sync = ns_of(row.image_sync_share);
        for_what.push(format!("{sync} are for QEMU's syncs of the image"));
    }
    if !for_what.is_empty() {
        text.push_str(&format!(" Of the {mean}, {}.", for_what.join(" and ")));
    }
    Some(text)
}

/// Other files' data in the commits, the one with the most bytes by name.
fn others(row: &CallRow) -> String {
    let Some(most) = row.others_data.first() else {
        return String::from("for other files' data");
    };
    let by = most.process.as_ref();
    let by = by.map_or_else(String::new, |process| format!(" by {process}"));
    let more = if row.others_data.len() > 1 {
        " and others"
    } else {
        ""
    };
    format!("for data of {}{by}{more}", file_name(&most.file))
}

/// Several calls of an operation.
fn many(op: &str) -> String {
    match op {
        "sync_file_range" | "fallocate" | "truncate" => format!("{op} calls"),
        "other" => String::from("other calls"),
        op => format!("{op}s"),
    }
}

#[cfg(test)]
mod tests {
    use nestrace_analyzer::CALL_SEGMENT_NAMES;

    use super::*;

    #[test]
    fn each_segment_is_in_one_part() {
        for name in CALL_SEGMENT_NAMES {
            let its = PARTS.iter().filter(|(.., names)| names.contains(&name));
            assert_eq!(its.count(), 1, "{name}");
        }
    }
}
