//! A guest's I/O as both sides would record it, with a known truth: every layer takes a known time,
//! the guest's clock lies a known way from the host's.
#![allow(dead_code)] // Each test program uses its part.

use nestrace_abi::flags::{self, op};
use nestrace_analyzer::analysis::{Chains, Segment};
use nestrace_analyzer::{Analysis, Analyzer, GuestEvents, Options};
use nestrace_trace::manifest::{GuestDisk, GuestSide, Manifest};
use nestrace_trace::{Event, Kind};

use crate::stack;

/// The guest's clock minus the host's.
pub const OFFSET_NS: i64 = -5_000_000_000;
pub const VDA: u32 = 254 << 20;
pub const VDB: u32 = (254 << 20) | 16;
pub const LOOP0: u32 = 7 << 20;
/// QEMU's cookie lies so far above the opaque of `blk_aio_*`.
const COOKIE: u64 = 0xd8;

/// vm1 and vm2 of [`stack::manifest`], seen from inside too.
pub fn manifest() -> Manifest {
    let mut manifest = stack::manifest();
    manifest.start_unix_ns = 1_700_000_000_000_000_000;
    manifest.start_mono_ns = 9_000_000_000;
    manifest.live_mono_ns = 9_000_000_000;
    manifest.guest_sides = vec![
        side("vm1", &[("vda", VDA), ("sda", 8 << 20)]),
        side("vm2", &[("vda", VDA)]),
    ];
    for guest in &mut manifest.topology.guests {
        for disk in &mut guest.disks {
            disk.serial = Some(format!("{}-{}", guest.name, disk.name));
        }
    }
    manifest.guest_sides[0].disks[0].serial = "vm1-vd".into();
    manifest.guest_sides[0].disks[1].serial = "vm1-sd".into();
    manifest.guest_sides[1].disks[0].serial = "vm2-vd".into();
    manifest
}

pub fn side(guest: &str, disks: &[(&str, u32)]) -> GuestSide {
    let disk = |(name, dev): &(&str, u32)| GuestDisk {
        name: (*name).into(),
        dev: *dev,
        ..Default::default()
    };
    GuestSide {
        guest: guest.into(),
        file: format!("guest-{guest}.arrows"),
        backend: "ebpf".into(),
        start_unix_ns: 1_700_000_000_000_000_000,
        start_mono_ns: 4_000_000_000,
        disks: disks.iter().map(disk).collect(),
        ..Default::default()
    }
}

/// What one request of the guest needs in each layer, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub guest_queue: u64,
    pub virt_submit: u64,
    pub qemu_submit: u64,
    pub host_fs_submit: u64,
    pub host_queue: u64,
    pub device: u64,
    pub host_fs_complete: u64,
    pub qemu_complete: u64,
    pub virt_complete: u64,
}

pub const WAY: Way = Way {
    guest_queue: 3_000,
    virt_submit: 10_000,
    qemu_submit: 20_000,
    host_fs_submit: 5_000,
    host_queue: 7_000,
    device: 100_000,
    host_fs_complete: 6_000,
    qemu_complete: 30_000,
    virt_complete: 10_000,
};

impl Way {
    pub fn virt(&self) -> u64 {
        self.virt_submit + self.virt_complete
    }

    pub fn total(&self) -> u64 {
        self.guest_queue
            + self.virt()
            + self.qemu_submit
            + self.host_fs_submit
            + self.host_queue
            + self.device
            + self.host_fs_complete
            + self.qemu_complete
    }
}

/// A guest, its disk and how the host knows them.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Index of the guest in the topology.
    pub guest: u32,
    pub dev: u32,
    pub inode: u64,
    /// Address of the BlockBackend.
    pub backend: u64,
    pub offset_ns: i64,
}

pub const VM1: Disk = Disk {
    guest: 0,
    dev: VDA,
    inode: 12,
    backend: 0x10000,
    offset_ns: OFFSET_NS,
};
pub const VM2: Disk = Disk {
    guest: 1,
    dev: VDA,
    inode: 14,
    backend: 0x30000,
    offset_ns: 77_000_000_000,
};

/// Both streams while they grow.
#[derive(Debug, Default)]
pub struct Streams {
    pub host: Vec<Event>,
    /// By session.
    pub guests: Vec<Vec<Event>>,
    next: u64,
}

impl Streams {
    pub fn new(sessions: usize) -> Self {
        Self {
            guests: vec![Vec::new(); sessions],
            ..Self::default()
        }
    }

    pub fn address(&mut self) -> u64 {
        self.next += 0x1000;
        0x1_0000_0000 + self.next
    }

    pub fn guest(&mut self, disk: Disk, host_ns: u64, kind: Kind, event: Event) {
        self.guests[disk.guest as usize].push(Event {
            ts_ns: host_ns.saturating_add_signed(disk.offset_ns),
            kind: kind as u8,
            dev: disk.dev,
            ..event
        });
    }

    pub fn host(&mut self, ns: u64, kind: Kind, event: Event) {
        self.host.push(Event {
            ts_ns: ns,
            kind: kind as u8,
            ..event
        });
    }

    /// A bio from its Q at `at` (host's time); gives its end.
    pub fn bio(
        &mut self,
        disk: Disk,
        at: u64,
        operation: u32,
        offset: u64,
        bytes: u64,
        way: Way,
    ) -> u64 {
        let (bio, request) = (self.address(), self.address());
        let of = |object| Event {
            object,
            offset,
            bytes,
            flags: operation,
            tid: 500,
            ..Event::default()
        };
        self.guest(disk, at, Kind::Queue, of(bio));
        self.guest(disk, at + 1_000, Kind::GetRequest, of(bio));
        let issued = at + way.guest_queue;
        let d = Event {
            related: bio,
            ..of(request)
        };
        self.guest(disk, issued, Kind::Issue, d);
        let end = self.qemu_data(
            disk,
            issued + way.virt_submit,
            operation,
            offset,
            bytes,
            way,
        );
        let done = end + way.virt_complete;
        self.guest(disk, done, Kind::Complete, of(request));
        done
    }

    /// QEMU's half of a request, by a pread or pwrite of a worker with direct I/O; gives the time of the
    /// completion notification.
    pub fn qemu_data(
        &mut self,
        disk: Disk,
        start: u64,
        operation: u32,
        offset: u64,
        bytes: u64,
        way: Way,
    ) -> u64 {
        let opaque = self.address();
        let (bio, request) = (self.address(), self.address());
        let read = operation == flags::OP_READ;
        let qemu = |object, related, bytes| Event {
            object,
            related,
            bytes,
            dev: disk.guest,
            tid: 100,
            ..Event::default()
        };
        let stats = disk.backend + 0x40;
        let (sub, call) = if read {
            (1, Kind::AioPreadv)
        } else {
            (2, Kind::AioPwritev)
        };
        let acct = Event {
            sub,
            ..qemu(opaque + COOKIE, stats, bytes)
        };
        self.host(start, Kind::AcctStart, acct);
        let aio = Event {
            offset,
            ..qemu(opaque, disk.backend, bytes)
        };
        self.host(start + 1_000, call, aio);
        let enter = start + way.qemu_submit;
        let file = Event {
            sub: if read { op::READ } else { op::WRITE },
            object: 5,
            offset,
            bytes,
            dev: disk.guest,
            inode: disk.inode,
            owner_dev: LOOP0,
            tid: 900 + disk.guest,
            ..Event::default()
        };
        self.host(enter, Kind::SyscallEnter, file);
        let queued = enter + way.host_fs_submit;
        let on_host = |object| Event {
            object,
            offset: (1 << 30) + offset,
            bytes,
            flags: operation,
            dev: LOOP0,
            tid: 900 + disk.guest,
            ..Event::default()
        };
        let q = Event {
            sub: flags::OWNER_DIRECT,
            inode: disk.inode,
            owner_dev: LOOP0,
            file_offset: offset,
            ..on_host(bio)
        };
        self.host(queued, Kind::Queue, q);
        self.host(queued + 500, Kind::GetRequest, on_host(bio));
        let issued = queued + way.host_queue;
        let d = Event {
            related: bio,
            ..on_host(request)
        };
        self.host(issued, Kind::Issue, d);
        let completed = issued + way.device;
        self.host(completed, Kind::Complete, on_host(request));
        let exit = completed + way.host_fs_complete;
        let result = Event {
            offset: bytes,
            bytes: 0,
            ..file
        };
        self.host(exit, Kind::SyscallExit, result);
        let pushed = exit + way.qemu_complete;
        self.host(pushed, Kind::VirtqueuePush, qemu(opaque, 0, 0));
        self.host(
            pushed + 2_000,
            Kind::AcctDone,
            qemu(opaque + COOKIE, stats, 0),
        );
        pushed
    }

    /// QEMU's half of a flush: one fdatasync with a device flush below it.
    pub fn qemu_flush(&mut self, disk: Disk, start: u64, way: Way) -> u64 {
        let (opaque, flush) = (self.address(), self.address());
        let qemu = |object, related| Event {
            object,
            related,
            dev: disk.guest,
            tid: 100,
            ..Event::default()
        };
        let stats = disk.backend + 0x40;
        let acct = Event {
            sub: 3,
            ..qemu(opaque + COOKIE, stats)
        };
        self.host(start, Kind::AcctStart, acct);
        self.host(start + 1_000, Kind::AioFlush, qemu(opaque, disk.backend));
        let enter = start + way.qemu_submit;
        let file = Event {
            sub: op::FDATASYNC,
            object: 5,
            dev: disk.guest,
            inode: disk.inode,
            owner_dev: LOOP0,
            tid: 900 + disk.guest,
            ..Event::default()
        };
        self.host(enter, Kind::SyscallEnter, file);
        let bio = self.address();
        let on_host = |object, flags| Event {
            object,
            flags,
            dev: LOOP0,
            tid: 900 + disk.guest,
            ..Event::default()
        };
        let empty = flags::OP_WRITE | flags::PREFLUSH;
        let queued = enter + way.host_fs_submit;
        self.host(queued, Kind::Queue, on_host(bio, empty));
        self.host(queued + 100, Kind::GetRequest, on_host(bio, empty));
        let issued = queued + way.host_queue;
        self.host(issued, Kind::Issue, on_host(flush, flags::OP_FLUSH));
        let completed = issued + way.device;
        self.host(completed, Kind::Complete, on_host(flush, flags::OP_FLUSH));
        let last = self.address();
        self.host(completed, Kind::Complete, on_host(last, flags::OP_WRITE));
        let exit = completed + way.host_fs_complete;
        self.host(exit, Kind::SyscallExit, file);
        let pushed = exit + way.qemu_complete;
        self.host(pushed, Kind::VirtqueuePush, qemu(opaque, 0));
        self.host(pushed + 2_000, Kind::AcctDone, qemu(opaque + COOKIE, stats));
        pushed
    }

    /// `n` reads and writes at places that do not repeat, one after the other; gives the end.
    pub fn traffic(&mut self, disk: Disk, from: u64, n: u64, way: Way) -> u64 {
        let mut at = from;
        for i in 0..n {
            let operation = if i % 3 == 0 {
                flags::OP_READ
            } else {
                flags::OP_WRITE
            };
            // Between requests a time that does not repeat either.
            at =
                self.bio(disk, at, operation, i * i * 4096, 4096, way) + 50_000 + i * i % 997 * 100;
        }
        at
    }

    /// Puts each bio that a guest has sent so far under an `fsync` of a file. Bios must not have been in flight at once.
    pub fn under_fsyncs(&mut self, disk: Disk, inode: u64) {
        let events = &mut self.guests[disk.guest as usize];
        let call = |ts_ns, kind: Kind| Event {
            ts_ns,
            kind: kind as u8,
            sub: op::FSYNC,
            tid: 500,
            inode,
            owner_dev: disk.dev,
            ..Event::default()
        };
        let around = events
            .iter()
            .filter_map(|event| match event.kind().expect("a kind") {
                Kind::Queue => Some(call(event.ts_ns - 2_000, Kind::SyscallEnter)),
                Kind::Complete => Some(call(event.ts_ns + 3_000, Kind::SyscallExit)),
                _ => None,
            });
        let around: Vec<Event> = around.collect();
        events.extend(around);
        let named = crate::notation::events("1 thread tid=500 tgid=500 name=db");
        events.extend(named);
    }

    pub fn analyze(self, manifest: &Manifest, options: Options) -> Analysis {
        self.analyze_with(Analyzer::new(manifest, options))
    }

    pub fn analyze_with(mut self, mut analyzer: Analyzer) -> Analysis {
        self.host.sort_by_key(|event| event.ts_ns);
        let mut streams: Vec<_> = self
            .guests
            .into_iter()
            .map(|mut events| {
                events.sort_by_key(|event| event.ts_ns);
                events.into_iter()
            })
            .collect();
        let guests = streams
            .iter_mut()
            .enumerate()
            .map(|(side, events)| GuestEvents::new(side, events))
            .collect();
        analyzer.push_streams(self.host, guests);
        analyzer.finish()
    }
}

pub fn chains<'a>(analysis: &'a Analysis, guest: &str, disk: &str) -> &'a Chains {
    analysis
        .chains
        .iter()
        .find(|chains| chains.guest == guest && chains.disk == disk)
        .unwrap_or_else(|| panic!("no chains of {guest}/{disk}: {:?}", analysis.chains))
}

pub fn mean(segments: &[Segment], name: &str) -> f64 {
    let segment = segments.iter().find(|segment| segment.name == name);
    segment.map_or_else(|| panic!("no {name}"), |segment| segment.mean_ns)
}
