//! The tables of what the guests did: `chains`, a guest bio a row; `spans`, what each layer did for it;
//! `call_rows`, a call of a guest's program a row.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use nestrace_analyzer::{
    analysis::{CallStory, Story},
    dataframe::{self, DataFrame, PolarsResult, polars::prelude::Column},
};

use crate::exit::Failure;

use super::{
    data_set::DataSet,
    events::named,
    file::{Files, made},
    partition::{Calendar, Date, Partition},
};

/// What rows are made of.
pub trait GuestRow: Sized + 'static {
    /// How many wait to be written together.
    const ROW_GROUP: usize;
    /// The names of their tables, and how rows of each are made.
    const TABLES: &'static [(&'static str, MakeRows<Self>)];

    /// Name of the guest.
    fn guest(&self) -> &str;

    /// When it was, after the start of the recording; `None` where the host's time of it is not known.
    fn at_ns(&self) -> Option<u64>;
}

/// Makes a table's rows.
type MakeRows<R> = fn(&[R], Calendar) -> PolarsResult<DataFrame>;

impl GuestRow for Story {
    /// A bio has some 2 KB with what lies below.
    const ROW_GROUP: usize = 8 << 10;
    const TABLES: &'static [(&'static str, MakeRows<Self>)] =
        &[("chains", chains), ("spans", spans)];

    fn guest(&self) -> &str {
        &self.guest
    }

    fn at_ns(&self) -> Option<u64> {
        self.at_ns
    }
}

impl GuestRow for CallStory {
    /// A call without its tree has some 500 bytes.
    const ROW_GROUP: usize = 32 << 10;
    const TABLES: &'static [(&'static str, MakeRows<Self>)] = &[("call_rows", calls)];

    fn guest(&self) -> &str {
        &self.guest
    }

    fn at_ns(&self) -> Option<u64> {
        self.at_ns
    }
}

/// The tables of one recording; clones are the same ones.
pub struct GuestRows<R> {
    state: Rc<RefCell<State<R>>>,
}

impl<R> Clone for GuestRows<R> {
    fn clone(&self) -> Self {
        Self {
            state: Rc::clone(&self.state),
        }
    }
}

struct State<R> {
    /// In the order of [`GuestRow::TABLES`].
    files: Vec<Files>,
    recording: String,
    host: String,
    calendar: Calendar,
    /// Of all guests together, so that many of them need no more memory.
    waiting: Vec<R>,
    /// Of the last one whose time is known.
    date: Date,
    n: u64,
    failure: Option<Failure>,
}

impl<R: GuestRow> GuestRows<R> {
    /// None yet.
    pub fn new(set: &Rc<DataSet>, recording: &str, host: &str, calendar: Calendar) -> Self {
        let files = |(table, _): &(&'static str, _)| Files::new(set, table, set.stem().to_owned());
        let state = State {
            files: R::TABLES.iter().map(files).collect(),
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

    /// Adds one. After a failure nothing more is written; [`Self::finish`] returns it.
    pub fn push(&self, row: R) {
        let mut state = self.state.borrow_mut();
        if state.failure.is_some() {
            return;
        }
        state.n += 1;
        state.waiting.push(row);
        if state.waiting.len() >= R::ROW_GROUP
            && let Err(failure) = state.write()
        {
            state.failure = Some(failure);
        }
    }

    /// Ends the files; how many there were.
    pub fn finish(self) -> Result<u64, Failure> {
        let mut state = self.state.borrow_mut();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.write()?;
        state.files.iter_mut().try_for_each(Files::finish)?;
        Ok(state.n)
    }
}

impl<R: GuestRow> State<R> {
    /// Writes what waits, a row group for each guest and day.
    fn write(&mut self) -> Result<(), Failure> {
        let mut groups: BTreeMap<(String, Date), Vec<R>> = BTreeMap::new();
        for row in self.waiting.drain(..) {
            // One that was not followed has no time of the host: it is of the day of its neighbours.
            if let Some(at_ns) = row.at_ns() {
                self.date = self.calendar.date(self.calendar.unix_ns_after(at_ns));
            }
            let key = (row.guest().to_owned(), self.date);
            groups.entry(key).or_default().push(row);
        }
        for ((guest, date), group) in groups {
            let partition = Partition::new(&self.host, Some(&guest));
            for (files, (_, make)) in self.files.iter_mut().zip(R::TABLES) {
                let rows = make(&group, self.calendar);
                let rows = rows.and_then(|rows| placed(rows, &self.recording));
                files.write(&partition, date, &rows.map_err(|error| made(&error))?)?;
            }
        }
        Ok(())
    }
}

fn chains(stories: &[Story], calendar: Calendar) -> PolarsResult<DataFrame> {
    with_times(dataframe::stories(stories)?, calendar, stories)
}

fn spans(stories: &[Story], _: Calendar) -> PolarsResult<DataFrame> {
    dataframe::spans(stories)
}

fn calls(calls: &[CallStory], calendar: Calendar) -> PolarsResult<DataFrame> {
    with_times(dataframe::call_stories(calls)?, calendar, calls)
}

/// Adds the times of day.
fn with_times<R: GuestRow>(
    mut rows: DataFrame,
    calendar: Calendar,
    of: &[R],
) -> PolarsResult<DataFrame> {
    let time = |row: &R| calendar.unix_ns_after(row.at_ns()?);
    let times: Vec<Option<i64>> = of.iter().map(time).collect();
    rows.with_column(Column::new("unix_ns".into(), times))?;
    Ok(rows)
}

/// The guest is in the folder's name; the recording is in no name.
fn placed(rows: DataFrame, recording: &str) -> PolarsResult<DataFrame> {
    let mut rows = rows.drop("guest")?;
    let recording = named("recording", recording, rows.height());
    rows.with_column(recording)?;
    Ok(rows)
}
