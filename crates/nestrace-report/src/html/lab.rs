//! The report of a run of the lab: one page that needs nothing else but links to the cells' own reports.

mod system;

use super::figure;
use super::page::{Page, escape, prose};
use crate::lab::extremes::Extremes;
use crate::lab::{
    CellFinding, Comparison, Counters, MainLatency, Outlier, Row, Spread, Verdict, text,
};
use crate::plots::{Chart, DrawError, Hue, Plot, Span, SpanRow, Spans, Unit};
use crate::units::{self, time};

/// Bars of a figure.
const MOST_BARS: usize = 40;
/// Outliers that are seen at once; the others are folded away.
const FIRST_OUTLIERS: usize = 24;
/// Lines of what is missing that are seen at once; the others are folded away.
const FIRST_LINES: usize = 80;
/// Axes whose words are no other's.
const SAYS_ITSELF: [&str; 6] = [
    "format",
    "cache",
    "aio",
    "bus",
    "preallocation",
    "placement",
];

/// The report.
///
/// # Errors
/// If a figure cannot be drawn.
///
/// ```
/// use nestrace_report::lab::{Comparison, Results};
/// let page = nestrace_report::html::lab::render(&Comparison::new(&Results::default())).unwrap();
/// assert!(page.starts_with("<!doctype html>"));
/// ```
pub fn render(comparison: &Comparison) -> Result<String, DrawError> {
    let run = &comparison.run;
    let mut page = Page::new(&format!("lab: {}", run.plan));
    page.raw("<header>");
    page.element("h1", &format!("Nested file systems: {}", run.plan));
    page.element("p", &run.about);
    page.element("p class=facts", &text::machine(comparison));
    page.raw("</header>");
    page.section("answer", "In short");
    for statement in &comparison.statements {
        page.element("p", statement);
    }
    page.element("p class=note", "Every run has a new file system in the guest and finds empty page caches, but for tests that read again what they have read. Values are medians of the repetitions; the spread is their least and greatest. A difference is told only where no repetition of the one lies among the other's.");
    page.end_section();
    for workload in comparison.workloads() {
        of_workload(comparison, workload, &mut page)?;
    }
    outliers(comparison, &mut page);
    published(comparison, &mut page);
    numbers(comparison, &mut page);
    system::write(comparison, &mut page);
    missing(comparison, &mut page);
    page.raw("<footer><p>Every number: <code>report.json</code> and <code>report.csv</code> beside this page.</p></footer>");
    Ok(page.finish())
}

fn of_workload(comparison: &Comparison, workload: &str, page: &mut Page) -> Result<(), DrawError> {
    let rows: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.workload == workload)
        .collect();
    page.section(&format!("workload-{}", slug(workload)), workload);
    if let Some(row) = rows.first() {
        page.element("p class=note", &format!("{}.", row.workload_note));
    }
    heat_map(&rows, page);
    if let Some(extremes) = Extremes::of(&rows) {
        extremes
            .lines()
            .iter()
            .for_each(|line| page.element("p", line));
    }
    let mut guests: Vec<&str> = rows.iter().map(|row| row.word("guest_fs")).collect();
    guests.dedup();
    let mut known: Vec<&str> = Vec::new();
    for guest in guests {
        if known.contains(&guest) {
            continue;
        }
        known.push(guest);
        let own = rows.iter().filter(|row| row.word("guest_fs") == guest);
        if let Some(plot) = bars(workload, guest, &own.copied().collect::<Vec<_>>()) {
            figure::write(&plot, page)?;
        }
    }
    page.end_section();
    Ok(())
}

/// FAST'12's figure: a bar for each combination, the bare device first, with the spread at its end.
fn bars(workload: &str, guest: &str, rows: &[&Row]) -> Option<Plot> {
    let with_result: Vec<&&Row> = rows.iter().filter(|row| row.relative.is_some()).collect();
    let shown: Vec<SpanRow> = with_result
        .iter()
        .take(MOST_BARS)
        .filter_map(|row| Some(bar(row, row.relative?)))
        .collect();
    let cut = with_result.len().saturating_sub(shown.len());
    let more = if cut > 0 {
        format!(" {} more are in the table.", units::count(cut as u64))
    } else {
        String::new()
    };
    // A folder over 9p is compared with the file system beneath it.
    let base = if guest == "9p" {
        "the host's file system"
    } else {
        guest
    };
    (!shown.is_empty()).then(|| Plot {
        id: format!("relative-{}-{}", slug(workload), slug(guest)),
        subject: String::new(),
        question: format!("What does nesting cost {guest} under {workload}?"),
        note: format!(
            "Performance relative to {base} on the bare device (bd = 100 %). Strong up to the least of the repetitions, pale up to the greatest, a line at the one in the middle.{more}"
        ),
        chart: Chart::Spans(Spans {
            unit: Unit::OfWhole,
            title: String::from("of the bare device"),
            keys: vec![
                (String::from("bare device"), Hue::Neutral, 1.0),
                (String::from("nested"), Hue::HostFs, 1.0),
                (String::from("spread"), Hue::HostFs, 0.4),
            ],
            rows: shown,
        }),
    })
}

fn bar(row: &Row, relative: Spread) -> SpanRow {
    let hue = match row.verdict {
        Verdict::Baseline => Hue::Neutral,
        _ => Hue::HostFs,
    };
    let span = |name: &str, from: f64, to: f64, tint: f64| Span {
        name: name.to_owned(),
        from,
        to,
        hue,
        tint,
    };
    // A line of the middle that is seen in both parts.
    let middle = Span {
        name: String::from("middle"),
        hue: Hue::Device,
        from: relative.median - relative.max * 0.002,
        to: relative.median + relative.max * 0.002,
        tint: 1.0,
    };
    SpanRow {
        label: row.id.clone(),
        detail: format!(
            "{} ({}) {}",
            percent(relative.median),
            text::spread(&relative),
            text::value(row.metric, row.value)
        ),
        spans: vec![
            span("least", 0.0, relative.min, 1.0),
            span("spread", relative.min, relative.max, 0.4),
            middle,
        ],
    }
}

/// Guest file systems by what lies beneath.
fn heat_map(rows: &[&Row], page: &mut Page) {
    let column_of = |row: &Row| column(row, rows);
    let mut columns: Vec<String> = Vec::new();
    let mut guests: Vec<&str> = Vec::new();
    for row in rows {
        let column = column_of(row);
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !guests.contains(&row.word("guest_fs")) {
            guests.push(row.word("guest_fs"));
        }
    }
    // Guests are few: they stand above, the stacks beneath them one below the other.
    page.raw("<div class=scroll><table class=heat><thead><tr><th>beneath</th>");
    for guest in &guests {
        page.raw(&format!("<th>{}</th>", escape(guest)));
    }
    page.raw("</tr></thead><tbody>");
    for column in &columns {
        page.raw(&format!("<tr><td>{}</td>", escape(column)));
        for guest in &guests {
            let own = rows
                .iter()
                .find(|row| row.word("guest_fs") == *guest && column_of(row) == *column);
            page.raw(&heat(own.copied()));
        }
        page.raw("</tr>");
    }
    page.raw("</tbody></table></div>");
    page.element("p class=note", "Per cent of the bare device: red is slower, green faster, pale or bold as much as it is; ≈ is within the spread, ? has too few repetitions to tell.");
}

/// What lies beneath a guest's file system, as far as it varies.
fn column(row: &Row, rows: &[&Row]) -> String {
    let of_image = ["format", "preallocation", "placement", "host_mount_options"];
    let varies = |axis: &&String| {
        // A baseline has no image.
        let has = |row: &&&Row| row.baseline.is_some() || !of_image.contains(&axis.as_str());
        let mut words = rows.iter().filter(has).map(|row| row.word(axis));
        let first = words.next();
        words.any(|word| Some(word) != first)
    };
    let mut parts = vec![row.word("host_fs").to_owned()];
    let is_bare = row.baseline.is_none();
    for axis in row.axes.keys().filter(varies) {
        let skip = ["guest_fs", "host_fs"].contains(&axis.as_str())
            || (is_bare && of_image.contains(&axis.as_str()));
        let word = row.word(axis);
        if skip || word.is_empty() {
            continue;
        }
        // Words of some axes are those of others: schedulers, mount options, read-ahead.
        parts.push(if SAYS_ITSELF.contains(&axis.as_str()) {
            word.to_owned()
        } else {
            format!("{axis}={word}")
        });
    }
    parts.join(" ")
}

fn heat(row: Option<&Row>) -> String {
    let Some(relative) = row.and_then(|row| row.relative) else {
        return String::from("<td>–</td>");
    };
    let sure = row.is_some_and(|row| {
        matches!(
            row.verdict,
            Verdict::Slower | Verdict::Faster | Verdict::Baseline
        )
    });
    let away = relative.median - 1.0;
    let hue = if away < 0.0 { Hue::Device } else { Hue::HostFs };
    let strength = if sure {
        (away.abs() * 80.0).clamp(0.0, 60.0)
    } else {
        0.0
    };
    let mark = match row.map(|row| row.verdict) {
        Some(Verdict::NotApart) => "≈ ",
        Some(Verdict::TooFew) => "? ",
        _ => "",
    };
    let text = format!("{mark}{}", percent(relative.median));
    format!(
        "<td style=\"background:color-mix(in srgb,var({}) {strength:.0}%,transparent)\">{}</td>",
        hue.variable(),
        prose(&text)
    )
}

fn outliers(comparison: &Comparison, page: &mut Page) {
    page.section("outliers", "What differs, and why");
    if comparison.outliers.is_empty() {
        page.element(
            "p",
            "No combination differs from its bare device by a tenth or more in every repetition.",
        );
    }
    let n_first = comparison.outliers.len().min(FIRST_OUTLIERS);
    let (first, more) = comparison.outliers.split_at(n_first);
    for outlier in first {
        one_outlier(comparison, outlier, page);
    }
    if !more.is_empty() {
        page.raw(&format!("<details><summary>{} more</summary>", more.len()));
        for outlier in more {
            one_outlier(comparison, outlier, page);
        }
        page.raw("</details>");
    }
    page.end_section();
}

fn one_outlier(comparison: &Comparison, outlier: &Outlier, page: &mut Page) {
    let class = match outlier.relative {
        relative if relative < 0.5 => "high",
        relative if relative < 0.8 => "medium",
        _ => "low",
    };
    page.raw(&format!(
        "<article class={class} id=cell-{}>",
        escape(&outlier.id)
    ));
    page.element("h3", &outlier.id);
    page.element("p", &text::outlier(outlier));
    let Some(row) = comparison.row(&outlier.id) else {
        return page.raw("</article>");
    };
    // What the baseline has too is no reason to be slower; of a faster cell the findings are the baseline's.
    let told = row.explanation.iter().flat_map(|told| &told.findings);
    let is_reason = |finding: &&CellFinding| {
        outlier.relative < 1.0 && outlier.findings.contains(&finding.title)
    };
    for finding in told.filter(is_reason) {
        let share = units::percent(finding.share);
        page.element(
            "p class=note",
            &format!(
                "{} ({}, {share} at stake): {}",
                finding.title, finding.id, finding.explanation
            ),
        );
    }
    if let Some(link) = &row.page {
        page.raw(&format!(
            "<p><a href=\"{}\">The report of its recording</a></p>",
            escape(link)
        ));
    }
    page.raw("</article>");
}

fn published(comparison: &Comparison, page: &mut Page) {
    if comparison.published.is_empty() {
        return;
    }
    page.section("published", "The published figures beside ours");
    page.raw("<ul>");
    for one in &comparison.published {
        let ours = one.ours.as_deref().unwrap_or("not in this run");
        let line = format!("{}: published {}; here {ours}.", one.what, one.published);
        page.element("li", &line);
    }
    page.raw("</ul>");
    page.element("p class=note", "For orientation: other hardware, other kernels, other sizes. Where guests are translated (tcg), processors weigh more than they do on real ones.");
    page.end_section();
}

fn numbers(comparison: &Comparison, page: &mut Page) {
    page.section("numbers", "Every cell in numbers");
    let head = [
        "cell",
        "value",
        "of bd",
        "spread",
        "mean latency",
        "p99",
        "of bd's",
        "guest CPU",
        "host CPU",
        "disk busy",
        "guest's disk",
        "guest pages",
        "guest switches",
        "write ampl.",
        "recorded",
        "verdict",
    ];
    page.raw("<div class=scroll><table class=numbers><thead><tr>");
    head.iter()
        .for_each(|cell| page.raw(&format!("<th>{cell}</th>")));
    page.raw("</tr></thead><tbody>");
    for row in &comparison.rows {
        let name = match &row.page {
            Some(link) => format!("<a href=\"{}\">{}</a>", escape(link), escape(&row.id)),
            None => escape(&row.id),
        };
        let cells = cells(row)
            .into_iter()
            .map(|cell| format!("<td>{}</td>", prose(&cell)));
        page.raw(&format!(
            "<tr><td>{name}</td>{}</tr>",
            cells.collect::<String>()
        ));
    }
    page.raw("</tbody></table></div>");
    let mut latencies = comparison.rows.iter().filter_map(Row::main_latency);
    if latencies.any(|latency| latency.is_recorded) {
        page.element("p class=note", &format!("{}.", MainLatency::NOTE));
    }
    page.element("p class=note", "CPU is user + system of all processors. Of the guest's disk, reads + writes; its pages, KiB in + out; all counters run from the workload's start to its end, with its warm-up. “recorded” is the performance of the run that was recorded, which is none of the repetitions, relative to their median; it has its own length and no warm-up, so that it says what recording costs only roughly.");
    page.end_section();
}

fn cells(row: &Row) -> Vec<String> {
    let dash = || String::from("–");
    let latency = row.main_latency();
    let cpu = |counters: &Counters| units::percent(counters.cpu_user + counters.cpu_system);
    vec![
        text::value(row.metric, row.value),
        row.relative
            .map_or_else(dash, |relative| percent(relative.median)),
        row.relative
            .map_or_else(dash, |relative| text::spread(&relative)),
        latency.map_or_else(dash, |main| {
            let mean = time(main.figures.mean_ns.round() as u64);
            format!("{mean} {}{}", main.operation, main.mark())
        }),
        latency.map_or_else(dash, |main| time(main.figures.p99_ns)),
        row.relative_latency.map_or_else(dash, percent),
        cpu(&row.guest),
        cpu(&row.host),
        units::percent(row.host.disk_utilisation),
        rates(&row.guest, |c| [c.disk_reads as f64, c.disk_writes as f64]),
        rates(&row.guest, |c| {
            [c.paged_in_kib as f64, c.paged_out_kib as f64]
        }),
        rates(&row.guest, |c| [c.context_switches as f64]),
        row.write_amplification
            .map_or_else(dash, |times| format!("×{times:.2}")),
        row.recorded_relative.map_or_else(dash, percent),
        row.verdict.words().to_owned(),
    ]
}

/// Counts per second of the time that was counted: `12 + 340 /s`.
fn rates<const N: usize>(counters: &Counters, of: fn(&Counters) -> [f64; N]) -> String {
    let Some(seconds) = counters.seconds.filter(|seconds| *seconds > 0.0) else {
        return String::from("–");
    };
    let rates = of(counters).map(|count| units::count((count / seconds).round() as u64));
    format!("{} /s", rates.join(" + "))
}

fn missing(comparison: &Comparison, page: &mut Page) {
    page.section("missing", "What is missing");
    let missing = text::missing(comparison);
    if missing.is_empty() {
        page.element("p", &text::nothing_missing(comparison));
    }
    let (first, more) = missing.split_at(missing.len().min(FIRST_LINES));
    list(first, page);
    if !more.is_empty() {
        page.raw(&format!(
            "<details><summary>{} more</summary>",
            units::count(more.len() as u64)
        ));
        list(more, page);
        page.raw("</details>");
    }
    page.end_section();
}

fn list(lines: &[String], page: &mut Page) {
    if lines.is_empty() {
        return;
    }
    page.raw("<ul>");
    lines
        .iter()
        .for_each(|line| page.element("li", &format!("{line}.")));
    page.raw("</ul>");
}

fn percent(relative: f64) -> String {
    format!("{:.0} %", relative * 100.0)
}

/// Usable as an id.
fn slug(word: &str) -> String {
    word.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '-'
            }
        })
        .collect()
}
