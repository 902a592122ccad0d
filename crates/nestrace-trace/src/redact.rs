//! Redaction: a recording without the names that people and their machines gave to things, so that it
//! can be sent to someone. The one definition for `export --redact` and `repair --redact`.
//!
//! | gone | instead |
//! |---|---|
//! | names of processes and threads | `taskN`, N the thread id |
//! | paths of images and loop files, mount points, sockets | `image-1`, `mount-1`, `socket-1` |
//! | names of guests and machines, UUIDs, ids of boots | `guest-1`, `machine-1`, nothing, `boot-1` |
//! | names of QEMU's threads, names in `/dev/mapper` | nothing |
//! | ids of disks, nodes, I/O threads and jobs, serial numbers | `disk-1`, nothing, `iothread-1`, `job-1`, `serial-…` |
//! | throttle groups, cgroups | `group-1`, `cgroup-1` |
//! | names of captures that became a guest's disk | the disk's number, `8:0` |
//! | mount sources that are no device of the recording; values of mount options that may name something | `source-1`, `removed` |
//! | models of disks, the places of a guest's disks in sysfs | `model-1`, the bus alone |
//! | what distributions and people add to versions of kernels, QEMU and agents | `6.18.5-removed` |
//! | wall-clock times | as far apart as they were, from 2000 on |
//! | addresses of kernels and processes | others ([`crate::address`]) |
//! | names of files in guests | nothing |
//! | messages in words (notices, reasons) | their stable word, or the text up to the first path |
//!
//! The same name becomes the same word everywhere, so what belonged together still does, and an
//! analysis says the same in other words. Kept are numbers (process ids, inodes, device numbers, places
//! and sizes of I/O, times since the start of a machine), the kernel's own names of devices (`vda`, `loop0`), file systems and their
//! options, numbers of versions, and formats. A test lists every key of the manifest and every column as kept or gone.

use crate::address::Shift;
use crate::manifest::{
    Addresses, Disk, Guest, GuestSide, IMPORTED, Image, IoPressure, Job, Machine, Manifest, Mount,
    Notice, Probe, Refused,
};
use crate::{Event, Kind, bundle};

mod names;
mod versions;

use names::Names;

/// Takes the name out of a thread's event or a switch; other events have none.
///
/// ```
/// use nestrace_trace::{Event, Kind, redact};
/// let mut event = Event { kind: Kind::Thread as u8, tid: 71, related: u64::from_le_bytes(*b"postgres"), ..Event::default() };
/// redact::event(&mut event);
/// assert_eq!(event.thread_name(), "task71");
/// ```
pub fn event(event: &mut Event) {
    let tid = match event.kind() {
        Some(Kind::Thread) => u64::from(event.tid),
        Some(Kind::Switch) if event.leaves_carrier() => event.object,
        Some(Kind::Switch) => u64::from(event.tid),
        _ => return,
    };
    let mut name = [0; 16];
    let number = format!("task{tid}");
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
    if let Some(pressure) = &mut redacted.topology.io_pressure {
        names.pressure(pressure);
    }
    for device in &mut redacted.topology.devices {
        device.mapped_name.clear();
        if let Some(file) = &mut device.loop_file {
            names.image(file);
        }
        if let Some(server) = &mut device.server {
            server.address = names.servers.of(&server.address);
            server.name = names.exports.of(&server.name);
        }
    }
    // The files first: they are named after guests that still have their names.
    let files = names.files(manifest);
    for (file, stream) in files.streams.into_iter().zip(&mut redacted.streams) {
        stream.file = file;
        stream.kernel = versions::numbers(&stream.kernel);
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
    for loss in redacted
        .flight
        .iter_mut()
        .flat_map(|flight| &mut flight.lost_before)
    {
        names.optional_guest(&mut loss.guest);
    }
    redacted.notices.iter_mut().for_each(notice);
    redacted.end_reason = names.text(&redacted.end_reason);
    redacted.tool_version = versions::numbers(&redacted.tool_version);
    wall_clock(&mut redacted);
    redacted
}

/// 2000-01-01, nanoseconds since 1970.
const WALL_CLOCK_NS: u64 = 946_684_800_000_000_000;

/// Times of day begin with 2000 and stay as far apart as they were. Those that are not known stay 0.
fn wall_clock(manifest: &mut Manifest) {
    let sides = manifest.guest_sides.iter_mut();
    let times = [&mut manifest.start_unix_ns].into_iter();
    let times = times.chain(sides.map(|side| &mut side.start_unix_ns));
    let known: Vec<&mut u64> = times.filter(|time| **time > 0).collect();
    let Some(first) = known.first().map(|time| **time) else {
        return;
    };
    for time in known {
        let since = i128::from(*time) - i128::from(first);
        let moved = i128::from(WALL_CLOCK_NS).saturating_add(since).max(1);
        *time = u64::try_from(moved).unwrap_or(u64::MAX);
    }
}

fn disk_name(number: u32) -> String {
    format!("disk-{number}")
}

/// Of a disk's place in sysfs an analysis needs the bus.
fn bus(sysfs_path: &str) -> String {
    let buses = ["/usb", "/ata", "/virtio"];
    let bus = buses.into_iter().find(|bus| sysfs_path.contains(bus));
    match bus {
        _ if sysfs_path.is_empty() => String::new(),
        Some(bus) => format!("removed{bus}"),
        None => String::from("removed"),
    }
}

/// QEMU's own names of its programs; a build's name may be a person's or a company's.
fn executable(name: &str) -> String {
    let of_target = name.strip_prefix("qemu-system-");
    let is_target = |target: &str| {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        target.len() < 16 && target.chars().all(is_part)
    };
    match name {
        "qemu-kvm" | "kvm" => name.to_owned(),
        _ if of_target.is_some_and(is_target) => name.to_owned(),
        _ => String::from("qemu"),
    }
}

/// `fuse.NAME` names a program.
fn fs_type(fs_type: &str) -> String {
    let known = fs_type.split_once('.').map_or(fs_type, |(kind, _)| kind);
    known.to_owned()
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
        guest.executable = executable(&guest.executable);
        guest.qemu_version = versions::numbers(&guest.qemu_version);
        for socket in [&mut guest.qmp, &mut guest.agent].into_iter().flatten() {
            *socket = self.sockets.of(socket);
        }
        let names = guest.disks.iter().map(|disk| disk.name.clone());
        let names: Vec<String> = names.collect();
        let at_end = guest.limits_at_end.iter_mut().flatten();
        for limit in guest.limits.iter_mut().chain(at_end) {
            limit.name = self.cgroups.of(&limit.name);
        }
        if let Some(pressure) = &mut guest.io_pressure {
            self.pressure(pressure);
        }
        for (disk, number) in guest.disks.iter_mut().zip(1..) {
            self.disk(disk, number);
        }
        for thread in &mut guest.threads {
            // The main one has the name that `-name process=` gives.
            thread.name.clear();
            if let Some(iothread) = &mut thread.iothread {
                *iothread = self.iothreads.of(iothread);
            }
        }
        for (job, number) in guest.jobs.iter_mut().zip(1..) {
            self.job(job, number, &names);
        }
    }

    fn pressure(&mut self, pressure: &mut IoPressure) {
        if let Some(cgroup) = &mut pressure.cgroup {
            *cgroup = self.cgroups.of(cgroup);
        }
    }

    /// A job's disk is called as [`Self::disk`] calls it.
    fn job(&mut self, job: &mut Job, number: u32, disks: &[String]) {
        job.id = format!("job-{number}");
        let numbered = |name: &String| disks.iter().zip(1..).find(|(disk, _)| *disk == name);
        let number = job.disk.as_ref().and_then(numbered);
        job.disk = number.map(|(_, number)| disk_name(number));
        if let Some(target) = &mut job.target {
            *target = self.images.of(target);
        }
    }

    fn disk(&mut self, disk: &mut Disk, number: u32) {
        disk.name = disk_name(number);
        (disk.qdev, disk.node) = (None, None);
        if let Some(iothread) = &mut disk.iothread {
            *iothread = self.iothreads.of(iothread);
        }
        if let Some(serial) = &mut disk.serial {
            *serial = self.serials.of(serial);
        }
        // It may begin with the name of a file that cannot be looked at; QEMU's own clients have known names.
        let client = disk.remote_client();
        if let Some(reason) = &mut disk.not_followed {
            *reason = match client {
                Some(client) => format!("{client}: not followed (the place was removed)"),
                None => "not followed (the reason was removed)".to_owned(),
            };
        }
        for image in &mut disk.images {
            self.image(image);
        }
        let at_end = disk.limits_at_end.iter_mut().flatten();
        for limit in disk.limits.iter_mut().chain(at_end) {
            limit.name = self.throttle_groups.of(&limit.name);
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
        mount.fs_type = fs_type(&mount.fs_type);
        mount.options = names::options(&mount.options);
    }

    fn side(&mut self, side: &mut GuestSide) {
        side.guest = self.guests.of(&side.guest);
        side.backend_reason = self.text(&side.backend_reason);
        self.machine(&mut side.machine);
        if side.agent_version == IMPORTED {
            captures(side);
        } else {
            side.agent_version = versions::numbers(&side.agent_version);
        }
        for disk in &mut side.disks {
            disk.serial = self.serials.of(&disk.serial);
            disk.model = self.models.of(&disk.model);
            disk.sysfs_path = bus(&disk.sysfs_path);
        }
        for mount in &mut side.mounts {
            mount.fs_type = fs_type(&mount.fs_type);
            mount.mount_point = self.mount_point(&mount.mount_point);
            mount.options = names::options(&mount.options);
        }
        side.files.clear();
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
        machine.kernel = versions::numbers(&machine.kernel);
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
mod decided;
#[cfg(test)]
mod tests;
