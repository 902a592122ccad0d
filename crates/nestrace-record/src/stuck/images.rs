//! A disk's images as facts.

use nestrace_stuck::facts::ImageFacts;
use nestrace_trace::manifest::Image;

/// An image as the topology has it.
pub(super) fn facts(image: &Image) -> ImageFacts {
    let mount = image.mount.clone().unwrap_or_default();
    ImageFacts {
        path: image.path.clone(),
        fs_type: mount.fs_type,
        mount_point: mount.mount_point,
        source: mount.source,
        devices: image.devices.clone(),
    }
}
