//! Results of the lab: cells of a plan, compared with their baselines.
//!
//! Pure, like everything here: [`Results`] are facts that the lab wrote down, [`Comparison`] says what they
//! mean, and [`text`], [`csv`], [`json`] and `html::lab` show that.
//!
//! ```
//! use nestrace_report::lab::{Comparison, Results, text};
//! let comparison = Comparison::new(&Results::default());
//! assert!(text::render(&comparison).contains("0 nested combinations"));
//! ```

mod axis_effects;
mod chance;
mod comparison;
pub mod csv;
mod explanation;
pub(crate) mod extremes;
pub mod json;
mod layer_figures;
pub mod power;
mod published;
mod results;
mod spread;
pub(crate) mod statements;
pub mod text;

pub use comparison::{Comparison, MainLatency, Outlier, Results, Row, SCHEMA, Verdict};
pub use explanation::{CellFinding, Explanation, SegmentTime};
pub use layer_figures::LayerFigures;
pub use published::{Judgement, Published};
pub use results::{
    Base, CELL_SCHEMA, Cell, CellRun, Counters, DiskLateness, Excluded, Failure, Latency, Machine,
    Metric, RUN_SCHEMA, RunHeader,
};
pub use spread::Spread;
