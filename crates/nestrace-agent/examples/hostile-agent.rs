//! An agent that means no good: what a guest under somebody else's control may send to the recorder.
//!
//! ```text
//! hostile-agent PORT-DEVICE|unix:SOCKET MODE SECONDS
//! ```
//!
//! In a guest it sends over its port. On the host it stands for a faster guest: it listens on a socket
//! that the recorder is given (`--agent unix:SOCKET`). It prints how many bytes went out.
//!
//! Modes: `garbage` (bytes of no meaning), `lengths` (frames that name impossible lengths, versions
//! and checksums), `gigabytes` (2.25 GiB of well-formed buffers and texts, as fast as it can), `time-travel` (events of
//! all times, devices and kinds), `names` (facts full of paths, other guests' names and control
//! characters), `buffers` (bytes of thousands of buffers that are no records, records that never end, times that never
//! come).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_abi::{Kind, OwnedRecord, Owner, Record};
use nestrace_blktrace::RECORD_BYTES;
use nestrace_trace::manifest::{GuestDisk, GuestFile, GuestMount, Machine, Probe, Refused};
use nestrace_wire::kernel_buffers::{Translation, put_record, record_bytes};
use nestrace_wire::{
    AgentHello, AgentMessage, End, FrameReader, HEADER_BYTES, HostMessage, Live, Lost, MAGIC,
    VERSION,
};
use nix::time::{ClockId, clock_gettime};

/// Device number of the only disk that this agent names: 254:0.
const DISK: u32 = 254 << 20;
/// How long a recorder is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// What `gigabytes` sends, and what it sends it in.
const MAX_BYTES: u64 = 9 << 28;
const BLOCK_BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [port, mode, seconds] = words.as_slice() else {
        eprintln!("usage: hostile-agent PORT-DEVICE|unix:SOCKET MODE SECONDS");
        return ExitCode::from(2);
    };
    let seconds = seconds.parse().unwrap_or(5);
    match attack(port, mode, Duration::from_secs(seconds)) {
        Ok(sent) => {
            println!("{sent}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hostile-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Waits for the recorder's question and answers in its own way; how many bytes went out.
fn attack(port: &str, mode: &str, time: Duration) -> io::Result<u64> {
    let (mut victim, session) = match port.strip_prefix("unix:") {
        Some(socket) => Victim::at(socket)?,
        None => {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(port)?;
            let mut victim = Victim::new(file);
            let session = victim.wait_for_start(|_| {
                // The other end is not open yet.
                thread::sleep(Duration::from_millis(20));
                Ok(())
            })?;
            (victim, session)
        }
    };
    victim.until = Instant::now() + time;
    match mode {
        "garbage" => victim.garbage(),
        "lengths" => victim.lengths(),
        "gigabytes" => victim.gigabytes(session),
        "time-travel" => victim.time_travel(session),
        "names" => victim.names(session),
        "buffers" => victim.buffers(session),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "unknown mode")),
    }
    .or_else(|error| match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            eprintln!("hostile-agent: the recorder hung up");
            Ok(())
        }
        _ => Err(error),
    })?;
    Ok(victim.sent)
}

struct Victim {
    port: File,
    sent: u64,
    until: Instant,
}

impl Victim {
    fn new(port: File) -> Self {
        Self {
            port,
            sent: 0,
            until: Instant::now() + PATIENCE,
        }
    }

    /// The recorder that connects to this socket, and its session. Recorders leave once and come back.
    fn at(socket: &str) -> io::Result<(Self, u64)> {
        let listener = UnixListener::bind(socket)?;
        let accept = || -> io::Result<File> {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok(File::from(OwnedFd::from(stream)))
        };
        let mut victim = Self::new(accept()?);
        let session = victim.wait_for_start(|port| {
            *port = accept()?;
            Ok(())
        })?;
        Ok((victim, session))
    }

    /// The session that the recorder asks for. `at_end` waits where the other end is not held.
    fn wait_for_start(
        &mut self,
        mut at_end: impl FnMut(&mut File) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut reader = FrameReader::new();
        let mut buffer = [0; 4096];
        while self.has_time() {
            let n = match self.port.read(&mut buffer) {
                Ok(0) => {
                    at_end(&mut self.port)?;
                    continue;
                }
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut bytes = &buffer[..n];
            while !bytes.is_empty() {
                let taken = reader.feed(bytes);
                bytes = &bytes[taken..];
                while let Ok(Some(frame)) = reader.next_frame() {
                    if let Ok(Some(HostMessage::Start(start))) = HostMessage::parse(frame) {
                        return Ok(start.session);
                    }
                }
            }
        }
        Err(ErrorKind::TimedOut.into())
    }

    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// Writes everything unless time runs out or the recorder hangs up.
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && self.has_time() {
            match self.port.write(bytes) {
                Ok(n) => {
                    self.sent += n as u64;
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn say(&mut self, message: &AgentMessage<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        message.encode_to(&mut bytes);
        self.send(&bytes)
    }

    fn garbage(&mut self) -> io::Result<()> {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut block = vec![0; 64 << 10];
        while self.has_time() {
            for bytes in block.chunks_mut(8) {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            // What looks like the beginning of a frame, now and then.
            block[1000..1004].copy_from_slice(&MAGIC.to_le_bytes());
            self.send(&block)?;
        }
        Ok(())
    }

    fn lengths(&mut self) -> io::Result<()> {
        while self.has_time() {
            for (version, length) in [(VERSION, u32::MAX), (VERSION, 1 << 20), (u16::MAX, 16)] {
                let mut frame = Vec::with_capacity(HEADER_BYTES);
                frame.extend(MAGIC.to_le_bytes());
                frame.extend(version.to_le_bytes());
                frame.extend(3_u16.to_le_bytes());
                frame.extend(length.to_le_bytes());
                frame.extend(0_u32.to_le_bytes());
                frame.extend([0xaa; 64]);
                self.send(&frame)?;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// An agent's beginning as it should be, with the buffers of its probes or of blktrace.
    fn begin(&mut self, session: u64, translation: Option<Translation>) -> io::Result<()> {
        self.say(&AgentMessage::Hello(Box::new(hello(session)?)))?;
        self.say(&AgentMessage::Live(Live {
            mono_ns: monotonic_ns()?,
            translation,
            ..Live::default()
        }))
    }

    /// Made once and sent again and again, so that making it is not what takes the time. Some of it is
    /// good, some of a device that was never named; nothing of it is a reason to hang up.
    fn gigabytes(&mut self, session: u64) -> io::Result<()> {
        self.begin(session, Some(Translation::default()))?;
        let now_ns = monotonic_ns()?;
        let mut word = 1_u64;
        let mut block = Vec::new();
        for (dev, n_records) in [(DISK, 1024), (7 << 20, 4096)] {
            let mut bytes = Vec::new();
            for n in 0..n_records {
                word = word
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(n | 1);
                put(record(Kind::Queue, dev, now_ns, word), &mut bytes);
            }
            put_buffer(&bytes, &mut block);
        }
        let text = "x".repeat(4 << 10);
        while block.len() < BLOCK_BYTES {
            AgentMessage::Notice(text.clone()).encode_to(&mut block);
        }
        while self.has_time() && self.sent < MAX_BYTES {
            self.send(&block)?;
        }
        Ok(())
    }

    fn time_travel(&mut self, session: u64) -> io::Result<()> {
        self.begin(session, Some(Translation::default()))?;
        while self.has_time() {
            let now_ns = monotonic_ns()?;
            let hour_ns = 3_600_000_000_000;
            let times = [now_ns, 0, now_ns + hour_ns, u64::MAX, 1, now_ns];
            let events = times
                .iter()
                .map(|&ts_ns| record(Kind::Issue, DISK, ts_ns, ts_ns));
            let elsewhere = [1, u32::MAX, 7 << 20].map(|dev| record(Kind::Queue, dev, now_ns, 1));
            let host =
                [Kind::AcctStart, Kind::VirtqueuePush].map(|kind| record(kind, DISK, now_ns, 1));
            let unknown = Record {
                kind: 250,
                ..record(Kind::Queue, DISK, now_ns, 1)
            };
            let mut bytes = Vec::new();
            let all = events.chain(elsewhere).chain(host).chain([unknown]);
            all.for_each(|record| put(record, &mut bytes));
            let mut frames = Vec::new();
            put_buffer(&bytes, &mut frames);
            self.send(&frames)?;
            for mono_ns in times {
                self.say(&AgentMessage::Loss(Lost {
                    source: (mono_ns % 7) as u32,
                    total: mono_ns,
                    mono_ns,
                }))?;
            }
            self.say(&AgentMessage::Pong {
                token: now_ns,
                guest_ns: u64::MAX,
            })?;
            thread::sleep(Duration::from_millis(20));
        }
        self.say(&AgentMessage::End(End {
            mono_ns: u64::MAX,
            reason: "\u{1b}[31mthe end".to_owned(),
        }))
    }

    fn buffers(&mut self, session: u64) -> io::Result<()> {
        self.begin(session, None)?;
        let now_ns = monotonic_ns()?;
        // A record of blktrace that is never whole, and one of a time that never comes.
        let record = |time_ns: u64, payload_len: u16| {
            let mut record = vec![0; RECORD_BYTES];
            record[..4].copy_from_slice(&0x6561_7407_u32.to_le_bytes());
            record[8..16].copy_from_slice(&time_ns.to_le_bytes());
            record[28..32].copy_from_slice(&7_u32.to_le_bytes());
            record[36..40].copy_from_slice(&DISK.to_le_bytes());
            record[46..].copy_from_slice(&payload_len.to_le_bytes());
            record
        };
        let begun = [record(now_ns, u16::MAX), vec![0; 40_000]].concat();
        let late = record(u64::MAX, 0).repeat(5000);
        let rubbish = vec![0xa5; 60_000];
        let mut number = 0_u32;
        while self.has_time() {
            for bytes in [&begun, &late, &rubbish] {
                number = number.wrapping_mul(2_654_435_761).wrapping_add(1);
                self.say(&AgentMessage::Buffer { number, bytes })?;
            }
            self.say(&AgentMessage::Incomplete)?;
            self.say(&AgentMessage::Until(now_ns.wrapping_add(u64::from(number))))?;
        }
        Ok(())
    }

    fn names(&mut self, session: u64) -> io::Result<()> {
        let path = "../../../../tmp/nestrace-hostile";
        let nasty = format!("{path}\u{0}\u{1b}]0;owned\u{7}\n{}", "y".repeat(1 << 10));
        let mut facts = hello(session)?;
        facts.machine.hostname = nasty.clone();
        facts.machine.boot_id = path.to_owned();
        facts.backend = path.to_owned();
        facts.backend_reason.clone_from(&nasty);
        let disk = |n: u32| GuestDisk {
            name: format!("{path}-{n}"),
            dev: n,
            serial: nasty.clone(),
            sysfs_path: format!("/sys/{path}"),
            ..GuestDisk::default()
        };
        facts.disks.extend((0..400).map(disk));
        let mount = |n: u32| GuestMount {
            disk: path.to_owned(),
            dev: n,
            mount_point: format!("/{path}"),
            ..GuestMount::default()
        };
        facts.mounts.extend((0..400).map(mount));
        facts.disks.truncate(100);
        facts.mounts.truncate(100);
        self.say(&AgentMessage::Hello(Box::new(facts)))?;
        let refused = Refused {
            name: nasty.clone(),
            guest: Some("another-guest".to_owned()),
            ..Refused::default()
        };
        self.say(&AgentMessage::Refused(vec![refused; 50]))?;
        let probe = Probe {
            name: nasty.clone(),
            guest: Some("another-guest".to_owned()),
            ..Probe::default()
        };
        self.say(&AgentMessage::Live(Live {
            mono_ns: monotonic_ns()?,
            probes: vec![probe; 50],
            ..Live::default()
        }))?;
        let mut inode = 0;
        while self.has_time() {
            let file = |n: u64| GuestFile {
                inode: inode + n,
                path: format!("/{nasty}"),
                ..GuestFile::default()
            };
            self.say(&AgentMessage::Files((0..100).map(file).collect()))?;
            inode += 100;
            self.say(&AgentMessage::Notice(nasty.clone()))?;
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Plausible facts.
fn hello(session: u64) -> io::Result<AgentHello> {
    Ok(AgentHello {
        protocol: VERSION,
        session,
        agent_version: "0.0.0".to_owned(),
        backend: "ebpf".to_owned(),
        machine: Machine {
            boot_id: "hostile".to_owned(),
            cpus: 1,
            page_size: 4096,
            ..Machine::default()
        },
        unix_ns: 1,
        mono_ns: monotonic_ns()?,
        disks: vec![GuestDisk {
            name: "vda".to_owned(),
            dev: DISK,
            size: 48 << 20,
            ..GuestDisk::default()
        }],
        ..AgentHello::default()
    })
}

fn record(kind: Kind, dev: u32, ts_ns: u64, object: u64) -> Record {
    Record {
        ts_ns,
        kind: kind as u8,
        dev,
        object,
        related: object.rotate_left(17),
        offset: object.rotate_left(31) & !511,
        bytes: 4096,
        flags: 1,
        ..Record::default()
    }
}

fn put(record: Record, to: &mut Vec<u8>) {
    let owner = Owner::default();
    put_record(&record_bytes(&OwnedRecord { record, owner }), to);
}

/// The frames of a buffer's bytes that are complete.
fn put_buffer(bytes: &[u8], to: &mut Vec<u8>) {
    AgentMessage::Buffer { number: 0, bytes }.encode_to(to);
    AgentMessage::Until(u64::MAX).encode_to(to);
}

fn monotonic_ns() -> io::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
