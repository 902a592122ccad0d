//! The tables `chains`, a guest bio a row, and `spans`, what each layer did for it.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use nestrace_analyzer::{
    analysis::Story,
    dataframe::{self, DataFrame, PolarsResult, polars::prelude::Column},
};

use crate::exit::Failure;

use super::{
    data_set::DataSet,
    events::named,
    file::{Files, made},
    partition::{Calendar, Date, Partition},
};

/// Bios that wait: some 2 KB each with what lies below.
const ROW_GROUP: usize = 8 << 10;

/// Both tables of one recording; clones are the same ones.
#[derive(Clone)]
pub struct ChainTables {
    state: Rc<RefCell<State>>,
}

struct State {
    chains: Files,
    spans: Files,
    recording: String,
    host: String,
    calendar: Calendar,
    /// Of all guests together, so that many of them need no more memory.
    waiting: Vec<Story>,
    /// Of the last bio whose time is known.
    date: Date,
    n: u64,
    failure: Option<Failure>,
}

impl ChainTables {
    /// None yet.
    pub fn new(
        set: &Rc<DataSet>,
        recording: &str,
        host: &str,
        calendar: Calendar,
        stem: String,
    ) -> Self {
        let state = State {
            chains: Files::new(set, "chains", stem.clone()),
            spans: Files::new(set, "spans", stem),
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

    /// Adds a bio. After a failure nothing more is written; [`Self::finish`] tells it.
    pub fn push(&self, story: Story) {
        let mut state = self.state.borrow_mut();
        if state.failure.is_some() {
            return;
        }
        state.n += 1;
        state.waiting.push(story);
        if state.waiting.len() >= ROW_GROUP
            && let Err(failure) = state.write()
        {
            state.failure = Some(failure);
        }
    }

    /// Ends the files; how many bios there were.
    pub fn finish(self) -> Result<u64, Failure> {
        let mut state = self.state.borrow_mut();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.write()?;
        state.chains.finish()?;
        state.spans.finish()?;
        Ok(state.n)
    }
}

impl State {
    /// Writes what waits, a row group for each guest and day.
    fn write(&mut self) -> Result<(), Failure> {
        let mut groups: BTreeMap<(String, Date), Vec<Story>> = BTreeMap::new();
        for story in self.waiting.drain(..) {
            // One that was not followed has no time of the host: it is of the day of its neighbours.
            if let Some(at_ns) = story.at_ns {
                self.date = self.calendar.date(self.calendar.unix_ns_after(at_ns));
            }
            let key = (story.guest.clone(), self.date);
            groups.entry(key).or_default().push(story);
        }
        for ((guest, date), stories) in groups {
            let partition = Partition::new(&self.host, Some(&guest));
            let rows = self.chains(&stories).map_err(|error| made(&error))?;
            self.chains.write(&partition, date, &rows)?;
            let rows = self.spans(&stories).map_err(|error| made(&error))?;
            self.spans.write(&partition, date, &rows)?;
        }
        Ok(())
    }

    fn chains(&self, stories: &[Story]) -> PolarsResult<DataFrame> {
        let times = stories.iter().map(|story| story.at_ns);
        let rows = with_times(dataframe::stories(stories)?, self.calendar, times)?;
        placed(rows, &self.recording)
    }

    fn spans(&self, stories: &[Story]) -> PolarsResult<DataFrame> {
        placed(dataframe::spans(stories)?, &self.recording)
    }
}

/// Adds the times of day of these times after the start.
pub fn with_times(
    mut rows: DataFrame,
    calendar: Calendar,
    at_ns: impl Iterator<Item = Option<u64>>,
) -> PolarsResult<DataFrame> {
    let times: Vec<Option<i64>> = at_ns.map(|at_ns| calendar.unix_ns_after(at_ns?)).collect();
    rows.with_column(Column::new("unix_ns".into(), times))?;
    Ok(rows)
}

/// The guest is in the folder's name; the recording is in no name.
pub fn placed(rows: DataFrame, recording: &str) -> PolarsResult<DataFrame> {
    let mut rows = rows.drop("guest")?;
    let recording = named("recording", recording, rows.height());
    rows.with_column(recording)?;
    Ok(rows)
}
