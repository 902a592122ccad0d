//! When the threads that carry I/O ran, waited for a processor, or slept.
//!
//! Between two of its events a thread is in one state, which the later event decides: a thread that comes to a processor
//! without having been woken since it went to sleep had been woken before, while it was on its way to sleep (the kernel sends
//! that wake-up first). What contradicts itself (events were lost) is unknown.
//!
//! The newest intervals of all threads are kept, as sums, so that any part of them is two searches.

use std::collections::{BTreeMap, VecDeque};

use nestrace_abi::{Kind, flags::thread_state};
use nestrace_trace::Event;

use crate::model::pointer::PointerMap;
use crate::model::threads::Threads;
use crate::result::analysis::CpuTime;

/// Threads that are distinguished; later ones are unknown.
const MAX_THREADS: usize = 1 << 14;
/// Intervals that are kept.
const MAX_ROWS: usize = 1 << 19;
/// Names of those who ran instead of a process' threads.
const MAX_NAMES: usize = 64;

/// Who has a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// The 16 bytes of its comm.
    Named([u64; 2]),
    /// A thread that carries I/O.
    Carrier(u32),
}

/// What a thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    Running,
    Runnable,
    Asleep,
}

/// The end of an interval, and the sums from the thread's first event up to there.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    end_ns: u64,
    sums: CpuTime,
}

#[derive(Debug, Default)]
struct Thread {
    /// Where the kept intervals begin.
    base: Row,
    rows: VecDeque<Row>,
    state: State,
    /// It was woken in its present state: it does not go to sleep.
    woken: bool,
    /// Who has the processor that it lost.
    instead: Option<Who>,
}

impl Thread {
    fn new(ts_ns: u64) -> Self {
        Self {
            base: Row {
                end_ns: ts_ns,
                sums: CpuTime::default(),
            },
            ..Self::default()
        }
    }

    fn last(&self) -> Row {
        self.rows.back().copied().unwrap_or(self.base)
    }

    /// It was in `state` until now; how long that was.
    fn was(&mut self, state: State, ts_ns: u64) -> u64 {
        let last = self.last();
        let end_ns = ts_ns.max(last.end_ns);
        let sums = last.sums.plus(state, end_ns - last.end_ns);
        self.rows.push_back(Row { end_ns, sums });
        end_ns - last.end_ns
    }

    /// Sums up to a time; before the kept intervals nothing is added.
    fn sums_at(&self, ts_ns: u64) -> CpuTime {
        let next = self.rows.partition_point(|row| row.end_ns < ts_ns);
        let before = match next.checked_sub(1) {
            Some(before) => self.rows.get(before).copied().unwrap_or(self.base),
            None => self.base,
        };
        let since_ns = ts_ns.saturating_sub(before.end_ns);
        match self.rows.get(next) {
            Some(row) => before.sums.part_to(row.sums, since_ns),
            None => before.sums.plus(self.state, since_ns),
        }
    }
}

impl CpuTime {
    fn plus(mut self, state: State, ns: u64) -> Self {
        let sum_ns = match state {
            State::Running => &mut self.running,
            State::Runnable => &mut self.runnable,
            State::Asleep => &mut self.asleep,
            State::Unknown => &mut self.unknown,
        };
        *sum_ns = sum_ns.saturating_add(ns);
        self
    }

    /// What is `ns` further on the way to `later`, where one part alone is more.
    fn part_to(self, later: Self, ns: u64) -> Self {
        let part = |from: u64, to: u64| from.saturating_add(ns.min(to.saturating_sub(from)));
        Self {
            running: part(self.running, later.running),
            runnable: part(self.runnable, later.runnable),
            asleep: part(self.asleep, later.asleep),
            unknown: part(self.unknown, later.unknown),
        }
    }
}

/// The threads of one machine.
#[derive(Debug, Default)]
pub(crate) struct CpuStates {
    threads: PointerMap<u32, Thread>,
    n_rows: usize,
    newest_ns: u64,
    /// Processes with their guest: it is kept who ran instead of them.
    guests: PointerMap<u32, u32>,
    /// Their threads that are known from the manifest, with their names.
    of_guest: PointerMap<u32, (u32, String)>,
    /// By guest and name: how long a thread of QEMU waited for a processor meanwhile.
    ran_instead: BTreeMap<u32, BTreeMap<Who, u64>>,
}

impl CpuStates {
    /// Keeps who ran instead of this guest's QEMU; its threads as far as they are known.
    pub(crate) fn watch<'t>(
        &mut self,
        guest: u32,
        pid: u32,
        threads: impl Iterator<Item = (u32, &'t str)>,
    ) {
        self.guests.insert(pid, guest);
        let known = threads.map(|(tid, name)| (tid, (guest, name.to_owned())));
        self.of_guest.extend(known);
    }

    /// The guest of a thread of QEMU.
    fn guest_of(&self, tid: u32, threads: &Threads) -> Option<u32> {
        let by_process = || self.guests.get(&threads.get(tid)?.tgid).copied();
        let known = self.of_guest.get(&tid).map(|(guest, _)| *guest);
        known.or_else(by_process)
    }

    /// Whether any event was seen.
    pub(crate) fn is_recorded(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Takes a [`Kind::Switch`] or a [`Kind::Wake`].
    pub(crate) fn event(&mut self, kind: Kind, event: &Event, threads: &Threads) {
        self.newest_ns = self.newest_ns.max(event.ts_ns);
        let Ok(other) = u32::try_from(event.object) else {
            return;
        };
        if kind == Kind::Wake {
            self.wakes(other, event.ts_ns);
        } else {
            let named = Who::Named([event.related, event.offset]);
            if event.leaves_carrier() {
                self.leaves(event, named);
            }
            if event.comes_carrier() {
                let left = match event.leaves_carrier() {
                    true => Who::Carrier(event.tid),
                    false => named,
                };
                self.comes(other, event.ts_ns, left, threads);
            }
        }
        if self.n_rows > MAX_ROWS {
            self.forget_old();
        }
    }

    fn thread(&mut self, tid: u32, ts_ns: u64) -> Option<&mut Thread> {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            return None;
        }
        // Each event ends one interval at most.
        self.n_rows += 1;
        Some(
            self.threads
                .entry(tid)
                .or_insert_with(|| Thread::new(ts_ns)),
        )
    }

    fn leaves(&mut self, event: &Event, comes: Who) {
        let ts_ns = event.ts_ns;
        let Some(thread) = self.thread(event.tid, ts_ns) else {
            return;
        };
        let was = match thread.state {
            State::Running => State::Running,
            _ => State::Unknown,
        };
        thread.was(was, ts_ns);
        thread.instead = None;
        if event.sub == thread_state::RUNNABLE {
            thread.state = State::Runnable;
            thread.woken = false;
            thread.instead = Some(comes);
        } else {
            thread.state = State::Asleep;
        }
    }

    fn wakes(&mut self, tid: u32, ts_ns: u64) {
        let Some(thread) = self.thread(tid, ts_ns) else {
            return;
        };
        match thread.state {
            State::Running | State::Runnable => {
                thread.woken = true;
                self.n_rows -= 1;
            }
            state @ (State::Asleep | State::Unknown) => {
                thread.was(state, ts_ns);
                thread.state = State::Runnable;
                thread.woken = false;
            }
        }
    }

    fn comes(&mut self, tid: u32, ts_ns: u64, left: Who, threads: &Threads) {
        let Some(thread) = self.thread(tid, ts_ns) else {
            return;
        };
        let was = match thread.state {
            State::Runnable => State::Runnable,
            State::Asleep if thread.woken => State::Runnable,
            _ => State::Unknown,
        };
        let waited_ns = thread.was(was, ts_ns);
        thread.state = State::Running;
        thread.woken = false;
        let who = thread.instead.take().unwrap_or(left);
        if was == State::Runnable {
            self.note_instead(tid, who, waited_ns, threads);
        }
    }

    fn note_instead(&mut self, tid: u32, who: Who, waited_ns: u64, threads: &Threads) {
        let Some(guest) = self.guest_of(tid, threads) else {
            return;
        };
        let names = self.ran_instead.entry(guest).or_default();
        if names.len() < MAX_NAMES || names.contains_key(&who) {
            let sum_ns = names.entry(who).or_default();
            *sum_ns = sum_ns.saturating_add(waited_ns);
        }
    }

    /// Events are missing: what each thread does is not known until its next one.
    pub(crate) fn interrupted(&mut self, ts_ns: u64) {
        let known = |thread: &&mut Thread| thread.state != State::Unknown;
        for thread in self.threads.values_mut().filter(known) {
            thread.was(State::Unknown, ts_ns);
            (thread.state, thread.woken, thread.instead) = (State::Unknown, false, None);
            self.n_rows += 1;
        }
    }

    /// Forgets the older half of the time that is kept.
    #[cold]
    fn forget_old(&mut self) {
        let oldest = self
            .threads
            .values()
            .filter_map(|thread| thread.rows.front());
        let oldest_ns = oldest.map(|row| row.end_ns).min().unwrap_or(0);
        let until_ns = oldest_ns + self.newest_ns.saturating_sub(oldest_ns) / 2;
        for thread in self.threads.values_mut() {
            let old = thread.rows.partition_point(|row| row.end_ns < until_ns);
            if let Some(base) = thread.rows.drain(..old).next_back() {
                thread.base = base;
            }
            // One that has no interval there is as new as the rest.
            thread.base = match thread.rows.front() {
                None if thread.base.end_ns < until_ns => {
                    let sums = thread.sums_at(until_ns);
                    Row {
                        end_ns: until_ns,
                        sums,
                    }
                }
                _ => thread.base,
            };
        }
        self.n_rows = self.threads.values().map(|thread| thread.rows.len()).sum();
        // Stamps that lie close together leave too much of it.
        if self.n_rows > MAX_ROWS / 4 * 3 {
            for thread in self.threads.values_mut() {
                thread.base = thread.last();
                thread.rows.clear();
            }
            self.n_rows = 0;
        }
    }

    /// What a thread did between two times.
    pub(crate) fn between(&self, tid: u32, from_ns: u64, to_ns: u64) -> CpuTime {
        let length_ns = to_ns.saturating_sub(from_ns);
        let Some(thread) = self.threads.get(&tid).filter(|_| length_ns > 0) else {
            return CpuTime {
                unknown: length_ns,
                ..CpuTime::default()
            };
        };
        let (from, to) = (thread.sums_at(from_ns), thread.sums_at(to_ns));
        let known = CpuTime {
            running: to.running.saturating_sub(from.running),
            runnable: to.runnable.saturating_sub(from.runnable),
            asleep: to.asleep.saturating_sub(from.asleep),
            unknown: 0,
        };
        CpuTime {
            unknown: length_ns.saturating_sub(known.total()),
            ..known
        }
    }

    /// What a thread did from its first event to the last of all; `None` where it had none.
    pub(crate) fn in_all(&self, tid: u32) -> Option<CpuTime> {
        let thread = self.threads.get(&tid)?;
        Some(thread.sums_at(self.newest_ns.max(thread.last().end_ns)))
    }

    fn name_of(&self, who: Who, threads: &Threads) -> String {
        match who {
            Who::Named([related, offset]) => {
                let mut event = Event::at(0, Kind::Thread);
                event.related = related;
                event.offset = offset;
                event.thread_name()
            }
            Who::Carrier(tid) => {
                let of_qemu = || Some(self.of_guest.get(&tid)?.1.clone());
                let recorded = threads.get(tid).map(|thread| thread.name.clone());
                let name = recorded.or_else(of_qemu).filter(|name| !name.is_empty());
                name.unwrap_or_else(|| format!("thread {tid}"))
            }
        }
    }

    /// The threads of a guest's QEMU that had events, by number.
    pub(crate) fn threads_of(&self, guest: u32, threads: &Threads) -> Vec<u32> {
        let is_of = |tid: &u32| self.guest_of(*tid, threads) == Some(guest);
        let mut tids: Vec<u32> = self.threads.keys().copied().filter(is_of).collect();
        tids.sort_unstable();
        tids
    }

    /// Who ran instead of a guest's QEMU, and how long its threads waited meanwhile, the longest first.
    pub(crate) fn ran_instead(&self, guest: u32, threads: &Threads) -> Vec<(String, u64)> {
        let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
        for (who, ns) in self.ran_instead.get(&guest).into_iter().flatten() {
            let name = self.name_of(*who, threads);
            let sum_ns = by_name.entry(name).or_default();
            *sum_ns = sum_ns.saturating_add(*ns);
        }
        let mut names: Vec<(String, u64)> = by_name.into_iter().collect();
        names.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        names
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAVES: u32 = 1;
    const COMES: u32 = 2;

    fn switch(ts_ns: u64, tid: u32, sub: u8, next: u32, dev: u32) -> Event {
        Event {
            ts_ns,
            kind: Kind::Switch as u8,
            tid,
            sub,
            object: u64::from(next),
            dev,
            related: u64::from_le_bytes(*b"stress\0\0"),
            ..Event::default()
        }
    }

    fn wake(ts_ns: u64, tid: u32) -> Event {
        Event {
            ts_ns,
            kind: Kind::Wake as u8,
            object: u64::from(tid),
            ..Event::default()
        }
    }

    fn of(events: &[Event]) -> CpuStates {
        let mut states = CpuStates::default();
        states.watch(0, 1, [(7, "io0")].into_iter());
        for event in events {
            let kind = event.kind().expect("of a known kind");
            states.event(kind, event, &Threads::default());
        }
        states
    }

    fn parts(time: CpuTime) -> [u64; 4] {
        [time.running, time.runnable, time.asleep, time.unknown]
    }

    const ASLEEP: u8 = thread_state::ASLEEP;
    const PREEMPTED: u8 = thread_state::RUNNABLE;

    #[test]
    fn a_thread_runs_sleeps_is_woken_and_waits() {
        let states = of(&[
            switch(100, 3, PREEMPTED, 7, COMES),
            switch(130, 7, ASLEEP, 3, LEAVES),
            wake(150, 7),
            switch(160, 3, PREEMPTED, 7, COMES),
            switch(200, 7, PREEMPTED, 9, LEAVES),
            switch(230, 9, ASLEEP, 7, COMES),
            switch(240, 7, ASLEEP, 0, LEAVES),
        ]);
        assert_eq!(parts(states.between(7, 100, 240)), [80, 40, 20, 0]);
        assert_eq!(parts(states.between(7, 140, 155)), [0, 5, 10, 0]);
        assert_eq!(parts(states.between(7, 90, 101)), [1, 0, 0, 10]);
        // Since the last event it sleeps.
        assert_eq!(parts(states.between(7, 235, 300)), [5, 0, 60, 0]);
        assert_eq!(
            states.ran_instead(0, &Threads::default()),
            [("stress".to_owned(), 40)]
        );
        assert_eq!(parts(states.between(8, 0, 10)), [0, 0, 0, 10]);
    }

    #[test]
    fn one_that_is_woken_on_its_way_to_sleep_waits_from_there() {
        let states = of(&[
            switch(100, 3, PREEMPTED, 7, COMES),
            wake(128, 7),
            switch(130, 7, ASLEEP, 3, LEAVES),
            switch(160, 3, PREEMPTED, 7, COMES),
            // Woken while it ran, and went on running: the next sleep ends with a wake-up of its own.
            wake(170, 7),
            switch(180, 7, ASLEEP, 3, LEAVES),
            wake(190, 7),
            switch(195, 3, PREEMPTED, 7, COMES),
        ]);
        assert_eq!(parts(states.between(7, 100, 160)), [30, 30, 0, 0]);
        assert_eq!(parts(states.between(7, 160, 195)), [20, 5, 10, 0]);
    }

    #[test]
    fn what_contradicts_itself_is_unknown() {
        let states = of(&[
            switch(100, 3, PREEMPTED, 7, COMES),
            switch(130, 7, ASLEEP, 3, LEAVES),
            // Its wake-up was lost.
            switch(160, 3, PREEMPTED, 7, COMES),
            // So was that it left.
            switch(200, 3, PREEMPTED, 7, COMES),
        ]);
        assert_eq!(parts(states.between(7, 100, 200)), [30, 0, 0, 70]);
    }

    #[test]
    fn old_intervals_are_forgotten_and_count_as_unknown() {
        let mut states = CpuStates::default();
        let threads = Threads::default();
        let n = MAX_ROWS as u64;
        for i in 0..n {
            let (comes, leaves) = (
                switch(2 * i, 3, PREEMPTED, 7, COMES),
                switch(2 * i + 1, 7, PREEMPTED, 3, LEAVES),
            );
            states.event(Kind::Switch, &comes, &threads);
            states.event(Kind::Switch, &leaves, &threads);
        }
        assert!(states.n_rows <= MAX_ROWS);
        let end_ns = 2 * n - 1;
        assert_eq!(
            parts(states.between(7, end_ns - 100, end_ns)),
            [50, 50, 0, 0]
        );
        assert_eq!(parts(states.between(7, 0, 100)), [0, 0, 0, 100]);
        // What was in all is still known.
        assert_eq!(states.in_all(7).map(parts), Some([n, n - 1, 0, 0]));
    }

    #[test]
    fn a_clock_that_stands_still_keeps_no_more() {
        let mut states = CpuStates::default();
        let threads = Threads::default();
        for _ in 0..MAX_ROWS {
            let comes = switch(5, 3, PREEMPTED, 7, COMES);
            states.event(Kind::Switch, &comes, &threads);
            states.event(Kind::Switch, &switch(5, 7, PREEMPTED, 3, LEAVES), &threads);
            assert!(states.n_rows <= MAX_ROWS);
        }
        for tid in 0..10 {
            states.event(Kind::Switch, &switch(6, 3, PREEMPTED, tid, COMES), &threads);
        }
        (0..10).for_each(|_| states.interrupted(7));
        let rows: usize = states
            .threads
            .values()
            .map(|thread| thread.rows.len())
            .sum();
        assert!(rows <= MAX_ROWS);
    }

    proptest! {
        /// Whatever the events, the four add up to the interval.
        #[test]
        fn the_parts_add_up(
            events in prop::collection::vec((0u64..50, 0u8..6, 1u32..4), 0..60),
            from in 0u64..3000,
            length in 0u64..3000,
        ) {
            let mut ts_ns = 0;
            let events: Vec<Event> = events
                .iter()
                .map(|(step, what, tid)| {
                    ts_ns += step;
                    match what {
                        0 => wake(ts_ns, *tid),
                        1 => switch(ts_ns, 9, PREEMPTED, *tid, COMES),
                        2 => switch(ts_ns, *tid, PREEMPTED, 9, LEAVES),
                        3 => switch(ts_ns, *tid, *tid as u8, 2, LEAVES | COMES),
                        _ => switch(ts_ns, *tid, ASLEEP, 9, LEAVES),
                    }
                })
                .collect();
            let states = of(&events);
            for tid in 1..4 {
                let time = states.between(tid, from, from + length);
                prop_assert_eq!(time.total(), length);
            }
        }
    }
}
