//! The name of a recording that is typed without one: what is recorded, and when.

use std::path::PathBuf;

use chrono::{DateTime, Local};
use nestrace_trace::manifest::Topology;

/// Bytes of the part that names what is recorded; a file name has 255 at most.
const MAX_NAME: usize = 100;

/// `vm1-2026-11-26-150301.nest`, in the current folder; one that is not there yet.
pub fn default_output(topology: &Topology) -> PathBuf {
    let name = name(topology, Local::now());
    let path = |n: u32| match n {
        1 => PathBuf::from(format!("{name}.nest")),
        n => PathBuf::from(format!("{name}-{n}.nest")),
    };
    (1..)
        .map(path)
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| path(1))
}

fn name(topology: &Topology, now: DateTime<Local>) -> String {
    let guests = topology.guests.iter().map(|guest| guest.name.as_str());
    let devices = topology.devices.iter().map(|device| device.name.as_str());
    let names: Vec<&str> = match topology.guests.is_empty() {
        true => devices.collect(),
        false => guests.collect(),
    };
    let first = plain(names.first().copied().unwrap_or_default());
    let more = match names.len() {
        0 | 1 => String::new(),
        n => format!("-and-{}-more", n - 1),
    };
    format!("{first}{more}-{}", now.format("%Y-%m-%d-%H%M%S"))
}

/// A name made a plain file name: letters, digits, dots, dashes and underscores, and neither hidden nor an option.
fn plain(name: &str) -> String {
    let kept = |c: char| match c {
        c if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') => c,
        _ => '_',
    };
    let mut plain: String = name.chars().map(kept).collect();
    while plain.len() > MAX_NAME {
        plain.pop();
    }
    let plain = plain.trim_start_matches(['.', '-']);
    if plain.is_empty() {
        "recording".to_owned()
    } else {
        plain.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone;
    use nestrace_trace::manifest::{Device, Guest};

    use super::*;

    #[test]
    fn names_are_plain() {
        for (given, expected) in [
            ("vm1", "vm1"),
            ("../../etc/passwd", "_.._etc_passwd"),
            ("-rf", "rf"),
            ("a b/c\n", "a_b_c_"),
            ("Größe", "Größe"),
            ("...", "recording"),
            ("", "recording"),
        ] {
            assert_eq!(plain(given), expected, "{given:?}");
        }
        assert!(plain(&"ü".repeat(200)).len() <= MAX_NAME);
    }

    #[test]
    fn guests_come_before_devices() {
        let now = Local.with_ymd_and_hms(2026, 11, 26, 15, 3, 1).unwrap();
        let guest = |name: &str| Guest {
            name: name.to_owned(),
            ..Guest::default()
        };
        let device = |name: &str| Device {
            name: name.to_owned(),
            ..Device::default()
        };
        for (guests, devices, expected) in [
            (vec!["vm1"], vec!["loop0", "vda"], "vm1-2026-11-26-150301"),
            (
                vec!["vm1", "b", "c"],
                vec![],
                "vm1-and-2-more-2026-11-26-150301",
            ),
            (vec![], vec!["loop0"], "loop0-2026-11-26-150301"),
        ] {
            let topology = Topology {
                guests: guests.into_iter().map(guest).collect(),
                devices: devices.into_iter().map(device).collect(),
                ..Topology::default()
            };
            assert_eq!(name(&topology, now), expected);
        }
    }
}
