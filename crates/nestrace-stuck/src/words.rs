//! Numbers and times as people read them.

/// ` since 41 s`.
pub(crate) fn since(ns: Option<u64>) -> String {
    ns.map(|ns| format!(" since {}", duration(ns)))
        .unwrap_or_default()
}

/// Whole units: a wait is looked at by people.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let part = |unit: u64, next: u64| (seconds / unit, seconds % unit / next);
    match seconds {
        0..10 => {
            let tenths = ns / 100_000_000;
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        10..120 => format!("{seconds} s"),
        120..7_200 => {
            let (minutes, seconds) = part(60, 1);
            format!("{minutes} min {seconds} s")
        }
        7_200..172_800 => {
            let (hours, minutes) = part(3_600, 60);
            format!("{hours} h {minutes} min")
        }
        _ => {
            let (days, hours) = part(86_400, 3_600);
            format!("{days} days {hours} h")
        }
    }
}

/// `0.8 ms`, `2.10 s`.
pub(crate) fn latency(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// `1,200 requests`; below ten with a digit more.
pub(crate) fn rate(n: u64, interval_ns: u64) -> String {
    let seconds = interval_ns as f64 / 1e9;
    let rate = if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    };
    if rate < 10.0 {
        format!("{rate:.1} requests")
    } else {
        format!("{} requests", grouped(rate.round() as u64))
    }
}

/// `1 request`, `32 requests`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", grouped(n))
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len().saturating_sub(index);
        if index > 0 && left.is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
