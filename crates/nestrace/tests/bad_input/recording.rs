//! A small recording of a host and a guest.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nestrace_trace::manifest::{
    Device, Disk, Guest, GuestDisk, GuestSide, Machine, Manifest, State, Stream, Topology,
};
use nestrace_trace::{Event, Kind, StreamWriter};

/// The host's disk.
pub const HOST_DEV: u32 = 8 << 20;
/// The guest's disk.
pub const GUEST_DEV: u32 = 254 << 20;
/// Batches of the host's stream.
pub const BATCHES: u64 = 6;
/// Requests of a batch.
const REQUESTS: u64 = 25;

/// A few requests on a device, with the name of who sent them.
pub fn batch(number: u64, dev: u32) -> Vec<Event> {
    let mut events = vec![Event {
        ts_ns: 1_000_000_000 + number * 50_000_000,
        kind: Kind::Thread as u8,
        tid: 71,
        related: u64::from_le_bytes(*b"postgres"),
        ..Event::default()
    }];
    for n in number * REQUESTS..(number + 1) * REQUESTS {
        let at = |kind: Kind, after_us: u64, object: u64| Event {
            ts_ns: 1_000_000_000 + n * 2_000_000 + after_us * 1000,
            kind: kind as u8,
            tid: 71,
            dev,
            object,
            offset: n * 7919 % 4096 * 4096,
            bytes: 4096,
            flags: (n % 2) as u32,
            ..Event::default()
        };
        let bio = 0x1000 + n * 64;
        let issue = Event {
            related: bio,
            ..at(Kind::Issue, 30, 0x80)
        };
        events.extend([
            at(Kind::Queue, 0, bio),
            at(Kind::GetRequest, 10, bio),
            issue,
            at(Kind::Complete, 400 + n, 0x80),
        ]);
    }
    events
}

/// Writes a stream and its index into a folder.
pub fn write_stream(folder: &Path, name: &str, batches: impl IntoIterator<Item = Vec<Event>>) {
    let create = |name: String| File::create(folder.join(name)).expect("file");
    let (stream, index) = (create(name.to_owned()), create(format!("{name}.idx")));
    let mut writer = StreamWriter::new(stream, index).expect("stream");
    for batch in batches {
        for event in &batch {
            writer.push(event).expect("event");
        }
        writer.flush_batch().expect("batch");
    }
    writer.finish().expect("end");
}

/// What a recorder writes of it.
pub fn manifest() -> Manifest {
    let machine = |name: &str| Machine {
        hostname: name.to_owned(),
        kernel: "6.18.0".to_owned(),
        boot_id: format!("{name}-boot"),
        ..Machine::default()
    };
    let stream = |file: &str, side: &str, guest: Option<&str>| Stream {
        file: file.to_owned(),
        side: side.to_owned(),
        guest: guest.map(str::to_owned),
        backend: "ebpf".to_owned(),
        kernel: "6.18.0".to_owned(),
        ..Stream::default()
    };
    {
        let mut manifest = Manifest::default();
        manifest.tool_version = "0.1.0".to_owned();
        manifest.state = State::Complete;
        manifest.start_unix_ns = 1_790_000_000_000_000_000;
        manifest.start_mono_ns = 900_000_000;
        manifest.live_mono_ns = 950_000_000;
        manifest.end_mono_ns = 1_600_000_000;
        manifest.end_reason = "duration".to_owned();
        manifest.detail = "full".to_owned();
        manifest.host = machine("secret-host");
        manifest.topology = Topology {
            guests: vec![Guest {
                name: "vm1".to_owned(),
                disks: vec![Disk {
                    name: "drive0".to_owned(),
                    ..Disk::default()
                }],
                ..Guest::default()
            }],
            devices: vec![Device {
                name: "sda".to_owned(),
                dev: HOST_DEV,
                kind: "disk".to_owned(),
                ..Device::default()
            }],
            ..Topology::default()
        };
        manifest.streams = vec![
            stream("host.arrows", "host", None),
            stream("guest-vm1.arrows", "guest", Some("vm1")),
        ];
        manifest.guest_sides = vec![GuestSide {
            guest: "vm1".to_owned(),
            file: "guest-vm1.arrows".to_owned(),
            backend: "ebpf".to_owned(),
            machine: machine("secret-guest"),
            start_mono_ns: 900_000_000,
            live_mono_ns: 950_000_000,
            end_mono_ns: 1_600_000_000,
            disks: vec![GuestDisk {
                name: "vda".to_owned(),
                dev: GUEST_DEV,
                ..GuestDisk::default()
            }],
            ..GuestSide::default()
        }];
        manifest
    }
}

/// Writes the bundle `NAME.nest` into a folder.
pub fn bundle(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(format!("{name}.nest"));
    fs::create_dir_all(&path).expect("folder");
    write_stream(
        &path,
        "host.arrows",
        (0..BATCHES).map(|n| batch(n, HOST_DEV)),
    );
    write_stream(
        &path,
        "guest-vm1.arrows",
        (0..3).map(|n| batch(n, GUEST_DEV)),
    );
    fs::write(path.join("manifest.json"), manifest().to_json()).expect("manifest");
    path
}

/// A capture of blktrace in the project's fixtures: its base name.
pub fn capture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext3-seqw-mq-ide/gt")
}
