//! Where the time of the guest's I/O goes: for each disk a table by operation, and how much of it
//! was followed.

use nestrace_analyzer::analysis::{Chains, Clock, Segment};
use nestrace_analyzer::{Analysis, Dist};

use super::colour::Colour;
use super::{Page, disk_name, reason};
use crate::bar::{bar, is_bar};
use crate::layers::{is_folded, layer_name};
use crate::plots::segment_hue;
use crate::table::{Table, shorten};
use crate::units::{count, of, percent, share, size, time};

/// Columns of the drawn bar.
const BAR: usize = 12;
/// Columns of a layer's name.
const LAYER: usize = 22;
/// Part of the latency that passes without a processor from which on it is shown.
const NO_CPU: f64 = 0.05;

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    for chains in &analysis.chains {
        if chains.guest_bios > 0 {
            disk(chains, page);
        }
    }
    if !analysis.clocks.is_empty() {
        page.section("The guests' clocks");
        for clock in &analysis.clocks {
            page.paragraph(&of_clock(clock));
        }
    }
}

fn disk(chains: &Chains, page: &mut Page) {
    if chains.disk.is_empty() {
        page.section(&format!(
            "{} of {}: unknown disk of QEMU",
            chains.guest_device,
            shorten(&chains.guest, 40)
        ));
        page.paragraph(&without_disk(chains));
    } else {
        let name = disk_name(
            &shorten(&chains.guest, 24),
            Some(&shorten(&chains.disk, 20)),
        );
        page.section(&format!(
            "{name} ({} in the guest): where the time goes",
            chains.guest_device
        ));
    }
    page.paragraph(&followed(chains));
    for (operation, segments, latency) in [
        ("reads", &chains.by_op.read, chains.latency_ns.read),
        ("writes", &chains.by_op.write, chains.latency_ns.write),
        ("discards", &chains.by_op.discard, chains.latency_ns.discard),
        ("flushes", &chains.by_op.flush, chains.latency_ns.flush),
    ] {
        if latency.n > 0 {
            page.line("");
            coloured(&table(operation, segments, latency), page);
        }
    }
    let remarks = remarks(chains);
    if !remarks.is_empty() {
        page.line("");
        remarks.iter().for_each(|remark| page.paragraph(remark));
    }
}

/// Why a device's disk is not known.
pub(crate) fn without_disk(chains: &Chains) -> String {
    let why = chains.why_no_disk.as_deref();
    let why = why.unwrap_or("its disk in QEMU is unknown");
    format!("{}: {why}.", chains.guest_device)
}

/// Mean over all chains of the operation, quantiles over those that have the segment.
///
/// Where threads waited for a processor for a notable part of the latency, a column says for how much of each segment.
fn table(operation: &str, segments: &[Segment], latency: Dist) -> Table {
    let waiting: f64 = segments.iter().map(|segment| segment.cpu.runnable).sum();
    let with_cpu = waiting >= NO_CPU * latency.mean.unwrap_or(0) as f64 && waiting > 0.0;
    let width = if with_cpu { BAR / 2 } else { BAR };
    let bars = " ".repeat(width);
    let mut columns = vec![operation, "n", "mean", "p50", "p99", "share"];
    columns.extend(with_cpu.then_some("no cpu"));
    columns.push(&bars);
    let mut table = Table::new(&columns);
    let cell = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
    for segment in segments.iter().filter(|segment| segment.n > 0) {
        let mut row = vec![
            segment.name.to_owned(),
            count(segment.n),
            time(segment.mean_ns.round() as u64),
            cell(segment.p50_ns),
            cell(segment.p99_ns),
            percent(segment.share),
        ];
        if with_cpu {
            row.push(match segment.cpu.runnable / segment.mean_ns {
                part if part >= 0.005 => percent(part),
                _ => String::new(),
            });
        }
        row.push(bar(segment.share, width));
        table.row(row);
        for layer in segment.layers.iter().flatten() {
            let part = segment.share * layer.mean_ns / segment.mean_ns.max(f64::MIN_POSITIVE);
            let mut row = vec![
                format!("  {}", shorten(&layer_name(layer), LAYER)),
                String::new(),
                time(layer.mean_ns.round() as u64),
                String::new(),
                String::new(),
                percent(part),
            ];
            row.extend(with_cpu.then(String::new));
            row.push(String::new());
            table.row(row);
        }
    }
    let mut total = vec![
        String::from("total"),
        count(latency.n),
        cell(latency.mean),
        cell(latency.p50),
        cell(latency.p99),
    ];
    total.resize(columns.len(), String::new());
    table.row(total);
    table
}

/// The table with each bar in the colour of its layer.
fn coloured(table: &Table, page: &mut Page) {
    let header = std::iter::once("");
    let names = table.rows().iter().flat_map(|row| row.first());
    let names = header.chain(names.map(String::as_str));
    for (line, name) in table.lines(page.options.width).iter().zip(names) {
        // Bars stand at the end, and nothing else has their letters.
        let begin = line.trim_end_matches(is_bar).len();
        page.painted_line(line, begin..line.len(), Colour::of_layer(segment_hue(name)));
    }
}

/// How many bios were followed, and why the others were not.
pub(crate) fn followed(chains: &Chains) -> String {
    let mut text = format!(
        "{} of {} linked down to the host ({})",
        count(chains.linked),
        of(chains.guest_bios, "bio", "bios"),
        nearly_all(chains.linked, chains.guest_bios)
    );
    let reasons: Vec<String> = chains
        .unlinked
        .iter()
        .map(|(why, n)| format!("{} {}", count(*n), reason(*why)))
        .collect();
    if !reasons.is_empty() {
        text.push_str(&format!("; not linked: {}", reasons.join(", ")));
    }
    text.push_str(&format!(
        ". The guest sent {}.",
        of(chains.guest_requests, "request", "requests")
    ));
    text
}

/// Whether a part is missing from most bios of an operation: its mean may then lie far below its median.
fn diluted(chains: &Chains) -> bool {
    let (by_op, latency) = (&chains.by_op, &chains.latency_ns);
    [
        (&by_op.read, latency.read),
        (&by_op.write, latency.write),
        (&by_op.discard, latency.discard),
        (&by_op.flush, latency.flush),
    ]
    .into_iter()
    .flat_map(|(segments, latency)| segments.iter().map(move |segment| (segment.n, latency.n)))
    .any(|(n, of)| n > 0 && n < of / 2)
}

/// A share that says 100 % only where nothing is missing.
fn nearly_all(part: u64, whole: u64) -> String {
    let share = share(part, whole);
    if part < whole && share > 0.99 {
        return format!("{:.2} %", (share * 1e4).floor() / 100.0);
    }
    percent(share)
}

pub(crate) fn remarks(chains: &Chains) -> Vec<String> {
    let mut remarks = Vec::new();
    if !chains.folded.is_empty() {
        remarks.push(format!(
            "Not recorded, so included in the layer above: {}.",
            folded(chains).join("; ")
        ));
    }
    if diluted(chains) {
        remarks.push(String::from(
            "Means include bios without the segment as 0, so they add up; percentiles cover only the n bios that have it.",
        ));
    }
    let strays: u64 = chains.file_ios_unlinked.values().sum();
    if strays > 0 {
        remarks.push(format!(
            "{} of {} of QEMU on the image could not be linked to a request; their time counts as QEMU's own.",
            count(strays),
            of(chains.file_ios, "call", "calls")
        ));
    }
    if chains.shared > 0 {
        remarks.push(format!(
            "{} shared host I/O with others (a merged request, one sync for several flushes, a journal commit); each is charged the time that it waited.",
            of(chains.shared, "bio", "bios")
        ));
    }
    if chains.ambiguous > 0 {
        remarks.push(format!(
            "{} may include host I/O of another request.",
            of(chains.ambiguous, "bio", "bios")
        ));
    }
    let check = chains.memory_check;
    if check.contradicted > 0 {
        remarks.push(format!(
            "The guest's memory contradicts {} of {}: do not rely on them.",
            count(check.contradicted),
            of(check.agreed + check.contradicted, "link", "links")
        ));
    }
    if chains.wrong_order > 0 {
        remarks.push(format!(
            "The layers of {} do not nest in time: do not rely on their links.",
            of(chains.wrong_order, "bio", "bios")
        ));
    }
    if chains.stretched > 0 {
        remarks.push(format!(
            "{} took longer on the host than in the guest: the guest's clock stood still (a pause).",
            of(chains.stretched, "bio", "bios")
        ));
    }
    if chains.residual_share >= 0.0005 {
        remarks.push(format!(
            "{} of the time belongs to no segment.",
            percent(chains.residual_share)
        ));
    }
    remarks.extend(deferred(chains));
    remarks
}

/// The layers that are missing, and where their time went.
fn folded(chains: &Chains) -> Vec<&str> {
    let layers = chains.folded.iter().map(String::as_str);
    layers
        .map(|layer| match layer {
            "qemu" => {
                "QEMU's requests (in the time between guest and QEMU; to record them, see --qemu-debug in nestrace record \
                 --help)"
            }
            "file_io" => "QEMU's file I/O (in QEMU's own time)",
            "host_bio" if is_folded(chains, "file_io") => {
                "the host's bios and requests (in QEMU's own time too)"
            }
            "host_bio" => "the host's bios and requests (in its file system's time)",
            other => other,
        })
        .collect()
}

fn deferred(chains: &Chains) -> Option<String> {
    let later = &chains.deferred;
    if later.reads + later.writes == 0 {
        return None;
    }
    let mut parts = Vec::new();
    if later.writes > 0 {
        parts.push(format!(
            "{} (write-back, checkpoints)",
            of(later.writes, "write", "writes")
        ));
    }
    if later.reads > 0 {
        parts.push(format!("{} (read-ahead)", of(later.reads, "read", "reads")));
    }
    let delay = later
        .delay_ns
        .and_then(|delay| delay.p50)
        .map_or_else(String::new, |delay| {
            format!(", half of it within {} of the guest's write", time(delay))
        });
    Some(format!(
        "Not in these times: I/O that the host did later for this disk, {}, {}{delay}.",
        parts.join(" and "),
        size(later.bytes)
    ))
}

pub(crate) fn of_clock(clock: &Clock) -> String {
    let guest = &clock.guest;
    let Some(offset_ns) = clock.offset_ns.filter(|_| clock.pairs > 0) else {
        return format!(
            "{guest}: no exchange with QEMU gives the offset of its clock, so nothing could be linked."
        );
    };
    let side = if offset_ns < 0 { "behind" } else { "ahead of" };
    let mut text = format!(
        "{guest}'s clock is {} {side} the host's (each counts from its own boot)",
        time(offset_ns.unsigned_abs())
    );
    if let Some(drift) = clock.drift_ppm.filter(|drift| drift.abs() >= 0.05) {
        text.push_str(&format!(", drifting by {drift:+.1} ppm"));
    }
    text.push_str(&format!(
        ". {} prove this",
        of(clock.pairs, "exchange", "exchanges")
    ));
    // Nothing was linked within it: then nothing tells how wide its bound is.
    let bound = clock.error_bound_ns;
    if let (Some(p50), Some(max)) = (bound.p50, bound.max) {
        let (p50, max) = (time(p50), time(max));
        text.push_str(&format!(", within ±{p50} (at worst ±{max})"));
    }
    if clock.rejected > 0 {
        text.push_str(&format!("; {} contradicted them", count(clock.rejected)));
    }
    if clock.pieces > 1 {
        text.push_str(&format!(
            "; it was set or stopped {}",
            of(clock.pieces - 1, "time", "times")
        ));
    }
    if clock.violations > 0 {
        text.push_str(&format!(
            "; {} in an impossible order",
            of(clock.violations, "request", "requests")
        ));
    }
    text.push('.');
    text
}
