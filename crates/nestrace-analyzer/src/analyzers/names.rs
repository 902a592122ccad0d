//! Names of devices, files and QEMU's processes, from the topology.

use nestrace_trace::manifest::{Image, Topology};

use crate::link::served::HostSide;
use crate::measure::device::major_minor;
use crate::result::analysis::{Segment, SegmentsByOperation, Stack};

/// A device of the host by its name, else as `MAJ:MIN`.
pub(crate) fn device_name(topology: &Topology, dev: u32) -> String {
    let known = topology.devices.iter().find(|device| device.dev == dev);
    known.map_or_else(|| major_minor(dev), |device| device.name.clone())
}

/// The file name of the image with this number among all guests'.
pub(crate) fn image_file(topology: &Topology, number: u32) -> String {
    let disks = topology.guests.iter().flat_map(|guest| &guest.disks);
    let image = disks.flat_map(|disk| &disk.images).nth(number as usize);
    let path = image.map(|image| image.path.as_str()).unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The path of a loop device's file.
pub(crate) fn loop_file(topology: &Topology, dev: u32) -> String {
    let file = loop_image(topology, dev).map(|file| file.path.clone());
    file.unwrap_or_default()
}

fn loop_image(topology: &Topology, dev: u32) -> Option<&Image> {
    let device = topology.devices.iter().find(|device| device.dev == dev)?;
    device.loop_file.as_ref()
}

/// `stacks[]`.
pub(crate) fn named_stacks(topology: &Topology, host: Option<&HostSide>) -> Vec<Stack> {
    let mut stacks = host.map_or_else(Vec::new, |host| host.stack_meters.finish());
    for stack in &mut stacks {
        (stack.device, stack.kind) = stacked_device(topology, stack.dev);
        name_all_layers(topology, &mut stack.segments, &mut stack.by_op);
    }
    stacks
}

/// Names the layers of segments, and of those by operation.
pub(crate) fn name_all_layers(
    topology: &Topology,
    segments: &mut [Segment],
    by_op: &mut SegmentsByOperation,
) {
    name_layers(topology, segments);
    for segments in [
        &mut by_op.read,
        &mut by_op.write,
        &mut by_op.flush,
        &mut by_op.discard,
    ] {
        name_layers(topology, segments);
    }
}

/// A device's name and what it is made by.
fn stacked_device(topology: &Topology, dev: u32) -> (String, String) {
    let mut devices = topology.devices.iter();
    let device = devices.find(|device| device.dev == dev);
    let made_by = device.map_or_else(String::new, |it| it.made_by().to_owned());
    (device_name(topology, dev), made_by)
}

/// Names the layers of segments.
pub(crate) fn name_layers(topology: &Topology, segments: &mut [Segment]) {
    let layers = segments.iter_mut().filter_map(|it| it.layers.as_mut());
    for layer in layers.flatten() {
        if layer.of_file {
            layer.name = loop_file(topology, layer.dev);
            let mount = loop_image(topology, layer.dev).and_then(|file| file.mount.as_ref());
            layer.kind = mount.map_or_else(|| String::from("file"), |it| it.fs_type.clone());
        } else {
            (layer.name, layer.kind) = stacked_device(topology, layer.dev);
        }
    }
}

/// The process of each guest's QEMU, with the guest's name.
pub(crate) fn qemu_pids(topology: &Topology) -> Vec<(u32, String)> {
    let guests = topology.guests.iter();
    guests
        .map(|guest| (guest.pid, guest.name.clone()))
        .collect()
}
