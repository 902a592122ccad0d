//! What is shown of disks and devices: the last interval, the minute before, and the order of rows.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use nestrace_sums::rows::{Layer, Row, Subject, rows};
use nestrace_sums::snapshot::Snapshot;
use nestrace_sums::text::{Statistic, name};
use nestrace_trace::printable;

use crate::minute::{Histograms, Minute, outermost};

/// Which row.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// A device of the host, not a guest's disk.
    pub is_device: bool,
    /// What the row is about.
    pub subject: Subject,
}

/// What rows are ordered by; the largest is first, but for names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Requests a second.
    #[default]
    Requests,
    /// Bytes a second.
    Bytes,
    /// Latency of the outermost layer, as it is shown.
    Latency,
    /// Requests in flight.
    InFlight,
    /// Age of the oldest.
    Oldest,
    /// Guest and disk.
    Name,
}

impl Sort {
    const ALL: [Self; 6] = [
        Self::Requests,
        Self::Bytes,
        Self::Latency,
        Self::InFlight,
        Self::Oldest,
        Self::Name,
    ];

    /// The next one, or the previous.
    #[must_use]
    pub fn next(self, is_back: bool) -> Self {
        let step = if is_back { Self::ALL.len() - 1 } else { 1 };
        let at = (self as usize + step) % Self::ALL.len();
        Self::ALL.get(at).copied().unwrap_or_default()
    }

    /// The word on the screen.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::Latency => "latency",
            Self::InFlight => "in flight",
            Self::Oldest => "oldest",
            Self::Name => "name",
        }
    }

    // A count needs no more than 53 bits here.
    #[expect(clippy::cast_precision_loss)]
    fn value(self, row: &Row, statistic: Statistic) -> f64 {
        match self {
            Self::Requests => row.reads + row.writes + row.flushes,
            Self::Bytes => row.bytes,
            Self::Latency => {
                let latency = outermost(row).and_then(|layer| row.latency(layer));
                let ns = latency.and_then(|latency| match statistic {
                    Statistic::Mean => latency.mean,
                    Statistic::P99 => latency.p99.map(|ns| ns as f64),
                });
                ns.unwrap_or(-1.0)
            }
            Self::InFlight => row.in_flight.map_or(-1.0, |n| n as f64),
            Self::Oldest => row.oldest_ns.map_or(-1.0, |ns| ns as f64),
            Self::Name => 0.0,
        }
    }
}

/// Which rows are shown, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// By what.
    pub sort: Sort,
    /// The smallest first.
    pub is_reversed: bool,
    /// Of latencies.
    pub statistic: Statistic,
    /// A part of the names, in any case of letters; empty for all.
    pub filter: String,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            sort: Sort::default(),
            is_reversed: false,
            statistic: Statistic::Mean,
            filter: String::new(),
        }
    }
}

impl Order {
    /// The disks that are shown, in order, and the devices: those with this name, and those that carry these disks.
    #[must_use]
    pub fn of<'a>(&self, figures: &'a Figures) -> [Vec<&'a Row>; 2] {
        let filter = self.filter.to_lowercase();
        let has_name = |row: &&Row| printable(&name(row)).to_lowercase().contains(&filter);
        let disks: Vec<&Row> = figures.disks.iter().filter(has_name).collect();
        let carries = |row: &Row| {
            let mut below = disks.iter().filter_map(|disk| disk.device.as_ref());
            below.any(|device| *device == row.subject.name)
        };
        let devices = figures.devices.iter();
        let devices = devices
            .filter(|row| has_name(row) || carries(row))
            .collect();
        [self.sorted(disks), self.sorted(devices)]
    }

    fn sorted<'a>(&self, mut rows: Vec<&'a Row>) -> Vec<&'a Row> {
        rows.sort_by(|a, b| {
            let [of_a, of_b] = [a, b].map(|row| self.sort.value(row, self.statistic));
            let by_value = of_b.total_cmp(&of_a);
            let order = by_value.then_with(|| a.subject.cmp(&b.subject));
            if self.is_reversed && by_value == Ordering::Equal && self.sort != Sort::Name {
                // Equal rows keep the order of their names.
                return order;
            }
            if self.is_reversed {
                order.reverse()
            } else {
                order
            }
        });
        rows
    }
}

/// The figures of one moment.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The time of day.
    pub clock: String,
    /// Requests that could not be summed in the interval.
    pub lost: u64,
    /// Guests' disks.
    pub disks: Vec<Row>,
    /// The host's devices.
    pub devices: Vec<Row>,
    /// The row with histograms.
    pub selected: Option<Place>,
    /// Of the selected row.
    pub histograms: Histograms,
    at_unix_ns: u64,
    interval_ns: u64,
    minutes: BTreeMap<Place, Minute>,
}

impl Figures {
    /// Goes on to the next snapshot.
    pub fn advance(&mut self, earlier: &Snapshot, now: &Snapshot, clock: &str) {
        let since = now.since(earlier);
        self.at_unix_ns = now.at_unix_ns;
        self.interval_ns = now.at_unix_ns.saturating_sub(earlier.at_unix_ns);
        self.clock = clock.to_owned();
        self.lost = since.n_lost();
        (self.disks, self.devices) = rows(&since, self.interval_ns);
        let mut minutes = std::mem::take(&mut self.minutes);
        for (is_device, rows) in [(false, &self.disks), (true, &self.devices)] {
            for row in rows {
                let place = Place {
                    is_device,
                    subject: row.subject.clone(),
                };
                // A disk that has gone has no minute any more.
                let mut minute = minutes.remove(&place).unwrap_or_default();
                minute.add(self.at_unix_ns, self.interval_ns, row);
                self.minutes.insert(place, minute);
            }
        }
        if let Some(row) = self.selected.as_ref().and_then(|place| self.row(place)) {
            let row = row.clone();
            self.histograms.add(self.at_unix_ns, self.interval_ns, &row);
        }
    }

    /// Another row has the histograms from now on, beginning with those of the last interval.
    pub fn select(&mut self, place: Option<Place>) {
        if self.selected == place {
            return;
        }
        self.histograms = Histograms::default();
        if let Some(row) = place.as_ref().and_then(|place| self.row(place)) {
            let row = row.clone();
            self.histograms.add(self.at_unix_ns, self.interval_ns, &row);
        }
        self.selected = place;
    }

    /// A row.
    #[must_use]
    pub fn row(&self, place: &Place) -> Option<&Row> {
        let rows = if place.is_device {
            &self.devices
        } else {
            &self.disks
        };
        rows.iter().find(|row| row.subject == place.subject)
    }

    /// The last minute of a row.
    #[must_use]
    pub fn minute(&self, place: &Place) -> Option<&Minute> {
        self.minutes.get(place)
    }

    /// The selected row's layer, or its outermost one where that has none.
    #[must_use]
    pub fn layer(&self, wanted: Option<Layer>) -> Option<Layer> {
        let row = self.row(self.selected.as_ref()?)?;
        let is_there = |layer: &Layer| row.latency(*layer).is_some();
        wanted.filter(is_there).or_else(|| outermost(row))
    }
}
