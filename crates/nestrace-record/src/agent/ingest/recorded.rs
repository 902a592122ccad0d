//! Until when a guest's agent has recorded, on the host's clock. What lies between that and its next Live is missing.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// When an agent was heard, and whether it records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recorded {
    heard_ns: u64,
    /// It has said Live, and since then neither End nor the Hello of another session.
    records: bool,
    /// The last word of the recording that is over, 0 if there was none. Of one that goes on, the last word before its
    /// newest Hello: an agent that was started again within the session says it too, and nothing tells before its Live.
    until_ns: u64,
    /// A Hello has come since its last Live, so that another Live may come.
    greeted: bool,
    /// The last time that its clock fitted, where it does not any more.
    fitted_ns: Option<u64>,
}

impl Recorded {
    /// When it was heard last; 0 if never.
    pub fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Whether it records.
    pub fn records(&self) -> bool {
        self.records
    }

    /// Since when its recording is missing if nothing more comes; 0 if it has never recorded.
    pub fn missing_since_ns(&self) -> u64 {
        if self.records {
            self.fitted_ns.unwrap_or(self.heard_ns)
        } else {
            self.until_ns
        }
    }

    /// A word of its session.
    pub fn hear(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
    }

    /// A Hello. `goes_on`: an agent that records and whose facts have changed may have said it.
    pub fn hello(&mut self, now_ns: u64, goes_on: bool) {
        self.until_ns = self.missing_since_ns();
        self.records &= goes_on;
        self.greeted = true;
        self.heard_ns = now_ns;
    }

    /// A Live: since when its recording was missing until then, 0 if it had none. `None` for one that follows no Hello:
    /// it begins nothing.
    pub fn live(&mut self) -> Option<u64> {
        if !std::mem::take(&mut self.greeted) {
            return None;
        }
        (self.records, self.fitted_ns) = (true, None);
        Some(self.until_ns)
    }

    /// Its last word.
    pub fn end(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.records) {
            self.until_ns = now_ns;
        }
    }

    /// Its clock shows a time that is not the side's, and at `fitted_ns` it showed one that was. What came in
    /// between may be of either time.
    pub fn clock_fits_no_more(&mut self, fitted_ns: u64) {
        self.fitted_ns.get_or_insert(fitted_ns);
    }

    /// Its clock shows a time of the side.
    pub fn clock_fits(&mut self) {
        self.fitted_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Word {
        Any,
        /// Of the session that is, or of another one.
        Hello(bool),
        /// Since when the recording was missing, where it begins one.
        Live(Option<u64>),
        End,
        Jump(u64),
    }
    use Word::{Any, End, Hello, Jump, Live};

    /// Words with their times; since when the recording is missing after the last.
    fn check(words: &[(u64, Word)], missing_since_ns: u64) {
        let mut recorded = Recorded::default();
        for (now_ns, word) in words {
            match word {
                Any => recorded.hear(*now_ns),
                Hello(goes_on) => recorded.hello(*now_ns, *goes_on),
                Live(since_ns) => {
                    recorded.hear(*now_ns);
                    assert_eq!(recorded.live(), *since_ns, "at {now_ns}");
                }
                End => {
                    recorded.hear(*now_ns);
                    recorded.end(*now_ns);
                }
                Jump(fitted_ns) => {
                    recorded.hear(*now_ns);
                    recorded.clock_fits_no_more(*fitted_ns);
                }
            }
        }
        assert_eq!(recorded.missing_since_ns(), missing_since_ns);
    }

    #[test]
    fn one_that_never_recorded_is_missing_from_the_beginning() {
        check(&[], 0);
        check(&[(1, Hello(false)), (2, End), (5, Hello(false))], 0);
        check(
            &[(1, Hello(false)), (2, Hello(false)), (3, Live(Some(0)))],
            3,
        );
    }

    #[test]
    fn facts_that_change_interrupt_nothing() {
        let begin = || vec![(1, Hello(false)), (2, Live(Some(0))), (3, Any)];
        let mut words = begin();
        words.extend([(4, Hello(true)), (5, Any)]);
        check(&words, 5);
        // The agent was started again: its Live tells.
        words.push((6, Live(Some(3))));
        check(&words, 6);
        let mut words = begin();
        words.extend([(4, Live(None)), (5, Live(None))]);
        check(&words, 5);
    }

    #[test]
    fn another_session_is_missing_until_it_is_live() {
        let begin = || vec![(1, Hello(false)), (2, Live(Some(0))), (3, Any)];
        for more in [
            vec![],
            vec![(8, Hello(false))],
            vec![(8, Any)],
            vec![(8, Any), (9, Hello(false)), (10, End)],
        ] {
            let mut words = begin();
            words.push((7, Hello(false)));
            words.extend(more);
            check(&words, 3);
            words.push((20, Live(Some(3))));
            check(&words, 20);
        }
        let mut words = begin();
        words.extend([(4, End), (5, Any), (6, Hello(false))]);
        check(&words, 4);
    }

    #[test]
    fn what_came_since_the_clock_fitted_does_not_count() {
        let jumped = || {
            let begin = [(1, Hello(false)), (2, Live(Some(0))), (6, Any)];
            let jumps = [(7, Jump(4)), (8, Jump(5)), (9, Any)];
            begin.into_iter().chain(jumps).collect::<Vec<_>>()
        };
        check(&jumped(), 4);
        let mut words = jumped();
        words.extend([(10, Hello(false)), (11, Live(Some(4))), (12, Any)]);
        check(&words, 12);
    }
}
