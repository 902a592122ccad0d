//! A guest with one disk, seen from inside alone.

use nestrace_trace::Manifest;
use nestrace_trace::manifest::{Disk, Guest, GuestDisk, GuestSide};

/// The guest vm1, whose disk has the number `dev` there.
pub fn manifest(backend: &str, dev: u32) -> Manifest {
    let mut manifest = Manifest::default();
    manifest.guest_sides = vec![GuestSide {
        guest: "vm1".into(),
        backend: backend.into(),
        disks: vec![GuestDisk {
            name: "vda".into(),
            dev,
            ..GuestDisk::default()
        }],
        ..GuestSide::default()
    }];

    manifest.topology.guests = vec![Guest {
        name: "vm1".into(),
        disks: vec![Disk {
            name: "vd".into(),
            ..Disk::default()
        }],
        ..Guest::default()
    }];
    manifest
}
