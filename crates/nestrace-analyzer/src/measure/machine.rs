//! One machine's block layer as a whole: what is counted across devices, on top of what each counts.

mod activity;

use nestrace_trace::Event;

use crate::measure::at_device::{AtDevice, Coming};
use crate::measure::block_stats::processes::{ProcessId, ProcessNames, TurnedOut};
use crate::measure::block_stats::{ActivePeriodsMeter, StatsMeter};
use crate::measure::device::DeviceMeter;
use crate::model::operation::Operation;
use crate::model::threads::Threads;
use crate::result::analysis::{Active, ActivePeriods, Io};

use activity::Activity;

/// What is counted across devices, as far as somebody asks.
#[derive(Debug, Default)]
pub(crate) struct MachineStats {
    pub names: ProcessNames,
    /// `None` where only the devices are of interest.
    pub whole: Option<Box<WholeMachine>>,
    /// Every I/O that ended, for the caller to drain; `None` unless asked for.
    pub ios: Option<Vec<Io>>,
}

/// When something was queued and completed.
#[derive(Debug, Default)]
struct Activities {
    queued: Activity,
    completed: Activity,
}

impl Activities {
    fn finish(self) -> Active {
        Active {
            queued: self.queued.into_stretches(),
            completed: self.completed.into_stretches(),
        }
    }
}

/// A process across devices.
#[derive(Debug, Default)]
struct MachineProcess {
    first_queued_ns: Option<u64>,
    last_queued_ns: Option<u64>,
    activity: Activities,
}

/// All devices of a machine, taken together.
#[derive(Debug, Default)]
pub(crate) struct WholeMachine {
    last_queued_ns: Option<u64>,
    /// There are several devices. As long as there is one, it says itself what is at it and when it had work.
    has_several: bool,
    at_device: AtDevice,
    active: ActivePeriodsMeter,
    activity: Activities,
    by_device: Vec<Activities>,
    by_process: Vec<MachineProcess>,
    /// Threads that turned out to be of a process, and were seen to.
    n_turned_out: usize,
}

/// The entry of this number, made where it is missing.
fn entry<T: Default>(list: &mut Vec<T>, place: usize) -> &mut T {
    if list.len() <= place {
        list.resize_with(place + 1, T::default);
    }
    &mut list[place]
}

impl MachineStats {
    /// Q of a bio with data on the device of this number.
    pub(crate) fn queued(
        &mut self,
        (device, meter): (u16, &mut DeviceMeter),
        event: &Event,
        operation: Operation,
        threads: &Threads,
    ) -> ProcessId {
        let process = self.names.of(event.tid, threads);
        meter.stats.queued(event, operation);
        let StatsMeter {
            remapped,
            processes,
            q2q_anywhere,
            ..
        } = &mut meter.stats;
        remapped.queued(event.offset, event.bytes, (event.ts_ns, process));
        if let Some(whole) = &mut self.whole {
            let turned_out = self.names.turned_out_since(whole.n_turned_out);
            whole.n_turned_out += turned_out.len();
            for it in turned_out {
                if let Some(passed_ns) = whole.go_on(*it) {
                    let of_process = processes.of_queued(it.process, &self.names);
                    of_process.q2q_anywhere.record(passed_ns);
                }
            }
        }
        let of_process = processes.of_queued(process, &self.names);
        of_process.queued(event.ts_ns, event.bytes);
        if let Some(whole) = &mut self.whole {
            let (since_any, since_its_own) = whole.queued(device, process, event.ts_ns);
            if let Some(passed_ns) = since_its_own {
                of_process.q2q_anywhere.record(passed_ns);
            }
            if let Some(passed_ns) = since_any {
                q2q_anywhere.record(passed_ns);
            }
        }
        process
    }

    /// D of a request with data.
    #[inline]
    pub(crate) fn comes(&mut self, of_device: Coming, ts_ns: u64, has_data: bool) -> Coming {
        match self.of_several() {
            Some(whole) => whole.at_device.comes(ts_ns, has_data),
            None => of_device,
        }
    }

    /// It leaves its device.
    #[inline]
    pub(crate) fn leaves(&mut self, coming: Coming, ts_ns: u64) {
        if let Some(whole) = self.of_several() {
            whole.at_device.leaves(coming, ts_ns);
            whole.tell_known();
        }
    }

    /// It has left its device without being seen to.
    pub(crate) fn leaving_missed(&mut self, coming: Coming) {
        if let Some(whole) = self.of_several() {
            whole.at_device.missed(coming);
            whole.tell_known();
        }
    }

    /// What is at all devices, where that is not what is at the only one.
    #[inline]
    fn of_several(&mut self) -> Option<&mut WholeMachine> {
        let whole = self.whole.as_deref_mut();
        whole.filter(|whole| whole.has_several)
    }

    /// A second device is there: takes over what is known of the one that was alone until now.
    pub(crate) fn take_over(&mut self, first: &DeviceMeter) {
        if let Some(whole) = &mut self.whole {
            (whole.at_device, whole.active) = first.at_device_and_active();
            whole.has_several = true;
        }
    }

    /// A completion that moved data on the device of this number.
    #[inline]
    pub(crate) fn transferred(&mut self, device: u16, event: &Event, threads: &Threads) {
        if let Some(whole) = &mut self.whole {
            let process = self.names.of(event.tid, threads);
            whole.transferred(device, process, event.ts_ns);
        }
    }
}

impl WholeMachine {
    /// Time from the Q before: anywhere, and of the same process.
    fn queued(
        &mut self,
        device: u16,
        process: ProcessId,
        ts_ns: u64,
    ) -> (Option<u64>, Option<u64>) {
        self.activity.queued.at(ts_ns);
        entry(&mut self.by_device, usize::from(device))
            .queued
            .at(ts_ns);
        let of_process = entry(&mut self.by_process, process.number());
        of_process.activity.queued.at(ts_ns);
        of_process.first_queued_ns.get_or_insert(ts_ns);
        let since = |last_ns: Option<u64>| last_ns.map(|last_ns| ts_ns.saturating_sub(last_ns));
        (
            since(self.last_queued_ns.replace(ts_ns)),
            since(of_process.last_queued_ns.replace(ts_ns)),
        )
    }

    /// A process goes on where a thread was that turned out to be its own. The interval between both, unless they
    /// queued by turns.
    fn go_on(&mut self, TurnedOut { thread, process }: TurnedOut) -> Option<u64> {
        let of_thread = entry(&mut self.by_process, thread.number());
        let first_ns = of_thread.first_queued_ns?;
        let last_ns = of_thread.last_queued_ns;
        let own = entry(&mut self.by_process, process.number());
        let own_ns = own.last_queued_ns;
        own.first_queued_ns.get_or_insert(first_ns);
        own.last_queued_ns = own.last_queued_ns.max(last_ns);
        first_ns.checked_sub(own_ns?)
    }

    fn transferred(&mut self, device: u16, process: ProcessId, ts_ns: u64) {
        self.activity.completed.at(ts_ns);
        let of_device = entry(&mut self.by_device, usize::from(device));
        of_device.completed.at(ts_ns);
        let of_process = entry(&mut self.by_process, process.number());
        of_process.activity.completed.at(ts_ns);
    }

    fn tell_known(&mut self) {
        while let Some(change) = self.at_device.next_known() {
            if change.has_data {
                self.active.changed(change);
            }
        }
    }

    /// Time in which any device had work; `first` is that of the first one.
    pub(crate) fn active(&mut self, start_ns: u64, first: ActivePeriods) -> ActivePeriods {
        if !self.has_several {
            return first;
        }
        self.at_device.stay();
        self.tell_known();
        self.active.finish(start_ns)
    }

    /// Activity of all, and of each device and process by its number.
    pub(crate) fn activities(&mut self) -> (Active, Vec<Active>, Vec<Active>) {
        let devices = std::mem::take(&mut self.by_device).into_iter();
        let processes = std::mem::take(&mut self.by_process).into_iter();
        (
            std::mem::take(&mut self.activity).finish(),
            devices.map(Activities::finish).collect(),
            processes.map(|process| process.activity.finish()).collect(),
        )
    }
}
