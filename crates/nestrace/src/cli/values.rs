//! Values of options, as people write them.

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(value) if (0.0..=1e9).contains(&value) => Ok(value),
        _ => Err("give seconds, such as 10 or 2.5".to_owned()),
    }
}

/// An interval of 0, or below the resolution of the kernel's clock, would never end.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    let value = seconds(text)?;
    if value >= 1e-9 {
        Ok(value)
    } else {
        Err("give more than 0 seconds, such as 1 or 0.1".to_owned())
    }
}

/// Seconds within bounds. A flight recorder keeps an hour at most, because a machine has no memory for more; a look at the
/// sums of a large host takes some milliseconds.
pub(super) fn seconds_from(
    least: f64,
    most: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| match seconds(text)? {
        value if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("give {least} to {most} seconds")),
    }
}

pub(super) fn stories(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=100_000).contains(&n) => Ok(n),
        _ => Err("give a number from 1 to 100000".to_owned()),
    }
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "give a size such as 500M or 2G".to_owned();
    let text = text.trim_end_matches("iB").trim_end_matches('B');
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text
        .get(digits.len()..)
        .unwrap_or_default()
        .to_ascii_uppercase()
        .as_str()
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(wrong)
}

pub(super) fn ring_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (4096..=1 << 30).contains(bytes))
        .ok_or_else(|| "give a power of two from 4K to 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_or_refused() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("4K", Some(4096)),
            ("2MiB", Some(2 << 20)),
            ("1GB", Some(1 << 30)),
            ("0", None),
            ("", None),
            ("x", None),
            ("1Q", None),
            ("99999999999T", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        assert_eq!(
            (
                ring_size("4K").ok(),
                ring_size("5000").ok(),
                ring_size("2K").ok()
            ),
            (Some(4096), None, None)
        );
        assert_eq!((seconds("2.5"), seconds("3s")), (Ok(2.5), Ok(3.0)));
        assert_eq!((interval("0.1"), interval("1e-9")), (Ok(0.1), Ok(1e-9)));
        let of_flight = seconds_from(1.0, 3600.0);
        assert_eq!((of_flight("1"), of_flight("3600s")), (Ok(1.0), Ok(3600.0)));
        assert_eq!(of_flight("0.5"), Err("give 1 to 3600 seconds".to_owned()));
        assert!(
            ["0", "0s", "1e-10", "-1"]
                .iter()
                .all(|text| interval(text).is_err())
        );
        assert!(
            ["-1", "nan", "inf", "x", ""]
                .iter()
                .all(|text| seconds(text).is_err())
        );
    }
}
