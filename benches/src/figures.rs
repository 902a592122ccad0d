//! What several rounds say about a contestant.

use super::contestant::Contestant;
use super::phase::Phase;

/// A figure of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one; the mean of the two in the middle where their number is even.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` where there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self {
            median: (lower + upper) / 2.0,
            min: *values.first()?,
            max: *values.last()?,
        })
    }
}

/// A contestant under a load. What is compared is compared within a round, because the machine drifts.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Who.
    pub contestant: Contestant,
    /// Reads per second.
    pub iops: Spread,
    /// Part of the same round's untraced IOPS that is missing; below 0 where there were more.
    pub iops_lost: Spread,
    /// 99th percentile of fio's completion latency, microseconds.
    pub p99_us: Spread,
    /// Processor time per I/O of fio, the kernel's threads and the recorder, microseconds.
    pub cpu_us: Spread,
    /// The same above the same round's untraced.
    pub cpu_added_us: Spread,
    /// Processor time of the recorder's process per I/O, microseconds.
    pub own_us: Spread,
    /// Figures of its traces; `None` for a contestant that leaves none.
    pub trace: Option<TraceFigures>,
}

/// The traces of a contestant.
#[derive(Clone, Debug)]
pub struct TraceFigures {
    /// Events per second of all processors.
    pub events_per_s: Spread,
    /// The most events per second that one processor made in any round, where that is known.
    pub busiest_cpu_per_s: Option<f64>,
    /// Events lost in all rounds.
    pub lost: u64,
    /// Events kept in all rounds.
    pub events: u64,
    /// Bytes per event.
    pub bytes_per_event: Spread,
    /// Most resident memory of any round, bytes.
    pub peak_resident_bytes: u64,
}

impl Figures {
    /// Figures of `contestant` from the phases of one load; `None` if it or the untraced run is missing.
    pub fn of(contestant: Contestant, phases: &[Phase]) -> Option<Self> {
        let untraced = |round: u32| {
            let same =
                |phase: &&Phase| phase.contestant == Contestant::Untraced && phase.round == round;
            phases.iter().find(same)
        };
        let pairs: Vec<(&Phase, &Phase)> = phases
            .iter()
            .filter(|phase| phase.contestant == contestant)
            .filter_map(|phase| Some((phase, untraced(phase.round)?)))
            .collect();
        let spread = |figure: fn(&Phase, &Phase) -> f64| {
            Spread::of(
                pairs
                    .iter()
                    .map(|(phase, untraced)| figure(phase, untraced)),
            )
        };
        Some(Self {
            contestant,
            iops: spread(|phase, _| phase.iops)?,
            iops_lost: spread(|phase, untraced| 1.0 - phase.iops / untraced.iops)?,
            p99_us: spread(|phase, _| phase.p99_us)?,
            cpu_us: spread(|phase, _| phase.cpu_us())?,
            cpu_added_us: spread(|phase, untraced| phase.cpu_us() - untraced.cpu_us())?,
            own_us: spread(|phase, _| phase.own_us())?,
            trace: TraceFigures::of(pairs.iter().map(|(phase, _)| *phase)),
        })
    }
}

impl TraceFigures {
    fn of<'a>(phases: impl Iterator<Item = &'a Phase>) -> Option<Self> {
        let recorded: Vec<_> = phases
            .filter_map(|phase| {
                let recorded = phase.recorded?;
                Some((phase.seconds, recorded.peak_resident_bytes, recorded.trace?))
            })
            .collect();
        let traces = || recorded.iter().map(|(_, _, trace)| trace);
        let busiest = recorded
            .iter()
            .filter_map(|(seconds, _, trace)| Some(trace.busiest_cpu_events? as f64 / seconds));
        Some(Self {
            events_per_s: Spread::of(
                recorded
                    .iter()
                    .map(|(seconds, _, trace)| trace.events as f64 / seconds),
            )?,
            busiest_cpu_per_s: busiest.max_by(f64::total_cmp),
            lost: traces().map(|trace| trace.lost).sum(),
            events: traces().map(|trace| trace.events).sum(),
            bytes_per_event: Spread::of(
                traces().map(|trace| trace.bytes as f64 / trace.events.max(1) as f64),
            )?,
            peak_resident_bytes: recorded
                .iter()
                .map(|(_, resident_bytes, _)| *resident_bytes)
                .max()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(contestant: Contestant, round: u32, iops: f64, busy_s: f64) -> Phase {
        Phase {
            contestant,
            load: "paced",
            round,
            iops,
            p99_us: 1.0,
            ios: 1_000_000,
            seconds: 2.0,
            fio_s: busy_s,
            kernel_s: 0.0,
            own_s: 0.0,
            load_average: 0.0,
            recorded: None,
        }
    }

    #[test]
    fn the_median_is_the_middle() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).map(|s| s.median);
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn each_phase_is_held_against_its_own_round() {
        // The machine is twice as fast in the second round; the recorder costs a tenth in both.
        let phases = [
            phase(Contestant::Untraced, 0, 100.0, 1.0),
            phase(Contestant::Full, 0, 90.0, 1.5),
            phase(Contestant::Untraced, 1, 200.0, 2.0),
            phase(Contestant::Full, 1, 180.0, 2.5),
        ];
        let figures = Figures::of(Contestant::Full, &phases).unwrap();
        assert!((figures.iops_lost.min - 0.1).abs() < 1e-9);
        assert!((figures.iops_lost.max - 0.1).abs() < 1e-9);
        assert_eq!(figures.cpu_added_us.median, 0.5);
        assert!(Figures::of(Contestant::Perf, &phases).is_none());
    }
}
