//! The moment for which a flight recorder wrote the recording, and how it differs from the minute before.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{FlightMoment, FlightReading, FlightRow};

use super::{Page, disk_name};
use crate::table::Table;
use crate::units;

/// Rows that are shown; `--format json` has all.
const MOST: usize = 12;

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let Some(moment) = &analysis.flight else {
        return;
    };
    page.section("The moment");
    page.paragraph(&sentence(moment));
    if moment.compared.is_empty() {
        return;
    }
    let before_ns = moment.split_ns.min(FlightMoment::BEFORE_NS);
    let then_ns = analysis.trace.duration_ns.saturating_sub(moment.split_ns);
    page.line("");
    page.paragraph(&format!(
        "Latencies in the {} before it, and in the {} from {} before the moment to the end:",
        units::time(before_ns),
        units::time(then_ns),
        units::time(moment.at_ns.saturating_sub(moment.split_ns)),
    ));
    page.line("");
    let mut table = Table::new(&["", "n", "p99", "max", "n then", "p99 then", "max then"]);
    let mut rows: Vec<&FlightRow> = moment.compared.iter().collect();
    rows.sort_by_key(|row| (row.layer == "device", std::cmp::Reverse(row.then.sum)));
    let left = rows.len().saturating_sub(MOST);
    for row in rows.into_iter().take(MOST) {
        let time = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), units::time);
        table.row(vec![
            name(row),
            units::count(row.before.n),
            time(row.before.p99),
            time(row.before.max),
            units::count(row.then.n),
            time(row.then.p99),
            time(row.then.max),
        ]);
    }
    page.table(&table);
    if left > 0 {
        page.paragraph(&format!("({left} more rows are in --format json)"));
    }
}

/// `at 14:03:07.2 UTC …: p99 of writes in QEMU was 312 ms, the condition was > 100 ms`.
pub(crate) fn sentence(moment: &FlightMoment) -> String {
    let when = match moment.at_unix_ns {
        Some(unix_ns) => format!("At {} UTC, {}", time_of_day(unix_ns), after(moment)),
        None => format!("At {}", after(moment)),
    };
    let held: Vec<String> = moment
        .readings
        .iter()
        .filter(|reading| reading.holds)
        .map(of_reading)
        .collect();
    match moment.cause.as_str() {
        "condition" if !held.is_empty() => format!("{when}: {}.", held.join("; ")),
        "signal" => format!("{when}: the recorder got the signal SIGUSR1."),
        "file" => format!("{when}: the file of --until-file appeared."),
        _ => format!("{when}: the recorder wrote what it had kept."),
    }
}

fn after(moment: &FlightMoment) -> String {
    format!("{} after the start", units::time(moment.at_ns))
}

fn time_of_day(unix_ns: u64) -> String {
    let tenths = unix_ns / 100_000_000;
    let seconds = tenths / 10;
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!(
        "{hours:02}:{minutes:02}:{:02}.{}",
        seconds % 60,
        tenths % 10
    )
}

fn of_reading(reading: &FlightReading) -> String {
    let value = |value: f64| match reading.statistic.as_str() {
        "count" => units::count(value as u64),
        "rate" => format!("{value:.1}/s"),
        _ => units::time(value as u64),
    };
    let of = match reading.op.as_str() {
        "read" => "reads",
        "write" => "writes",
        "flush" => "flushes",
        "discard" => "discards",
        _ => "all requests",
    };
    let layer = match reading.layer.as_str() {
        "guest" => "in the guest",
        "qemu" => "in QEMU",
        "file_io" => "in file I/O",
        "host_queue" => "in the host's queue",
        "device" => "at the host's device",
        other => other,
    };
    let what = match reading.statistic.as_str() {
        "oldest" => format!("the oldest of {of} in flight {layer}"),
        statistic => format!("{statistic} of {of} {layer}"),
    };
    let found = reading.value.map_or_else(|| String::from("unknown"), value);
    let window = match reading.window_ns {
        0 => String::new(),
        ns => format!(" over {}", units::time(ns)),
    };
    let (relation, limit) = (&reading.relation, value(reading.limit));
    format!("{what} was {found}{window}, the condition was {relation} {limit}")
}

fn name(row: &FlightRow) -> String {
    let op = match row.op.as_str() {
        "read" => "reads",
        "write" => "writes",
        "flush" => "flushes",
        other => other,
    };
    let guest = row.guest.as_deref().unwrap_or_default();
    let disk = row.disk.as_deref();
    match (row.layer.as_str(), row.guest.is_some()) {
        ("device", false) => format!("{} {op}", disk.unwrap_or("device")),
        ("device", true) => format!("{} {op}, guest", disk_name(guest, disk)),
        _ => format!("{} {op}, QEMU", disk_name(guest, disk)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(statistic: &str, value: f64, limit: f64, window_ns: u64) -> FlightReading {
        let mut reading = FlightReading::default();
        reading.statistic = statistic.to_owned();
        reading.op = "write".to_owned();
        reading.layer = "qemu".to_owned();
        reading.relation = ">".to_owned();
        (reading.limit, reading.value) = (limit, Some(value));
        (reading.window_ns, reading.holds) = (window_ns, true);
        reading
    }

    #[test]
    fn the_moment_is_said_with_its_values() {
        let mut moment = FlightMoment::default();
        moment.cause = "condition".to_owned();
        // 2026-11-27 14:03:07.25.
        moment.at_unix_ns = Some(1_795_788_187_250_000_000);
        moment.at_ns = 60_000_000_000;
        moment.readings = vec![
            reading("p99", 312e6, 100e6, 2_000_000_000),
            reading("oldest", 2e9, 1e9, 0),
        ];
        assert_eq!(
            sentence(&moment),
            "At 14:03:07.2 UTC, 60.0 s after the start: p99 of writes in QEMU was 312 ms over 2.00 s, the condition was \
             > 100 ms; the oldest of writes in flight in QEMU was 2.00 s, the condition was > 1.00 s."
        );
        moment.cause = "signal".to_owned();
        assert!(sentence(&moment).ends_with("the recorder got the signal SIGUSR1."));
    }
}
