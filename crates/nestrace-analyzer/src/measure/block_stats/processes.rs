//! Which process queued what.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use crate::measure::collects::Collects;
use crate::measure::histogram::Histogram;
use crate::measure::parts::PartMeters;
use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::threads::Threads;
use crate::result::analysis;

/// Names that are distinguished on a machine.
const MAX_NAMES: usize = 1 << 12;
/// Processes that are distinguished on a device: a set of histograms for each.
const MAX_PROCESSES: usize = 128;
/// Thread ids remembered; they are used again, so this is only a shortcut.
const MAX_THREADS: usize = 1 << 14;

/// A process as a number that holds for one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessId(u16);

impl ProcessId {
    /// As a place in a list.
    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// Threads that are found without a search.
const RECENT: usize = 64;
/// What does not fit.
const OTHERS: ProcessId = ProcessId(0);

/// A name that may become known later.
type Name = Rc<RefCell<String>>;

/// The processes of one machine by name.
#[derive(Debug)]
pub(crate) struct ProcessNames {
    names: Vec<Name>,
    by_name: HashMap<String, ProcessId>,
    by_tid: PointerMap<u32, ProcessId>,
    /// Threads that were asked for lately, each at a place that its id gives.
    recent: [Option<(u32, ProcessId)>; RECENT],
    /// Threads whose name was not known when they first did something.
    unnamed: Vec<(u32, ProcessId)>,
    seen_changes: u64,
    /// Threads without a name that turned out to be of a process that has a number already.
    turned_out: Vec<TurnedOut>,
}

/// What was counted under one number is of the process with another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnedOut {
    pub thread: ProcessId,
    pub process: ProcessId,
}

impl Default for ProcessNames {
    fn default() -> Self {
        Self {
            names: vec![Rc::new(RefCell::new(String::from("(others)")))],
            by_name: HashMap::new(),
            by_tid: PointerMap::default(),
            recent: [None; RECENT],
            unnamed: Vec::new(),
            seen_changes: 0,
            turned_out: Vec::new(),
        }
    }
}

impl ProcessNames {
    /// The process of a thread.
    #[inline]
    pub(crate) fn of(&mut self, tid: u32, threads: &Threads) -> ProcessId {
        if self.seen_changes == threads.changes() {
            let recent = &mut self.recent[tid as usize % RECENT];
            if let Some((known, process)) = *recent
                && known == tid
            {
                return process;
            }
            if let Some(process) = self.by_tid.get(&tid) {
                *recent = Some((tid, *process));
                return *process;
            }
        }
        self.look_up(tid, threads)
    }

    fn look_up(&mut self, tid: u32, threads: &Threads) -> ProcessId {
        if self.seen_changes != threads.changes() || self.by_tid.len() >= MAX_THREADS {
            self.seen_changes = threads.changes();
            self.by_tid.clear();
            self.recent = [None; RECENT];
            self.name_the_unnamed(threads);
        }
        let process = match name_of(tid, threads) {
            Some(name) => self.named(name),
            None => self.unnamed(tid),
        };
        self.by_tid.insert(tid, process);
        self.recent[tid as usize % RECENT] = Some((tid, process));
        process
    }

    fn named(&mut self, name: String) -> ProcessId {
        if let Some(process) = self.by_name.get(&name) {
            return *process;
        }
        let process = self.add(name.clone());
        if process != OTHERS {
            self.by_name.insert(name, process);
        }
        process
    }

    fn unnamed(&mut self, tid: u32) -> ProcessId {
        if let Some((_, process)) = self.unnamed.iter().find(|(known, _)| *known == tid) {
            return *process;
        }
        let process = self.add(format!("pid{tid:09}"));
        if process != OTHERS {
            self.unnamed.push((tid, process));
        }
        process
    }

    fn add(&mut self, name: String) -> ProcessId {
        match u16::try_from(self.names.len()) {
            Ok(number) if self.names.len() < MAX_NAMES => {
                self.names.push(Rc::new(RefCell::new(name)));
                ProcessId(number)
            }
            _ => OTHERS,
        }
    }

    fn name_the_unnamed(&mut self, threads: &Threads) {
        let Self {
            names,
            unnamed,
            by_name,
            turned_out,
            ..
        } = self;
        unnamed.retain(|(tid, thread)| {
            let Some(name) = name_of(*tid, threads) else {
                return true;
            };
            if let Some(known) = names.get(usize::from(thread.0)) {
                known.replace(name.clone());
            }
            match by_name.entry(name) {
                Entry::Vacant(place) => _ = place.insert(*thread),
                Entry::Occupied(process) => turned_out.push(TurnedOut {
                    thread: *thread,
                    process: *process.get(),
                }),
            }
            false
        });
    }

    /// What has turned out since the first `known` of them.
    pub(crate) fn turned_out_since(&self, known: usize) -> &[TurnedOut] {
        self.turned_out.get(known..).unwrap_or_default()
    }

    fn name(&self, process: ProcessId) -> Name {
        let known = self.names.get(usize::from(process.0));
        known.unwrap_or(&self.names[0]).clone()
    }

    /// Every name by number.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ProcessId, String)> {
        let numbers = (0..).map(ProcessId);
        numbers.zip(self.names.iter().map(|name| name.borrow().clone()))
    }
}

/// As btt has it: the idle task is the kernel, and a name ends at a slash.
fn name_of(tid: u32, threads: &Threads) -> Option<String> {
    if tid == 0 {
        return Some(String::from("kernel"));
    }
    threads.get(tid)?;
    let (_, name) = threads.process(tid);
    Some(name.split('/').next().unwrap_or_default().to_owned())
}

/// What one process did on one device.
#[derive(Debug)]
pub(crate) struct ProcessMeter {
    name: Name,
    queued: u64,
    bytes: u64,
    first_queued_ns: Option<u64>,
    last_queued_ns: Option<u64>,
    pub q2q: Histogram,
    /// From its Q on any device; only where the machine is looked at as a whole.
    pub q2q_anywhere: Histogram,
    /// Of reads, writes and discards: what the device itself says is these of all processes, added up.
    by_operation: [PartMeters; Operation::WITH_DATA.len()],
}

impl ProcessMeter {
    pub(crate) fn name(&self) -> String {
        self.name.borrow().clone()
    }

    /// The parts of the way of everything that it did.
    pub(crate) fn parts(&self) -> PartMeters {
        let mut all = PartMeters::default();
        self.by_operation.iter().for_each(|parts| all.merge(parts));
        all
    }

    pub(crate) fn queued(&mut self, ts_ns: u64, bytes: u64) {
        self.queued += 1;
        self.bytes += bytes;
        self.first_queued_ns.get_or_insert(ts_ns);
        if let Some(last_ns) = self.last_queued_ns.replace(ts_ns) {
            self.q2q.record(ts_ns.saturating_sub(last_ns));
        }
    }

    /// Goes on where a thread has been until now that turned out to be of this process. Between the last Q of the
    /// one and the first of the other lies an interval of both, unless they queued by turns.
    fn goes_on_after(&mut self, first_ns: u64, last_ns: u64) {
        match self.last_queued_ns {
            Some(own_ns) if own_ns <= first_ns => self.q2q.record(first_ns - own_ns),
            _ => {}
        }
        self.first_queued_ns.get_or_insert(first_ns);
        self.last_queued_ns = self.last_queued_ns.max(Some(last_ns));
    }

    fn merge(&mut self, other: &Self) {
        self.queued += other.queued;
        self.bytes += other.bytes;
        self.q2q.merge(&other.q2q);
        self.q2q_anywhere.merge(&other.q2q_anywhere);
        let parts = self.by_operation.iter_mut().zip(&other.by_operation);
        parts.for_each(|(to, from)| to.merge(from));
    }
}

/// The processes that used one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceProcesses {
    collects: Collects,
    by_id: Vec<Option<Box<ProcessMeter>>>,
    n: usize,
    /// Threads that turned out to be of a process, and were seen to.
    n_turned_out: usize,
}

impl DeviceProcesses {
    pub(crate) fn new(collects: Collects) -> Self {
        Self {
            collects,
            ..Self::default()
        }
    }

    /// The meter of a process; a new one at its first Q.
    #[inline]
    pub(crate) fn of_queued(
        &mut self,
        process: ProcessId,
        names: &ProcessNames,
    ) -> &mut ProcessMeter {
        let turned_out = names.turned_out_since(self.n_turned_out);
        if !turned_out.is_empty() {
            self.n_turned_out += turned_out.len();
            turned_out.iter().for_each(|it| self.go_on(*it, names));
        }
        self.entry(process, names)
    }

    /// Later I/Os of a thread that has got its name are counted where those of its process are.
    fn go_on(&mut self, TurnedOut { thread, process }: TurnedOut, names: &ProcessNames) {
        let place = usize::from(thread.0);
        let Some(meter) = self.by_id.get(place).and_then(Option::as_deref) else {
            return;
        };
        let queued = meter.first_queued_ns.zip(meter.last_queued_ns);
        if let Some((first_ns, last_ns)) = queued {
            self.entry(process, names).goes_on_after(first_ns, last_ns);
        }
    }

    #[inline]
    fn entry(&mut self, process: ProcessId, names: &ProcessNames) -> &mut ProcessMeter {
        let known = matches!(self.by_id.get(usize::from(process.0)), Some(Some(_)));
        let process = if known || self.n < MAX_PROCESSES {
            process
        } else {
            OTHERS
        };
        let place = usize::from(process.0);
        if self.by_id.len() <= place {
            self.by_id.resize_with(place + 1, || None);
        }
        let (n, collects) = (&mut self.n, self.collects);
        self.by_id[place].get_or_insert_with(|| {
            *n += 1;
            Box::new(ProcessMeter {
                name: names.name(process),
                queued: 0,
                bytes: 0,
                first_queued_ns: None,
                last_queued_ns: None,
                q2q: collects.histogram(),
                q2q_anywhere: collects.histogram(),
                by_operation: Default::default(),
            })
        })
    }

    /// The parts of what a process, if it has queued, did with data.
    #[inline]
    pub(crate) fn parts_of(
        &mut self,
        process: ProcessId,
        operation: Operation,
    ) -> Option<&mut PartMeters> {
        let place = usize::from(process.0);
        let place = match self.by_id.get(place) {
            Some(Some(_)) => place,
            _ => usize::from(OTHERS.0),
        };
        let process = self.by_id.get_mut(place)?.as_deref_mut()?;
        process.by_operation.get_mut(operation.place()?)
    }

    /// The parts of what all processes did, of one operation after the other.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Operation, &PartMeters)> {
        let processes = self.by_id.iter().flatten();
        processes.flat_map(|process| Operation::WITH_DATA.into_iter().zip(&process.by_operation))
    }

    /// All, those of one name as one, by name.
    pub(crate) fn by_name(&mut self) -> Vec<ProcessMeter> {
        let mut meters: Vec<ProcessMeter> = Vec::new();
        for meter in std::mem::take(&mut self.by_id).into_iter().flatten() {
            let name = meter.name();
            match meters.iter_mut().find(|known| known.name() == name) {
                Some(known) => known.merge(&meter),
                None => meters.push(*meter),
            }
        }
        meters.sort_by_key(|meter| meter.name());
        meters
    }
}

/// `devices[].stats.processes`, the one that waited longest first.
pub(crate) fn finish(meters: &[ProcessMeter], stacked: bool) -> Vec<analysis::Process> {
    let mut processes: Vec<analysis::Process> = meters
        .iter()
        .map(|meter| analysis::Process {
            name: meter.name(),
            queued: meter.queued,
            bytes: meter.bytes,
            q2q: meter.q2q.dist(),
            latency_ns: meter.parts().parts(true, !stacked),
        })
        .collect();
    let waited = |process: &analysis::Process| process.latency_ns.q2c.map_or(0, |q2c| q2c.sum);
    processes.sort_by_key(|process| std::cmp::Reverse(waited(process)));
    processes
}
