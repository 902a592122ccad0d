//! What the caller knows beside the events, and what of them was asked for.

use nestrace_trace::ImageMap;
use nestrace_trace::manifest::Device;

use crate::follow::image::Images;
use crate::link::chains::StoryChoice;
use crate::measure::device::major_minor;
use crate::model::ids::{DevNo, ImageId};

/// What the caller knows beside the events.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// How the input is called in the result.
    pub path: String,
    /// The reader could not read the stream to its end.
    pub truncated: bool,
    /// Keep only this guest's disks in the result.
    pub guest: Option<String>,
    /// Keep only this device in the result: by its name, or as `MAJ:MIN`.
    pub device: Option<String>,
    /// Ignore events before this time after the start, nanoseconds.
    pub from_ns: Option<u64>,
    /// Ignore events after this time after the start, nanoseconds.
    pub to_ns: Option<u64>,
    /// Tell the whole I/O trace of single guest bios.
    pub story: Option<StoryChoice>,
    /// Tell the whole trace of single calls of the guests' programs; [`StoryChoice::Io`] is a call's number.
    pub call_story: Option<StoryChoice>,
    /// Where the images keep the guests' data.
    pub image_maps: Vec<ImageMap>,
}

impl Options {
    /// Whether a time of the host lies outside of what was asked for; the recording began at `start_ns`.
    pub(crate) fn leaves_out(&self, ts_ns: u64, start_ns: u64) -> bool {
        self.from_ns
            .is_some_and(|from| ts_ns < start_ns.saturating_add(from))
            || self
                .to_ns
                .is_some_and(|to| ts_ns > start_ns.saturating_add(to))
    }

    /// Whether it was a part of the time that was asked for.
    pub(crate) const fn is_stretch(&self) -> bool {
        self.from_ns.is_some() || self.to_ns.is_some()
    }

    /// Whether a guest was asked for, or none in particular.
    pub(crate) fn takes_guest(&self, name: &str) -> bool {
        self.guest.as_ref().is_none_or(|wanted| wanted == name)
    }

    /// Whether a device inside a guest was asked for by its name or number there.
    pub(crate) fn takes_device(&self, name: &str, dev: u32) -> bool {
        let wanted = self.device.as_ref();
        wanted.is_none_or(|wanted| is_called(name, dev, wanted))
    }

    /// Whether a disk was asked for by its name, or by that of one of the host's `devices` that an image of it lies on.
    pub(crate) fn takes_disk(&self, disk: u32, images: &Images, devices: &[Device]) -> bool {
        let Some(wanted) = &self.device else {
            return true;
        };
        let known = images.disks.get(disk as usize);
        if known.is_some_and(|known| known.name == *wanted) {
            return true;
        }
        devices.iter().any(|device| {
            let mut of_disk = images.of_disk(disk);
            is_called(&device.name, device.dev, wanted)
                && of_disk.any(|(number, _)| images.lies_on(ImageId(number), DevNo(device.dev)))
        })
    }
}

/// Whether a device is the one that was asked for by its name, or by its number.
fn is_called(name: &str, dev: u32, wanted: &str) -> bool {
    name == wanted || major_minor(dev) == wanted
}
