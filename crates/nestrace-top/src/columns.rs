//! The columns of a table: which of them a width has room for, and their cells.

use nestrace_sums::rows::{Layer, Row};
use nestrace_sums::text::{Statistic, cut, latency, name, rate, time};
use nestrace_trace::printable;

/// A column of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The device that carries a disk.
    On,
    /// Reads a second.
    Reads,
    /// Writes a second.
    Writes,
    /// Flushes a second.
    Flushes,
    /// MiB a second.
    Bytes,
    /// The latency of a layer.
    Of(Layer),
    /// Requests in flight.
    InFlight,
    /// The age of the oldest.
    Oldest,
}

/// The columns of a table for a width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// What the names have.
    pub name_width: usize,
    /// The others, each with its width; a space stands before each.
    pub columns: Vec<(Column, usize)>,
    is_tight: bool,
}

/// All, in order.
const ALL: [Column; 12] = [
    Column::On,
    Column::Reads,
    Column::Writes,
    Column::Flushes,
    Column::Bytes,
    Column::Of(Layer::Guest),
    Column::Of(Layer::Qemu),
    Column::Of(Layer::FileIo),
    Column::Of(Layer::HostQueue),
    Column::Of(Layer::Device),
    Column::InFlight,
    Column::Oldest,
];
/// Where there is too little room, these go, the first one first.
const DISPENSABLE: [Column; 7] = [
    Column::On,
    Column::Of(Layer::HostQueue),
    Column::Bytes,
    Column::Flushes,
    Column::InFlight,
    Column::Of(Layer::FileIo),
    Column::Of(Layer::Device),
];
/// What names have at least before figures are written without spaces, and before columns go.
const GOOD_NAME: usize = 20;
const MIN_NAME: usize = 10;
/// What names have at most.
const MAX_NAME: usize = 48;

impl Columns {
    /// Those of rows that stand one below the other, disks and devices, so that their figures do too. A layer that no row has
    /// recorded has no column.
    #[must_use]
    pub fn fit(rows: &[&Row], width: usize) -> Self {
        let is_recorded = |layer: Layer| rows.iter().any(|row| row.latency(layer).is_some());
        let is_there = |column: &Column| match column {
            Column::Of(layer) => is_recorded(*layer),
            Column::On => rows.iter().any(|row| row.device.is_some()),
            _ => true,
        };
        let mut shown: Vec<Column> = ALL.into_iter().filter(is_there).collect();
        let longest = rows.iter().map(|row| shown_name(row).chars().count()).max();
        let wanted = longest.unwrap_or(0).clamp(GOOD_NAME, MAX_NAME);
        let total = |shown: &[Column], is_tight| -> usize {
            shown.iter().map(|column| column.width(is_tight) + 1).sum()
        };
        let mut gone = DISPENSABLE.into_iter();
        // The device is the one column that a good name is worth more than.
        if total(&shown, false) + GOOD_NAME > width {
            gone.next();
            shown.retain(|column| *column != Column::On);
        }
        let is_tight = total(&shown, false) + GOOD_NAME > width;
        while total(&shown, is_tight) + MIN_NAME > width {
            let Some(next) = gone.next() else { break };
            shown.retain(|column| *column != next);
        }
        let room = width.saturating_sub(total(&shown, is_tight));
        let columns = shown.into_iter();
        Self {
            name_width: room.min(wanted).max(MIN_NAME),
            columns: columns.map(|it| (it, it.width(is_tight))).collect(),
            is_tight,
        }
    }

    /// The cells of a row beside its name. A device has no layers above it.
    #[must_use]
    pub fn cells(&self, row: &Row, statistic: Statistic, is_device: bool) -> Vec<String> {
        let cell = |(column, width): &(Column, usize)| {
            let text = match column {
                Column::Of(Layer::Guest | Layer::Qemu | Layer::FileIo) if is_device => {
                    String::new()
                }
                _ => self.cell(*column, row, statistic),
            };
            match column {
                Column::On => cut(&text, *width),
                _ => format!("{text:>width$}"),
            }
        };
        self.columns.iter().map(cell).collect()
    }

    fn cell(&self, column: Column, row: &Row, statistic: Statistic) -> String {
        let spaced = |time: String| match self.is_tight {
            true => time.replace(' ', ""),
            false => time,
        };
        match column {
            Column::On => printable(row.device.as_deref().unwrap_or_default()),
            Column::Reads => rate(row.reads),
            Column::Writes => rate(row.writes),
            Column::Flushes => rate(row.flushes),
            Column::Bytes => mib(row.bytes),
            Column::Of(layer) => spaced(latency(row.latency(layer), statistic)),
            // A count needs no more than 53 bits here.
            #[expect(clippy::cast_precision_loss)]
            Column::InFlight => row.in_flight.map_or("?".to_owned(), |n| rate(n as f64)),
            #[expect(clippy::cast_precision_loss)]
            Column::Oldest => {
                let oldest = row.oldest_ns.map(|ns| time(ns as f64));
                spaced(oldest.unwrap_or_default())
            }
        }
    }
}

impl Column {
    /// What stands above it.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Reads => "r/s",
            Self::Writes => "w/s",
            Self::Flushes => "f/s",
            Self::Bytes => "MiB/s",
            Self::Of(Layer::HostQueue) => "queue",
            Self::Of(Layer::FileIo) => "file",
            Self::Of(layer) => layer.name(),
            Self::InFlight => "infl",
            Self::Oldest => "oldest",
        }
    }

    const fn width(self, is_tight: bool) -> usize {
        match (self, is_tight) {
            (Self::On, _) => 8,
            (Self::Reads | Self::Writes | Self::Flushes | Self::InFlight, true) => 4,
            (Self::Reads | Self::Writes | Self::Flushes | Self::InFlight, false) => 5,
            (Self::Bytes, true) => 5,
            (Self::Bytes, false) | (Self::Of(_) | Self::Oldest, true) => 6,
            (Self::Of(_) | Self::Oldest, false) => 7,
        }
    }
}

/// The name of a row, as a terminal may have it.
#[must_use]
pub fn shown_name(row: &Row) -> String {
    printable(&name(row))
}

fn mib(bytes: f64) -> String {
    let mib = bytes / f64::from(1 << 20);
    let digits = usize::from(mib < 1000.0);
    format!("{mib:.digits$}")
}
