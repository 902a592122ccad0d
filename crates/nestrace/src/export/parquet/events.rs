//! The table `events`: every event of a stream, as it was recorded.

use std::{collections::BTreeMap, rc::Rc};

use nestrace_analyzer::dataframe::{
    self,
    polars::prelude::{AnyValue, Column, DataType, Scalar},
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
/// Days whose rows wait at once: around midnight the processors' events come in turns.
const DAYS_AT_ONCE: usize = 2;

/// The rows of one stream.
pub struct EventTable {
    files: Files,
    recording: String,
    partition: Partition,
    calendar: Calendar,
    waiting: BTreeMap<Date, Vec<Event>>,
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
            waiting: BTreeMap::new(),
            n: 0,
        }
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) -> Result<(), Failure> {
        let date = self.calendar.date(self.calendar.unix_ns(event.ts_ns));
        let date = self.date_of_row(date)?;
        let waiting = self.waiting.entry(date).or_default();
        waiting.push(event);
        self.n += 1;
        if waiting.len() < ROW_GROUP {
            return Ok(());
        }
        let rows = std::mem::take(waiting);
        self.write(date, &rows)
    }

    /// The day of whose rows one becomes. Days only go on: where too many wait, the first one ends, and what is even
    /// before that becomes one of its rows. Stamps that jump to and fro would cost a row group each.
    fn date_of_row(&mut self, date: Date) -> Result<Date, Failure> {
        if self.waiting.len() < DAYS_AT_ONCE || self.waiting.contains_key(&date) {
            return Ok(date);
        }
        match self.waiting.first_key_value().map(|(first, _)| *first) {
            Some(first) if date < first => return Ok(first),
            _ => {}
        }
        if let Some((first, rows)) = self.waiting.pop_first() {
            self.write(first, &rows)?;
        }
        Ok(date)
    }

    fn write(&mut self, date: Date, events: &[Event]) -> Result<(), Failure> {
        if events.is_empty() {
            return Ok(());
        }
        let mut rows = dataframe::events(events).map_err(|error| made(&error))?;
        let times = events
            .iter()
            .map(|event| self.calendar.unix_ns(event.ts_ns));
        let times: Vec<Option<i64>> = times.collect();
        let unix_ns = Column::new("unix_ns".into(), times);
        for column in [named("recording", &self.recording, rows.height()), unix_ns] {
            rows.with_column(column).map_err(|error| made(&error))?;
        }
        self.files.write(&self.partition, date, &rows)
    }

    /// Ends its files; how many events there were.
    pub fn finish(mut self) -> Result<u64, Failure> {
        while let Some((date, rows)) = self.waiting.pop_first() {
            self.write(date, &rows)?;
        }
        self.files.finish()?;
        Ok(self.n)
    }
}

/// A column with the same word in each row.
pub fn named(name: &str, word: &str, n: usize) -> Column {
    let word = Scalar::new(DataType::String, AnyValue::StringOwned(word.into()));
    Column::new_scalar(name.into(), word, n)
}

#[cfg(test)]
mod tests {
    use nestrace_trace::Manifest;

    use super::*;

    const DAY_NS: u64 = 86_400_000_000_000;

    /// A table of a recording that began at midnight.
    fn table(set: &Rc<DataSet>) -> EventTable {
        let mut manifest = Manifest::default();
        manifest.start_unix_ns = DAY_NS;

        EventTable::new(
            set,
            "a",
            Partition::new("h", None),
            Calendar::of_host(&manifest),
            String::from("a"),
        )
    }

    fn at(ts_ns: u64) -> Event {
        Event {
            ts_ns,
            ..Event::default()
        }
    }

    #[test]
    fn stamps_to_and_fro_wait_together() {
        let folder = tempfile::tempdir().unwrap();
        let set = Rc::new(DataSet::begin(&folder.path().join("out"), "a", "h").unwrap());
        let mut table = table(&set);
        let waiting =
            |table: &EventTable| -> Vec<usize> { table.waiting.values().map(Vec::len).collect() };
        for nth in 0..100 {
            table.push(at(DAY_NS - 50 + nth % 2 * 100)).unwrap();
        }
        // Around midnight each is of its own day, and nothing was written yet.
        assert_eq!(waiting(&table), [50, 50]);
        // A third day ends the first one: then that is gone.
        table.push(at(2 * DAY_NS)).unwrap();
        for _ in 0..100 {
            table.push(at(0)).unwrap();
            table.push(at(2 * DAY_NS)).unwrap();
        }
        assert_eq!(waiting(&table), [150, 101]);
        assert_eq!(table.finish().unwrap(), 301);
    }
}
