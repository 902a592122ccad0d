//! Writes every block of a disk in random order, some of them again and again, each write stamped
//! with its address and serial number; see [`nestrace_stamp`].
//!
//! ```text
//! stamp-writer device=/dev/vda log=/tmp/stamps.csv bytes=33554432 [block=4096] [threads=4]
//!              [rewrites=N] [hot=BLOCKS] [overlap=1] [flush-every=N] [seed=N]
//! ```
//!
//! Half of the rewrites go to the first `hot` blocks, the others anywhere. Without `overlap` no
//! two writes to a block are in flight at once. Each thread has one write in flight.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use nestrace_stamp::{Deed, SECTOR_BYTES, Stamp, Write};
use nix::time::{ClockId, clock_gettime};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Where a buffer begins in a page; O_DIRECT wants it at a sector. Not at 0: buffers of two threads
/// that fill pages may lie side by side in the memory of the machine. If the kernel merges their writes, they have
/// one piece of memory, and only the first stamp is at its front.
const FRONT: usize = SECTOR_BYTES;

fn main() -> ExitCode {
    let result = Plan::from_words(std::env::args().skip(1)).and_then(|plan| run(&plan));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stamp-writer: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Plan {
    device: String,
    log: String,
    bytes: u64,
    block: u64,
    threads: u64,
    rewrites: u64,
    hot: u64,
    overlap: bool,
    flush_every: u64,
    seed: u64,
}

impl Plan {
    fn from_words(words: impl Iterator<Item = String>) -> io::Result<Self> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let mut given = HashMap::new();
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| wrong(format!("{word}: expected KEY=VALUE")))?;
            given.insert(key.to_owned(), value.to_owned());
        }
        let text = |key: &str| {
            let value = given.get(key).cloned();
            value.ok_or_else(|| wrong(format!("{key}=… is missing")))
        };
        let number = |key: &str, default: Option<u64>| match (given.get(key), default) {
            (Some(value), _) => value
                .parse()
                .map_err(|_| wrong(format!("{key}={value}: expected a number"))),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(wrong(format!("{key}=… is missing"))),
        };
        Ok(Self {
            device: text("device")?,
            log: text("log")?,
            bytes: number("bytes", None)?,
            block: number("block", Some(4096))?.max(512),
            threads: number("threads", Some(4))?.max(1),
            rewrites: number("rewrites", Some(0))?,
            hot: number("hot", Some(4))?.max(1),
            overlap: number("overlap", Some(0))? != 0,
            flush_every: number("flush-every", Some(0))?,
            seed: number("seed", Some(1))?,
        })
    }

    /// Blocks in the order in which they are written.
    fn order(&self) -> Vec<u64> {
        let blocks = self.bytes / self.block;
        let mut random = Random(self.seed);
        let mut order: Vec<u64> = (0..blocks).collect();
        for n in 0..self.rewrites {
            let among = if n % 2 == 0 {
                self.hot.min(blocks)
            } else {
                blocks
            };
            order.push(random.below(among));
        }
        for last in (1..order.len()).rev() {
            let other = random.below(last as u64 + 1) as usize;
            order.swap(last, other);
        }
        order
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % n.max(1)
    }
}

/// What is still to be written, in reverse order, and what is being written.
struct Queue {
    left: Vec<u64>,
    in_flight: HashSet<u64>,
    last_serial: u64,
}

impl Queue {
    /// The next block that may be written now.
    fn take(&mut self, overlap: bool) -> Option<(u64, u64)> {
        let free = |block: &u64| overlap || !self.in_flight.contains(block);
        let index = self.left.iter().rposition(free)?;
        let block = self.left.remove(index);
        self.in_flight.insert(block);
        self.last_serial += 1;
        Some((self.last_serial, block))
    }
}

fn run(plan: &Plan) -> io::Result<()> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_DIRECT)
        .open(&plan.device)?;
    let mut left = plan.order();
    left.reverse();
    let queue = Mutex::new(Queue {
        left,
        in_flight: HashSet::new(),
        last_serial: 0,
    });
    let freed = Condvar::new();
    let work = || work(plan, &device, &queue, &freed);
    let logs: Vec<io::Result<Vec<Write>>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads).map(|_| scope.spawn(work)).collect();
        let died = |_| Err(io::Error::other("a thread died"));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(died))
            .collect()
    });
    let mut file = BufWriter::new(File::create(&plan.log)?);
    for log in logs {
        for write in log? {
            writeln!(file, "{write}")?;
        }
    }
    file.flush()
}

/// One thread's writes.
fn work(
    plan: &Plan,
    device: &File,
    queue: &Mutex<Queue>,
    freed: &Condvar,
) -> io::Result<Vec<Write>> {
    let tid = nix::unistd::gettid().as_raw() as u32;
    let mut memory = vec![0_u8; PAGE + FRONT + plan.block as usize];
    let front = memory.as_ptr().align_offset(PAGE) + FRONT;
    let buffer = &mut memory[front..front + plan.block as usize];
    let mut log = Vec::new();
    loop {
        let mut locked = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (serial, block) = loop {
            match locked.take(plan.overlap) {
                Some(next) => break next,
                None if locked.left.is_empty() => return Ok(log),
                // All that is left is in flight already.
                None => locked = freed.wait(locked).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(locked);
        let address = block * plan.block;
        Stamp::fill(buffer, address, serial);
        let (submitted_ns, completed_ns) = timed(|| device.write_all_at(buffer, address))?;
        let mut locked = queue.lock().unwrap_or_else(PoisonError::into_inner);
        locked.in_flight.remove(&block);
        drop(locked);
        freed.notify_all();
        log.push(Write {
            serial,
            deed: Deed::Write,
            tid,
            address,
            bytes: plan.block,
            submitted_ns,
            completed_ns,
        });
        if plan.flush_every > 0 && serial.is_multiple_of(plan.flush_every) {
            let (submitted_ns, completed_ns) = timed(|| device.sync_data())?;
            log.push(Write {
                serial: 0,
                deed: Deed::Flush,
                tid,
                address: 0,
                bytes: 0,
                submitted_ns,
                completed_ns,
            });
        }
    }
}

/// When `deed` began and ended.
fn timed(deed: impl FnOnce() -> io::Result<()>) -> io::Result<(u64, u64)> {
    let begin = monotonic_ns()?;
    deed()?;
    Ok((begin, monotonic_ns()?))
}

fn monotonic_ns() -> io::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
