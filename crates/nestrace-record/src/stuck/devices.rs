//! Block devices at one moment: what they have in flight, and what lets nothing through.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use nestrace_stuck::facts::DeviceFacts;
use nestrace_trace::manifest::Device;

use super::{images, threads};

/// What changes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    in_flight: u64,
    completed: u64,
    time_ms: u64,
}

/// A sample of devices, by number.
pub(super) type Sample = BTreeMap<u32, Option<CountsOf>>;

/// Counts of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountsOf(Counts);

/// Looks at these devices.
pub(super) fn sample(devices: &[Device]) -> Sample {
    let counts = |device: &Device| {
        let text = attribute(device.dev, "stat")?;
        parse_stat(&text).map(CountsOf)
    };
    devices
        .iter()
        .map(|device| (device.dev, counts(device)))
        .collect()
}

/// Fields of `stat` (Documentation/block/stat.rst): requests and milliseconds of reads, writes, discards (4.18) and flushes
/// (5.5), and what is in flight.
fn parse_stat(text: &str) -> Option<Counts> {
    let fields: Vec<u64> = text
        .split_ascii_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let field = |index: usize| fields.get(index).copied();
    let sum = |indexes: [usize; 4]| {
        let present = indexes.into_iter().filter_map(field);
        present.fold(0u64, u64::saturating_add)
    };
    Some(Counts {
        in_flight: field(8)?,
        completed: sum([0, 4, 11, 15]),
        time_ms: sum([3, 7, 14, 16]),
    })
}

/// The facts of each, in the order of the list.
pub(super) fn facts(devices: &[Device], before: &Sample, now: &Sample) -> Vec<DeviceFacts> {
    let of = |device: &Device| {
        let of = |sample: &Sample| sample.get(&device.dev).copied().flatten().map(|it| it.0);
        let (before, now) = (of(before), of(now));
        let both = before.zip(now);
        let trimmed = |file: &str| attribute(device.dev, file).map(|text| text.trim().to_owned());
        DeviceFacts {
            name: device.name.clone(),
            kind: device.kind.clone(),
            beneath: device.beneath.clone(),
            loop_file: device.loop_file.as_ref().map(images::facts),
            in_flight_before: before.map(|counts| counts.in_flight),
            in_flight: now.map(|counts| counts.in_flight),
            completed: both.map(|(a, b)| b.completed.saturating_sub(a.completed)),
            time_ns: both.map(|(a, b)| {
                b.time_ms
                    .saturating_sub(a.time_ms)
                    .saturating_mul(1_000_000)
            }),
            dm_name: trimmed("dm/name"),
            is_suspended: trimmed("dm/suspended").map(|text| text == "1"),
            state: state(&trimmed),
            server: trimmed("pid")
                .filter(|_| device.name.starts_with("nbd"))
                .and_then(|pid| threads::process(pid.parse().ok()?)),
        }
    };
    devices.iter().map(of).collect()
}

/// A state in which a device lets nothing through: of a SCSI disk (`enum scsi_device_state`), of an NVMe controller, of an
/// md array.
fn state(attribute: &impl Fn(&str) -> Option<String>) -> Option<String> {
    const CLOSED: [&str; 10] = [
        "blocked",
        "created-blocked",
        "quiesce",
        "offline",
        "transport-offline",
        "resetting",
        "connecting",
        "dead",
        "broken",
        "suspended",
    ];
    let states = ["device/state", "md/array_state"].map(attribute);
    states
        .into_iter()
        .flatten()
        .find(|state| CLOSED.contains(&state.as_str()))
}

fn attribute(dev: u32, file: &str) -> Option<String> {
    let path: PathBuf = format!("/sys/dev/block/{}:{}/{file}", dev >> 20, dev & 0xf_ffff).into();
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_files() {
        let text = "  10 1 80 5 20 2 160 7 3 40 12 2 0 8 9 4 6\n";
        let counts = parse_stat(text).unwrap();
        assert_eq!((counts.in_flight, counts.completed), (3, 36));
        assert_eq!(counts.time_ms, 5 + 7 + 9 + 6);
        // Before 4.18.
        let old = parse_stat("10 1 80 5 20 2 160 7 3 40 12").unwrap();
        assert_eq!((old.in_flight, old.completed, old.time_ms), (3, 30, 12));
        assert_eq!(parse_stat("1 2 3"), None);
        assert_eq!(parse_stat("x"), None);
    }

    #[test]
    fn states_that_let_nothing_through() {
        let of = |state: &'static str| {
            let attribute = move |file: &str| (file == "device/state").then(|| state.to_owned());
            super::state(&attribute)
        };
        assert_eq!(of("running"), None);
        assert_eq!(of("live"), None);
        assert_eq!(of("blocked").as_deref(), Some("blocked"));
    }
}
