//! What an agent has said: bytes go in, sums of QEMU's disks come out. Everything that comes is a guest's: it is bounded, and what
//! contradicts what came before is refused.

use std::collections::BTreeMap;

use nestrace_abi::histogram::BUCKETS;
use nestrace_abi::maps::SUM_OPS;
use nestrace_sums::snapshot::LayerSums;
use nestrace_trace::manifest::{Disk, GuestDisk};
use nestrace_wire::sums::{AskSums, DiskSums, OpSums, Sums};
use nestrace_wire::{
    AgentHello, AgentMessage, Frame, FrameError, FrameReader, HostMessage, VERSION,
};

use super::same_disk::same_disks;

/// An agent that is not heard for so long is silent: its guest is paused or stuck, or it was killed.
const SILENT_NS: u64 = 4_000_000_000;
/// The same for one that loads its probes: a slow guest takes its time, and has no word for anybody meanwhile.
const SILENT_LOADING_NS: u64 = 120_000_000_000;
/// An agent that answers a ping and says nothing else for so long does not know the question.
const OLDER_NS: u64 = 10_000_000_000;
/// How often an agent is asked that does not answer.
const ASK_AGAIN_NS: u64 = 3_000_000_000;
/// The same of one that has said that it cannot sum: it may be another one by now.
const ASK_UNABLE_NS: u64 = 30_000_000_000;
/// Frames that an agent may send before its Hello, which others have left in the port; and frames that are refused.
const MAX_REFUSED: u32 = 10_000;

/// Requests of one operation that a guest may count: those of a year at 30 million a second. Figures add up many of these.
const MAX_REQUESTS: u64 = 1 << 50;

/// One operation of one disk in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestOp {
    /// What has ended since the layer was there, and its latencies.
    pub layer: LayerSums,
    /// Its bytes.
    pub bytes: u64,
    /// How many are in flight.
    pub in_flight: u64,
    /// How long the oldest of them has been, in nanoseconds.
    pub oldest_ns: Option<u64>,
}

/// The operations of a disk, in the order of the probes' numbers.
type GuestOps = [GuestOp; SUM_OPS];

/// What is known of a guest's side.
#[derive(Clone, Debug, Default)]
pub struct GuestLayer {
    /// By name of the disk.
    disks: BTreeMap<String, GuestOps>,
    /// Why none is known, where none is.
    missing: Option<String>,
    /// Requests that the guest could not sum, since the guest is followed.
    pub lost: u64,
}

impl GuestLayer {
    /// One that says nothing, and why.
    pub fn missing(why: &str) -> Self {
        Self {
            missing: Some(why.to_owned()),
            ..Self::default()
        }
    }

    /// What a disk has done in the guest.
    ///
    /// # Errors
    /// Why that is not known, in words.
    pub fn of(&self, disk: &str, operation: usize) -> Result<&GuestOp, &str> {
        if let Some(why) = &self.missing {
            return Err(why);
        }
        let ops = self.disks.get(disk);
        ops.and_then(|ops| ops.get(operation))
            .ok_or("which of the guest's disks it is cannot be known")
    }
}

/// How far the talk has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection, and why.
    Apart(String),
    /// It was asked, and has not answered.
    Asked {
        since_ns: u64,
        has_ponged: bool,
        /// It is asked because nothing was heard any more.
        was_heard: bool,
    },
    /// It loads its probes.
    Loading,
    /// It sums.
    Live,
    /// It does not sum, and why; and how soon it is asked again.
    Ended { reason: String, again_ns: u64 },
}

/// What a disk's last message said since the session's begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    bytes: u64,
    sum_ns: u64,
    buckets: Vec<u64>,
}

/// What was heard.
pub struct Heard {
    /// QEMU's disks: names and facts.
    disks: Vec<(String, Disk)>,
    state: State,
    reader: FrameReader,
    session: u64,
    asked_ns: u64,
    heard_ns: u64,
    refused: u32,
    /// The guest's disks.
    devices: Vec<GuestDisk>,
    /// Which of QEMU's they are. Of others nothing is kept.
    names: BTreeMap<u32, String>,
    said: BTreeMap<u32, [Said; SUM_OPS]>,
    totals: BTreeMap<String, GuestOps>,
    lost_said: u64,
    lost: u64,
}

impl Default for Heard {
    fn default() -> Self {
        Self {
            disks: Vec::new(),
            state: State::Apart("it is being connected to".to_owned()),
            reader: FrameReader::new(),
            session: 0,
            asked_ns: 0,
            heard_ns: 0,
            refused: 0,
            devices: Vec::new(),
            names: BTreeMap::new(),
            said: BTreeMap::new(),
            totals: BTreeMap::new(),
            lost_said: 0,
            lost: 0,
        }
    }
}

/// That nothing more is to be read from this connection.
#[derive(Debug, PartialEq, Eq)]
pub struct GiveUp;

impl Heard {
    /// QEMU's disks are these now.
    pub fn set_disks(&mut self, disks: Vec<(String, Disk)>) {
        self.disks = disks;
        self.name_devices();
    }

    /// A connection was made. What another session has left in it is passed over.
    pub fn connected(&mut self, now_ns: u64) {
        self.reader = FrameReader::new();
        self.refused = 0;
        self.begin(now_ns, false);
    }

    /// There is no connection any more, or none yet.
    pub fn apart(&mut self, why: String) {
        self.state = State::Apart(why);
    }

    /// A new session: another number than any before, of this process or another.
    fn begin(&mut self, now_ns: u64, was_heard: bool) {
        self.session = now_ns ^ (u64::from(std::process::id()) << 44);
        self.state = State::Asked {
            since_ns: now_ns,
            has_ponged: false,
            was_heard,
        };
        self.asked_ns = 0;
    }

    /// What is to be asked now, if anything is.
    pub fn question(&mut self, now_ns: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let since_ns = now_ns.saturating_sub(self.asked_ns);
        let is_over = match &self.state {
            State::Apart(_) => return bytes,
            State::Asked { .. } => false,
            // An agent that was started since does not know this session.
            State::Loading | State::Live => self.is_silent(now_ns),
            State::Ended { again_ns, .. } => since_ns > *again_ns,
        };
        if is_over && since_ns > ASK_AGAIN_NS {
            self.begin(now_ns, !matches!(self.state, State::Ended { .. }));
        }
        let is_first = self.asked_ns == 0;
        let is_asked = matches!(self.state, State::Asked { .. });
        let since_ns = now_ns.saturating_sub(self.asked_ns);
        if !is_asked || since_ns <= ASK_AGAIN_NS {
            return bytes;
        }
        if is_first {
            // It may still be in the session of a client that has left.
            HostMessage::Stop.encode_to(&mut bytes);
        }
        self.asked_ns = now_ns.max(1);
        let ask = AskSums {
            protocol: VERSION,
            session: self.session,
        };
        HostMessage::AskSums(ask).encode_to(&mut bytes);
        let ping = HostMessage::Ping {
            token: self.session,
            host_ns: 0,
        };
        ping.encode_to(&mut bytes);
        bytes
    }

    fn is_silent(&self, now_ns: u64) -> bool {
        let patience_ns = match self.state {
            State::Loading => SILENT_LOADING_NS,
            _ => SILENT_NS,
        };
        now_ns.saturating_sub(self.heard_ns) > patience_ns
    }

    /// Takes bytes of the connection.
    ///
    /// # Errors
    /// [`GiveUp`] where nothing sensible is to be expected any more.
    pub fn feed(&mut self, mut bytes: &[u8], now_ns: u64) -> Result<(), GiveUp> {
        let mut reader = std::mem::take(&mut self.reader);
        let mut fed = Ok(());
        while !bytes.is_empty() && fed.is_ok() {
            let taken = reader.feed(bytes);
            bytes = bytes.get(taken..).unwrap_or_default();
            fed = self.take_frames(&mut reader, now_ns);
        }
        self.reader = reader;
        fed
    }

    fn take_frames(&mut self, reader: &mut FrameReader, now_ns: u64) -> Result<(), GiveUp> {
        loop {
            let is_ours = match reader.next_frame() {
                Ok(Some(frame)) => self.take_frame(frame, now_ns),
                Ok(None) => return Ok(()),
                Err(FrameError::Version { .. }) => {
                    return Err(self.give_up("it speaks another version of the protocol"));
                }
                Err(FrameError::NotFound { .. }) => {
                    return Err(self.give_up("nothing in what it sends is a message"));
                }
                Err(_) => false,
            };
            if !is_ours {
                self.refuse()?;
                // Half a frame of another session may hold the beginning of ours: any whole frame in it counts.
                reader.search();
            }
        }
    }

    fn refuse(&mut self) -> Result<(), GiveUp> {
        self.refused += 1;
        if self.refused < MAX_REFUSED {
            return Ok(());
        }
        Err(self.give_up("too much of what it sends is refused"))
    }

    fn give_up(&mut self, reason: &str) -> GiveUp {
        self.end(reason.to_owned(), ASK_UNABLE_NS);
        GiveUp
    }

    fn end(&mut self, reason: String, again_ns: u64) {
        self.state = State::Ended { reason, again_ns };
    }

    /// Whether it is a message of our session that contradicts nothing.
    fn take_frame(&mut self, frame: Frame<'_>, now_ns: u64) -> bool {
        let is_in_session = matches!(self.state, State::Loading | State::Live);
        let message = match AgentMessage::parse(frame) {
            Ok(Some(message)) => message,
            // What a newer agent says beside.
            Ok(None) => return is_in_session,
            Err(_) => return false,
        };
        match message {
            AgentMessage::Hello(hello) => {
                let is_ours = hello.session == self.session;
                if is_ours {
                    self.take_hello(*hello, is_in_session);
                    self.heard_ns = now_ns;
                }
                return is_ours;
            }
            AgentMessage::Pong { token, .. } => {
                if let State::Asked { has_ponged, .. } = &mut self.state {
                    *has_ponged |= token == self.session;
                }
                return is_in_session;
            }
            _ if !is_in_session => return false,
            AgentMessage::Live(_) => {
                self.state = State::Live;
                self.said.clear();
                self.lost_said = 0;
            }
            AgentMessage::Sums(sums) => {
                self.heard_ns = now_ns;
                return self.take_sums(sums);
            }
            AgentMessage::End(end) => {
                let was_live = self.state == State::Live;
                let again_ns = if was_live {
                    ASK_AGAIN_NS
                } else {
                    ASK_UNABLE_NS
                };
                self.end(end.reason, again_ns);
            }
            // It sends none of these in such a session.
            _ => return false,
        }
        self.heard_ns = now_ns;
        true
    }

    fn take_hello(&mut self, hello: AgentHello, is_again: bool) {
        if !is_again {
            self.state = State::Loading;
        }
        // Another disk with the number counts from 0.
        let before = std::mem::replace(&mut self.devices, hello.disks);
        let devices = &self.devices;
        self.said.retain(|dev, _| {
            let before = before.iter().find(|disk| disk.dev == *dev);
            before.is_some_and(|before| devices.iter().any(|disk| disk.is_still(before)))
        });
        self.name_devices();
    }

    fn name_devices(&mut self) {
        self.names = same_disks(&self.devices, &self.disks);
        let names = &self.names;
        self.said.retain(|dev, _| names.contains_key(dev));
        self.totals
            .retain(|disk, _| names.values().any(|name| name == disk));
    }

    fn take_sums(&mut self, sums: Sums) -> bool {
        self.lost = (self.lost).saturating_add(sums.lost.saturating_sub(self.lost_said));
        self.lost_said = self.lost_said.max(sums.lost);
        let mut is_good = true;
        for disk in sums.disks {
            is_good &= self.take_disk(&disk);
        }
        is_good
    }

    fn take_disk(&mut self, disk: &DiskSums) -> bool {
        let Some(name) = self.names.get(&disk.dev) else {
            // One that the host does not follow; one that is not in the list is refused.
            return self.devices.iter().any(|device| device.dev == disk.dev);
        };
        let said = self.said.entry(disk.dev).or_default();
        let totals = self.totals.entry(name.clone()).or_default();
        let mut is_good = true;
        for ((op, said), total) in disk.ops.iter().zip(said).zip(totals) {
            is_good &= take_op(op, said, total);
        }
        is_good
    }

    /// What is known, for a snapshot. The longest latencies are those since the last call. What a layer counted ends where
    /// it is not known any more: it is not to be counted again when it comes back.
    pub fn read(&mut self, now_ns: u64) -> GuestLayer {
        let missing = self.missing(now_ns);
        let mut layer = GuestLayer {
            missing,
            lost: self.lost,
            ..GuestLayer::default()
        };
        if layer.missing.is_some() {
            self.totals.clear();
            return layer;
        }
        layer.disks.clone_from(&self.totals);
        let totals = self.totals.values_mut().flatten();
        totals.for_each(|total| total.layer.max_ns = Some(0));
        layer
    }

    fn missing(&self, now_ns: u64) -> Option<String> {
        let why = match &self.state {
            State::Apart(why) => format!("its agent was not reached: {why}"),
            State::Asked {
                since_ns,
                has_ponged: true,
                ..
            } if now_ns.saturating_sub(*since_ns) > OLDER_NS => {
                "its agent is of an older release, which does not sum".to_owned()
            }
            State::Asked {
                was_heard: true, ..
            } => "its agent is silent".to_owned(),
            State::Asked { .. } => "no agent has answered on its channel yet".to_owned(),
            State::Loading if !self.is_silent(now_ns) => "its agent loads its probes".to_owned(),
            State::Live if !self.is_silent(now_ns) => return None,
            State::Loading | State::Live => "its agent is silent".to_owned(),
            State::Ended { reason, .. } => format!("its agent does not sum: {reason}"),
        };
        Some(why)
    }
}

/// Adds what was done since it was said before; whether no counter went back, and none is absurd.
fn take_op(op: &OpSums, said: &mut Said, total: &mut GuestOp) -> bool {
    total.in_flight = op.in_flight;
    total.oldest_ns = (op.in_flight > 0).then_some(op.oldest_ns);
    let mut buckets = vec![0; BUCKETS];
    for (bucket, n) in &op.buckets {
        if let Some(of) = buckets.get_mut(usize::from(*bucket)) {
            *of = *n;
        }
    }
    said.buckets.resize(BUCKETS, 0);
    let mut counters = buckets.iter().zip(&said.buckets);
    let is_back = counters.any(|(now, before)| now < before);
    if is_back || op.bytes < said.bytes || op.sum_ns < said.sum_ns {
        return false;
    }
    let done: Vec<u64> = (buckets.iter().zip(&said.buckets))
        .map(|(now, before)| now - before)
        .collect();
    let n = done.iter().copied().fold(0, u64::saturating_add);
    if total.layer.n.saturating_add(n) > MAX_REQUESTS {
        return false;
    }
    total.bytes = total.bytes.saturating_add(op.bytes - said.bytes);
    let done = LayerSums {
        n,
        sum_ns: op.sum_ns - said.sum_ns,
        max_ns: Some(op.max_ns),
        buckets: done,
    };
    total.layer.add(&done);
    *said = Said {
        bytes: op.bytes,
        sum_ns: op.sum_ns,
        buckets,
    };
    true
}

#[cfg(test)]
mod tests;
