//! Names of devices, files and QEMU's processes, from the topology.

use nestrace_trace::manifest::Topology;

use crate::measure::device::major_minor;

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

/// The process of each guest's QEMU, with the guest's name.
pub(crate) fn qemu_pids(topology: &Topology) -> Vec<(u32, String)> {
    let guests = topology.guests.iter();
    guests
        .map(|guest| (guest.pid, guest.name.clone()))
        .collect()
}
