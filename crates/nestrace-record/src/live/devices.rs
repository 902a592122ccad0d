//! The host's devices that have requests of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nestrace_trace::device_number;
use nestrace_trace::manifest::{Device, Image};

/// Devices that are summed.
const MAX_DEVICES: usize = 1024;

/// Every device with requests: name and number. Device-mapper, md and the like have bios only, and lie on others.
pub(super) fn all() -> Vec<(String, u32)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<(String, u32)> = names
        .filter(|name| has_requests(name) && !is_empty(name))
        .filter_map(|name| number(&name).map(|dev| (name, dev)))
        .take(MAX_DEVICES)
        .collect();
    found.sort();
    found
}

fn has_requests(name: &str) -> bool {
    Path::new("/sys/block").join(name).join("mq").exists()
}

/// A loop device without a file, a drive without a medium.
fn is_empty(name: &str) -> bool {
    let size = fs::read_to_string(Path::new("/sys/block").join(name).join("size"));
    size.is_ok_and(|size| size.trim() == "0")
}

fn number(name: &str) -> Option<u32> {
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("dev")).ok()?;
    device_number::parse(&text)
}

/// The device with requests right under an image, past partitions, device-mapper and md; `None` where there are several or
/// none.
pub(super) fn carrying(image: &Image, devices: &[Device]) -> Option<String> {
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut next: Vec<&str> = image.devices.iter().map(String::as_str).collect();
    while let Some(name) = next.pop() {
        if !seen.insert(name) {
            continue;
        }
        let device = devices.iter().find(|device| device.name == name);
        let is_layer = device.is_some_and(|device| {
            ["partition", "dm", "md"].contains(&device.kind.as_str()) && !device.beneath.is_empty()
        });
        match device {
            Some(device) if is_layer => next.extend(device.beneath.iter().map(String::as_str)),
            _ => {
                found.insert(name);
            }
        }
    }
    let only = found.pop_first()?;
    found.is_empty().then(|| only.to_owned())
}

/// Names of these devices and of all below them.
pub(super) fn with_those_below(names: &[String], devices: &[Device]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut next: Vec<String> = names.to_vec();
    while let Some(name) = next.pop() {
        let device = devices.iter().find(|device| device.name == name);
        if all.insert(name) {
            next.extend(device.into_iter().flat_map(|device| device.beneath.clone()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_below_layers_carries_an_image() {
        let device = |name: &str, kind: &str, beneath: &[&str]| Device {
            name: name.to_owned(),
            kind: kind.to_owned(),
            beneath: beneath.iter().map(|name| (*name).to_owned()).collect(),
            ..Device::default()
        };
        let devices = [
            device("dm-0", "dm", &["sda2"]),
            device("dm-1", "dm", &["sda2", "sdb"]),
            device("sda2", "partition", &["sda"]),
            device("sda", "disk", &[]),
            device("sdb", "disk", &[]),
            device("loop0", "loop", &["dm-0"]),
        ];
        let on = |name: &str| Image {
            devices: vec![name.to_owned()],
            ..Image::default()
        };
        let carrying = |name: &str| carrying(&on(name), &devices);
        assert_eq!(carrying("dm-0").as_deref(), Some("sda"));
        assert_eq!(carrying("dm-1"), None);
        assert_eq!(carrying("loop0").as_deref(), Some("loop0"));
        let below = with_those_below(&["loop0".to_owned()], &devices);
        let expected = ["dm-0", "loop0", "sda", "sda2"];
        assert!(below.iter().map(String::as_str).eq(expected), "{below:?}");
    }
}
