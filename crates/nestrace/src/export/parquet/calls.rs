//! The table `calls`: a call of a guest's program a row.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use nestrace_analyzer::{
    analysis::CallStory,
    dataframe::{self, DataFrame, PolarsResult},
};

use crate::exit::Failure;

use super::{
    chains::{placed, with_times},
    data_set::DataSet,
    file::{Files, made},
    partition::{Calendar, Date, Partition},
};

/// Calls that wait: some 500 bytes each.
const ROW_GROUP: usize = 32 << 10;

/// The table of one recording; clones are the same one.
#[derive(Clone)]
pub struct CallTable {
    state: Rc<RefCell<State>>,
}

struct State {
    files: Files,
    recording: String,
    host: String,
    calendar: Calendar,
    /// Of all guests together, so that many of them need no more memory.
    waiting: Vec<CallStory>,
    /// Of the last call whose time is known.
    date: Date,
    n: u64,
    failure: Option<Failure>,
}

impl CallTable {
    /// None yet.
    pub fn new(
        set: &Rc<DataSet>,
        recording: &str,
        host: &str,
        calendar: Calendar,
        stem: String,
    ) -> Self {
        let state = State {
            files: Files::new(set, "calls", stem),
            recording: recording.to_owned(),
            host: host.to_owned(),
            calendar,
            waiting: Vec::new(),
            date: calendar.date(None),
            n: 0,
            failure: None,
        };
        Self {
            state: Rc::new(RefCell::new(state)),
        }
    }

    /// Adds a call. After a failure nothing more is written; [`Self::finish`] returns it.
    pub fn push(&self, mut call: CallStory) {
        let mut state = self.state.borrow_mut();
        if state.failure.is_some() {
            return;
        }
        // What it waited for is in no column.
        call.tree.children = Vec::new();
        state.n += 1;
        state.waiting.push(call);
        if state.waiting.len() >= ROW_GROUP
            && let Err(failure) = state.write()
        {
            state.failure = Some(failure);
        }
    }

    /// Ends the files; how many calls there were.
    pub fn finish(self) -> Result<u64, Failure> {
        let mut state = self.state.borrow_mut();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.write()?;
        state.files.finish()?;
        Ok(state.n)
    }
}

impl State {
    /// Writes what waits, a row group for each guest and day.
    fn write(&mut self) -> Result<(), Failure> {
        let mut groups: BTreeMap<(String, Date), Vec<CallStory>> = BTreeMap::new();
        for call in self.waiting.drain(..) {
            if let Some(at_ns) = call.at_ns {
                self.date = self.calendar.date(self.calendar.unix_ns_after(at_ns));
            }
            let key = (call.guest.clone(), self.date);
            groups.entry(key).or_default().push(call);
        }
        for ((guest, date), calls) in groups {
            let partition = Partition::new(&self.host, Some(&guest));
            let rows = self.rows(&calls).map_err(|error| made(&error))?;
            self.files.write(&partition, date, &rows)?;
        }
        Ok(())
    }

    fn rows(&self, calls: &[CallStory]) -> PolarsResult<DataFrame> {
        let times = calls.iter().map(|call| call.at_ns);
        let rows = with_times(dataframe::call_stories(calls)?, self.calendar, times)?;
        placed(rows, &self.recording)
    }
}
