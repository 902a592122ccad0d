//! Plots of an analysis: each answers one question, says it in its title, and is drawn from data of a
//! bounded size.
//!
//! [`all`] makes the data, [`svg`] and [`png()`] draw it, [`csv`] writes it down; each is a pure function.
//!
//! ```
//! use nestrace_analyzer::Analyzer;
//! use nestrace_report::plots::{self, Frame, csv, svg};
//! use nestrace_trace::{Event, Kind, Manifest};
//! let issue = Event { ts_ns: 1_000, kind: Kind::Issue as u8, object: 8, bytes: 4096, ..Event::default() };
//! let complete = Event { ts_ns: 9_000, kind: Kind::Complete as u8, ..issue };
//! let analysis = Analyzer::analyze(&Manifest::default(), Default::default(), [issue, complete]);
//! for plot in plots::all(&analysis) {
//!     assert!(svg(&plot, &Frame::WIDE).unwrap().starts_with("<svg"));
//!     assert!(csv(&plot).contains(','));
//! }
//! ```

mod addresses;
mod amplification;
mod axis;
pub(crate) mod compare;
mod csv;
mod draw;
mod latency;
mod merges;
mod over_time;
mod palette;
mod seeks;
mod segments;
mod sizes;
mod subject;
mod waterfall;

use nestrace_analyzer::Analysis;

pub use axis::{Axis, Unit};
pub use csv::csv;
pub use draw::{DrawError, Frame, png, svg};
pub use palette::Hue;
pub(crate) use palette::themed;
pub(crate) use seeks::{chart as seek_chart, line_of as seek_line, shares as seek_shares};
pub(crate) use segments::hue as segment_hue;
pub(crate) use subject::{Subject, n_left_out};
pub use waterfall::{Bar, Lane, Waterfall};

/// A question, and the chart that answers it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plot {
    /// Unique in a report, and usable as a file's name: `latency-reads-vm1-disk0`.
    pub id: String,
    /// What it shows: a disk of a guest, a device; empty for the whole recording.
    pub subject: String,
    /// What it answers: the title.
    pub question: String,
    /// How it is to be read, and what it rests on.
    pub note: String,
    /// The data.
    pub chart: Chart,
}

/// The kinds of charts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Chart {
    /// Curves over two axes.
    Lines(Lines),
    /// Groups of columns over classes.
    Columns(Columns),
    /// Rows of bars, each in parts.
    Spans(Spans),
    /// Points of time and place, panels above each other with one axis of time.
    Points(Points),
    /// Bars over time: one call or bio, layer by layer.
    Waterfall(Waterfall),
}

/// Curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Below.
    pub x: Axis,
    /// To the left.
    pub y: Axis,
    /// Drawn in this order.
    pub lines: Vec<Line>,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub label: String,
    /// Its layer.
    pub hue: Hue,
    /// Drawn thin and pale: the companion of another line of the same hue.
    pub is_faint: bool,
    /// It keeps its value up to the next point.
    pub is_step: bool,
    /// Points farther apart than this are not joined: nothing is known between them.
    pub joined_within: f64,
    /// In ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// Columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// What the classes are.
    pub x_title: String,
    /// To the left, from 0.
    pub y: Axis,
    /// Names of classes.
    pub classes: Vec<String>,
    /// A column for each class.
    pub groups: Vec<ColumnGroup>,
}

/// Columns of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnGroup {
    /// Name in the legend.
    pub label: String,
    /// Its layer.
    pub hue: Hue,
    /// Strength of the colour, 0 to 1.
    pub tint: f64,
    /// One for each class.
    pub values: Vec<f64>,
}

/// Rows of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Spans {
    /// Of the values.
    pub unit: Unit,
    /// Below the axis.
    pub title: String,
    /// Legend: names, colours and their strength.
    pub keys: Vec<(String, Hue, f64)>,
    /// From above.
    pub rows: Vec<SpanRow>,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRow {
    /// To the left above the bar.
    pub label: String,
    /// To the right above the bar.
    pub detail: String,
    /// From the left.
    pub spans: Vec<Span>,
}

/// A part of a bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What it is.
    pub name: String,
    /// Its beginning.
    pub from: f64,
    /// Its end; before its beginning for what was taken away.
    pub to: f64,
    /// Its layer.
    pub hue: Hue,
    /// Strength of the colour, 0 to 1.
    pub tint: f64,
}

/// Panels of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    /// Common to the panels.
    pub x: Axis,
    /// From above.
    pub panels: Vec<Panel>,
}

/// Points of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Above the panel.
    pub label: String,
    /// Its layer.
    pub hue: Hue,
    /// To the left.
    pub y: Axis,
    /// Limits of the axis.
    pub range: (f64, f64),
    /// What is to be added to each y for the address: labels stay short where the disk is large.
    pub base: f64,
    /// Seconds, bytes above the base, and whether it is a write.
    pub points: Vec<(f64, f64, bool)>,
}

impl Chart {
    /// Values that are drawn.
    #[must_use]
    pub fn n_values(&self) -> usize {
        match self {
            Self::Lines(chart) => chart.lines.iter().map(|line| line.points.len()).sum(),
            Self::Columns(chart) => chart.groups.iter().map(|group| group.values.len()).sum(),
            Self::Spans(chart) => chart.rows.iter().map(|row| row.spans.len()).sum(),
            Self::Points(chart) => chart.panels.iter().map(|panel| panel.points.len()).sum(),
            Self::Waterfall(chart) => chart.bars().count(),
        }
    }
}

/// Every plot that the analysis has data for: single calls and bios first, then the whole recording, then disk by disk.
#[must_use]
pub fn all(analysis: &Analysis) -> Vec<Plot> {
    let subjects = subject::of(analysis);
    let mut plots = waterfall::plots(analysis);
    plots.extend(segments::plot(&subjects));
    for subject in &subjects {
        plots.extend(latency::layers(subject));
        plots.extend(amplification::plot(subject));
        plots.extend(sizes::plot(subject));
        plots.extend(over_time::plots(subject, analysis.trace.duration_ns));
        plots.extend(seeks::plot(subject));
        plots.extend(latency::wait(subject));
        plots.extend(addresses::plot(subject));
        plots.extend(merges::plot(subject));
    }
    plots.retain(|plot| plot.chart.n_values() > 0);
    plots
}
