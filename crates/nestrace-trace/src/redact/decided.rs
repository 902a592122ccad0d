//! Every key of the manifest and every column of an event is kept or gone. Everything here is spelled out, so that a
//! new key or column does not compile, or is in no list, until it is decided.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::address::{Column, Shift, columns};
use crate::manifest::{
    Addresses, Backend, ClockSample, Device, Format, Gap, GuestDisk, GuestMount, Loss,
    RefusedInput, Relation, State, Stream, Topology,
};

/// Keys that stay as they are: numbers, the kernel's own words, and words of nestrace.
const KEPT: &[&str] = &[
    "detail",
    "end_mono_ns",
    "end_reason",
    "format.major",
    "format.minor",
    "guest_sides.agent_version",
    "guest_sides.backend",
    "guest_sides.clock_correction_ppm",
    "guest_sides.clock_samples.guest_ns",
    "guest_sides.clock_samples.host_received_ns",
    "guest_sides.clock_samples.host_sent_ns",
    "guest_sides.disks.dev",
    "guest_sides.disks.diskseq",
    "guest_sides.disks.driver",
    "guest_sides.disks.logical_block_size",
    "guest_sides.disks.max_sectors_kb",
    "guest_sides.disks.name",
    "guest_sides.disks.nr_requests",
    "guest_sides.disks.read_ahead_kb",
    "guest_sides.disks.rotational",
    "guest_sides.disks.scheduler",
    "guest_sides.disks.since_mono_ns",
    "guest_sides.disks.size",
    "guest_sides.disks.until_mono_ns",
    "guest_sides.disks.write_cache",
    "guest_sides.end_mono_ns",
    "guest_sides.gaps.from_host_ns",
    "guest_sides.gaps.to_host_ns",
    "guest_sides.live_mono_ns",
    "guest_sides.machine.arch",
    "guest_sides.machine.cpus",
    "guest_sides.machine.page_size",
    "guest_sides.mounts.dev",
    "guest_sides.mounts.disk",
    "guest_sides.probes.how",
    "guest_sides.probes.name",
    "guest_sides.probes.source",
    "guest_sides.probes_refused.name",
    "guest_sides.probes_refused.source",
    "guest_sides.refused.times",
    "guest_sides.start_mono_ns",
    "host.arch",
    "host.cpus",
    "host.page_size",
    "host_clock_correction_ppm",
    "live_mono_ns",
    "losses.events",
    "losses.source",
    "notices.mono_ns",
    "notices.what",
    "probes.how",
    "probes.name",
    "probes.source",
    "refused.name",
    "refused.source",
    "start_mono_ns",
    "state",
    "streams.addresses",
    "streams.backend",
    "streams.side",
    "topology.devices.beneath",
    "topology.devices.dev",
    "topology.devices.kind",
    "topology.devices.loop_file.allocated",
    "topology.devices.loop_file.dev",
    "topology.devices.loop_file.devices",
    "topology.devices.loop_file.direct",
    "topology.devices.loop_file.disk_offset",
    "topology.devices.loop_file.format",
    "topology.devices.loop_file.inode",
    "topology.devices.loop_file.is_block_device",
    "topology.devices.loop_file.opened",
    "topology.devices.loop_file.relation.backing_of",
    "topology.devices.loop_file.size",
    "topology.devices.loop_file.start",
    "topology.devices.name",
    "topology.devices.nr_requests",
    "topology.devices.read_ahead_kb",
    "topology.devices.rotational",
    "topology.devices.scheduler",
    "topology.devices.size",
    "topology.devices.start",
    "topology.devices.write_cache",
    "topology.guests.accel",
    "topology.guests.backends.disk",
    "topology.guests.backends.proof",
    "topology.guests.disks.aio",
    "topology.guests.disks.bus",
    "topology.guests.disks.cache",
    "topology.guests.disks.format",
    "topology.guests.disks.images.allocated",
    "topology.guests.disks.images.dev",
    "topology.guests.disks.images.devices",
    "topology.guests.disks.images.direct",
    "topology.guests.disks.images.disk_offset",
    "topology.guests.disks.images.format",
    "topology.guests.disks.images.inode",
    "topology.guests.disks.images.is_block_device",
    "topology.guests.disks.images.opened",
    "topology.guests.disks.images.relation.backing_of",
    "topology.guests.disks.images.size",
    "topology.guests.disks.images.start",
    "topology.guests.disks.read_only",
    "topology.guests.disks.virtual_size",
    "topology.guests.pid",
    "topology.guests.sources",
    "topology.guests.vsock_cid",
];

/// Keys that do not, and of what: names, places, versions, times of day, addresses.
const GONE: &[&str] = &[
    "guest_sides.backend_reason",
    "guest_sides.disks.model",
    "guest_sides.disks.serial",
    "guest_sides.disks.sysfs_path",
    "guest_sides.file",
    "guest_sides.gaps.reason",
    "guest_sides.guest",
    "guest_sides.machine.boot_id",
    "guest_sides.machine.hostname",
    "guest_sides.machine.kernel",
    "guest_sides.mounts.fs_type",
    "guest_sides.mounts.mount_point",
    "guest_sides.mounts.options",
    "guest_sides.probes.guest",
    "guest_sides.probes_refused.cost",
    "guest_sides.probes_refused.guest",
    "guest_sides.probes_refused.reason",
    "guest_sides.refused.reason",
    "guest_sides.start_unix_ns",
    "host.boot_id",
    "host.hostname",
    "host.kernel",
    "losses.guest",
    "notices.message",
    "probes.guest",
    "refused.cost",
    "refused.guest",
    "refused.reason",
    "start_unix_ns",
    "streams.file",
    "streams.guest",
    "streams.kernel",
    "tool_version",
    "topology.devices.loop_file.mount.fs_type",
    "topology.devices.loop_file.mount.mount_point",
    "topology.devices.loop_file.mount.options",
    "topology.devices.loop_file.mount.source",
    "topology.devices.loop_file.path",
    "topology.guests.agent",
    "topology.guests.backends.address",
    "topology.guests.disks.images.mount.fs_type",
    "topology.guests.disks.images.mount.mount_point",
    "topology.guests.disks.images.mount.options",
    "topology.guests.disks.images.mount.source",
    "topology.guests.disks.images.path",
    "topology.guests.disks.iothread",
    "topology.guests.disks.name",
    "topology.guests.disks.node",
    "topology.guests.disks.not_followed",
    "topology.guests.disks.qdev",
    "topology.guests.disks.serial",
    "topology.guests.executable",
    "topology.guests.name",
    "topology.guests.qemu_version",
    "topology.guests.qmp",
    "topology.guests.uuid",
];

/// A number that no two keys share, so that a change is seen.
const N: u32 = 77;
const LONG: u64 = 7_777;

fn text(text: &str) -> String {
    String::from(text)
}

fn machine() -> Machine {
    Machine {
        hostname: text("secret-machine"),
        kernel: text("6.18.5-secret"),
        arch: text("x86_64"),
        cpus: N,
        page_size: LONG,
        boot_id: text("secret-boot"),
    }
}

fn image() -> Image {
    Image {
        path: text("/srv/secret.raw"),
        format: text("raw"),
        relation: Some(Relation::BackingOf(N)),
        start: LONG,
        disk_offset: LONG as i64,
        inode: LONG,
        dev: N,
        opened: Some((LONG, N)),
        is_block_device: true,
        direct: Some(true),
        size: LONG,
        allocated: LONG,
        mount: Some(Mount {
            fs_type: text("fuse.secretfs"),
            mount_point: text("/srv/secret"),
            source: text("/dev/mapper/secret"),
            options: text("rw,label=secret"),
        }),
        devices: vec![text("loop0")],
    }
}

fn guest() -> Guest {
    Guest {
        name: text("secret-vm"),
        uuid: Some(text("secret-uuid")),
        pid: N,
        executable: text("qemu-system-x86_64-secret"),
        qemu_version: text("10.0.2 (secret build)"),
        accel: text("kvm"),
        sources: vec![text("qmp")],
        qmp: Some(text("/run/secret.qmp")),
        agent: Some(text("/run/secret.agent")),
        vsock_cid: Some(N),
        disks: vec![Disk {
            name: text("secret-disk"),
            qdev: Some(text("secret-qdev")),
            node: Some(text("secret-node")),
            bus: text("virtio-blk"),
            format: text("raw"),
            cache: Some(text("none")),
            aio: Some(text("native")),
            iothread: Some(text("secret-iothread")),
            read_only: true,
            serial: Some(text("secret-serial")),
            virtual_size: LONG,
            not_followed: Some(text("secret")),
            images: vec![image()],
        }],
        backends: vec![Backend {
            address: 0x7f12_3456_7890,
            disk: N,
            proof: text("only disk"),
        }],
    }
}

fn probe() -> Probe {
    Probe {
        name: text("block_rq_issue"),
        source: text("block"),
        how: text("tp_btf"),
        guest: Some(text("secret-vm")),
    }
}

fn refused() -> Refused {
    Refused {
        name: text("block_rq_issue"),
        source: text("block"),
        reason: text("secret-vm refuses /secret"),
        cost: text("all of secret-vm"),
        guest: Some(text("secret-vm")),
    }
}

fn side() -> GuestSide {
    GuestSide {
        guest: text("secret-vm"),
        file: text("guest-secret-vm.arrows"),
        backend: text("ebpf"),
        backend_reason: text("as secret-vm says"),
        agent_version: text("0.1.0"),
        machine: machine(),
        start_unix_ns: 1_790_000_000_000_000_001,
        start_mono_ns: LONG,
        live_mono_ns: LONG,
        end_mono_ns: LONG,
        disks: vec![GuestDisk {
            name: text("vda"),
            dev: N,
            size: LONG,
            serial: text("secret-serial"),
            diskseq: LONG,
            since_mono_ns: LONG,
            until_mono_ns: LONG,
            model: text("secret-model"),
            sysfs_path: text("/devices/pci0000:00/secret/virtio2/block/vda"),
            driver: text("virtio_blk"),
            scheduler: text("none"),
            nr_requests: N,
            read_ahead_kb: N,
            max_sectors_kb: N,
            write_cache: text("write back"),
            rotational: true,
            logical_block_size: N,
        }],
        mounts: vec![GuestMount {
            disk: text("vda"),
            dev: N,
            fs_type: text("fuse.secretfs"),
            mount_point: text("/home/secret"),
            options: text("rw,label=secret"),
        }],
        probes: vec![probe()],
        probes_refused: vec![refused()],
        clock_samples: vec![ClockSample {
            host_sent_ns: LONG,
            guest_ns: LONG,
            host_received_ns: LONG,
        }],
        clock_correction_ppm: Some(N),
        gaps: vec![Gap {
            from_host_ns: LONG,
            to_host_ns: LONG,
            reason: text("secret-vm was silent"),
        }],
        refused: vec![RefusedInput {
            reason: text("a frame of secret-vm"),
            times: LONG,
        }],
    }
}

/// All keys are filled.
fn full() -> Manifest {
    Manifest {
        format: Format::default(),
        tool_version: text("0.1.0+secret"),
        state: State::Complete,
        start_unix_ns: 1_790_000_000_000_000_000,
        start_mono_ns: LONG,
        live_mono_ns: LONG,
        end_mono_ns: LONG,
        end_reason: text("duration"),
        detail: text("full"),
        host: machine(),
        host_clock_correction_ppm: Some(N),
        topology: Topology {
            guests: vec![guest()],
            devices: vec![Device {
                name: text("loop0"),
                dev: N,
                kind: text("loop"),
                beneath: vec![text("sda")],
                loop_file: Some(image()),
                scheduler: text("none"),
                nr_requests: N,
                read_ahead_kb: N,
                write_cache: text("write back"),
                rotational: true,
                size: LONG,
                start: LONG,
            }],
        },
        streams: vec![Stream {
            file: text("guest-secret-vm.arrows"),
            side: text("guest"),
            guest: Some(text("secret-vm")),
            backend: text("ebpf"),
            kernel: text("6.18.5-secret"),
            addresses: Addresses::Shifted,
        }],
        guest_sides: vec![side()],
        probes: vec![probe()],
        refused: vec![refused()],
        losses: vec![Loss {
            source: text("block"),
            guest: Some(text("secret-vm")),
            events: LONG,
        }],
        notices: vec![Notice {
            mono_ns: LONG,
            what: text("guest_exited"),
            message: text("guest secret-vm exited"),
        }],
    }
}

/// The values of all keys, by their path.
fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, Vec<String>>) {
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                let path = match path {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                leaves(&path, value, found);
            }
        }
        Value::Array(values) => {
            assert!(!values.is_empty(), "{path} is not filled");
            values.iter().for_each(|value| leaves(path, value, found));
        }
        leaf => found
            .entry(path.to_owned())
            .or_default()
            .push(leaf.to_string()),
    }
}

#[test]
fn every_key_of_the_manifest_is_kept_or_gone() {
    let (before, mut after) = (full(), manifest(&full()));
    addresses(&mut after, &Shift::of_random([3; 16]));
    let of = |manifest: &Manifest| {
        let mut found = BTreeMap::new();
        let json = serde_json::to_value(manifest).expect("a manifest is JSON");
        leaves("", &json, &mut found);
        found
    };
    let after_of = of(&after);
    let mut decided: Vec<&str> = KEPT.iter().chain(GONE).copied().collect();
    decided.sort_unstable();
    let before = of(&before);
    let empty = |values: &Vec<String>| values.iter().any(|it| it == "null" || it == "\"\"");
    assert!(!before.values().any(empty), "not all is filled");
    let keys: Vec<&str> = before.keys().map(String::as_str).collect();
    assert_eq!(keys, decided, "decide of each new key whether it is kept");
    for (key, values) in &before {
        let is_same = after_of.get(key) == Some(values);
        assert_eq!(is_same, KEPT.contains(&key.as_str()), "{key}: {values:?}");
    }
    let json = after.to_json();
    assert!(!json.contains("secret"), "{json}");
    let mut twice = manifest(&after);
    assert_eq!(twice.topology.guests, after.topology.guests);
    twice.topology = after.topology.clone();
    assert_eq!(twice, after, "twice is like once");
}

/// Of a thread its name is gone, and all addresses; every other column of every kind is kept.
#[test]
fn every_column_is_kept_or_gone() {
    let shift = Shift::of_random([9; 16]);
    let address = 0xffff_8880_0000_1000;
    for kind in Kind::ALL {
        let before = Event {
            ts_ns: 1,
            kind: *kind as u8,
            sub: 2,
            cpu: 3,
            tid: 4,
            dev: 5,
            object: address,
            related: address + 1,
            offset: address + 2,
            bytes: address + 3,
            flags: 6,
            inode: address + 4,
            file_offset: address + 5,
            owner_dev: 7,
            iocb: address + 6,
            origin: address + 7,
            end_io: 8,
            cgroup: address + 8,
            aux: 9,
        };
        let mut after = before;
        event(&mut after);
        shift.event(&mut after);
        let gone: &[Column] = match kind {
            Kind::Thread => &[Column::Related, Column::Offset],
            kind => columns(*kind),
        };
        let is_gone = Column::ALL.map(|column| column.of(&before) != column.of(&after));
        let expected = Column::ALL.map(|column| gone.contains(&column));
        assert_eq!(is_gone, expected, "{kind:?}");
        let kept = |it: &Event| Event {
            object: 0,
            related: 0,
            offset: 0,
            bytes: 0,
            iocb: 0,
            origin: 0,
            ..*it
        };
        assert_eq!(kept(&after), kept(&before), "{kind:?}");
    }
}
