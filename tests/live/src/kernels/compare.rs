//! Holds the events of one recorder against those of another, one by one.

use std::collections::{BTreeMap, HashMap};

use nestrace_blktrace::Action;

use super::vocabulary::{Facts, Seen};

/// How many differences are printed.
const TOLD: usize = 12;
/// A thread that is moved to another processor between the two recorders' stamps goes on within this time.
const MOVED_WITHIN_NS: u64 = 100_000_000;

/// Which events are the same, and which only one recorder has.
#[derive(Debug, Default)]
pub struct Comparison {
    matched: BTreeMap<Action, u64>,
    /// Matched events by their marks.
    marked: BTreeMap<u16, u64>,
    only_ours: Vec<Seen>,
    only_theirs: Vec<Seen>,
    apart_ns: Vec<u64>,
    n_misordered: u64,
}

/// Time between the two stamps of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeApart {
    /// Half of the events have less.
    pub median_ns: u64,
    /// All but a thousandth.
    pub almost_all_ns: u64,
    /// No event has more.
    pub max_ns: u64,
}

impl Comparison {
    /// Pairs events that agree in every fact, the k-th of one recorder with the k-th of the other: on
    /// one processor, and that is one of the facts, both see them in the same order.
    pub fn new(ours: &[Seen], theirs: &[Seen]) -> Self {
        let mut comparison = Self::default();
        let mut waiting: HashMap<Facts, Vec<&Seen>> = HashMap::new();
        for event in theirs.iter().rev() {
            waiting.entry(event.facts).or_default().push(event);
        }
        let mut last_of_object: HashMap<u64, u64> = HashMap::new();
        for event in ours {
            match waiting.get_mut(&event.facts).and_then(Vec::pop) {
                Some(partner) => comparison.pair(event, partner, &mut last_of_object),
                None => comparison.only_ours.push(*event),
            }
        }
        comparison.only_theirs = waiting.into_values().flatten().copied().collect();
        comparison.only_theirs.sort_by_key(|event| event.time_ns);
        comparison.pair_moved();
        comparison.apart_ns.sort_unstable();
        comparison
    }

    /// Newer kernels may stop a thread between two programs of one tracepoint (seen on 7.1), and go on with it on another
    /// processor.
    fn pair_moved(&mut self) {
        let mut alone = Vec::new();
        for ours in std::mem::take(&mut self.only_ours) {
            let moved = |theirs: &Seen| {
                let cpu = ours.facts.cpu;
                theirs.facts.cpu != cpu
                    && Facts {
                        cpu,
                        ..theirs.facts
                    } == ours.facts
                    && theirs.time_ns.abs_diff(ours.time_ns) < MOVED_WITHIN_NS
            };
            match self.only_theirs.iter().position(moved) {
                Some(index) => {
                    let theirs = self.only_theirs.remove(index);
                    self.pair(&ours, &theirs, &mut HashMap::new());
                }
                None => alone.push(ours),
            }
        }
        self.only_ours = alone;
    }

    fn pair(&mut self, ours: &Seen, theirs: &Seen, last_of_object: &mut HashMap<u64, u64>) {
        *self.matched.entry(ours.facts.action).or_default() += 1;
        *self.marked.entry(ours.facts.marks).or_default() += 1;
        self.apart_ns.push(ours.time_ns.abs_diff(theirs.time_ns));
        if ours.object != 0 {
            let last_ns = last_of_object.entry(ours.object).or_default();
            self.n_misordered += u64::from(theirs.time_ns < *last_ns);
            *last_ns = theirs.time_ns;
        }
    }

    /// Events that both have.
    pub fn n_matched(&self) -> u64 {
        self.matched.values().sum()
    }

    /// Events of one action that both have.
    pub fn n_of(&self, action: Action) -> u64 {
        self.matched.get(&action).copied().unwrap_or(0)
    }

    /// Events with a mark that both have.
    pub fn n_marked(&self, mark: u16) -> u64 {
        self.marked
            .iter()
            .filter(|(marks, _)| **marks & mark != 0)
            .map(|(_, n)| n)
            .sum()
    }

    /// Events of a bio or request that the other recorder has before the bio's or request's last one.
    pub fn n_misordered(&self) -> u64 {
        self.n_misordered
    }

    /// `Q 100 G 90 …`.
    pub fn by_action(&self) -> String {
        let parts = self
            .matched
            .iter()
            .map(|(action, n)| format!("{} {n}", action.letter()));
        parts.collect::<Vec<_>>().join(" ")
    }

    /// How far the stamps of the same event are apart.
    pub fn time_apart(&self) -> TimeApart {
        let at = |index: usize| self.apart_ns.get(index).copied().unwrap_or(0);
        TimeApart {
            median_ns: at(self.apart_ns.len() / 2),
            almost_all_ns: at(self.apart_ns.len() * 999 / 1000),
            max_ns: self.apart_ns.last().copied().unwrap_or(0),
        }
    }

    /// The first events that only one of the two has; empty when they agree.
    pub fn differences(&self) -> Vec<String> {
        let mut all: Vec<(&Seen, &str)> = self
            .only_ours
            .iter()
            .map(|event| (event, "nestrace"))
            .collect();
        all.extend(self.only_theirs.iter().map(|event| (event, "blktrace")));
        all.sort_by_key(|(event, _)| event.time_ns);
        let mut told: Vec<String> = all
            .iter()
            .take(TOLD)
            .map(|(event, who)| format!("{who}: {}", tell(event)))
            .collect();
        if all.len() > TOLD {
            let (ours, theirs) = (self.only_ours.len(), self.only_theirs.len());
            told.push(format!(
                "in all, {ours} that only nestrace has and {theirs} that only blktrace has"
            ));
        }
        told
    }
}

fn tell(event: &Seen) -> String {
    let Facts {
        device,
        cpu,
        tid,
        action,
        sector,
        bytes,
        marks,
        detail,
        from_device,
        failed,
    } = event.facts;
    let mut text = format!(
        "{}.{:06} {}:{} cpu {cpu} tid {tid} {} sector {sector} bytes {bytes} marks {marks:#06x}",
        event.time_ns / 1_000_000_000,
        event.time_ns % 1_000_000_000 / 1000,
        device >> 20,
        device & 0xf_ffff,
        action.letter(),
    );
    if detail != 0 || from_device != 0 {
        text.push_str(&format!(
            " detail {detail} from {}:{}",
            from_device >> 20,
            from_device & 0xf_ffff
        ));
    }
    if failed {
        text.push_str(" failed");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(time_ns: u64, action: Action, sector: u64, object: u64) -> Seen {
        let facts = Facts {
            device: 7 << 20,
            cpu: 0,
            tid: 1,
            action,
            sector,
            bytes: 4096,
            marks: 1,
            detail: 0,
            from_device: 0,
            failed: false,
        };
        Seen {
            time_ns,
            facts,
            object,
        }
    }

    #[test]
    fn a_thread_may_be_moved_between_the_stamps_but_not_for_long() {
        let ours = [seen(10, Action::Queue, 8, 1)];
        for (time_ns, sector, n) in [
            (4_000_000, 8, 1),
            (4_000_000, 16, 0),
            (MOVED_WITHIN_NS + 10, 8, 0),
        ] {
            let mut moved = seen(time_ns, Action::Queue, sector, 0);
            moved.facts.cpu = 1;
            let comparison = Comparison::new(&ours, &[moved]);
            assert_eq!(comparison.n_matched(), n);
            assert_eq!(comparison.differences().is_empty(), n == 1);
        }
    }

    #[test]
    fn the_same_events_agree_whatever_stands_between_their_stamps() {
        let ours = [
            seen(10, Action::Queue, 8, 1),
            seen(20, Action::Issue, 8, 2),
            seen(30, Action::Queue, 8, 1),
        ];
        let theirs = [
            seen(12, Action::Queue, 8, 0),
            seen(25, Action::Issue, 8, 0),
            seen(31, Action::Queue, 8, 0),
        ];
        let comparison = Comparison::new(&ours, &theirs);
        assert!(comparison.differences().is_empty());
        assert_eq!(
            (
                comparison.n_matched(),
                comparison.n_of(Action::Queue),
                comparison.n_misordered()
            ),
            (3, 2, 0)
        );
        assert_eq!(
            comparison.time_apart(),
            TimeApart {
                median_ns: 2,
                almost_all_ns: 5,
                max_ns: 5
            }
        );
        assert_eq!(comparison.by_action(), "Q 2 D 1");
    }

    #[test]
    fn a_missing_and_a_wrong_event_are_told() {
        let ours = [
            seen(10, Action::Queue, 8, 1),
            seen(20, Action::Issue, 16, 1),
        ];
        let theirs = [
            seen(10, Action::Queue, 8, 0),
            seen(20, Action::Issue, 24, 0),
            seen(30, Action::Complete, 8, 0),
        ];
        let told = Comparison::new(&ours, &theirs).differences();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(
            told[0].starts_with("nestrace") && told[0].contains("D sector 16"),
            "{told:?}"
        );
        assert!(
            told[2].starts_with("blktrace") && told[2].contains(" C "),
            "{told:?}"
        );
    }

    #[test]
    fn another_order_of_one_request_is_noticed() {
        let ours = [
            seen(10, Action::Issue, 8, 1),
            seen(20, Action::Complete, 8, 1),
        ];
        let theirs = [
            seen(5, Action::Complete, 8, 0),
            seen(12, Action::Issue, 8, 0),
        ];
        assert_eq!(Comparison::new(&ours, &theirs).n_misordered(), 1);
    }
}
