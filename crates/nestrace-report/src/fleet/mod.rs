//! Many recordings together: what a data set of them says of disks, hosts and findings.
//!
//! Pure: the program `nestrace-fleet` asks the data set and fills a [`FleetReport`]; [`text`], [`json()`] and
//! `html::fleet` show it.
//!
//! ```
//! use nestrace_report::fleet::{FleetReport, json, text};
//! let report = FleetReport::default();
//! assert!(text::render(&report).contains("0 recordings"));
//! assert!(json(&report).contains("nestrace-fleet/1"));
//! ```

pub mod chance;
mod report;
pub(crate) mod statements;
pub mod text;

pub use report::{
    Changes, DiskWait, FleetFinding, FleetReport, FleetSegment, Kind, KindWait, LeftOut,
    MAX_FINDINGS, MAX_ROWS, NoisyHost, Outlier, SCHEMA, Slower,
};

/// The JSON form, with a final newline.
#[must_use]
pub fn json(report: &FleetReport) -> String {
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}
