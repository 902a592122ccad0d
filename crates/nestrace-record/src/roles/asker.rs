//! The asker: asks QEMU's monitors while a recording goes on, which jobs QEMU does and which limits are set at the end.
//!
//! A process that may talk to a monitor may have QEMU do anything. So the recorder, which reads what guests send, does not: this
//! process asks a fixed list of questions and hands on typed answers. A monitor is asked once a second and let go each time,
//! for it serves one client; where another one holds it, it is asked less often.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use caps::Capability;
use nestrace_probes::{clock, refusal::with_causes};
use nestrace_trace::manifest::{Disk, Guest, Job, Limit};
use serde::{Deserialize, Serialize};

use super::Helper;
use super::channel::{Channel, next_of};
use super::socket_place::SocketPlace;
use crate::agent_address::Address;
use crate::guest::qmp::{Qmp, set};
use crate::sandbox::Sandbox;
use crate::sandbox::system_calls::Role;

/// How often it asks.
const EVERY: Duration = Duration::from_secs(1);
/// How often it asks a monitor that did not answer for some time.
const RARELY: Duration = Duration::from_secs(10);
/// Monitors that did not answer so often are asked rarely.
const PATIENCE: u32 = 3;
/// How long it may take to begin.
const BEGIN: Duration = Duration::from_secs(2);
/// How long the last answers of all monitors are waited for.
const LAST: Duration = Duration::from_secs(2);
/// Disks, limits or jobs in one message.
const MAX_IN_MESSAGE: usize = 64;
/// Ids of jobs of one guest that are remembered.
const MAX_KNOWN: usize = 1024;

/// What was seen of a guest at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The guest, by its place in the topology.
    pub guest: usize,
    /// Jobs that there were, at most `MAX_IN_MESSAGE`; their times are this moment.
    pub jobs: Vec<Job>,
    /// Limits of disks, by their places: only at the end.
    pub limits: Vec<(usize, Vec<Limit>)>,
    /// Why there is no answer.
    pub silence: Option<String>,
}

/// What the recorder says.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// A guest's monitor; its folder comes beside it.
    Guest { guest: usize, place: SocketPlace },
    /// Disks of the last guest: their names alone.
    Disks(Vec<Disk>),
    /// All was said.
    Begin,
    /// Ask all a last time.
    Last,
}

/// What the asker says.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Begun(Result<(), String>),
    Seen(Seen),
    /// The last answers were given.
    Done,
}

/// The recorder's view of its asker.
#[derive(Debug)]
pub struct Asker {
    /// `None` once it is gone, and where no guest has a free monitor.
    channel: Option<Channel>,
}

impl Asker {
    /// Starts it where a guest has a free monitor; it waits for [`Self::begin`].
    ///
    /// # Errors
    /// What the system says.
    pub fn start(guests: &[Guest]) -> io::Result<Self> {
        let has_any = guests.iter().any(|guest| guest.qmp.is_some());
        let channel = has_any.then(|| Helper::Asker.start()).transpose()?;
        Ok(Self { channel })
    }

    /// Lets it ask the monitors of these guests.
    ///
    /// # Errors
    /// What the system says, or the asker.
    pub fn begin(&self, guests: &[Guest]) -> io::Result<()> {
        let Some(channel) = &self.channel else {
            return Ok(());
        };
        for (number, guest) in guests.iter().enumerate() {
            let Some(path) = guest.qmp.clone() else {
                continue;
            };
            let pid = guest.pid;
            let (place, folder) = SocketPlace::of(&Address::Unix { pid, path });
            let folder: Vec<BorrowedFd<'_>> = folder.iter().map(AsFd::as_fd).collect();
            let guest_order = Order::Guest {
                guest: number,
                place,
            };
            channel.send(&guest_order, &folder)?;
            for disks in guest.disks.chunks(MAX_IN_MESSAGE) {
                let names = disks.iter().map(|disk| Disk {
                    name: disk.name.clone(),
                    qdev: disk.qdev.clone(),
                    node: disk.node.clone(),
                    ..Disk::default()
                });
                channel.send(&Order::Disks(names.collect()), &[])?;
            }
        }
        channel.send(&Order::Begin, &[])?;
        match channel.answer(BEGIN)? {
            (Answer::Begun(done), _) => done.map_err(io::Error::other),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// What was seen since the last call. An error where the asker is gone, once.
    ///
    /// # Errors
    /// What the system says.
    pub fn seen(&mut self) -> io::Result<Vec<Seen>> {
        self.receive(Duration::ZERO)
    }

    /// Asks a last time, and waits for the answers. None where the asker is gone.
    ///
    /// # Errors
    /// What the system says.
    pub fn last(&mut self) -> io::Result<Vec<Seen>> {
        if let Some(channel) = &self.channel {
            channel.send(&Order::Last, &[])?;
        }
        self.receive(LAST)
    }

    /// What there is to receive, up to the last answer.
    fn receive(&mut self, limit: Duration) -> io::Result<Vec<Seen>> {
        let deadline = Instant::now() + limit;
        let mut all = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match next_of(&mut self.channel, left)? {
                Some(Answer::Seen(seen)) => all.push(seen),
                Some(Answer::Done) | None => break,
                Some(Answer::Begun(_)) => {
                    self.channel = None;
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
        Ok(all)
    }
}

/// A guest whose monitor is asked.
struct Asked {
    guest: usize,
    place: SocketPlace,
    folder: Option<OwnedFd>,
    disks: Vec<Disk>,
    /// Jobs whose nodes were asked for.
    known: BTreeSet<String>,
    had_jobs: bool,
    n_silences: u32,
    next: Instant,
}

impl Asked {
    /// `None` where there is nothing to say.
    fn look(&mut self, is_last: bool) -> Option<Seen> {
        match self.ask(is_last) {
            Ok(seen) => {
                self.n_silences = 0;
                let has_jobs = !seen.jobs.is_empty();
                let had_jobs = std::mem::replace(&mut self.had_jobs, has_jobs);
                (has_jobs || had_jobs || is_last).then_some(seen)
            }
            Err(silence) => {
                self.n_silences += 1;
                (self.n_silences == PATIENCE).then(|| Seen {
                    guest: self.guest,
                    silence: Some(silence),
                    ..Seen::default()
                })
            }
        }
    }

    fn ask(&mut self, is_last: bool) -> Result<Seen, String> {
        let begin = Instant::now();
        let connected = self.place.connect(self.folder.as_ref(), false);
        let stream = connected.and_then(|fd| {
            let stream = UnixStream::from(fd);
            stream.set_nonblocking(false)?;
            Ok(stream)
        });
        let stream = stream.map_err(|error| error.to_string())?;
        let failed = |error| format!("failed to {}", with_causes(&error));
        let qmp = Qmp::over(stream, "the monitor", begin).map_err(failed)?;
        let mut limits = Vec::new();
        let set = if is_last {
            let (blocks, set) = set::look(qmp, &self.known).map_err(failed)?;
            for (number, disk) in self.disks.iter().enumerate() {
                limits.extend(set.limits_of_disk(disk, &blocks).map(|it| (number, it)));
            }
            set
        } else {
            set::look_at_jobs(qmp, &self.known).map_err(failed)?
        };
        let jobs = set.jobs(&self.disks, clock::monotonic_ns());
        for job in &jobs {
            if self.known.len() < MAX_KNOWN {
                self.known.insert(job.id.clone());
            }
        }
        Ok(Seen {
            guest: self.guest,
            jobs,
            limits,
            silence: None,
        })
    }
}

/// The asker's life.
pub(super) fn run(channel: &Channel) -> io::Result<()> {
    let mut guests: Vec<Asked> = Vec::new();
    loop {
        let Some((order, with)) = channel.receive()? else {
            return Ok(());
        };
        match order {
            Order::Guest { guest, place } => guests.push(Asked {
                guest,
                place,
                folder: with.into_iter().next(),
                disks: Vec::new(),
                known: BTreeSet::new(),
                had_jobs: false,
                n_silences: 0,
                next: Instant::now(),
            }),
            Order::Disks(disks) => {
                if let Some(guest) = guests.last_mut() {
                    guest.disks.extend(disks);
                }
            }
            Order::Begin => break,
            Order::Last => return Ok(()),
        }
    }
    // Sockets of other users are reached through folders that only they may enter.
    let kept = [Capability::CAP_DAC_READ_SEARCH];
    let entered = Sandbox::new(Role::Asker, None, &kept).and_then(|sandbox| sandbox.enter_last());
    let begun = Answer::Begun(entered.map_err(|error| error.to_string()));
    channel.send(&begun, &[])?;
    loop {
        for guest in &mut guests {
            let now = Instant::now();
            if now < guest.next {
                continue;
            }
            let seen = guest.look(false);
            guest.next = now
                + if guest.n_silences < PATIENCE {
                    EVERY
                } else {
                    RARELY
                };
            if let Some(seen) = seen {
                say(channel, seen)?;
            }
            if channel.wait(Duration::ZERO)? {
                break;
            }
        }
        let next = guests.iter().map(|guest| guest.next).min();
        let left = next.map_or(RARELY, |next| {
            next.saturating_duration_since(Instant::now())
        });
        if channel.wait(left)? {
            break;
        }
    }
    if let Some((Order::Last, _)) = channel.receive()? {
        for guest in &mut guests {
            if let Some(seen) = guest.look(true) {
                say(channel, seen)?;
            }
        }
        channel.send(&Answer::Done, &[])?;
    }
    Ok(())
}

/// In as many messages as it takes.
fn say(channel: &Channel, seen: Seen) -> io::Result<()> {
    let parts = seen.jobs.len().max(seen.limits.len());
    for part in 0..parts.div_ceil(MAX_IN_MESSAGE).max(1) {
        let of_part = Seen {
            guest: seen.guest,
            jobs: nth_part(&seen.jobs, part),
            limits: nth_part(&seen.limits, part),
            silence: seen.silence.clone(),
        };
        match channel.send(&Answer::Seen(of_part), &[]) {
            // Names that are too long for a message say nothing.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            sent => sent?,
        }
    }
    Ok(())
}

fn nth_part<T: Clone>(all: &[T], part: usize) -> Vec<T> {
    let mut parts = all.chunks(MAX_IN_MESSAGE);
    parts.nth(part).unwrap_or_default().to_vec()
}
