//! The devices below a disk's images, upper ones first, and what is wrong with them.

use std::collections::{BTreeSet, VecDeque};

use super::{Holder, HolderKind};
use crate::facts::{DeviceFacts, ImageFacts, ProcessFacts};
use crate::words::count;

/// Devices below images, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain<'a>(pub(super) Vec<&'a DeviceFacts>);

impl<'a> Chain<'a> {
    pub(super) fn below(devices: &'a [DeviceFacts], images: &[ImageFacts]) -> Self {
        let mut next: VecDeque<&str> = images
            .iter()
            .flat_map(|image| &image.devices)
            .map(String::as_str)
            .collect();
        let mut seen = BTreeSet::new();
        let mut chain = Vec::new();
        while let Some(name) = next.pop_front() {
            let Some(device) = devices.iter().find(|device| device.name == name) else {
                continue;
            };
            if seen.insert(device.name.as_str()) {
                chain.push(device);
                next.extend(device.beneath.iter().map(String::as_str));
            }
        }
        Self(chain)
    }

    /// The lowest device that has requests in flight and completes none.
    pub(super) fn stalled(&self) -> Option<&'a DeviceFacts> {
        self.0
            .iter()
            .rev()
            .copied()
            .find(|device| is_stalled(device))
    }

    /// A device that lets nothing through, by its own state.
    pub(super) fn closed(&self) -> Option<(Holder, String)> {
        let suspended = |device: &&&DeviceFacts| device.is_suspended == Some(true);
        if let Some(device) = self.0.iter().find(suspended) {
            let resume = match &device.dm_name {
                Some(name) => format!("; dmsetup resume {name} ends that"),
                None => String::new(),
            };
            return Some((
                holder(HolderKind::SuspendedDevice, &device.name),
                format!("host device {}, which is suspended{resume}", device.name),
            ));
        }
        let served = |device: &&'a DeviceFacts| Some((*device, stopped(device.server.as_ref()?)?));
        if let Some((device, server)) = self.0.iter().find_map(served) {
            return Some((server_holder(server), behind(server, &device.name)));
        }
        let state = |device: &&'a DeviceFacts| Some((*device, device.state.as_deref()?));
        let (device, state) = self.0.iter().find_map(state)?;
        Some((
            holder(HolderKind::SuspendedDevice, &device.name),
            format!(
                "host device {}, which is in the state {state:?}",
                device.name
            ),
        ))
    }

    /// Where the requests stopped, in words.
    pub(super) fn stalled_words(&self) -> Option<(Holder, String)> {
        let lowest = self.stalled()?;
        let upper = self.0.first().copied().unwrap_or(lowest);
        let n = lowest.in_flight.unwrap_or(0);
        let words = if upper.name == lowest.name {
            format!(
                "host device {}{}, which has {} in flight and completes none",
                lowest.name,
                file(lowest),
                count(n, "request")
            )
        } else {
            format!(
                "host device {}, which completes nothing; its lower device {}{} has {} in flight",
                upper.name,
                lowest.name,
                file(lowest),
                count(n, "request")
            )
        };
        Some((holder(HolderKind::Device, &lowest.name), words))
    }
}

/// A loop device's file.
fn file(device: &DeviceFacts) -> String {
    match &device.loop_file {
        Some(image) if image.fs_type.is_empty() => format!(" (file {})", image.path),
        Some(image) => format!(" (file {} on {})", image.path, image.fs_type),
        None => String::new(),
    }
}

pub(super) fn is_stalled(device: &DeviceFacts) -> bool {
    let has_some = |n: Option<u64>| n.is_some_and(|n| n > 0);
    has_some(device.in_flight_before) && has_some(device.in_flight) && device.completed == Some(0)
}

/// A process that is stopped.
pub(super) fn stopped(process: &ProcessFacts) -> Option<&ProcessFacts> {
    matches!(process.state.as_str(), "T" | "t").then_some(process)
}

pub(super) fn server_holder(server: &ProcessFacts) -> Holder {
    Holder {
        pid: Some(server.pid),
        ..holder(HolderKind::Server, &server.name)
    }
}

/// A stopped server and what it serves.
pub(super) fn behind(server: &ProcessFacts, served: &str) -> String {
    format!(
        "the server of {served}, {} (pid {}), which is stopped; kill -CONT {} starts it again",
        server.name, server.pid, server.pid
    )
}

pub(super) fn holder(kind: HolderKind, name: &str) -> Holder {
    Holder {
        kind,
        name: name.to_owned(),
        pid: None,
    }
}
