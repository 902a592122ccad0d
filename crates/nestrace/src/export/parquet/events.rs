//! The table `events`: every event of a stream, as it was recorded.

use std::rc::Rc;

use nestrace_analyzer::dataframe::{
    self,
    polars_core::prelude::{AnyValue, Column, DataType, Scalar},
};
use nestrace_trace::Event;

use crate::exit::Failure;

use super::{
    data_set::DataSet,
    file::{Files, made},
    partition::{Calendar, Date, Partition},
};

/// Rows of a row group: some 17 MB before they are compressed.
const ROW_GROUP: usize = 128 << 10;

/// The rows of one stream.
pub struct EventTable {
    files: Files,
    recording: String,
    partition: Partition,
    calendar: Calendar,
    waiting: Vec<Event>,
    /// Of those that wait.
    date: Option<Date>,
    n: u64,
}

impl EventTable {
    /// None yet; its files are called `stem` and a number.
    pub fn new(
        set: &Rc<DataSet>,
        recording: &str,
        partition: Partition,
        calendar: Calendar,
        stem: String,
    ) -> Self {
        Self {
            files: Files::new(set, "events", stem),
            recording: recording.to_owned(),
            partition,
            calendar,
            waiting: Vec::with_capacity(ROW_GROUP),
            date: None,
            n: 0,
        }
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) -> Result<(), Failure> {
        let date = self.calendar.date(self.calendar.unix_ns(event.ts_ns));
        if self.waiting.len() >= ROW_GROUP || self.date.is_some_and(|before| before != date) {
            self.write()?;
        }
        self.date = Some(date);
        self.waiting.push(event);
        self.n += 1;
        Ok(())
    }

    fn write(&mut self) -> Result<(), Failure> {
        let Some(date) = self.date.filter(|_| !self.waiting.is_empty()) else {
            return Ok(());
        };
        let mut rows = dataframe::events(&self.waiting).map_err(|error| made(&error))?;
        let times = self
            .waiting
            .iter()
            .map(|event| self.calendar.unix_ns(event.ts_ns));
        let times: Vec<Option<i64>> = times.collect();
        let unix_ns = Column::new("unix_ns".into(), times);
        for column in [named("recording", &self.recording, rows.height()), unix_ns] {
            rows.with_column(column).map_err(|error| made(&error))?;
        }
        self.files.write(&self.partition, date, &rows)?;
        self.waiting.clear();
        Ok(())
    }

    /// Ends its files; how many events there were.
    pub fn finish(mut self) -> Result<u64, Failure> {
        self.write()?;
        self.files.finish()?;
        Ok(self.n)
    }
}

/// A column with the same word in each row.
pub fn named(name: &str, word: &str, n: usize) -> Column {
    let word = Scalar::new(DataType::String, AnyValue::StringOwned(word.into()));
    Column::new_scalar(name.into(), word, n)
}
