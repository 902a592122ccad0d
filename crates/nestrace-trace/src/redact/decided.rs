//! Every key of the manifest and every column of an event is kept or gone. Everything here is spelled out, so that a
//! new key or column does not compile, or is in no list, until it is decided.

mod keys;

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::address::{Column, Shift, columns};
use crate::manifest::{
    Addresses, Backend, ClockSample, Device, Format, Gap, GuestDisk, GuestFile, GuestMemory,
    GuestMount, IoPressure, Limit, LimitPlace, Limited, Loss, PressureTotals, QemuThread,
    RefusedInput, Relation, Server, State, Stream, Topology,
};
use crate::manifest::{Flight, FlightCause, FlightReading};
use keys::{GONE, KEPT};

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
        nocow: Some(true),
        mount: Some(Mount {
            fs_type: text("fuse.secretfs"),
            mount_point: text("/srv/secret"),
            source: text("/dev/mapper/secret"),
            options: text("rw,label=secret"),
        }),
        devices: vec![text("loop0")],
    }
}

fn limit(set_with: LimitPlace) -> Limit {
    Limit {
        set_with,
        name: text("/secret.slice"),
        device: Some(text("loop0")),
        bounds: Limited::Reads,
        value: LONG,
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
            queues: Some(N),
            read_only: true,
            serial: Some(text("secret-serial")),
            virtual_size: LONG,
            not_followed: Some(text("secret")),
            images: vec![image()],
            limits: vec![limit(LimitPlace::ThrottleGroup)],
            limits_at_end: Some(vec![limit(LimitPlace::ThrottleGroup)]),
        }],
        limits: vec![limit(LimitPlace::IoMax)],
        limits_at_end: Some(vec![limit(LimitPlace::IoMax)]),
        jobs: vec![Job {
            id: text("secret-job"),
            kind: text("backup"),
            disk: Some(text("secret-disk")),
            target: Some(text("/srv/secret/backup.qcow2")),
            status: text("running"),
            speed: Some(LONG),
            done_bytes: LONG,
            total_bytes: LONG,
            first_seen_mono_ns: LONG,
            last_seen_mono_ns: LONG,
        }],
        backends: vec![Backend {
            address: 0x7f12_3456_7890,
            disk: N,
            proof: text("only disk"),
        }],
        threads: vec![QemuThread {
            tid: N,
            name: text("secret-process"),
            vcpu: Some(N),
            iothread: Some(text("secret-iothread")),
        }],
        io_pressure: Some(pressure()),
        event_rings: Some(N),
    }
}

fn pressure() -> IoPressure {
    let totals = PressureTotals {
        mono_ns: LONG,
        some_us: LONG,
        full_us: LONG,
    };
    IoPressure {
        cgroup: Some(text("/secret.slice")),
        other_processes: Some(N),
        at_begin: totals,
        at_end: totals,
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
        memory: GuestMemory {
            total_bytes: LONG,
            available_bytes: LONG,
            dirty_limit_bytes: LONG,
            dirty_background_bytes: LONG,
        },
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
        files: vec![GuestFile {
            dev: N,
            inode: LONG,
            path: text("/home/secret/file"),
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
                driver: text("crypt"),
                driver_options: vec![text("no_write_workqueue")],
                mapped_name: text("secret-volume"),
                beneath: vec![text("sda")],
                loop_file: Some(image()),
                server: Some(Server {
                    protocol: text("nbd"),
                    address: text("secret-host:10809"),
                    name: text("secret-export"),
                }),
                scheduler: text("none"),
                nr_requests: N,
                read_ahead_kb: N,
                write_cache: text("write back"),
                rotational: true,
                size: LONG,
                start: LONG,
            }],
            io_pressure: Some(pressure()),
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
        flight: Some(Flight {
            cause: FlightCause::Condition,
            mono_ns: LONG,
            before_ns: LONG,
            after_ns: LONG,
            expression: Some(text("max(any, device) > 1s")),
            readings: vec![FlightReading {
                statistic: text("max"),
                op: text("any"),
                layer: text("device"),
                relation: text(">"),
                limit: 1e9,
                value: Some(2e9),
                window_ns: LONG,
                holds: true,
            }],
            lost_before: vec![Loss {
                source: text("block"),
                guest: Some(text("secret-vm")),
                events: LONG,
            }],
        }),
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
            if values.is_empty() {
                found.insert(path.to_owned(), Vec::new());
            }
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
    let unfilled = |values: &Vec<String>| values.is_empty() || empty(values);
    assert!(!before.values().any(unfilled), "not all is filled");
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
            Kind::Thread | Kind::Switch => &[Column::Related, Column::Offset],
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
