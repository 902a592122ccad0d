//! The connection to an agent: made, lost, made again.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_probes::clock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Shared;
use super::neighbours::Neighbours;
use crate::agent_address::Address;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_millis(300);
/// How long to wait before it is tried again.
const RECONNECT: Duration = Duration::from_secs(1);
/// The same after an agent was given up.
const GIVEN_UP: Duration = Duration::from_secs(30);
/// How often it is looked whether somebody else wants the channel, and how often somebody has to be there: when a connection
/// has just been made, an earlier one may still be there.
const LOOK: Duration = Duration::from_millis(400);
const LOOKS: u32 = 2;
/// Bytes that are read at once, and of a second: an agent of hundreds of disks sends half of that.
const CHUNK: usize = 64 << 10;
const MAX_BYTES_PER_S: usize = 2 << 20;

const BUSY: &str = "another program is connected to its channel";

/// A channel, in a thread of its own.
pub(super) struct Channel {
    address: Address,
    shared: Arc<Shared>,
    neighbours: Arc<Neighbours>,
    port: Option<File>,
    out: Vec<u8>,
    next_connect: Instant,
    next_look: Instant,
    n_looks: u32,
    /// The second that runs, and bytes that were read in it.
    second: Instant,
    n_bytes: usize,
}

impl Channel {
    pub(super) fn new(address: Address, shared: Arc<Shared>, neighbours: Arc<Neighbours>) -> Self {
        let now = Instant::now();
        Self {
            address,
            shared,
            neighbours,
            port: None,
            out: Vec::new(),
            next_connect: now,
            next_look: now,
            n_looks: 0,
            second: now,
            n_bytes: 0,
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.leave.load(Ordering::Relaxed) {
            self.step();
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        if self.port.is_none() {
            if now < self.next_connect {
                thread::sleep(LOOK.min(self.next_connect - now));
                return;
            }
            self.connect(now);
            return;
        }
        if now >= self.next_look {
            self.next_look = now + LOOK;
            if self.is_wanted_by_another() {
                self.lose(BUSY);
                return;
            }
        }
        let question = self.shared.lock().question(clock::monotonic_ns());
        // A question that still waits is asked once only.
        if self.out.is_empty() {
            self.out = question;
        }
        if let Err(error) = self.exchange() {
            self.lose(&error.to_string());
        }
    }

    fn connect(&mut self, now: Instant) {
        self.next_connect = now + RECONNECT;
        // Another program has the channel: a recording, or another `top` or `serve`.
        if self.n_connections() > 0 {
            self.lose(BUSY);
            return;
        }
        match self.address.connect(CONNECT) {
            Ok(port) => {
                self.port = Some(port);
                self.out.clear();
                self.next_look = now + LOOK;
                self.n_looks = 0;
                self.shared.lock().connected(clock::monotonic_ns());
            }
            Err(error) => self.lose(&error.to_string()),
        }
    }

    /// A recording's need comes first: it waits until the channel is free, and gives up after a while.
    fn is_wanted_by_another(&mut self) -> bool {
        let is_wanted = self.n_connections() > 1;
        self.n_looks = if is_wanted { self.n_looks + 1 } else { 0 };
        self.n_looks >= LOOKS
    }

    /// Of a vsock it is not known.
    fn n_connections(&self) -> usize {
        match &self.address {
            Address::Unix { pid, path } => self.neighbours.connections(*pid, path),
            Address::Vsock { .. } => 0,
        }
    }

    fn lose(&mut self, why: &str) {
        self.port = None;
        self.out.clear();
        self.shared.lock().apart(why.to_owned());
    }

    /// Sends and receives, and waits a while for it.
    fn exchange(&mut self) -> io::Result<()> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.n_bytes) = (Instant::now(), 0);
        }
        if self.n_bytes >= MAX_BYTES_PER_S {
            thread::sleep(LOOK);
            return Ok(());
        }
        let mut wanted = PollFlags::POLLIN;
        wanted.set(PollFlags::POLLOUT, !self.out.is_empty());
        let mut waiting = [PollFd::new(port.as_fd(), wanted)];
        let timeout = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO);
        // A signal or a lack of memory: the next round tries again.
        let _ = poll(&mut waiting, timeout);
        if !self.out.is_empty()
            && let Some(n) = moved(port.write(&self.out))?
        {
            self.out.drain(..n.min(self.out.len()));
        }
        let mut chunk = vec![0; CHUNK];
        let Some(n) = moved(port.read(&mut chunk))? else {
            return Ok(());
        };
        if n == 0 {
            return Err(io::Error::other("the channel was closed"));
        }
        self.n_bytes += n;
        let bytes = chunk.get(..n).unwrap_or_default();
        let fed = self.shared.lock().feed(bytes, clock::monotonic_ns());
        if fed.is_err() {
            // Why, it knows.
            self.port = None;
            self.next_connect = Instant::now() + GIVEN_UP;
        }
        Ok(())
    }
}

/// What a read or a write came to; `None` where it would have to wait.
fn moved(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
