//! Direct I/O is linked by its control block: every bio of the image names the call, the iocb or
//! the io_uring request that it came from, and every bio of a loop device's file the request on the
//! loop device. Read from the recording itself, because the analysis only has the sums.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use nestrace_rig::stack::{Aio, Stack};
use nestrace_trace::flags::{OP_READ, OP_WRITE, OWNER_DIRECT, op};
use nestrace_trace::{Event, Kind, StreamReader, bundle, device_number};
use xtask::case::Case;

/// A block of the host's file systems.
const EDGE_BYTES: u64 = 4096;

/// Every event of a recording's host stream, in the order of time.
pub fn host_events(recording: &Path) -> anyhow::Result<Vec<Event>> {
    stream_events(recording, bundle::HOST_STREAM)
}

/// Every event of a recording's stream, in the order of time.
pub fn stream_events(recording: &Path, stream: &str) -> anyhow::Result<Vec<Event>> {
    let open = |name: &str| {
        let path = recording.join(name);
        File::open(&path)
            .map(BufReader::new)
            .with_context(|| format!("open {}", path.display()))
    };
    let index = open(&bundle::index_of(stream))?;
    let mut reader = StreamReader::new(open(stream)?, Some(index))?;
    let mut events: Vec<Event> = reader.events().collect();
    anyhow::ensure!(
        reader.diagnostics().is_empty(),
        "read the stream: {:?}",
        reader.diagnostics()
    );
    events.sort_by_key(|event| event.ts_ns);
    Ok(events)
}

/// What is looked at: a disk's image and the device under its file system.
pub struct Subject<'a> {
    /// The image file.
    pub image: &'a Path,
    /// The kernel's name of the device.
    pub device: &'a str,
    /// The stack.
    pub stack: &'a Stack,
}

/// Bytes of an image's bios at Q, by how they are owned.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageBytes {
    /// Written by direct I/O.
    pub direct_written: u64,
}

/// The image's bios on the device under its file system: each names its control block, but for the
/// edges of holes that are no multiple of the file system's block, which it zeroes through the
/// page cache.
pub fn image_bios(
    case: &mut Case,
    events: &[Event],
    subject: &Subject<'_>,
) -> anyhow::Result<ImageBytes> {
    let file = FileId::of(subject.image)?;
    let dev = device_number(subject.device)?;
    let is_ours = |event: &&Event| {
        event.kind() == Some(Kind::Queue) && event.dev == dev && file.owns(event) && event.bytes > 0
    };
    let (direct, paged): (Vec<&Event>, Vec<&Event>) = events
        .iter()
        .filter(is_ours)
        .partition(|bio| bio.sub == OWNER_DIRECT && bio.iocb != 0);
    case.holds("direct I/O: bios of the image", !direct.is_empty(), "none");
    let is_hole = |event: &&Event| {
        event.kind() == Some(Kind::SyscallEnter) && event.sub == op::FALLOCATE && file.owns(event)
    };
    let holes = events.iter().filter(is_hole).count();
    // Two edges, each of one block that is read and written.
    let few = paged.len() <= 4 * holes && paged.iter().all(|bio| bio.bytes <= EDGE_BYTES);
    let figures = format!("{} with {holes} holes made", paged.len());
    case.holds(
        "direct I/O: bios of the image without a control block",
        few,
        &figures,
    );
    let linked = submitted_before(events, &direct, subject.stack.disk.aio);
    case.equal(
        "direct I/O: bios whose origin was submitted before",
        linked,
        direct.len(),
    );
    case.figure(format!(
        "{linked} bios of the image linked by control block, {} edges",
        paged.len()
    ));
    let written = direct
        .iter()
        .filter(|bio| bio.op() == OP_WRITE)
        .map(|bio| bio.bytes);
    Ok(ImageBytes {
        direct_written: written.sum(),
    })
}

/// How many bios name a submission that was seen before them.
fn submitted_before(events: &[Event], bios: &[&Event], aio: Aio) -> usize {
    let kind = match aio {
        Aio::Native => Kind::AioSubmit,
        Aio::IoUring => Kind::UringSubmit,
        // A thread's kiocb lies on its stack; iomap is where it is seen first.
        Aio::Threads => Kind::DioBegin,
    };
    let mut first_seen: HashMap<u64, u64> = HashMap::new();
    for event in events.iter().filter(|event| event.kind() == Some(kind)) {
        first_seen.entry(event.object).or_insert(event.ts_ns);
    }
    let seen = |bio: &&&Event| {
        first_seen
            .get(&bio.origin)
            .is_some_and(|at| *at <= bio.ts_ns)
    };
    bios.iter().filter(seen).count()
}

/// With Linux AIO every control block's bytes reach Q under its own name, neither more nor fewer.
/// Writes only: a read of a hole needs no bio.
pub fn aio_writes_are_whole(case: &mut Case, events: &[Event], image: &Path) -> anyhow::Result<()> {
    let file = FileId::of(image)?;
    let mut left: HashMap<u64, i128> = HashMap::new();
    let (mut submitted, mut uneven) = (0_u64, 0_u64);
    for event in events.iter().filter(|event| file.owns(event)) {
        match event.kind() {
            Some(Kind::AioSubmit) if event.sub == op::WRITE => {
                let before = left.insert(event.object, i128::from(event.bytes));
                uneven += u64::from(before.is_some_and(|left| left != 0));
                submitted += 1;
            }
            Some(Kind::Queue) if event.sub == OWNER_DIRECT && event.op() == OP_WRITE => {
                *left.entry(event.origin).or_default() -= i128::from(event.bytes);
            }
            _ => {}
        }
    }
    uneven += left.values().filter(|left| **left != 0).count() as u64;
    case.holds("aio: writes submitted", submitted > 0, "none");
    case.equal(
        "aio: writes whose bytes at Q differ from their control block's",
        uneven,
        0,
    );
    Ok(())
}

/// The bios of a loop device's file each lie within the life of the request that they name, and
/// every request with data has one (reads of holes excepted).
pub fn loop_requests(
    case: &mut Case,
    events: &[Event],
    backing: &Path,
    device: &str,
) -> anyhow::Result<()> {
    let file = FileId::of(backing)?;
    loop_requests_of(case, events, &file, device_number(device)?, device);
    Ok(())
}

/// The same for a file and a device of another machine, by their numbers.
pub fn loop_requests_of(case: &mut Case, events: &[Event], file: &FileId, dev: u32, device: &str) {
    // Request → whether it is in flight and needs a bio that has not come yet.
    let mut in_flight: HashMap<u64, bool> = HashMap::new();
    let (mut linked, mut stray, mut without) = (0_u64, 0_u64, 0_u64);
    for event in events {
        match event.kind() {
            Some(Kind::Issue) if event.dev == dev && [OP_READ, OP_WRITE].contains(&event.op()) => {
                in_flight.insert(event.object, event.op() == OP_WRITE && event.bytes > 0);
            }
            Some(Kind::Complete) if event.dev == dev && event.related == 0 => {
                without += u64::from(in_flight.remove(&event.object) == Some(true));
            }
            Some(Kind::Queue) if event.sub == OWNER_DIRECT && file.owns(event) => {
                match in_flight.get_mut(&event.origin) {
                    Some(waits) => {
                        *waits = false;
                        linked += 1;
                    }
                    None => stray += 1,
                }
            }
            _ => {}
        }
    }
    case.holds(
        "loop: bios linked to a request of the loop device",
        linked > 0,
        "none",
    );
    case.equal("loop: bios without such a request", stray, 0);
    case.equal("loop: writes without a bio", without, 0);
    case.figure(format!("{linked} bios linked to {device}'s requests"));
}

/// Inode and device of a file as the kernel has them (not on btrfs, where `stat` hides the device).
#[derive(Clone, Copy, Debug)]
pub struct FileId {
    /// Inode number.
    pub inode: u64,
    /// Device of the super block.
    pub dev: u32,
}

impl FileId {
    /// The numbers of a file of this machine.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        let meta = path
            .metadata()
            .with_context(|| format!("look at {}", path.display()))?;
        let number = meta.dev();
        let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        Ok(Self {
            inode: meta.ino(),
            dev: device_number::of(major as u32, minor as u32),
        })
    }

    /// Whether an event is about this file.
    pub fn owns(&self, event: &Event) -> bool {
        event.inode == self.inode && event.owner_dev == self.dev
    }
}

/// The kernel's number of a block device, as events have it.
pub fn device_number(name: &str) -> anyhow::Result<u32> {
    let path = format!("/sys/block/{name}/dev");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    device_number::parse(&text).with_context(|| format!("understand {path}: {text}"))
}
