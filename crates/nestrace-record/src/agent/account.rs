//! What is known of a guest from inside: its sides, what was lost and refused, what happened. The
//! manifest's view of an agent, bounded whatever the agent says.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub(super) mod bounds;
mod told;

use std::collections::BTreeMap;

use nestrace_abi::Source;
use nestrace_trace::manifest::{Addresses, Gap, GuestSide, Loss, Notice, RefusedInput, Stream};
use nestrace_trace::{bundle, manifest::Refused};
use nestrace_wire::{AgentHello, DROPPED_BUFFERS, Live, Lost};

use nestrace_wire::disks::{DISK_REPLACED, Look, merge_disks};
use nestrace_wire::mounts::merge_mounts;
use told::{Room, Told};

/// Reboots, changes of backend and jumps of the clock in one recording; more look like an attack.
pub const MAX_SIDES: usize = 16;
/// Names of its streams that other guests' streams may have taken.
const MAX_TAKEN: u32 = 64;
/// Times without word that are listed for a side; the last one takes in what comes after.
const MAX_GAPS: usize = 256;
/// Lines for the terminal that wait to be taken.
const MAX_NEWS: usize = 60;

/// Where an agent stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// There is no connection to its channel.
    #[default]
    NotConnected,
    /// Connected; no answer yet.
    NoAnswer,
    /// It has answered and attaches its probes.
    Attaching,
    /// It records.
    Live,
    /// It recorded, and nothing has been heard of it for a while.
    Silent,
    /// It has ended, or its stream was refused.
    Ended,
}

/// A guest's account.
#[derive(Clone, Debug, Default)]
pub struct Account {
    guest: String,
    /// Where the agent stands.
    pub state: State,
    /// One for each boot of the guest (and backend).
    pub sides: Vec<GuestSide>,
    /// When the guest said last what it has, by its clock.
    told_mono_ns: u64,
    /// Events that were written.
    pub events: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// What happened, for the manifest.
    pub notices: Vec<Notice>,
    /// What happened, for the terminal.
    pub news: Vec<String>,
    /// The newest side may have more than its share of the manifest.
    has_grown: bool,
    told: Told,
    /// Names of its streams that other guests' streams had: `guest-vm.2.arrows` is also the first of `vm.2`.
    n_taken: u32,
    refused_before: BTreeMap<String, u64>,
    losses: BTreeMap<u32, Counter>,
    not_written: u64,
    /// Losses that the recorder wrote into the streams, and those of them whose events are counted as dropped.
    marks: u64,
    counted_marks: u64,
    /// What the addresses in its streams are.
    pub addresses: Addresses,
}

/// A total that its sender begins anew with every session.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    before: u64,
    now: u64,
}

impl Account {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(guest: &str) -> Self {
        Self {
            guest: guest.to_owned(),
            ..Self::default()
        }
    }

    /// The guest's name.
    #[must_use]
    pub fn guest(&self) -> &str {
        &self.guest
    }

    /// The newest side.
    pub fn side(&mut self) -> Option<&mut GuestSide> {
        self.sides.last_mut()
    }

    /// Whether a Hello is about the side that is being recorded: the same boot and backend.
    #[must_use]
    pub fn is_same_side(&self, hello: &AgentHello) -> bool {
        let side = self.sides.last();
        self.is_same_boot(hello) && side.is_some_and(|side| side.backend == hello.backend)
    }

    /// Whether a Hello is of the boot that is being recorded.
    #[must_use]
    pub fn is_same_boot(&self, hello: &AgentHello) -> bool {
        let side = self.sides.last();
        side.is_some_and(|side| side.machine.boot_id == hello.machine.boot_id)
    }

    /// Name of the stream that the next side gets; `None` where there were too many.
    #[must_use]
    pub fn next_stream(&self) -> Option<String> {
        let nth = u32::try_from(self.sides.len()).ok()?;
        let nth = nth.checked_add(self.n_taken)?.checked_add(1)?;
        (self.sides.len() < MAX_SIDES).then(|| bundle::guest_session_stream(&self.guest, nth))
    }

    /// There is a stream of that name: the next one has the number after. Whether there may be one.
    pub fn stream_is_taken(&mut self) -> bool {
        self.n_taken = self.n_taken.saturating_add(1);
        self.n_taken <= MAX_TAKEN
    }

    /// Begins a side.
    pub fn begin_side(&mut self, hello: &AgentHello, file: &str) {
        self.fit();
        self.sides.push(hello.guest_side(&self.guest, file));
        self.has_grown = true;
        self.told_mono_ns = hello.mono_ns;
        for (reason, times) in std::mem::take(&mut self.refused_before) {
            self.refuse(&reason, times);
        }
    }

    /// Takes over what has changed in the guest: disks, mounts. `now_ns` is the host's `CLOCK_MONOTONIC`.
    pub fn update_side(&mut self, hello: &AgentHello, now_ns: u64) {
        let Some(side) = self.sides.last_mut() else {
            return;
        };
        let held_ns = match hello.held_mono_ns {
            0 => self.told_mono_ns,
            held_ns => held_ns,
        };
        let look = Look {
            held_ns,
            now_ns: hello.mono_ns,
        };
        self.told_mono_ns = hello.mono_ns;
        let replaced = merge_disks(&mut side.disks, hello.disks.clone(), look);
        merge_mounts(&mut side.mounts, hello.mounts.clone());
        side.backend_reason.clone_from(&hello.backend_reason);
        side.clock_correction_ppm = side.clock_correction_ppm.max(hello.clock_correction_ppm);
        self.has_grown = true;
        for message in replaced {
            if self.note_said(now_ns, DISK_REPLACED, &message) {
                self.tell(&message);
            }
        }
    }

    /// Whether the newest side has been live.
    #[must_use]
    pub fn was_live(&self) -> bool {
        self.sides.last().is_some_and(|side| side.live_mono_ns != 0)
    }

    /// The probes are attached: a session of the agent begins, and counts its losses from 0. What happened
    /// since the side's last session is lost and was not counted: it stands for one event.
    pub fn live(&mut self, live: Live) {
        for counter in self.losses.values_mut() {
            counter.before = counter.before.saturating_add(counter.now);
            counter.now = 0;
        }
        if self.was_live() {
            let blocks = self.losses.entry(Source::Block as u32).or_default();
            blocks.before = blocks.before.saturating_add(1);
        }
        let Some(side) = self.sides.last_mut() else {
            return;
        };
        if side.live_mono_ns == 0 {
            side.live_mono_ns = live.mono_ns;
        }
        side.end_mono_ns = 0;
        self.has_grown |= side.probes != live.probes;
        side.probes = live.probes;
    }

    /// The probes that could not be.
    pub fn probes_refused(&mut self, refused: Vec<Refused>) {
        if let Some(side) = self.sides.last_mut() {
            self.has_grown |= side.probes_refused != refused;
            side.probes_refused = refused;
        }
    }

    /// Keeps the newest side within its share of the manifest. What is cut is reported as refused input, once
    /// for each entry: the lists come again and again. Once for all that was read at a time, because the smallest
    /// message may change a list, and the whole side has to be measured then.
    pub fn fit(&mut self) {
        let has_grown = std::mem::take(&mut self.has_grown);
        let Some(side) = self.sides.last_mut().filter(|_| has_grown) else {
            return;
        };
        for (what, n) in bounds::trim(side) {
            let times = u64::try_from(n).unwrap_or(u64::MAX);
            match side.refused.iter_mut().find(|r| r.reason == what) {
                Some(known) => known.times = known.times.max(times),
                None => side.refused.push(RefusedInput {
                    reason: what.to_owned(),
                    times,
                }),
            }
        }
    }

    /// Counts input that was refused.
    pub fn refuse(&mut self, reason: &str, times: u64) {
        let Some(side) = self.sides.last_mut() else {
            let count = self.refused_before.entry(reason.to_owned()).or_default();
            *count = count.saturating_add(times);
            return;
        };
        match side.refused.iter_mut().find(|r| r.reason == reason) {
            Some(known) => known.times = known.times.saturating_add(times),
            None => side.refused.push(RefusedInput {
                reason: reason.to_owned(),
                times,
            }),
        }
    }

    /// What was refused before any side began: no other count has it.
    pub fn refused_without_side(&self) -> impl Iterator<Item = (&str, u64)> {
        let before = self.refused_before.iter();
        before.map(|(reason, times)| (reason.as_str(), *times))
    }

    /// The agent's own counts of what it lost.
    pub fn lost(&mut self, lost: Lost) -> bool {
        let known = lost.source == DROPPED_BUFFERS || source_name(lost.source).is_some();
        if known {
            let counter = self.losses.entry(lost.source).or_default();
            if lost.total < counter.now {
                // It began to count anew.
                counter.before = counter.before.saturating_add(counter.now);
            }
            counter.now = lost.total;
        }
        known
    }

    /// Events in buffers that the agent dropped, over all sessions.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let dropped = self.losses.get(&DROPPED_BUFFERS);
        dropped.map_or(0, |counter| counter.before.saturating_add(counter.now))
    }

    /// A loss was written into the stream where events are missing: it stands for one of the block layer.
    /// `counted`: for one of those that [`Self::dropped`] counts.
    pub fn marked(&mut self, counted: bool) {
        self.marks = self.marks.saturating_add(1);
        self.counted_marks = self.counted_marks.saturating_add(u64::from(counted));
    }

    /// Events that came and could not be written.
    pub fn not_written(&mut self, events: u64) {
        self.not_written = self.not_written.saturating_add(events);
    }

    /// For the manifest.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
        for (source, counter) in &self.losses {
            let name = source_name(*source).unwrap_or("guest_stream");
            let total = by_name.entry(name).or_default();
            *total = total
                .saturating_add(counter.before)
                .saturating_add(counter.now);
        }
        if self.not_written > 0 {
            let total = by_name.entry("guest_stream").or_default();
            *total = total.saturating_add(self.not_written);
        }
        if let Some(total) = by_name.get_mut("guest_stream") {
            *total = total.saturating_sub(self.counted_marks);
        }
        if self.marks > 0 {
            let total = by_name.entry(Source::Block.name()).or_default();
            *total = total.saturating_add(self.marks);
        }
        let row = |(source, events): (&str, u64)| Loss {
            source: source.to_owned(),
            guest: Some(self.guest.clone()),
            events,
        };
        by_name.into_iter().map(row).collect()
    }

    /// Events that were lost, all together. Counts that are not of events are left out.
    #[must_use]
    pub fn n_lost(&self) -> u64 {
        let walk = Source::Walk.name();
        let losses = self.losses();
        let events = losses.iter().filter(|l| l.source != walk).map(|l| l.events);
        events.fold(0, u64::saturating_add)
    }

    /// For the manifest, one for each side.
    #[must_use]
    pub fn streams(&self) -> Vec<Stream> {
        let row = |side: &GuestSide| Stream {
            file: side.file.clone(),
            side: "guest".to_owned(),
            guest: Some(self.guest.clone()),
            backend: side.backend.clone(),
            kernel: side.machine.kernel.clone(),
            addresses: self.addresses,
        };
        self.sides.iter().map(row).collect()
    }

    /// Nothing was heard of the guest between these two times of the host. What touches the gap before is one
    /// with it.
    pub fn gap(&mut self, from_host_ns: u64, to_host_ns: u64, reason: &str) {
        let Some(side) = self.sides.last_mut() else {
            return;
        };
        let mut gap = Gap {
            from_host_ns,
            to_host_ns,
            reason: reason.to_owned(),
        };
        if let Some(last) = side.gaps.pop_if(|last| from_host_ns <= last.to_host_ns) {
            gap.from_host_ns = from_host_ns.min(last.from_host_ns);
            gap.to_host_ns = to_host_ns.max(last.to_host_ns);
        }
        let n_gaps = side.gaps.len();
        match side.gaps.last_mut() {
            // What lies between is missing too then: too much, not too little.
            Some(last) if n_gaps >= MAX_GAPS => {
                last.from_host_ns = last.from_host_ns.min(gap.from_host_ns);
                last.to_host_ns = last.to_host_ns.max(gap.to_host_ns);
            }
            _ => side.gaps.push(gap),
        }
        self.has_grown = true;
    }

    /// Notes what its agent says or what the guest's own doing has in its words, once; whether it is noted now.
    pub fn note_said(&mut self, mono_ns: u64, what: &str, message: &str) -> bool {
        let room = self.told.room_for_said(what, message);
        self.push_notice(room, mono_ns, what, message);
        room != Room::None
    }

    /// Notes what happened to the recorder, which names what is missing: nothing that a guest says takes its place, nor
    /// does what happens often take that of another kind.
    pub fn note(&mut self, mono_ns: u64, what: &'static str, message: &str) {
        let room = self.told.room_for(what);
        self.push_notice(room, mono_ns, what, message);
    }

    /// The same, of what may happen again and again and is reported once.
    pub fn note_once(&mut self, mono_ns: u64, what: &'static str, message: &str) {
        if self.told.is_new(what, message) {
            self.note(mono_ns, what, message);
        }
    }

    fn push_notice(&mut self, room: Room, mono_ns: u64, what: &str, message: &str) {
        let more = match room {
            Room::None => return,
            Room::Last => "; further ones of this kind are not listed",
            Room::More => "",
        };
        self.notices.push(Notice {
            mono_ns,
            what: what.to_owned(),
            message: format!("guest {}: {message}{more}", self.guest),
        });
    }

    /// Tells the terminal.
    pub fn tell(&mut self, message: &str) {
        if self.news.len() < MAX_NEWS {
            self.news.push(format!("guest {}: {message}", self.guest));
        }
    }
}

fn source_name(number: u32) -> Option<&'static str> {
    let source = Source::ALL.iter().find(|s| **s as u32 == number)?;
    Some(source.name())
}

#[cfg(test)]
mod tests;
