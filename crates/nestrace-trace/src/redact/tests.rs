use super::*;
use crate::manifest::{Device, GuestDisk, GuestMount, Loss, RefusedInput, Stream, Topology};

/// Every name in it has `secret` in it.
fn recording() -> Manifest {
    let text = |text: &str| String::from(text);
    let image = |path: &str| Image {
        path: text(path),
        mount: Some(Mount {
            fs_type: text("btrfs"),
            mount_point: text("/srv/secret"),
            source: text("/dev/mapper/secret"),
            options: text(
                "rw,commit=30,logbsize=32k,data=ordered,subvol=/secret,username=secret,label=42secret",
            ),
        }),
        ..Image::default()
    };
    let disk = |name: &str, path: &str| Disk {
        name: text(name),
        qdev: Some(text("secret-qdev")),
        node: Some(text("secret-node")),
        iothread: Some(text("secret-iothread")),
        serial: Some(text("secret-serial-number-of-disk")),
        not_followed: Some(text("secret.raw cannot be looked at")),
        images: vec![image(path)],
        ..Disk::default()
    };
    let guest = |name: &str| Guest {
        name: text(name),
        uuid: Some(text("secret-uuid")),
        executable: text("/opt/secret/qemu"),
        qmp: Some(text("/run/secret.qmp")),
        disks: vec![
            disk("secret-a", "/srv/secret/a.raw"),
            disk("secret-b", "/srv/secret/b.raw"),
        ],
        ..Guest::default()
    };
    let side = |guest: &str, file: &str| GuestSide {
        guest: text(guest),
        file: text(file),
        backend_reason: text("BPF is refused: /secret is not there"),
        machine: Machine {
            hostname: text("secret-machine"),
            boot_id: text("secret-boot"),
            ..Machine::default()
        },
        disks: vec![GuestDisk {
            name: text("vda"),
            serial: text("secret-serial-number"),
            ..GuestDisk::default()
        }],
        mounts: vec![GuestMount {
            disk: text("vda"),
            mount_point: text("/home/secret"),
            ..GuestMount::default()
        }],
        refused: vec![RefusedInput {
            reason: text("a frame of secret-vm"),
            times: 1,
        }],
        ..GuestSide::default()
    };
    let imported = |guest: &str, file: &str| GuestSide {
        agent_version: text(IMPORTED),
        disks: vec![GuestDisk {
            name: text("secret-capture"),
            dev: 8 << 20 | 16,
            ..GuestDisk::default()
        }],
        mounts: vec![GuestMount {
            disk: text("secret-capture"),
            ..GuestMount::default()
        }],
        ..side(guest, file)
    };
    let stream = |file: &str, guest: Option<&str>| Stream {
        file: text(file),
        guest: guest.map(text),
        ..Stream::default()
    };
    Manifest {
        host: Machine {
            hostname: text("secret-host"),
            boot_id: text("secret-boot-of-host"),
            ..Machine::default()
        },
        topology: Topology {
            guests: vec![guest("secret-vm"), guest("secret-vm-2")],
            devices: vec![Device {
                name: text("loop0"),
                loop_file: Some(image("/srv/secret/a.raw")),
                ..Device::default()
            }],
            ..Topology::default()
        },
        streams: vec![
            stream("host.arrows", None),
            stream("guest-secret-vm.arrows", Some("secret-vm")),
            stream("guest-secret-vm.2.arrows", Some("secret-vm")),
            stream("guest-secret-vm.3.arrows", Some("secret-vm")),
        ],
        guest_sides: vec![
            side("secret-vm", "guest-secret-vm.arrows"),
            side("secret-vm", "guest-secret-vm.2.arrows"),
            imported("secret-vm", "guest-secret-vm.3.arrows"),
        ],
        probes: vec![Probe {
            guest: Some(text("secret-vm-2")),
            ..Probe::default()
        }],
        refused: vec![Refused {
            reason: text("no symbols in /opt/secret plan/qemu"),
            cost: text("QEMU's time of secret-vm-2"),
            guest: Some(text("secret-vm-2")),
            ..Refused::default()
        }],
        losses: vec![Loss {
            guest: Some(text("secret-vm")),
            ..Loss::default()
        }],
        notices: vec![Notice {
            mono_ns: 1,
            what: text("file_opened"),
            message: text("guest secret-vm opened /srv/a secret plan"),
        }],
        end_reason: text("interrupted"),
        ..Manifest::default()
    }
}

#[test]
fn nothing_private_is_left() {
    let redacted = manifest(&recording());
    let text = serde_json::to_string(&redacted).expect("a manifest is JSON");
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(redacted.end_reason, "interrupted");
    assert_eq!(redacted.notices[0].message, "file opened");
}

#[test]
fn what_belonged_together_still_does() {
    let redacted = manifest(&recording());
    let [first, second] = redacted.topology.guests.as_slice() else {
        panic!("two guests");
    };
    assert_eq!(
        (first.name.as_str(), second.name.as_str()),
        ("guest-1", "guest-2")
    );
    assert_eq!(redacted.probes[0].guest.as_deref(), Some("guest-2"));
    assert_eq!(redacted.losses[0].guest.as_deref(), Some("guest-1"));
    let sides: Vec<&str> = redacted
        .guest_sides
        .iter()
        .map(|side| side.file.as_str())
        .collect();
    assert_eq!(
        sides,
        [
            "guest-guest-1.arrows",
            "guest-guest-1.2.arrows",
            "guest-guest-1.3.arrows"
        ]
    );
    let streams: Vec<&str> = redacted
        .streams
        .iter()
        .map(|stream| stream.file.as_str())
        .collect();
    assert_eq!(streams, ["host.arrows", sides[0], sides[1], sides[2]]);
    // Two sessions of one boot are distinguished from a reboot by its id.
    let boots: Vec<&str> = [&redacted.host]
        .into_iter()
        .chain(redacted.guest_sides.iter().map(|side| &side.machine))
        .map(|machine| machine.boot_id.as_str())
        .collect();
    assert_eq!(boots, ["boot-1", "boot-2", "boot-2", "boot-2"]);
    // A capture has the name that its files were given; its mounts are found by it.
    let capture = &redacted.guest_sides[2];
    assert_eq!(
        (
            capture.disks[0].name.as_str(),
            capture.mounts[0].disk.as_str()
        ),
        ("8:16", "8:16")
    );
    // The loop device lies on the file that is also an image.
    let path = |disk: &Disk| disk.images[0].path.clone();
    let loop_file = redacted.topology.devices[0].loop_file.as_ref();
    assert_eq!(
        loop_file.map(|file| file.path.clone()),
        Some(path(&first.disks[0]))
    );
    assert_ne!(path(&first.disks[0]), path(&first.disks[1]));
    // A guest is shown 20 bytes of a serial number.
    let given = first.disks[0].serial.as_deref().unwrap_or_default();
    let shown = redacted.guest_sides[0].disks[0].serial.as_str();
    assert_eq!(given.get(..20), Some(shown));
    assert_ne!(given, shown);
}

#[test]
fn what_is_no_name_stays() {
    let redacted = manifest(&recording());
    let image = &redacted.topology.guests[0].disks[0].images[0];
    let mount = image.mount.as_ref().expect("it has one");
    assert_eq!(
        mount.options,
        "rw,commit=30,logbsize=32k,data=ordered,subvol=removed,username=removed,label=removed"
    );
    assert_eq!(mount.fs_type, "btrfs");
    assert_eq!(redacted.topology.devices[0].name, "loop0");
    let side = &redacted.guest_sides[0];
    assert_eq!(
        (side.disks[0].name.as_str(), side.mounts[0].disk.as_str()),
        ("vda", "vda")
    );
    let empty = Manifest::default();
    assert_eq!(manifest(&empty), empty);
}

#[test]
fn twice_is_like_once() {
    let once = manifest(&recording());
    assert_eq!(manifest(&once), once);
}

#[test]
fn only_threads_have_names() {
    let thread = Event {
        kind: Kind::Thread as u8,
        tid: u32::MAX,
        related: u64::from_le_bytes(*b"secret-s"),
        offset: u64::from_le_bytes(*b"ervice\0\0"),
        ..Event::default()
    };
    let mut redacted = thread;
    event(&mut redacted);
    assert_eq!(redacted.thread_name(), "task4294967295");
    let queue = Event {
        kind: Kind::Queue as u8,
        related: 7,
        offset: 512,
        ..thread
    };
    let mut same = queue;
    event(&mut same);
    assert_eq!(same, queue);
}
