//! Why a flight recorder wrote the recording, and how its moment differs from the time before.

use serde::Serialize;

use super::Analysis;
use crate::result::dist::Dist;

/// Why a flight recorder wrote the recording, and how its moment differs from the time before.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FlightMoment {
    /// `condition`, `signal`, `file` or `other`.
    pub cause: String,
    /// `CLOCK_REALTIME` of the moment; `None` where it is not known.
    pub at_unix_ns: Option<u64>,
    /// The moment, after the recording's start, nanoseconds.
    pub at_ns: u64,
    /// How long before the moment the recorder was to keep events, nanoseconds.
    pub before_ns: u64,
    /// How long after the moment it was to record, nanoseconds.
    pub after_ns: u64,
    /// The condition as the recorder understood it; `None` where it had none.
    pub expression: Option<String>,
    /// The comparisons of the condition at the moment, from left to right.
    pub readings: Vec<FlightReading>,
    /// Where the two stretches of [`Self::compared`] meet, after the recording's start, nanoseconds: the beginning of the
    /// window of what held.
    pub split_ns: u64,
    /// Latencies in the minute before [`Self::split_ns`] and from there to the end, by disk and device; empty where a
    /// stretch of the recording was asked for.
    pub compared: Vec<FlightRow>,
}

/// One comparison of a condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FlightReading {
    /// `p50`, `p99`, `max`, `mean`, `count`, `rate` or `oldest`.
    pub statistic: String,
    /// `read`, `write`, `flush`, `discard` or `any`.
    pub op: String,
    /// `guest`, `qemu`, `file_io`, `host_queue` or `device`.
    pub layer: String,
    /// `>`, `>=`, `<` or `<=`.
    pub relation: String,
    /// The limit: nanoseconds, of `count` requests, of `rate` requests a second.
    pub limit: f64,
    /// The value in the same unit; of percentiles, up to an eighth too high. `None` where there was no request.
    pub value: Option<f64>,
    /// The window in nanoseconds; 0: the moment itself.
    pub window_ns: u64,
    /// Whether it held.
    pub holds: bool,
}

/// Latencies of one operation before the moment and at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FlightRow {
    /// `qemu`: QEMU's requests; `device`: D to C of a block device.
    pub layer: String,
    /// The guest; `None` of a device of the host.
    pub guest: Option<String>,
    /// The disk, or the device's name.
    pub disk: Option<String>,
    /// `read`, `write` or `flush`.
    pub op: String,
    /// The minute before, nanoseconds.
    pub before: Dist,
    /// From the beginning of the moment's window on, nanoseconds.
    pub then: Dist,
}

impl FlightMoment {
    /// How long before [`Self::split_ns`] is compared.
    pub const BEFORE_NS: u64 = 60_000_000_000;

    /// Takes over the latencies of the two stretches: the minute before [`Self::split_ns`], and from there to the end.
    pub fn compare(&mut self, before: &Analysis, then: &Analysis) {
        self.compared = side_by_side(rows(before), rows(then));
    }
}

/// Joins the rows of two stretches, each with its latencies as those before.
fn side_by_side(before: Vec<FlightRow>, then: Vec<FlightRow>) -> Vec<FlightRow> {
    let mut rows = before;
    for row in then {
        match rows.iter_mut().find(|known| is_of_same(known, &row)) {
            Some(known) => known.then = row.before,
            None => rows.push(FlightRow {
                before: Dist::default(),
                then: row.before,
                ..row
            }),
        }
    }
    rows.retain(|row| row.before.n > 0 || row.then.n > 0);
    rows
}

fn is_of_same(a: &FlightRow, b: &FlightRow) -> bool {
    (&a.layer, &a.guest, &a.disk, &a.op) == (&b.layer, &b.guest, &b.disk, &b.op)
}

/// The latencies of one stretch, as those before.
fn rows(analysis: &Analysis) -> Vec<FlightRow> {
    let row = |layer: &str, guest: Option<&String>, disk: Option<&String>, op: &str, dist: Dist| {
        FlightRow {
            layer: layer.to_owned(),
            guest: guest.cloned(),
            disk: disk.cloned(),
            op: op.to_owned(),
            before: dist,
            then: Dist::default(),
        }
    };
    let of_qemu = analysis.qemu.iter().flat_map(|disk| {
        let latency = &disk.latency_ns;
        [
            ("read", latency.read),
            ("write", latency.write),
            ("flush", latency.flush),
        ]
        .map(|(op, dist)| row("qemu", Some(&disk.guest), disk.disk.as_ref(), op, dist))
    });
    let of_devices = analysis.devices.iter().flat_map(|device| {
        let latency = &device.latency_ns;
        let d2c = |dist: Option<Dist>| dist.unwrap_or_default();
        [
            ("read", d2c(latency.by_op.read.d2c)),
            ("write", d2c(latency.by_op.write.d2c)),
            ("flush", d2c(latency.flush_d2c)),
        ]
        .map(|(op, dist)| {
            row(
                "device",
                device.guest.as_ref(),
                Some(&device.name),
                op,
                dist,
            )
        })
    });
    of_qemu.chain(of_devices).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(disk: &str, n: u64) -> FlightRow {
        FlightRow {
            disk: Some(disk.to_owned()),
            before: Dist {
                n,
                ..Dist::default()
            },
            ..FlightRow::default()
        }
    }

    #[test]
    fn each_row_has_both_stretches() {
        let before = vec![row("a", 1), row("b", 2), row("idle", 0)];
        let then = vec![row("b", 3), row("c", 4), row("idle", 0)];
        let rows = side_by_side(before, then);
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.disk.as_deref(), row.before.n, row.then.n))
            .collect();
        let expected = [(Some("a"), 1, 0), (Some("b"), 2, 3), (Some("c"), 0, 4)];
        assert_eq!(found, expected);
    }
}
