//! One line of a script.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nestrace_stamp::{CallLine, OFFSET_BITS, Stamp};

use crate::aio::Aio;
use crate::ring::Ring;
use crate::{mapping, monotonic_ns, queue, wrong};

const PAGE: usize = 4096;

/// Open files by name, and the serial number of the last write.
#[derive(Default)]
pub struct Files {
    open: Mutex<HashMap<String, Arc<OpenFile>>>,
    serial: AtomicU64,
}

/// An open file.
pub struct OpenFile {
    pub file: File,
    inode: u64,
    number: u64,
}

impl OpenFile {
    /// The address in the stamps of what lies at an offset.
    pub const fn address(&self, offset: u64) -> u64 {
        self.number << OFFSET_BITS | offset
    }
}

impl Files {
    fn named(&self, name: &str) -> io::Result<Arc<OpenFile>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = open.get(name).cloned();
        file.ok_or_else(|| wrong(format!("{name} is not open")))
    }

    fn open(&self, name: &str, path: &str, number: u64, flags: &[String]) -> io::Result<()> {
        let has = |flag: &str| flags.iter().any(|word| word == flag);
        let mut custom = 0;
        for (flag, bit) in [
            ("direct", nix::libc::O_DIRECT),
            ("sync", nix::libc::O_SYNC),
            ("dsync", nix::libc::O_DSYNC),
        ] {
            custom |= if has(flag) { bit } else { 0 };
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(has("create"))
            .truncate(false)
            .custom_flags(custom)
            .open(path)?;
        let inode = file.metadata()?.ino();
        let open = OpenFile {
            file,
            inode,
            number,
        };
        let mut all = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name.to_owned(), Arc::new(open));
        Ok(())
    }

    /// The next write's.
    pub fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub offset: u64,
    pub bytes: usize,
}

enum What {
    Open {
        path: String,
        number: u64,
        flags: Vec<String>,
    },
    Write(Range),
    Read(Range),
    MapWrite(Range),
    Queued {
        by_ring: bool,
        writes: bool,
        range: Range,
        count: usize,
        depth: usize,
    },
    Fsync,
    Fdatasync,
    RingFsync,
    Drop,
    Pause(u64),
}

/// What a thread does once.
pub struct Deed {
    /// Line of the script.
    pub step: u32,
    name: String,
    what: What,
}

impl Deed {
    /// `None` for a line that says nothing.
    pub fn parse(step: u32, text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |index: usize| -> Option<u64> { words.get(index)?.parse().ok() };
        let range = || {
            Some(Range {
                offset: number(2)?,
                bytes: usize::try_from(number(3)?).ok()?,
            })
        };
        let what = match *words.first()? {
            "open" => What::Open {
                path: (*words.get(2)?).to_owned(),
                number: number(3)?,
                flags: words.iter().skip(4).map(|&flag| flag.to_owned()).collect(),
            },
            "write" => What::Write(range()?),
            "read" => What::Read(range()?),
            "map-write" => What::MapWrite(range()?),
            word @ ("aio-write" | "aio-read" | "ring-write" | "ring-read") => What::Queued {
                by_ring: word.starts_with("ring"),
                writes: word.ends_with("write"),
                range: range()?,
                count: usize::try_from(number(4)?).ok()?,
                depth: usize::try_from(number(5)?).ok()?,
            },
            "fsync" => What::Fsync,
            "fdatasync" => What::Fdatasync,
            "ring-fsync" => What::RingFsync,
            "drop" => What::Drop,
            "pause" => What::Pause(number(1)?),
            _ => return None,
        };
        let name = words.get(1).map_or_else(String::new, |&n| n.to_owned());
        Some(Self { step, name, what })
    }

    /// Does it; each call gets a line.
    pub fn perform(&self, files: &Files, log: &mut Vec<CallLine>) -> io::Result<()> {
        let named = || files.named(&self.name);
        match &self.what {
            What::Open {
                path,
                number,
                flags,
            } => files.open(&self.name, path, *number, flags)?,
            What::Write(range) => {
                let (file, serial) = (named()?, files.serial());
                let mut buffer = Buffer::new(range.bytes);
                let data = buffer.data();
                Stamp::fill(data, file.address(range.offset), serial);
                let times = timed(|| file.file.write_at(data, range.offset))?;
                log.push(self.line(&file, "write", *range, serial, times));
            }
            What::Read(range) => {
                let file = named()?;
                let mut buffer = Buffer::new(range.bytes);
                let data = buffer.data();
                let times = timed(|| file.file.read_at(data, range.offset))?;
                log.push(self.line(&file, "read", *range, 0, times));
            }
            What::MapWrite(range) => {
                let (file, serial) = (named()?, files.serial());
                let address = file.address(range.offset);
                let times = mapping::write(&file.file, *range, |data| {
                    Stamp::fill(data, address, serial);
                })?;
                log.push(self.line(&file, "msync", *range, serial, times));
            }
            What::Queued {
                by_ring,
                writes,
                range,
                count,
                depth,
            } => {
                let file = named()?;
                let op = if *writes { "write" } else { "read" };
                let (of, many) = ((files, &*file), (*count, *depth));
                let done = if *by_ring {
                    queue::run(Ring::new(&file, *depth)?, of, *writes, *range, many)?
                } else {
                    queue::run(Aio::new(&file, *count, *depth)?, of, *writes, *range, many)?
                };
                log.extend(done.into_iter().map(|done| {
                    let times = (done.result, done.begin_ns, done.end_ns);
                    self.line(&file, op, done.range, done.serial, times)
                }));
            }
            What::Fsync => {
                let file = named()?;
                let times = timed(|| file.file.sync_all().map(|()| 0))?;
                log.push(self.line(&file, "fsync", NO_RANGE, 0, times));
            }
            What::Fdatasync => {
                let file = named()?;
                let times = timed(|| file.file.sync_data().map(|()| 0))?;
                log.push(self.line(&file, "fdatasync", NO_RANGE, 0, times));
            }
            What::RingFsync => {
                let file = named()?;
                let mut ring = Ring::new(&file, 1)?;
                let begin_ns = monotonic_ns()?;
                let result = ring.fsync()?;
                let times = (result, begin_ns, monotonic_ns()?);
                log.push(self.line(&file, "fsync", NO_RANGE, 0, times));
            }
            What::Drop => fs::write("/proc/sys/vm/drop_caches", "1")?,
            What::Pause(ms) => thread::sleep(Duration::from_millis(*ms)),
        }
        Ok(())
    }

    fn line(
        &self,
        file: &OpenFile,
        op: &str,
        range: Range,
        serial: u64,
        (result, begin_ns, end_ns): (i64, u64, u64),
    ) -> CallLine {
        CallLine {
            step: self.step,
            tid: nix::unistd::gettid().as_raw() as u32,
            op: op.to_owned(),
            file: self.name.clone(),
            inode: file.inode,
            offset: range.offset,
            bytes: range.bytes as u64,
            result,
            serial,
            begin_ns,
            end_ns,
        }
    }
}

const NO_RANGE: Range = Range {
    offset: 0,
    bytes: 0,
};

/// What a call returned, and when it began and ended.
fn timed(call: impl FnOnce() -> io::Result<usize>) -> io::Result<(i64, u64, u64)> {
    let begin = monotonic_ns()?;
    let result = call()?;
    let end = monotonic_ns()?;
    Ok((i64::try_from(result).unwrap_or(i64::MAX), begin, end))
}

/// Memory that begins at a page, as O_DIRECT wants it.
pub struct Buffer {
    memory: Vec<u8>,
    front: usize,
    bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Self {
        let memory = vec![0_u8; bytes + PAGE];
        let front = memory.as_ptr().align_offset(PAGE);
        Self {
            memory,
            front,
            bytes,
        }
    }

    pub fn data(&mut self) -> &mut [u8] {
        &mut self.memory[self.front..self.front + self.bytes]
    }
}
