//! Prints what writing and reading a stream costs: ns per event, bytes per event.
//!
//! ```text
//! cargo run --release -p nestrace-trace --example write_speed [EVENTS]
//! ```
//!
//! Two workloads of 4 KiB random reads, depth 32, at 50,000 per second: `block`, fio on a loop
//! device (two block layers), and `guest`, the same from a guest with io_uring and direct I/O
//! (QEMU, file and block events). Bios, requests and control blocks are recycled as the kernel does;
//! the events stand in the order in which two per-processor rings are drained every 10 ms.

use std::io::{self, Cursor, Write};
use std::time::{Duration, Instant};

use nestrace_trace::order::TimeOrdered;
use nestrace_trace::{Batch, Event, Kind, StreamReader, StreamWriter, end_io, flags};

fn main() {
    let n = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(4_000_000);
    println!(
        "{:8} {:>10} {:>10} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "", "events", "B/event", "push ns", "flush ms", "columns ns", "events ns", "ordered ns"
    );
    for (name, guest) in [("block", false), ("guest", true)] {
        measure(name, &workload(n, guest));
    }
}

fn measure(name: &str, events: &[Event]) {
    let n = events.len() as f64;
    let mut writer = StreamWriter::new(Vec::new(), Vec::new()).expect("memory takes everything");
    let start = Instant::now();
    for event in events {
        writer.push(event).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything");
    let write = start.elapsed();
    let flush = flush_time(events);
    let (stream, index) = writer.into_inner();
    let bytes = (stream.len() + index.len()) as f64;

    let start = Instant::now();
    let mut reader = StreamReader::new(Cursor::new(&stream), Some(&index[..])).expect("own stream");
    let mut batch = Batch::default();
    let mut rows = 0;
    while reader.read_into(&mut batch) {
        rows += batch.columns().ts_ns.len();
    }
    let columns = start.elapsed();
    assert_eq!(rows, events.len());

    let mut reader = StreamReader::new(Cursor::new(&stream), Some(&index[..])).expect("own stream");
    let start = Instant::now();
    let sum = reader
        .events()
        .fold(0u64, |sum, event| sum.wrapping_add(event.object));
    let rows_time = start.elapsed();
    assert_eq!(
        sum,
        events
            .iter()
            .fold(0u64, |sum, event| sum.wrapping_add(event.object))
    );

    let mut reader = StreamReader::new(Cursor::new(&stream), Some(&index[..])).expect("own stream");
    let start = Instant::now();
    let mut ordered = TimeOrdered::new(reader.events());
    let mut last = 0;
    for event in ordered.by_ref() {
        assert!(event.ts_ns >= last);
        last = event.ts_ns;
    }
    assert_eq!(ordered.late(), 0);
    let ordered = start.elapsed();

    let per_event = |time: Duration| time.as_nanos() as f64 / n;
    println!(
        "{name:8} {:>10} {:>10.2} {:>12.1} {:>12.2} {:>12.1} {:>12.1} {:>12.1}",
        events.len(),
        bytes / n,
        per_event(write),
        flush.as_secs_f64() * 1e3,
        per_event(columns),
        per_event(rows_time),
        per_event(ordered),
    );
    if std::env::args().nth(2).is_some() {
        io::stderr().write_all(&stream).expect("stderr");
    }
}

/// The time that a batch of just under 64 Ki rows takes to compress and write.
fn flush_time(events: &[Event]) -> Duration {
    let mut writer = StreamWriter::new(io::sink(), io::sink()).expect("a sink takes everything");
    let mut best = Duration::MAX;
    for batch in events.chunks_exact(65_000).take(10) {
        for event in batch {
            writer.push(event).expect("a sink takes everything");
        }
        let start = Instant::now();
        writer.flush_batch().expect("a sink takes everything");
        best = best.min(start.elapsed());
    }
    best
}

/// A small generator (xorshift), so that every run has the same events.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Nanoseconds around `mean`, with a tail.
    fn time(&mut self, mean: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        mean / 3 + ((-(1.0 - unit).ln()) * mean as f64 * 0.7) as u64
    }
}

/// One direct read of 4 KiB: what its events have in common.
struct Io {
    slot: u64,
    offset: u64,
    cgroup: u64,
}

const LOOP: u32 = 7 << 20;
const DISK: u32 = 254 << 20;

fn workload(n: usize, guest: bool) -> Vec<Event> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let slots: Vec<u64> = (0..64).map(|_| random.below(1 << 20) << 8).collect();
    let mut events = Vec::with_capacity(n + 64);
    let mut now = 12_345_678_901_234;
    let mut io_number = 0;
    while events.len() < n {
        now += random.time(20_000);
        let slot = slots[io_number % slots.len()];
        let io = Io {
            slot,
            offset: random.below(1 << 18) << 12,
            cgroup: 4237,
        };
        one_io(&mut events, &mut random, now, &io, guest);
        io_number += 1;
    }
    events.sort_by_key(|event| event.ts_ns);
    // Each ring is drained in turn every 10 ms.
    events.sort_by_key(|event| (event.ts_ns / 10_000_000, event.cpu));
    events.truncate(n);
    events
}

fn one_io(events: &mut Vec<Event>, random: &mut Random, start: u64, io: &Io, guest: bool) {
    let cpu = random.below(2) as u16;
    let mut now = start;
    let kiocb = 0xffff_9e8a_4000_0000 + io.slot * 4;
    let mut add = |random: &mut Random, mean, tid, event: Event| {
        now += random.time(mean);
        events.push(Event {
            ts_ns: now,
            cpu,
            tid,
            ..event
        });
    };
    let kind = |kind: Kind| Event {
        kind: kind as u8,
        ..Event::default()
    };
    let file = Event {
        offset: io.offset,
        bytes: 4096,
        inode: 131_077,
        owner_dev: DISK,
        origin: kiocb,
        ..Event::default()
    };
    if guest {
        let cookie = 0x7f3a_1000_0000 + io.slot * 2;
        let qemu = Event {
            object: cookie,
            related: 0x55d0_1234_5678,
            bytes: 4096,
            ..Event::default()
        };
        add(
            random,
            500,
            4711,
            Event {
                kind: Kind::AcctStart as u8,
                sub: 1,
                ..qemu
            },
        );
        let aio = Event {
            object: cookie - 216,
            related: 0x55d0_1234_0000,
            offset: io.offset,
            ..qemu
        };
        add(
            random,
            900,
            4711,
            Event {
                kind: Kind::AioPreadv as u8,
                ..aio
            },
        );
        let uring = Event {
            object: kiocb,
            related: cookie + 64,
            sub: flags::op::READ,
            ..file
        };
        add(
            random,
            9_000,
            4711,
            Event {
                kind: Kind::UringSubmit as u8,
                ..uring
            },
        );
        add(
            random,
            1_500,
            4711,
            Event {
                kind: Kind::DioBegin as u8,
                object: kiocb,
                iocb: kiocb,
                ..file
            },
        );
    }
    for (dev, depth) in [(LOOP, 0u64), (DISK, 1)] {
        let tid = if depth == 0 { 4711 } else { 901 };
        let bio = 0xffff_9e8a_0000_0000 + io.slot + depth * 0x4000_0000;
        let request = 0xffff_9e8a_8000_0000 + (io.slot >> 8 & 63) * 0x1c0 + depth * 0x10_0000;
        let place = Event {
            dev,
            offset: io.offset + (depth << 30),
            bytes: 4096,
            ..Event::default()
        };
        let owned = Event {
            object: bio,
            related: 0xffff_ea00_0400_0000 + (io.slot >> 2),
            sub: flags::OWNER_DIRECT,
            inode: 131_077,
            file_offset: io.offset,
            owner_dev: DISK,
            iocb: kiocb,
            origin: kiocb,
            end_io: end_io::IOMAP_DIO,
            cgroup: io.cgroup,
            flags: flags::OP_READ | flags::SYNC | flags::IDLE,
            ..place
        };
        let request = Event {
            object: request,
            related: bio,
            flags: owned.flags,
            ..place
        };
        add(
            random,
            1_200,
            tid,
            Event {
                kind: Kind::Queue as u8,
                ..owned
            },
        );
        add(
            random,
            400,
            tid,
            Event {
                object: bio,
                dev,
                ..kind(Kind::GetRequest)
            },
        );
        if depth == 0 {
            add(
                random,
                200,
                tid,
                Event {
                    dev,
                    ..kind(Kind::Plug)
                },
            );
        }
        add(
            random,
            1_000,
            tid,
            Event {
                kind: Kind::Issue as u8,
                ..request
            },
        );
    }
    for (dev, depth) in [(DISK, 1u64), (LOOP, 0)] {
        let request = 0xffff_9e8a_8000_0000 + (io.slot >> 8 & 63) * 0x1c0 + depth * 0x10_0000;
        let place = Event {
            object: request,
            offset: io.offset + (depth << 30),
            bytes: 4096,
            dev,
            ..kind(Kind::Complete)
        };
        let mean = if depth == 1 { 90_000 } else { 2_000 };
        add(
            random,
            mean,
            0,
            Event {
                flags: flags::SYNC | flags::IDLE,
                ..place
            },
        );
    }
    if guest {
        add(
            random,
            900,
            0,
            Event {
                kind: Kind::DioComplete as u8,
                object: kiocb,
                ..file
            },
        );
        let done = Event {
            object: kiocb,
            offset: 4096,
            ..kind(Kind::UringComplete)
        };
        add(random, 700, 4711, done);
        let cookie = 0x7f3a_1000_0000 + io.slot * 2;
        let push = Event {
            object: cookie - 216,
            related: 0x7f3a_0000_1000,
            ..kind(Kind::VirtqueuePush)
        };
        add(random, 8_000, 4711, push);
        let done = Event {
            object: cookie,
            related: 0x55d0_1234_5678,
            ..kind(Kind::AcctDone)
        };
        add(random, 700, 4711, done);
    }
}
