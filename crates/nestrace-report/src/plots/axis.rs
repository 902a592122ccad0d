//! Axes: where a value lies, where the ticks are and how they read.

use crate::units;

/// What is measured along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Latency, nanoseconds.
    Nanoseconds,
    /// Time in the recording, seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// I/Os per second.
    PerSecond,
    /// A part of 1.
    Share,
    /// Against a whole that may be exceeded, 1 is as much.
    OfWhole,
    /// Things.
    Count,
}

impl Unit {
    /// A value for a person.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        let whole = value.abs().round() as u64;
        let text = match self {
            Self::Nanoseconds => units::time(whole),
            Self::Bytes => units::size(whole),
            Self::BytesPerSecond => format!("{}/s", units::size(whole)),
            Self::Share | Self::OfWhole => percent(value.abs() * 100.0),
            Self::Seconds => format!("{} s", plain(value.abs())),
            Self::PerSecond | Self::Count if whole >= 10_000 => thousands(value.abs()),
            Self::PerSecond | Self::Count => plain(value.abs()),
        };
        let text = if matches!(self, Self::Nanoseconds | Self::Bytes | Self::BytesPerSecond) {
            shorten(&text)
        } else {
            text
        };
        if value < 0.0 {
            format!("−{text}")
        } else {
            text
        }
    }

    /// For a CSV's heading.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes_per_s",
            Self::PerSecond => "per_s",
            Self::Share => "share",
            Self::OfWhole => "of_whole",
            Self::Count => "count",
        }
    }
}

/// `1.00 ms` on an axis is `1 ms`.
fn shorten(text: &str) -> String {
    let Some((number, unit)) = text.split_once(' ') else {
        return text.to_owned();
    };
    if number.contains('.') {
        let number = number.trim_end_matches('0').trim_end_matches('.');
        return format!("{number} {unit}");
    }
    text.to_owned()
}

/// As many digits as it takes: a logarithmic axis goes down to millionths.
fn percent(percent: f64) -> String {
    let digits = match percent {
        p if p <= 0.0 || p >= 10.0 => 0,
        p => (1.0 - p.log10().floor()).clamp(0.0, 9.0) as usize,
    };
    let text = format!("{percent:.digits$}");
    let text = match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.'),
        None => &text,
    };
    format!("{text} %")
}

fn plain(value: f64) -> String {
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 1.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

fn thousands(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{} G", plain(v / 1e9)),
        v if v >= 1e6 => format!("{} M", plain(v / 1e6)),
        v => format!("{} k", plain(v / 1e3)),
    }
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows.
    pub title: String,
    /// In what.
    pub unit: Unit,
    /// Each step is a factor.
    pub is_log: bool,
}

impl Axis {
    /// An axis with equal steps.
    #[must_use]
    pub fn linear(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            title: title.into(),
            unit,
            is_log: false,
        }
    }

    /// An axis with equal factors.
    #[must_use]
    pub fn log(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            title: title.into(),
            unit,
            is_log: true,
        }
    }
}

/// The stretch of an axis that is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    min: f64,
    max: f64,
    is_log: bool,
}

impl Scale {
    /// From the least to the largest value; a scale with equal steps begins at 0 at the latest, a
    /// logarithmic one at a power of ten, and shows at least one.
    pub(crate) fn over(values: impl Iterator<Item = f64>, is_log: bool) -> Self {
        let finite = values.filter(|value| value.is_finite());
        if is_log {
            let (min, max) = finite
                .filter(|value| *value > 0.0)
                .fold((f64::MAX, f64::MIN), |(min, max), v| {
                    (min.min(v), max.max(v))
                });
            let (min, max) = if min > max { (1.0, 10.0) } else { (min, max) };
            let min = 10f64.powf(min.log10().floor());
            return Self {
                min,
                max: 10f64.powf(max.log10().ceil()).max(min * 10.0),
                is_log,
            };
        }
        let (min, max) = finite.fold((0f64, 0f64), |(min, max), v| (min.min(v), max.max(v)));
        let span = if max > min { max - min } else { 1.0 };
        Self {
            min: if min < 0.0 { min - span * 0.03 } else { 0.0 },
            max: max.max(min + span * 0.97) + span * 0.03,
            is_log,
        }
    }

    /// Exactly this.
    pub(crate) const fn exact(min: f64, max: f64) -> Self {
        Self {
            min,
            max,
            is_log: false,
        }
    }

    /// 0 at the beginning, 1 at the end; what lies outside is moved to the border.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let place = if self.is_log {
            let of = |v: f64| v.max(f64::MIN_POSITIVE).log10();
            (of(value) - of(self.min)) / (of(self.max) - of(self.min))
        } else {
            (value - self.min) / (self.max - self.min)
        };
        if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// At most some `n` round values; sizes go by powers of two.
    pub(crate) fn ticks(&self, n: usize, unit: Unit) -> Vec<f64> {
        let n = n.max(2) as f64;
        if self.is_log {
            let decades = (self.max / self.min).log10().round().max(1.0);
            let step = (decades / n).ceil().max(1.0);
            let first = self.min.log10().round();
            return (0..=(decades / step) as i32)
                .map(|i| 10f64.powf(first + f64::from(i) * step))
                .collect();
        }
        let raw = (self.max - self.min) / n;
        let step = if matches!(unit, Unit::Bytes | Unit::BytesPerSecond) {
            binary_step(raw)
        } else {
            let power = 10f64.powf(raw.log10().floor());
            let factors = [1.0, 2.0, 5.0, 10.0];
            let factor = factors.into_iter().find(|f| f * power >= raw * 0.8);
            power * factor.unwrap_or(10.0)
        };
        let step = if unit == Unit::Count {
            step.max(1.0)
        } else {
            step
        };
        let (first, last) = ((self.min / step).ceil(), (self.max / step).floor());
        (0..=(last - first).clamp(0.0, 40.0) as i32)
            .map(|i| (first + f64::from(i)) * step)
            .collect()
    }
}

/// Round in bytes, KiB, MiB: 1, 2, 5, 10, …, 500 of each.
fn binary_step(raw: f64) -> f64 {
    let mut unit = 1.0;
    while raw / unit > 512.0 {
        unit *= 1024.0;
    }
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 256.0, 512.0];
    unit * steps
        .into_iter()
        .find(|step| step * unit >= raw)
        .unwrap_or(512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_few_and_inside() {
        for (values, is_log, unit, expected) in [
            (
                vec![0.0, 9.3],
                false,
                Unit::Count,
                vec![0.0, 2.0, 4.0, 6.0, 8.0],
            ),
            (vec![0.0, 1.0], false, Unit::Count, vec![0.0, 1.0]),
            (
                vec![3e3, 5e6],
                true,
                Unit::Nanoseconds,
                vec![1e3, 1e4, 1e5, 1e6, 1e7],
            ),
            (vec![], true, Unit::Nanoseconds, vec![1.0, 10.0]),
            (
                vec![0.0, 3.0 * 1048576.0],
                false,
                Unit::Bytes,
                vec![0.0, 1048576.0, 2097152.0, 3145728.0],
            ),
        ] {
            assert_eq!(
                Scale::over(values.into_iter(), is_log).ticks(5, unit),
                expected
            );
        }
        let wide = Scale::over([1.0, 1e12].into_iter(), true);
        assert!(wide.ticks(4, Unit::Nanoseconds).len() <= 5);
    }

    #[test]
    fn values_read_short() {
        for (unit, value, expected) in [
            (Unit::Nanoseconds, 1e6, "1 ms"),
            (Unit::Bytes, 4096.0, "4 KiB"),
            (Unit::Bytes, -2.5 * 1048576.0, "−2.5 MiB"),
            (Unit::Share, 0.5, "50 %"),
            (Unit::Share, 0.01, "1 %"),
            (Unit::Share, 1e-6, "0.0001 %"),
            (Unit::PerSecond, 25_000.0, "25 k"),
            (Unit::Count, 0.0, "0"),
            (Unit::Seconds, 0.25, "0.25 s"),
        ] {
            assert_eq!(unit.text(value), expected);
        }
    }

    #[test]
    fn nothing_lies_outside() {
        let scale = Scale::over([1.0, 100.0].into_iter(), true);
        assert_eq!(
            (scale.place(0.0), scale.place(10.0), scale.place(1e9)),
            (0.0, 0.5, 1.0)
        );
        assert_eq!(Scale::exact(5.0, 5.0).place(5.0), 0.0);
    }
}
