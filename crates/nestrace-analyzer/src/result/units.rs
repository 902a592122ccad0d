//! Numbers as a person reads them.

/// A time: `870 ns`, `12.3 µs`, `1.42 ms`, `3.1 s`, `43,618 s`.
#[must_use]
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => scaled(ns as f64 / 1e6, "ms"),
        1_000_000_000..1_000_000_000_000 => scaled(ns as f64 / 1e9, "s"),
        _ => format!(
            "{} s",
            count(ns.saturating_add(500_000_000) / 1_000_000_000)
        ),
    }
}

/// A size: `512 B`, `4.0 KiB`, `38 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    scaled(value, UNITS[unit])
}

/// A rate of bytes over a time: `38 MiB/s`; a dash where no time has passed.
#[must_use]
pub fn rate(bytes: u64, ns: u64) -> String {
    if ns == 0 {
        return String::from("–");
    }
    let per_second = bytes as f64 * 1e9 / ns as f64;
    format!("{}/s", size(per_second.round() as u64))
}

/// A count with separators: `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count and its noun: `1 flush`, `2 flushes`.
#[must_use]
pub fn of(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A share: `83 %`, `0.4 %`, `0 %`, `< 0.1 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        p if !p.is_finite() => String::from("–"),
        0.0 => String::from("0 %"),
        p if p < 0.1 => String::from("< 0.1 %"),
        p if p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Part of a whole, 0 where there is no whole.
#[must_use]
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Two or three digits that count.
fn scaled(value: f64, unit: &str) -> String {
    if value < 9.995 {
        format!("{value:.2} {unit}")
    } else if value < 99.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (12_345, "12.3 µs"),
            (1_420_000, "1.42 ms"),
            (123_456_789, "123 ms"),
            (61_000_000_000, "61.0 s"),
            (999_400_000_000, "999 s"),
            (43_618_400_000_000, "43,618 s"),
            (u64::MAX, "18,446,744,073 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn sizes_and_rates() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(4096), "4.00 KiB");
        assert_eq!(size(1024 * 1024 - 1), "1.00 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(rate(38 << 20, 1_000_000_000), "38.0 MiB/s");
        assert_eq!(rate(1, 0), "–");
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(of(1, "flush", "flushes"), "1 flush");
        assert_eq!(percent(0.8345), "83 %");
        assert_eq!(percent(0.004), "0.4 %");
        assert_eq!(percent(0.0001), "< 0.1 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(share(1, 0), 0.0);
    }
}
