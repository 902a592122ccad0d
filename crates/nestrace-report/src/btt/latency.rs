//! MIN, AVG, MAX and N of each part of the way, by process and device and of all.

use nestrace_analyzer::Dist;
use nestrace_analyzer::analysis::{BlockAnalysis, BlockDevice, BlockProcess, Way};

use super::{name, process_name, seconds, section};

/// What a table shows.
type Part = (&'static str, fn(&Way) -> Option<Dist>);

const STACKED: [Part; 3] = [
    ("Q2Qdm", |way| Some(way.q2q)),
    ("Q2Adm", |way| way.parts.q2a),
    ("Q2Cdm", |way| way.parts.q2c),
];

/// The tables of processes and devices; btt has M2D only for all devices together.
const PARTS: [Part; 9] = [
    ("Q2Q", |way| Some(way.q2q)),
    ("Q2A", |way| way.parts.q2a),
    ("Q2G", |way| way.parts.q2g),
    ("S2G", |way| way.parts.s2g),
    ("G2I", |way| way.parts.g2i),
    ("Q2M", |way| way.parts.q2m),
    ("I2D", |way| way.parts.i2d),
    ("D2C", |way| way.parts.d2c),
    ("Q2C", |way| way.parts.q2c),
];

const M2D: Part = ("M2D", |way| way.parts.m2d);

/// Characters of a name that btt shows.
const NAME: usize = 14;

fn head(out: &mut String, title: &str) {
    out.push_str(&format!(
        "{title:>15} {:>13} {:>13} {:>13} {:>11}\n",
        "MIN", "AVG", "MAX", "N"
    ));
    out.push_str("--------------- ------------- ------------- ------------- -----------\n");
}

fn row(out: &mut String, title: &str, dist: Option<Dist>) {
    let Some(dist) = dist.filter(|dist| dist.n > 0) else {
        return;
    };
    let mean = dist.sum as f64 / 1e9 / dist.n as f64;
    out.push_str(&format!(
        "{title:<15} {:>13} {mean:>13.9} {:>13} {:>11}\n",
        seconds(dist.min.unwrap_or(0)),
        seconds(dist.max.unwrap_or(0)),
        dist.n
    ));
}

pub(super) fn per_process(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Per Process");
    let table = |out: &mut String, (title, part): &Part, way: fn(&BlockProcess) -> &Way| {
        head(out, title);
        for process in &blocks.processes {
            let name: String = process_name(process).chars().take(NAME).collect();
            row(out, &name, part(way(process)));
        }
        out.push('\n');
    };
    STACKED
        .iter()
        .for_each(|part| table(out, part, |process| &process.stacked));
    out.push('\n');
    PARTS
        .iter()
        .for_each(|part| table(out, part, |process| &process.way));
}

/// Q to Q on the device itself, and the parts.
fn way(device: &BlockDevice) -> Way {
    let latency = &device.device.latency_ns;
    Way {
        q2q: latency.q2q.unwrap_or_default(),
        parts: latency.all,
    }
}

pub(super) fn per_device(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "Per Device");
    let table = |out: &mut String, (title, part): &Part, stacked: bool| {
        head(out, title);
        let devices = blocks.devices.iter();
        for device in devices.filter(|device| device.stacked == stacked) {
            row(out, &name(device), part(&way(device)));
        }
        out.push('\n');
    };
    STACKED.iter().for_each(|part| table(out, part, true));
    out.push('\n');
    PARTS.iter().for_each(|part| table(out, part, false));
}

pub(super) fn all_devices(out: &mut String, blocks: &BlockAnalysis) {
    section(out, "All Devices");
    head(out, "ALL");
    STACKED
        .iter()
        .for_each(|(title, part)| row(out, title, part(&blocks.all_stacked)));
    out.push('\n');
    let [to_issue @ .., d2c, q2c] = PARTS;
    let all = to_issue.into_iter().chain([M2D, d2c, q2c]);
    all.for_each(|(title, part)| row(out, title, part(&blocks.all)));
    out.push('\n');
}
