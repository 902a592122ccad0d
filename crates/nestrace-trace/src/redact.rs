//! Redaction: a recording without the names that people and their machines gave to things, so that it
//! can be sent to someone. The one definition for `export --redact` and `repair --redact`.
//!
//! | gone | instead |
//! |---|---|
//! | names of processes and threads | `taskN`, N the thread id |
//! | paths of images and loop files, mount points, sockets | `image-1`, `mount-1`, `socket-1` |
//! | names of guests and machines, UUIDs, ids of boots | `guest-1`, `machine-1`, nothing, `boot-1` |
//! | ids of disks, nodes and I/O threads, serial numbers | `disk-1`, nothing, `iothread-1`, `serial-…` |
//! | names of captures that became a guest's disk | the disk's number, `8:0` |
//! | mount sources that are no device of the recording; values of mount options that may name something | `source-1`, `removed` |
//! | messages in words (notices, reasons) | their stable word, or the text up to the first path |
//!
//! The same name becomes the same word everywhere, so what belonged together still does, and an
//! analysis says the same in other words. Kept are numbers (process ids, inodes, device numbers, places
//! and sizes of I/O, times), the kernel's own names of devices (`vda`, `loop0`), file systems and their
//! options, kernels, versions and formats.

use crate::address::Shift;
use crate::manifest::{
    Addresses, Disk, Guest, GuestSide, IMPORTED, Image, Machine, Manifest, Mount, Notice, Probe,
    Refused,
};
use crate::{Event, Kind, bundle};

mod names;

use names::Names;

/// Takes the name out of a thread's event; other events have none.
///
/// ```
/// use nestrace_trace::{Event, Kind, redact};
/// let mut event = Event { kind: Kind::Thread as u8, tid: 71, related: u64::from_le_bytes(*b"postgres"), ..Event::default() };
/// redact::event(&mut event);
/// assert_eq!(event.thread_name(), "task71");
/// ```
pub fn event(event: &mut Event) {
    if event.kind() != Some(Kind::Thread) {
        return;
    }
    let mut name = [0; 16];
    let number = format!("task{}", event.tid);
    name.iter_mut()
        .zip(number.bytes())
        .for_each(|(to, from)| *to = from);
    let (low, high) = name.split_at(8);
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    (event.related, event.offset) = (word(low), word(high));
}

/// The manifest without names.
///
/// Streams are named after their guests, so their files have other names too: `guest_sides` and
/// `streams` keep their order, and the file of each is what the old one is to be called.
#[must_use]
pub fn manifest(manifest: &Manifest) -> Manifest {
    let mut redacted = manifest.clone();
    let mut names = Names::new(manifest);
    names.machine(&mut redacted.host);
    for guest in &mut redacted.topology.guests {
        names.guest(guest);
    }
    for device in &mut redacted.topology.devices {
        if let Some(file) = &mut device.loop_file {
            names.image(file);
        }
    }
    // The files first: they are named after guests that still have their names.
    let files = names.files(manifest);
    for (file, stream) in files.streams.into_iter().zip(&mut redacted.streams) {
        stream.file = file;
        names.optional_guest(&mut stream.guest);
    }
    for (file, side) in files.sides.into_iter().zip(&mut redacted.guest_sides) {
        side.file = file;
        names.side(side);
    }
    names.probes(&mut redacted.probes, &mut redacted.refused);
    for loss in &mut redacted.losses {
        names.optional_guest(&mut loss.guest);
    }
    redacted.notices.iter_mut().for_each(notice);
    redacted.end_reason = names.text(&redacted.end_reason);
    redacted
}

/// The manifest of a recording whose streams' addresses were shifted: those of QEMU's BlockBackends are in the host's.
pub fn addresses(manifest: &mut Manifest, host: &Shift) {
    let guests = manifest.topology.guests.iter_mut();
    for backend in guests.flat_map(|guest| &mut guest.backends) {
        backend.address = host.address(backend.address);
    }
    for stream in &mut manifest.streams {
        if stream.addresses == Addresses::Recorded {
            stream.addresses = Addresses::Shifted;
        }
    }
}

/// A disk of an imported capture is called after the capture's files, which a person named.
fn captures(side: &mut GuestSide) {
    let GuestSide { disks, mounts, .. } = side;
    for disk in disks {
        let number = format!("{}:{}", disk.dev >> 20, disk.dev & 0xf_ffff);
        let name = std::mem::replace(&mut disk.name, number);
        for mount in mounts.iter_mut().filter(|mount| mount.disk == name) {
            mount.disk.clone_from(&disk.name);
        }
    }
}

/// The text of a notice names guests, disks and files; its word says what happened.
fn notice(notice: &mut Notice) {
    notice.message = notice.what.replace('_', " ");
}

/// What the files of the streams are to be called.
struct Files {
    streams: Vec<String>,
    sides: Vec<String>,
}

impl Names {
    fn guest(&mut self, guest: &mut Guest) {
        guest.name = self.guests.of(&guest.name);
        guest.uuid = None;
        if !guest.executable.starts_with("qemu") || guest.executable.contains('/') {
            guest.executable = String::from("qemu");
        }
        for socket in [&mut guest.qmp, &mut guest.agent].into_iter().flatten() {
            *socket = self.sockets.of(socket);
        }
        for (disk, number) in guest.disks.iter_mut().zip(1..) {
            self.disk(disk, number);
        }
    }

    fn disk(&mut self, disk: &mut Disk, number: u32) {
        disk.name = format!("disk-{number}");
        (disk.qdev, disk.node) = (None, None);
        if let Some(iothread) = &mut disk.iothread {
            *iothread = self.iothreads.of(iothread);
        }
        if let Some(serial) = &mut disk.serial {
            *serial = self.serials.of(serial);
        }
        if let Some(reason) = &mut disk.not_followed {
            // It may begin with the name of a file that cannot be looked at.
            "not followed (the reason was removed)".clone_into(reason);
        }
        for image in &mut disk.images {
            self.image(image);
        }
    }

    fn image(&mut self, image: &mut Image) {
        image.path = self.images.of(&image.path);
        if let Some(mount) = &mut image.mount {
            self.mount(mount);
        }
    }

    fn mount(&mut self, mount: &mut Mount) {
        mount.mount_point = self.mount_point(&mount.mount_point);
        mount.source = self.source(&mount.source);
        mount.options = names::options(&mount.options);
    }

    fn side(&mut self, side: &mut GuestSide) {
        side.guest = self.guests.of(&side.guest);
        side.backend_reason = self.text(&side.backend_reason);
        self.machine(&mut side.machine);
        if side.agent_version == IMPORTED {
            captures(side);
        }
        for disk in &mut side.disks {
            disk.serial = self.serials.of(&disk.serial);
        }
        for mount in &mut side.mounts {
            mount.mount_point = self.mount_point(&mount.mount_point);
            mount.options = names::options(&mount.options);
        }
        for gap in &mut side.gaps {
            gap.reason = self.text(&gap.reason);
        }
        for refused in &mut side.refused {
            refused.reason = self.text(&refused.reason);
        }
        self.probes(&mut side.probes, &mut side.probes_refused);
    }

    fn machine(&mut self, machine: &mut Machine) {
        machine.hostname = self.machines.of(&machine.hostname);
        machine.boot_id = self.boots.of(&machine.boot_id);
    }

    fn probes(&mut self, probes: &mut [Probe], refused: &mut [Refused]) {
        for probe in probes {
            self.optional_guest(&mut probe.guest);
        }
        for refused in refused {
            self.optional_guest(&mut refused.guest);
            refused.reason = self.text(&refused.reason);
            refused.cost = self.text(&refused.cost);
        }
    }

    fn optional_guest(&mut self, guest: &mut Option<String>) {
        if let Some(guest) = guest {
            *guest = self.guests.of(guest);
        }
    }

    /// A guest's sessions are numbered in their order, as the recorder does it.
    fn files(&mut self, manifest: &Manifest) -> Files {
        let mut sides = Vec::new();
        for (place, side) in manifest.guest_sides.iter().enumerate() {
            let before = manifest.guest_sides.iter().take(place);
            let nth = before.filter(|other| other.guest == side.guest).count() + 1;
            let nth = u32::try_from(nth).unwrap_or(u32::MAX);
            sides.push(bundle::guest_session_stream(
                &self.guests.of(&side.guest),
                nth,
            ));
        }
        let mut of_stream = |stream: &crate::manifest::Stream| {
            let known = manifest
                .guest_sides
                .iter()
                .position(|side| side.file == stream.file);
            match (known, &stream.guest) {
                (Some(place), _) => sides.get(place).cloned().unwrap_or_default(),
                (None, Some(guest)) => bundle::guest_stream(&self.guests.of(guest)),
                (None, None) => String::from(bundle::HOST_STREAM),
            }
        };
        let streams = manifest.streams.iter().map(&mut of_stream).collect();
        Files { streams, sides }
    }
}

#[cfg(test)]
mod tests;
