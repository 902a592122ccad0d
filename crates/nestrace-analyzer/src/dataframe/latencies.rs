//! Every distribution of time, whatever the layer.

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::{Device, Parts};
use crate::result::dist::Dist;
use crate::result::side::Side;

/// The layer or device that the distribution is of.
#[derive(Clone, Copy)]
struct Row<'a> {
    layer: &'static str,
    guest: Option<&'a str>,
    place: Option<&'a str>,
    op: &'static str,
    part: &'static str,
    dist: Dist,
}

/// A row for each distribution that has samples.
///
/// `layer` is `guest_block`, `qemu`, `file_io`, `host_block`, or `chain` (guest bios that were followed); `place` the
/// device, disk or image; `op` `all`, `read`, `write`, `discard`, `flush` or `sync`; `part` btt's name of a part
/// of the way (`q2c`, `d2c`, …), or `q2c` of a chain and `total` of QEMU and of file I/O. Percentiles are within
/// 0.1 %; `n`, `sum_ns`, `min_ns`, `mean_ns` and `max_ns` are exact.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn latencies(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let mut rows = Vec::new();
    analysis
        .devices
        .iter()
        .for_each(|device| of_device(device, &mut rows));
    of_qemu(analysis, &mut rows);
    of_images(analysis, &mut rows);
    of_chains(analysis, &mut rows);
    rows.retain(|row| row.dist.n > 0);
    table!(&rows, row => {
        layer: row.layer,
        guest: row.guest,
        place: row.place,
        op: row.op,
        part: row.part,
        n: row.dist.n,
        sum_ns: row.dist.sum,
        min_ns: row.dist.min,
        mean_ns: row.dist.mean,
        p50_ns: row.dist.p50,
        p90_ns: row.dist.p90,
        p99_ns: row.dist.p99,
        p999_ns: row.dist.p999,
        max_ns: row.dist.max,
    })
}

fn of_device<'a>(device: &'a Device, rows: &mut Vec<Row<'a>>) {
    let is_host = device.side == Side::Host;
    let row = |op, part, dist| Row {
        layer: if is_host { "host_block" } else { "guest_block" },
        guest: device.guest.as_deref(),
        place: Some(&device.name),
        op,
        part,
        dist,
    };
    let latency = &device.latency_ns;
    for (op, part, dist) in [
        ("all", "q2q", latency.q2q),
        ("flush", "q2c", latency.flush),
        ("flush", "d2c", latency.flush_d2c),
    ] {
        rows.extend(dist.map(|dist| row(op, part, dist)));
    }
    for (op, parts) in [
        ("all", &latency.all),
        ("read", &latency.by_op.read),
        ("write", &latency.by_op.write),
        ("discard", &latency.by_op.discard),
    ] {
        let known = parts_of(parts).into_iter();
        rows.extend(known.filter_map(|(part, dist)| Some(row(op, part, dist?))));
    }
}

const fn parts_of(parts: &Parts) -> [(&'static str, Option<Dist>); 10] {
    [
        ("q2a", parts.q2a),
        ("q2g", parts.q2g),
        ("s2g", parts.s2g),
        ("g2i", parts.g2i),
        ("g2d", parts.g2d),
        ("i2d", parts.i2d),
        ("q2m", parts.q2m),
        ("m2d", parts.m2d),
        ("d2c", parts.d2c),
        ("q2c", parts.q2c),
    ]
}

fn of_qemu<'a>(analysis: &'a Analysis, rows: &mut Vec<Row<'a>>) {
    for disk in &analysis.qemu {
        let latency = &disk.latency_ns;
        let by_op = [
            ("read", latency.read),
            ("write", latency.write),
            ("discard", latency.discard),
            ("flush", latency.flush),
        ];
        rows.extend(by_op.map(|(op, dist)| Row {
            layer: "qemu",
            guest: Some(&disk.guest),
            place: disk.disk.as_deref(),
            op,
            part: "total",
            dist,
        }));
    }
}

fn of_images<'a>(analysis: &'a Analysis, rows: &mut Vec<Row<'a>>) {
    for image in &analysis.images {
        let Some(file_io) = &image.file_io else {
            continue;
        };
        let latency = &file_io.latency_ns;
        let by_op = [
            ("read", latency.read),
            ("write", latency.write),
            ("sync", latency.sync),
        ];
        rows.extend(by_op.map(|(op, dist)| Row {
            layer: "file_io",
            guest: Some(&image.guest),
            place: Some(&image.path),
            op,
            part: "total",
            dist,
        }));
    }
}

fn of_chains<'a>(analysis: &'a Analysis, rows: &mut Vec<Row<'a>>) {
    for chains in &analysis.chains {
        let latency = &chains.latency_ns;
        let by_op = [
            ("all", latency.data),
            ("read", latency.read),
            ("write", latency.write),
            ("discard", latency.discard),
            ("flush", latency.flush),
        ];
        rows.extend(by_op.map(|(op, dist)| Row {
            layer: "chain",
            guest: Some(&chains.guest),
            place: Some(&chains.disk),
            op,
            part: "q2c",
            dist,
        }));
    }
}
