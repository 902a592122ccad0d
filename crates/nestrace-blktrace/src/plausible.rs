//! Leaves out records whose time cannot be.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::VecDeque;

use super::Trace;

/// How far a record may lie from both neighbours in the file of one processor, whose times ascend.
const ONE_CPU_NS: u64 = 100_000_000;
/// In a file of several, whose records come in runs.
const SEVERAL_CPUS_NS: u64 = 3_600_000_000_000;

/// Holds a record back until the next one is known. One whose time is far from both, while those two agree,
/// is damaged: it would keep everything after it from being put in order.
#[derive(Debug, Default)]
pub(super) struct Plausible {
    before_ns: Option<u64>,
    held: Option<(u64, Trace)>,
    ready: VecDeque<Trace>,
    /// Notifications since the one that is held.
    behind: Vec<Trace>,
    cpu: Option<u32>,
    several_cpus: bool,
}

/// Records of I/O in a row that pass at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    before_ns: u64,
    /// Where all are of one.
    cpu: Option<u32>,
}

impl Run {
    /// Whether a record may pass: its time is near the one before. Most do.
    #[inline(always)]
    pub(super) fn may_go_on_with(&self, trace: &Trace) -> bool {
        trace.notify().is_none()
            && self.cpu.is_none_or(|cpu| cpu == trace.cpu)
            && self.before_ns.abs_diff(trace.time_ns) <= ONE_CPU_NS
    }

    #[inline(always)]
    pub(super) fn go_on_with(&mut self, trace: &Trace) {
        self.before_ns = trace.time_ns;
    }
}

impl Plausible {
    /// Takes the next record with its offset (`None` at the end); the offset of one that was left out.
    pub(super) fn push(&mut self, next: Option<(u64, Trace)>) -> Option<u64> {
        if let Some((_, trace)) = &next
            && trace.notify().is_some()
        {
            self.behind.extend(next.map(|(_, trace)| trace));
            return None;
        }
        if let Some((_, trace)) = &next {
            self.several_cpus |= *self.cpu.get_or_insert(trace.cpu) != trace.cpu;
        }
        let held = std::mem::replace(&mut self.held, next);
        let Some((offset, trace)) = held else {
            self.ready.extend(self.behind.drain(..));
            return None;
        };
        let after_ns = self.held.as_ref().map(|(_, trace)| trace.time_ns);
        if after_ns.is_some_and(|after_ns| self.is_damaged(trace.time_ns, after_ns)) {
            self.ready.extend(self.behind.drain(..));
            return Some(offset);
        }
        self.before_ns = Some(trace.time_ns);
        self.ready.push_back(trace);
        self.ready.extend(self.behind.drain(..));
        // What is near the one before needs no second opinion.
        if let Some((offset, next)) = self.held.take() {
            if self.passes(&next) {
                self.ready.push_back(next);
            } else {
                self.held = Some((offset, next));
            }
        }
        None
    }

    /// Whether a record passes at once.
    #[inline]
    pub(super) fn passes(&mut self, trace: &Trace) -> bool {
        if trace.notify().is_some() {
            // Its time is the machine's own even in dumps, where no other is.
            return self.held.is_none();
        }
        let passes = self.held.is_none() && self.run().is_some_and(|run| run.may_go_on_with(trace));
        if passes {
            self.before_ns = Some(trace.time_ns);
        }
        passes
    }

    /// What records that pass at once follow, where any can.
    #[inline]
    pub(super) fn begin_run(&self) -> Option<Run> {
        self.run().filter(|_| !self.holds_any())
    }

    /// All up to where it has gone have passed.
    #[inline]
    pub(super) fn end_run(&mut self, run: Run) {
        self.before_ns = Some(run.before_ns);
    }

    #[inline]
    fn run(&self) -> Option<Run> {
        Some(Run {
            before_ns: self.before_ns?,
            cpu: self.cpu.filter(|_| !self.several_cpus),
        })
    }

    /// Whether a record waits for others, or to be taken.
    #[inline]
    pub(super) fn holds_any(&self) -> bool {
        self.held.is_some() || !self.ready.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<Trace> {
        self.ready.pop_front()
    }

    fn is_damaged(&self, time_ns: u64, after_ns: u64) -> bool {
        let far_ns = if self.several_cpus {
            SEVERAL_CPUS_NS
        } else {
            ONE_CPU_NS
        };
        let far = |a: u64, b: u64| a > b.saturating_add(far_ns);
        let Some(before_ns) = self.before_ns else {
            // One of the two: the first, if nothing else can be.
            return time_ns > after_ns.saturating_add(SEVERAL_CPUS_NS);
        };
        let too_late = far(time_ns, after_ns) && !far(before_ns, after_ns);
        let too_early = far(before_ns, time_ns) && !far(before_ns, after_ns);
        too_late || too_early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that pass, of records on one processor.
    fn passed(times: &[u64], cpus: &[u32]) -> Vec<u64> {
        let mut plausible = Plausible::default();
        let records = times.iter().zip(cpus.iter().cycle());
        let traces = records.map(|(time_ns, cpu)| Trace {
            time_ns: *time_ns,
            cpu: *cpu,
            ..Trace::default()
        });
        let mut passed = Vec::new();
        for next in traces.map(|trace| Some((0, trace))).chain([None]) {
            plausible.push(next);
            while let Some(trace) = plausible.take() {
                passed.push(trace.time_ns);
            }
        }
        passed
    }

    #[test]
    fn a_second_processor_asks_for_a_second_look() {
        let record = |cpu, time_ns| Trace {
            cpu,
            time_ns,
            ..Trace::default()
        };
        let mut plausible = Plausible::default();
        for next in [record(0, 1), record(0, 2)] {
            plausible.push(Some((0, next)));
        }
        while plausible.take().is_some() {}
        let run = plausible.begin_run().unwrap_or_else(|| unreachable!());
        for (cpu, passes) in [(0, true), (1, false)] {
            assert_eq!(run.may_go_on_with(&record(cpu, 3)), passes);
            assert_eq!(plausible.passes(&record(cpu, 3)), passes);
        }
    }

    #[test]
    fn notifications_have_times_of_their_own() {
        let mut plausible = Plausible::default();
        let notification = |time_ns| Trace {
            time_ns,
            raw_action: super::super::action::NOTIFY_PROCESS,
            ..Trace::default()
        };
        let record = |time_ns| Trace {
            time_ns,
            ..Trace::default()
        };
        let mut passed = Vec::new();
        let far = 1 << 50;
        let records = [
            record(1),
            notification(far),
            record(2),
            notification(far),
            record(3),
        ];
        for next in records
            .map(|trace| Some((0, trace)))
            .into_iter()
            .chain([None])
        {
            assert_eq!(plausible.push(next), None);
            while let Some(trace) = plausible.take() {
                passed.push(trace.time_ns);
            }
        }
        assert_eq!(passed, [1, far, 2, far, 3]);
    }

    #[test]
    fn a_time_out_of_line_is_left_out_and_a_long_pause_is_not() {
        const FAR: u64 = 1 << 60;
        assert_eq!(passed(&[5, 6, FAR, 8, 9], &[0]), [5, 6, 8, 9]);
        assert_eq!(passed(&[FAR, 6, 7], &[0]), [6, 7]);
        let second = 1_000_000_000;
        assert_eq!(
            passed(&[5 * second, 0, 6 * second], &[0]),
            [5 * second, 6 * second]
        );
        assert_eq!(passed(&[5, FAR, FAR + 1], &[0]), [5, FAR, FAR + 1]);
        assert_eq!(passed(&[5, FAR], &[0]), [5, FAR]);
    }

    #[test]
    fn runs_of_several_processors_are_no_damage() {
        let second = 1_000_000_000;
        let runs = [
            10 * second,
            11 * second,
            5 * second,
            12 * second,
            6 * second,
        ];
        assert_eq!(passed(&runs, &[0, 0, 1, 0, 1]), runs);
    }
}
